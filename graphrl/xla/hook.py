"""XLA's compiler with a say in its schedule: capture what it would run, and have it run another order.

Where jax has no name of its own for what is needed (jax 0.10), the private ones are here; `available` says whether
they are there.
"""

import contextlib
import copy
import secrets
import warnings
from typing import Any

import jax

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla import backend, callback
from graphrl.xla.backend import SCHEDULERS, renamed
from graphrl.xla.callback import Rule, Scheduler, Unplanned
from graphrl.xla.planning.cache import Places, named_orders

PLATFORM = "cpu"
GPUS = ("gpu", "cuda", "rocm")  # as jax names them

# Buffers are assigned before code is generated, so that a figure needs no good code.
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


_said: set[str] = set()


def warn_once(message: str) -> None:
    """Warns, unless the same has been said before in this process."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=3)


def available(platform: str = PLATFORM) -> str | None:
    """None where XLA is given other schedules on this platform, else one line that says why it is not."""
    if platform in GPUS:
        why = "it is near the least memory already, and where XLA takes another it forgets what is donated"
        return f"XLA's own order stands on GPUs: {why}"
    if platform != PLATFORM:
        return f"XLA's own order stands on {platform}: graphrl plans programs for {PLATFORM} and no other"
    if jax.process_count() > 1:
        return "XLA's hook for schedules is for one process: several would have to agree on one order of collectives"
    try:
        callback.register()
        backend.install()
        _check_private_names()
    except (ImportError, AttributeError, NotImplementedError) as error:
        return f"jax {jax.__version__} has no hook for schedules (jax and jaxlib from 0.10.2 have it): {error}"
    return None


def captured(lowered: jax.stages.Lowered, scheduler: Scheduler = "default") -> HloModule:
    """The optimised module of a lowered program as XLA schedules it, without generating code: seconds, no weights.

    Args:
      lowered: what `jax.jit(fn).lower(...)` gives.
      scheduler: XLA's "default" one or the one that it offers for "memory".

    Raises:
      GraphrlError: this jax has no hook.
    """

    def stop(module: HloModule) -> None:
        raise Unplanned(module)

    try:
        compile_by(lowered, stop, scheduler=scheduler)
    except Unplanned as stopped:
        return stopped.module
    raise GraphrlError("XLA did not show its module: the program must be compiled for the CPU of this process")


def compile_in_order(
    lowered: jax.stages.Lowered, order: Scheduler | Places = "default", *, quick: bool = False
) -> jax.stages.Compiled:
    """Compiles with the computations in given orders; with them, arguments are not donated.

    Args:
      lowered: what `jax.jit(fn).lower(...)` gives.
      order: of one of XLA's schedulers; or of each computation in `HloModule.sequential`, places in its instructions.
      quick: for `memory_analysis()` only: the same buffers, slow code.

    Raises:
      PlanError: the places are no orders of the module's instructions.
      GraphrlError: this jax has no hook.
    """
    if isinstance(order, str):
        return compile_by(lowered, lambda _: None, scheduler=order, quick=quick)
    return compile_by(lowered, lambda module: named_orders(module, order), quick=quick)


def compile_by(
    lowered: jax.stages.Lowered, rule: Rule, *, scheduler: Scheduler = "default", quick: bool = False
) -> jax.stages.Compiled:
    """Compiles with the schedule that a rule gives to the module; what the rule raises comes out.

    Neither jax's caches in memory nor the one on disk know of this compilation: the next one runs the rule again.

    Raises:
      GraphrlError: this jax has no hook.
    """
    missing = available()
    if missing is not None:
        raise GraphrlError(missing)
    mark = secrets.token_hex(8)
    callback.set_rule(mark, rule)
    try:
        with unkept():  # the mark is never met again
            twin = _renamed(lowered, mark)
            return twin.compile(compiler_options={**SCHEDULERS[scheduler], **(_QUICK if quick else {})})
    except Exception as error:
        reason = callback.reason(error)
        if reason is None:
            raise
        raise reason from None
    finally:
        callback.drop_rule(mark)


def unkept() -> contextlib.AbstractContextManager[None]:
    """While it lasts, this thread's compilations leave nothing in jax's cache on disk."""
    from jax._src import config

    return config.persistent_cache_min_compile_time_secs(float("inf"))


def forget_calls(jitted: Any) -> None:
    """Has jax look at the next calls of a jitted function anew: one whose compilation raised would go through Python
    from then on, which takes many times as long as jax's fast path.
    """
    jitted._clear_cache()


def _check_private_names() -> None:
    from jax._src import compilation_cache, config, core
    from jax._src.interpreters.pxla import MeshComputation
    from jaxlib.mlir import ir

    _ = config.persistent_cache_min_compile_time_secs, core.trace_state_clean, ir.Module.parse
    _ = compilation_cache.is_cache_used, jax.jit(abs)._clear_cache  # type: ignore[attr-defined]
    if not {"_hlo", "_executable"} <= MeshComputation.__annotations__.keys():
        raise AttributeError("MeshComputation has no _hlo, _executable")


def platform_of(lowered: jax.stages.Lowered) -> str:
    """The platform that a program was lowered for: "cpu", "cuda", ..."""
    try:
        return str(lowered._lowering.compile_args["backend"].platform)
    except (AttributeError, KeyError):
        return jax.default_backend()


def _renamed(lowered: jax.stages.Lowered, mark: str) -> jax.stages.Lowered:
    """A copy whose module's name bears the mark, and which has no executable yet."""
    twin, twin._lowering = copy.copy(lowered), copy.copy(lowered._lowering)
    module = renamed(lowered.compiler_ir("stablehlo"), mark)
    twin._lowering._hlo, twin._lowering._executable = module, None  # type: ignore[attr-defined]
    return twin
