"""Schedules for XLA's compiler: captures the module that XLA would run, and compiles it in another order.

jax calls one function for each module that XLA compiles. `_Compilation` replaces it, once in a process. Unmarked
modules pass through unchanged. For a marked module it applies the answer of the module's rule and checks the result: it
restores donation, selects XLA's other scheduler, and keeps XLA's own schedule if an order needs more than predicted.

Where jax has no public name (jax 0.10), this file uses private ones; `why_unavailable` checks that they exist and that
the platform takes schedules.
"""

import contextlib
import copy
import io
import secrets
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from graphrl.errors import GraphrlError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla import callback
from graphrl.xla.callback import Answer, Rule, Scheduler, Unplanned
from graphrl.xla.donation import mark_donated
from graphrl.xla.planning.cache import Places, named_orders

# Compiler options of each of XLA's schedulers.
SCHEDULERS: dict[Scheduler, dict[str, Any]] = {
    "default": {},
    "memory": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
}
_MARKER = "_graphrl"  # an attribute of the function in jax's place
_installing = threading.Lock()
_TOLERANCE = 0.01  # tolerated error of a prediction, as a share of it
_LONGEST = 200  # most characters of a reason
_loaded = threading.local()  # `.last`: this thread's loaded executable and its serialized form, until jax caches it
PLATFORM = "cpu"
GPUS = ("gpu", "cuda", "rocm")  # as jax names them

# Buffers are assigned before code is generated, so that memory figures do not need optimised code.
_QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_warned: set[str] = set()  # messages of earlier warnings


def why_unavailable(platform: str = PLATFORM) -> str | None:
    """Returns one line why XLA cannot be given other schedules on this platform; None if it can."""
    if platform in GPUS:
        why = "it needs close to the least memory already, and XLA drops donation when it is given another order"
        return f"XLA's own order is used on GPUs: {why}"
    if platform != PLATFORM:
        return f"XLA's own order is used on {platform}: graphrl plans programs for {PLATFORM} only"
    if jax.process_count() > 1:
        return "XLA's hook for schedules is for one process: several would have to agree on one order of collectives"
    try:
        callback.register()
        install()
        _check_private_names()
    except (ImportError, AttributeError, NotImplementedError) as error:
        return f"jax {jax.__version__} has no hook for schedules (jax and jaxlib from 0.10.2 have it): {error}"
    return None


def captured(lowered: jax.stages.Lowered, scheduler: Scheduler = "default") -> HloModule:
    """Captures the optimised module of a lowered program, with XLA's own schedule.

    No code is generated: this takes seconds and needs no weights.

    Args:
      lowered: the result of `jax.jit(fn).lower(...)`.
      scheduler: XLA's "default" scheduler or its scheduler for "memory".

    Raises:
      GraphrlError: this jax has no hook, or the program is not for the CPU of this process.
    """

    def stop(module: HloModule) -> None:
        raise Unplanned(module)

    try:
        compile_by(lowered, stop, scheduler=scheduler)
    except Unplanned as stopped:
        return stopped.module
    raise GraphrlError("XLA's module was not captured: the program must be compiled for the CPU of this process")


def compile_in_order(
    lowered: jax.stages.Lowered, order: Scheduler | Places = "default", *, quick: bool = False
) -> jax.stages.Compiled:
    """Compiles with the order of an XLA scheduler, or in given orders; given orders donate no arguments.

    Args:
      lowered: the result of `jax.jit(fn).lower(...)`.
      order: one of XLA's schedulers; or for each of `HloModule.sequential`, indices of its instructions in order.
      quick: compile fast, to slow code with the same buffers, if only `memory_analysis()` is needed.

    Raises:
      PlanError: the indices are not valid orders of the module's instructions.
      GraphrlError: this jax has no hook.
    """
    if isinstance(order, str):
        return compile_by(lowered, lambda _: None, scheduler=order, quick=quick)
    return compile_by(lowered, lambda module: named_orders(module, order), quick=quick)


def compile_by(
    lowered: jax.stages.Lowered, rule: Rule, *, scheduler: Scheduler = "default", quick: bool = False
) -> jax.stages.Compiled:
    """Compiles with the schedule that a rule gives to the module.

    The compilation uses neither jax's caches in memory nor the one on disk: the next one runs the rule again.

    Raises:
      GraphrlError: this jax has no hook.
      Exception: any exception that the rule raises.
    """
    missing = why_unavailable()
    if missing is not None:
        raise GraphrlError(missing)
    mark = secrets.token_hex(8)
    callback.set_rule(mark, rule)
    try:
        with without_disk_cache():  # the mark is never used again
            twin = _renamed(lowered, mark)
            return twin.compile(compiler_options={**SCHEDULERS[scheduler], **(_QUICK if quick else {})})
    except Exception as error:
        reason = callback.reason(error)
        if reason is None:
            raise
        raise reason from None
    finally:
        callback.drop_rule(mark)


def warn_once(message: str) -> None:
    """Warns, once for each message in this process."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=3)


def without_disk_cache() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this thread's compilations write nothing into jax's cache on disk."""
    from jax._src import config

    return config.persistent_cache_min_compile_time_secs(float("inf"))


def with_source_lines() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this thread's compilations read no program of other source lines from jax's caches on
    disk: by default, lines do not count there.
    """
    from jax._src import config

    return config.compilation_cache_include_metadata_in_key(True)


def forget_calls(jitted: Any) -> None:
    """Clears jax's dispatch cache of a jitted function.

    A function whose compilation raised would otherwise be called through Python, which takes many times as long as
    jax's fast path.
    """
    jitted._clear_cache()


def platform_of(lowered: jax.stages.Lowered) -> str:
    """Returns the platform that a program was lowered for: "cpu", "cuda", ..."""
    try:
        return str(lowered._lowering.compile_args["backend"].platform)
    except (AttributeError, KeyError):
        return jax.default_backend()


def install() -> None:
    """Replaces jax's compile function by `_Compilation`, once in a process.

    Raises:
      ImportError, AttributeError: this jax has no such functions.
    """
    from jax._src import compiler

    with _installing:
        if not hasattr(compiler.backend_compile_and_load, _MARKER):
            compiler._cache_write = _write_serialized(compiler._cache_write)
            compiler.backend_compile_and_load = _wrap_compile(compiler.backend_compile_and_load)


def renamed(module: Any, mark: str) -> Any:
    """Copies a StableHLO module, and adds a mark to the copy's name (`callback.marked`)."""
    from jaxlib.mlir import ir

    content = io.BytesIO()
    module.operation.write_bytecode(file=content)
    with module.context:
        clone = ir.Module.parse(content.getvalue())
        name = ir.StringAttr(clone.operation.attributes["sym_name"]).value
        clone.operation.attributes["sym_name"] = ir.StringAttr.get(callback.marked(name, mark))
    return clone


class _OtherScheduler(Exception):
    """Raised to end a compilation whose module is to be scheduled by XLA's other scheduler."""


class _Serialized(NamedTuple):
    """Replaces an executable when jax's cache on disk serializes it."""

    data: bytes

    def serialize(self) -> bytes:
        return self.data


def _write_serialized(original: Any) -> Any:
    """Wraps jax's cache writes: a loaded executable serializes without its code (0.10.2), so its own data is stored."""

    def write(key: str, seconds: float, name: str, backend: Any, executable: Any, *callbacks: Any) -> Any:
        loaded, data = _loaded.__dict__.pop("last", (None, b""))
        executable = _Serialized(data) if loaded is executable else executable
        return original(key, seconds, name, backend, executable, *callbacks)  # jax 0.11 has no callbacks

    return write


def _wrap_compile(original: Any) -> Any:
    def compile_and_load(backend: Any, module: Any, devices: Any, options: Any, callbacks: Sequence[Any]) -> Any:
        rule = callback.rule_of(module.operation.attributes["sym_name"].value.encode())
        if rule is None:
            return original(backend, module, devices, options, callbacks)
        return _Compilation(original, (backend, devices, options, callbacks), module).run(rule)

    setattr(compile_and_load, _MARKER, True)
    return compile_and_load


class _Compilation:
    """Compiles one module as a rule decides, and checks the result."""

    def __init__(self, original: Any, target: tuple[Any, Any, Any, Sequence[Any]], module: Any) -> None:
        self._original, self._module = original, module
        self._backend, self._devices, self._options, self._callbacks = target

    def run(self, rule: Rule) -> Any:
        """Compiles with the schedule that a rule chooses; returns the loaded executable."""
        answers: list[Answer] = []
        began = time.perf_counter()

        def recording(module: HloModule) -> Any:
            try:
                answer = rule(module)
            except Unplanned as unplanned:
                unplanned.seconds = time.perf_counter() - began
                raise
            if isinstance(answer, Answer):
                answers[:] = [answer]
                if answer.scheduler != "default":
                    raise _OtherScheduler
            return answer

        try:
            executable = self._compiled(recording)
        except Exception as error:
            reason = callback.reason(error)
            if reason is None:
                raise
            if not isinstance(reason, _OtherScheduler):
                callback.keep_reason(error, reason)
                raise
            return self._by_scheduler(answers[0].scheduler)
        return self._checked(executable, answers[0]) if answers else executable

    def _compiled(self, rule: Rule | None) -> Any:
        mark = secrets.token_hex(8)  # of this compilation alone: other threads may compile the same function
        if rule is not None:
            callback.set_rule(mark, rule)
        try:
            module = renamed(self._module, mark)
            return self._original(self._backend, module, self._devices, self._options, self._callbacks)
        finally:
            callback.drop_rule(mark)

    def _by_scheduler(self, scheduler: Scheduler) -> Any:
        before = list(self._options.env_option_overrides)
        self._options.env_option_overrides = [*before, *SCHEDULERS[scheduler].items()]
        try:
            return self._compiled(None)
        finally:
            self._options.env_option_overrides = before

    def _checked(self, executable: Any, answer: Answer) -> Any:
        """Restores donation of the executable; returns another one if it does not meet the answer's prediction."""
        from jax._src.compilation_cache import is_cache_used

        if answer.module is None:
            return executable
        if answer.temp_bytes is not None:
            temp = _temporaries(executable)
            if abs(temp - answer.temp_bytes) > _TOLERANCE * answer.temp_bytes:
                if answer.fallback is not None and temp + answer.undonated_bytes > answer.fallback_bytes:
                    return self.run(answer.fallback)
                default = self._compiled(None)
                answer.on_misprediction(temp, _temporaries(default), "")
                if _temporaries(default) <= temp + answer.undonated_bytes:
                    return default
        if not answer.aliases:
            return executable
        try:
            data = mark_donated(self._backend.serialize_executable(executable), answer.aliases)
            loaded = self._backend.deserialize_executable(data, self._devices, self._options, self._callbacks)
        except Exception as error:  # another jaxlib may differ: XLA's own schedule keeps all donation
            default = self._compiled(None)
            why = " ".join(f"donated arguments cannot be kept: {error}".split())[:_LONGEST]
            answer.on_misprediction(_temporaries(executable), _temporaries(default), why)
            return default
        if is_cache_used(self._backend):
            _loaded.last = loaded, data
        return loaded


def _temporaries(executable: Any) -> int:
    return int(executable.get_compiled_memory_stats().temp_size_in_bytes)


def _check_private_names() -> None:
    from jax._src import compilation_cache, config, core
    from jax._src.interpreters.pxla import MeshComputation
    from jaxlib.mlir import ir

    _ = config.persistent_cache_min_compile_time_secs, core.trace_state_clean, ir.Module.parse
    _ = compilation_cache.is_cache_used, jax.jit(abs)._clear_cache  # type: ignore[attr-defined]
    if not {"_hlo", "_executable"} <= MeshComputation.__annotations__.keys():
        raise AttributeError("MeshComputation has no _hlo, _executable")


def _renamed(lowered: jax.stages.Lowered, mark: str) -> jax.stages.Lowered:
    """Copies a lowered program, with a mark in its module's name and without an executable."""
    twin, twin._lowering = copy.copy(lowered), copy.copy(lowered._lowering)
    module = renamed(lowered.compiler_ir("stablehlo"), mark)
    twin._lowering._hlo, twin._lowering._executable = module, None  # type: ignore[attr-defined]
    return twin
