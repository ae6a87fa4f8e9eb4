"""Faster compilation to the same machine code, by numba's internals.

`Part` compiles functions that only compiled functions call, to LLVM's intermediate code. The calling `Entry` optimises
it together with its own. Plain `numba.njit` takes 1.6 times as long: 7.0 s instead of 4.3 s for `anneal-schedule`.
"""

from typing import Any

from numba._dynfunc import make_function  # type: ignore[import-not-found]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering

# The other passes are for closures, lists of several types, parallel loops and rewrites of array arithmetic.
NEEDED = frozenset(
    (
        *("TranslateByteCode", "FixupArgs", "IRProcessing", "RewriteSemanticConstants", "DeadBranchPrune"),
        *("ReconstructSSA", "NopythonTypeInference", "PreLowerStripPhis", "NativeLowering", "NoPythonBackend"),
    )
)


class _PartLibrary(JITCodeLibrary):
    """LLVM's intermediate code of a part."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Does nothing: the callers that inline the part optimise it."""

    def _optimize_final_module(self) -> None:
        """Does nothing, for the same reason."""

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Lowers a part without generating machine code."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        description = state.cr.fndesc
        # numba identifies the part by this name, since Python cannot call it
        name = make_function(description.lookup_module(), description.qualname, "", 0, state.cr.env, (state.library,))
        state.targetctx.insert_user_function(name, description, [state.library])
        state.cr = state.cr._replace(cfunc=name)
        return True


class Entry(CompilerBase):
    """Compiles a function that Python calls."""

    lowering: Any = NativeLowering

    def define_pipelines(self) -> list[Any]:
        """The passes of numba's own pipeline that these functions need."""
        passes = PassManager("graphrl")
        for step, name in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if step.__name__ in NEEDED:
                passes.add_pass(self.lowering if step is NativeLowering else step, name)
        passes.finalize()
        return [passes]


class Part(Entry):
    """Compiles a function that only compiled functions call."""

    lowering = _PartLowering


def import_without_scipy() -> None:
    """Imports the module of numba that imports scipy.linalg only to check that it exists, without this import.

    This saves a quarter of a second. graphrl requires scipy, and numba checks again before it uses it.
    """
    from numba.np import linalg

    look = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = look
