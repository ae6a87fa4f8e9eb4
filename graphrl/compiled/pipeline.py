"""What numba does with our functions: the passes that they need, and machine code of entries alone.

By itself numba optimises every function together with all that it calls, and makes machine code of that, so that what
is called at depth four is compiled four times, and once more for itself. Here a part stays as it was lowered until an
entry takes it in, which is optimised as a whole: a third less to compile. The passes that are left out serve closures,
lists of several types, parallel loops and rewrites of arrays' arithmetic, none of which ours have.
"""

from typing import Any

from numba._dynfunc import make_function  # type: ignore[import-not-found]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)


class _PartLibrary(JITCodeLibrary):
    """LLVM's code of a part."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Those who take it in do."""

    def _optimize_final_module(self) -> None:
        """The same."""

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Lowers a part, and makes no machine code of it."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        description = state.cr.fndesc
        # what numba knows it by, in place of a function for Python to call
        name = make_function(description.lookup_module(), description.qualname, "", 0, state.cr.env, (state.library,))
        state.targetctx.insert_user_function(name, description, [state.library])
        state.cr = state.cr._replace(cfunc=name)
        return True


class Entry(CompilerBase):
    """Compiles a function for Python to call."""

    lowering: Any = NativeLowering

    def define_pipelines(self) -> list[Any]:
        """What numba's own has, without what no function of ours needs."""
        passes = PassManager("graphrl")
        for step in (
            *(TranslateByteCode, FixupArgs, IRProcessing, RewriteSemanticConstants, DeadBranchPrune, ReconstructSSA),
            *(NopythonTypeInference, PreLowerStripPhis, self.lowering, NoPythonBackend),
        ):
            passes.add_pass(step, step._name)
        passes.finalize()
        return [passes]


class Part(Entry):
    """Compiles a function that only compiled ones call."""

    lowering = _PartLowering
