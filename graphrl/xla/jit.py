"""`graphrl.jit` and `graphrl.compile`: programs that run in the order that needs the least memory.

`jit` replaces `jax.jit`; `compile` returns the executable for given arguments.

A program without a plan is never run. Its compilation ends in an exception before XLA generates code. The captured
module is planned, and the program is called again; this compilation gets the planned schedule. So donated arguments are
intact until the planned program takes them, and a program that fits into memory only with its plan can run. Calls of
compiled programs go through jax's own dispatch.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import secrets
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.optimize import DEFAULT_SECONDS
from graphrl.plan import Plan
from graphrl.solvers.base import Progress
from graphrl.units import format_bytes
from graphrl.xla import callback, hook, libraries
from graphrl.xla.callback import Answer, Unplanned
from graphrl.xla.decorated import Decorated, function_name, named_as
from graphrl.xla.libraries import Library, library_of
from graphrl.xla.planning.cache import VERSION
from graphrl.xla.planning.planner import Planner, memory_of, plan_of
from graphrl.xla.report import Report
from graphrl.xla.settings import Settings

try:
    from jax._src.core import trace_state_clean as _no_transformation
except ImportError:  # then the hook is missing too

    def _no_transformation() -> bool:
        return True


_ATTEMPTS = 3

_functions: collections.Counter[str] = collections.Counter()  # number of functions with the same name and settings

_MIN_ROUNDS = 5  # least rounds of timed calls
_SECONDS = 2.0  # for all rounds beyond that


@overload
def jit(fn: Callable[..., Any], **options: Any) -> "PlannedFunction": ...


@overload
def jit(fn: None = None, **options: Any) -> "Callable[[Callable[..., Any]], PlannedFunction]": ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    objective: str = "peak_memory",
    seconds: float = DEFAULT_SECONDS,
    method: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    cache: bool = True,
    recompute: float = 0.0,
    **jit_kwargs: Any,
) -> Any:
    """`jax.jit` with schedules that need little memory: XLA runs each program in the best order found.

    The first call with new shapes plans for at most `seconds`, in addition to compiling. Plans are stored on disk, so
    that the next process only compiles. Programs with less than a mebibyte of temporaries or with `jax.lax.rng_uniform`
    are left alone. A program never needs more memory than under XLA's own schedule: see `graphrl.compile`, which does
    the same for given arguments. Under another transformation (`jax.grad`, `jax.vmap`, an outer `jax.jit`, ...)
    `graphrl.jit` acts as `jax.jit`: put it outermost.

    If an argument contains a module of Flax NNX or Equinox, it acts as `nnx.jit` or `eqx.filter_jit`: changes to
    modules of NNX persist, and leaves of Equinox modules that are not arrays are static.

    Unlike with `jax.jit`, two `graphrl.jit` of one function share no compiled programs: call it once, not in a loop.

    Args:
      fn: the function; without it, a decorator is returned.
      objective, seconds, method, seed, progress, cache, recompute: as in `graphrl.compile`.
      **jit_kwargs: any options of `jax.jit`: static_argnums, donate_argnums, in_shardings, ...

    Returns:
      A function like that of `jax.jit`; its `reports` state the memory saved.

    Raises:
      GraphrlError: an option is invalid; one line names it. From the first call: the method cannot take the program.
      Interrupted: from a call: Ctrl-C in the search.
    """
    settings = Settings(objective, seconds, method, seed, progress, cache, recompute)
    if fn is None:
        return lambda fn: PlannedFunction(fn, settings, jit_kwargs)
    if not callable(fn):
        raise ProblemError(f"fn is of type {type(fn).__name__}: must be a function")
    return PlannedFunction(fn, settings, jit_kwargs)


def compile(
    fn: Any,
    *args: Any,
    objective: str = "peak_memory",
    seconds: float = DEFAULT_SECONDS,
    method: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    cache: bool = True,
    recompute: float = 0.0,
    kwargs: Mapping[str, Any] | None = None,
) -> "Executable":
    """Compiles a function for given arguments, in the order of least memory that planning finds.

    Bodies of loops, branches and calls are ordered too. The program never needs more memory than under XLA: if no order
    is better than that of XLA's better scheduler, that scheduler's order is used. Donated arguments stay donated; if an
    order prevents this for some results, their bytes count as needed, and `Report.undonated_bytes` has them. The
    results are the same to the bit: the instructions are XLA's, in another order; with `recompute`, some run twice.
    (But LLVM compiles some instructions depending on the addresses of their buffers, and may round a last bit
    differently, as it does between XLA's own schedulers.) If jax has no hook for schedules, or the program is for
    another platform than the CPU, XLA's schedule is used, with a warning.

    Args:
      fn: a function; or the result of `jax.jit` or `graphrl.jit`, with static and donated arguments, shardings, ...; or
        the result of their `lower`, without arguments here. Modules of Flax NNX and Equinox among the arguments are
        treated as by `graphrl.jit`.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s: it is traced, not run. Static ones as they are.
      objective: "peak_memory", the only objective for the schedule of one program.
      seconds: time limit of planning, in seconds of wall clock, XLA's pass for its memory scheduler included; a step
        that has started is completed.
      method: as in `graphrl.optimize`.
      seed: 0 to 2^32 - 1.
      progress: as in `graphrl.optimize`.
      cache: True to read plans from disk and store them there, in `$XDG_CACHE_HOME/graphrl/plans`.
      recompute: share of the program's estimated run time, 0 to 1, that may be spent on computing values again instead
        of keeping them, with the same bits. 0.05 often halves the memory of a training step.
      kwargs: keyword arguments of `fn`.

    Returns:
      The executable, with `.plan` and `.report()`.

    Raises:
      GraphrlError: an option is invalid, or an argument has a symbolic dimension; one line names it.
      Interrupted: Ctrl-C in the search.
    """
    settings = Settings(objective, seconds, method, seed, progress, cache, recompute)
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise ProblemError(f"kwargs is of type {type(kwargs).__name__}: must be a dict of keyword arguments of fn")
    library = _library(fn, args, kwargs or {})
    lowered = _lower(fn, args, kwargs or {}) if library is None else library.lowered(args, kwargs or {})
    for argument in jax.tree.leaves(lowered.args_info):
        if any(map(is_symbolic_dim, argument.shape)):
            raise ProblemError(f"an argument of shape {argument.shape} has a symbolic dimension: compile needs sizes")
    missing = hook.why_unavailable(hook.platform_of(lowered))
    if missing is None:
        try:
            return _compile_planned(lowered, Planner(settings), library)
        except ProblemError:
            raise
        except Exception as error:  # any failure, such as a module that graphrl cannot read: the program runs
            missing = one_line(error)
    hook.warn_once(f"graphrl.compile: {missing}; XLA's schedule is used")
    report = Report(getattr(fn, "__name__", "program"), False, missing)
    return Executable(lowered.compile(), lowered, report, library)


class PlannedFunction(Decorated):
    """The function that `graphrl.jit` returns.

    It has the attributes of functions from `jax.jit`: `lower`, `trace`, `eval_shape`, `clear_cache`. These, and calls
    under a transformation, are jax's own: only top-level calls are planned.

    Pickles contain neither plans nor compiled programs. Another process finds the plans on disk.
    """

    def __init__(self, fn: Callable[..., Any], settings: Settings, jit_kwargs: dict[str, Any]) -> None:
        super().__init__(fn)
        self._options = jit_kwargs
        self._planner = Planner(settings)
        self._unplanned: tuple[Report, ...] = ()  # why it runs under plain jax.jit, if it does
        self._start_lock = threading.Lock()
        self._library: Library | None = None
        self._prepare(libraries.guarded(fn, jit_kwargs), jit_kwargs)

    def _prepare(self, traced: Callable[..., Any], jit_kwargs: dict[str, Any]) -> None:
        self._traced, self._kwargs = traced, jit_kwargs
        self._plain: Any = jax.jit(traced, **jit_kwargs)
        self._call: Any = self._start  # until the first call shows that there is a hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._library is None:
            try:
                return self._run(*args, **kwargs)
            except Exception:
                library = self.library_for(args, kwargs)
                if library is None:
                    raise
            with self._start_lock:
                if self._library is None:  # another thread may have been faster
                    self._prepare(library.pure, library.jit_kwargs)
                    self._library = library
        return self._library.call(self._run, args, kwargs)

    def library_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Library | None:
        """Returns the function as a `Library`, if an argument contains a module of NNX or Equinox; else None."""
        library = libraries.library_of(libraries.traced(args, kwargs, self._options))
        return None if library is None else library(self._fn, self._options)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if not _no_transformation():
            return self._plain(*args, **kwargs)
        try:
            return self._call(*args, **kwargs)
        except Exception as error:
            reason = callback.reason(error)
            if reason is None:
                raise
        return self._plan_and_call(reason, args, kwargs)

    # Since Python 3.12 a protocol, here `jax.stages.Wrapped`, only sees attributes that the class defines.
    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces as jax does, without a plan."""
        return self._plain.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers as jax does, without a plan."""
        return self._plain.lower(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_plain" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._plain, name)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickles: the function and its settings."""
        return super().__getstate__() | {"_settings": self._planner.settings, "_options": self._options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores the state of `__getstate__`."""
        self.__init__(self._function(state), state["_settings"], state["_options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<graphrl.jit of {self._fn!r}>"

    @property
    def reports(self) -> tuple[Report, ...]:
        """Reports of the programs that XLA compiled in this process, in the order of their compilation.

        There is one program for each set of shapes, types and static arguments. Programs that were read from jax's
        cache on disk are not included. If the function runs under plain `jax.jit`, the last report states why.
        """
        return *self._planner.reports.values(), *self._unplanned

    def clear_cache(self) -> None:
        """Clears the compiled programs, as jax's does; the plans are kept."""
        for jitted in (self._plain, self._call):
            if jitted != self._start:
                jitted.clear_cache()

    def _start(self, *args: Any, **kwargs: Any) -> Any:
        with self._start_lock:
            if self._call == self._start:
                missing = hook.why_unavailable(_platform(self._kwargs, (args, kwargs)))
                if missing is None:
                    self._call = self._marked()
                else:
                    self._fall_back(missing)
        return self._call(*args, **kwargs)

    def _marked(self) -> Callable[..., Any]:
        """Jits the function under a name with a mark, by which `callback` finds the rule for its modules.

        jax's caches, in memory and on disk, then distinguish its programs from those of the function itself, and from
        those of other settings.
        """
        fn, traced, settings = self._fn, self._traced, self._planner.settings
        name = function_name(fn)
        identity = f"{VERSION} {settings.mark} {getattr(fn, '__module__', '')} {getattr(fn, '__qualname__', name)}"
        _functions[identity] += 1
        unique = f"{identity} {_functions[identity]}" if settings.cache else secrets.token_hex(16)
        mark = hashlib.sha256(unique.encode()).hexdigest()[:16]
        callback.set_rule(mark, self._planner.rule)
        weakref.finalize(self, callback.drop_rule, mark)

        def planned(*args: Any, **kwargs: Any) -> Any:
            return traced(*args, **kwargs)

        named_as(fn, planned).__name__ = callback.marked(name, mark)
        return jax.jit(planned, **self._kwargs)

    def _plan_and_call(self, reason: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for _ in range(_ATTEMPTS):
            if isinstance(reason, Unplanned):
                try:
                    lowered = self._call.lower(*args, **kwargs)
                    self._planner.plan(lowered, reason)
                except ProblemError:  # the method does not fit this program: the user can choose another
                    raise
                except Exception as error:  # after any failure the program runs
                    self._fall_back(one_line(error))
            else:
                self._fall_back(one_line(reason))
            hook.forget_calls(self._call)
            try:
                with contextlib.nullcontext() if self._planner.settings.cache else hook.without_disk_cache():
                    return self._call(*args, **kwargs)
            except Exception as error:
                next_reason = callback.reason(error)
                if next_reason is None:
                    raise
                reason = next_reason
        self._fall_back("XLA compiles a different module each time")
        return self._call(*args, **kwargs)

    def _fall_back(self, why: str) -> None:
        name = function_name(self)
        hook.warn_once(f"graphrl.jit: {why}; {name} runs under plain jax.jit")
        self._unplanned = (Report(name, False, why),)
        self._call = self._plain


class Executable:
    """A compiled program.

    It is called like the function, and has all attributes of `jax.stages.Compiled`: `memory_analysis()`,
    `cost_analysis()`, `as_text()`, `input_shardings`, ...

    Attributes:
      compiled: jax's executable.
    """

    def __init__(
        self, compiled: jax.stages.Compiled, lowered: jax.stages.Lowered, report: Report, library: Library | None
    ) -> None:
        self.compiled = compiled
        self._lowered, self._report, self._library = lowered, report, library
        self._plan: Callable[[], Plan | None] = lambda: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._library is not None:
            return self._library.call(self.compiled, args, kwargs)
        return self.compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.compiled, name)

    def __repr__(self) -> str:  # one line: the program and its order
        report = self._report
        temporaries = "" if report.temp_bytes is None else f"{format_bytes(report.temp_bytes)} of temporaries, "
        order = f"in graphrl's order ({report.found_by})" if report.planned else f"in XLA's order: {report.reason}"
        return f"<graphrl.compile of {report.program!r}: {temporaries}{order}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.compiled)})

    @functools.cached_property
    def plan(self) -> Plan | None:
        """The plan that the program follows, for the graph of its module; None if XLA's schedule is used."""
        return self._plan()

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """Returns a report on the memory that planning saved and, with arguments, on step times.

        Args:
          *args, **kwargs: arrays to call the program with, to measure the time of a step before and after planning.
            This compiles XLA's own schedule and takes some calls of both. Donated arguments are copied first.
        """
        if self._report.xla_bytes is not None and not self._report.memory_measured:
            memory = hook.compile_in_order(self._lowered, "memory", quick=True)
            self._report = dataclasses.replace(self._report, memory_bytes=memory_of(memory)[0], memory_measured=True)
        if args or kwargs:
            before = self._lowered.compile()
            with (
                contextlib.nullcontext((args, kwargs))
                if self._library is None
                else self._library.encoded(args, kwargs) as arrays
            ):
                seconds = step_seconds((before, self.compiled), *arrays)
            self._report = dataclasses.replace(
                self._report, xla_step_seconds=seconds[0], graphrl_step_seconds=seconds[1]
            )
        return self._report


def one_line(error: Exception) -> str:
    """Formats an error as one line, as the reason why there is no plan."""
    text = " ".join(str(error).split())
    return text if isinstance(error, GraphrlError) else f"{type(error).__name__}: {text}"


def _platform(jit_kwargs: dict[str, Any], arguments: Any) -> str:
    """Returns the platform of a call: from the options of jit, else from a committed argument, else jax's default."""
    if jit_kwargs.get("backend"):
        return str(jit_kwargs["backend"])
    leaves = jax.tree.leaves((jit_kwargs.get("in_shardings"), arguments))
    shardings = [getattr(leaf, "sharding", leaf) for leaf in leaves if getattr(leaf, "committed", True)]
    placed = (min(each.device_set, key=str) for each in shardings if isinstance(each, jax.sharding.Sharding))
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    device = jit_kwargs.get("device") or next(placed, None) or default
    return device if isinstance(device, str) else device.platform if device else jax.default_backend()


def _library(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Library | None:
    """Returns `fn` as a `Library` if an argument contains a module of NNX or Equinox and jax has not jitted `fn`."""
    if isinstance(fn, PlannedFunction):
        return fn.library_for(args, kwargs)
    if not callable(fn) or isinstance(fn, type(jax.jit(abs))):
        return None
    library = library_of((args, kwargs))
    return None if library is None else library(fn, {})


def _lower(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> jax.stages.Lowered:
    if isinstance(fn, jax.stages.Lowered):
        if args or kwargs:
            raise ProblemError("a lowered program already has its arguments: give it without arguments")
        return fn
    if not callable(fn):
        raise ProblemError(f"fn is of type {type(fn).__name__}: must be a function, or a result of jit or lower")
    lowered = (fn if hasattr(fn, "lower") else jax.jit(fn)).lower(*args, **kwargs)
    if not isinstance(lowered, jax.stages.Lowered):
        raise ProblemError(f"{type(fn).__name__}.lower does not return a jax.stages.Lowered: give a jitted function")
    return lowered


def _compile_planned(lowered: jax.stages.Lowered, planner: Planner, library: Library | None) -> Executable:
    modules: list[HloModule] = []

    def rule(module: HloModule) -> Answer | None:
        modules[:] = [module]
        return planner.rule(module)

    try:
        compiled = hook.compile_by(lowered, rule)
    except Unplanned as unplanned:
        planner.plan(lowered, unplanned)
        compiled = hook.compile_by(lowered, rule)
    (module,) = modules
    decision = planner.decision(module)
    executable = Executable(compiled, lowered, planner.reports[module.fingerprint], library)
    if decision is not None:
        executable._plan = lambda: plan_of(decision, module)
    return executable


def step_seconds(
    executables: Sequence[jax.stages.Compiled], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[float, ...]:
    """Measures the median run time of one call of each executable, in seconds.

    Calls take turns, so that a change of the machine's load affects all executables alike.

    Args:
      executables: compiled programs with the same signature.
      args, kwargs: arguments of the calls; they stay intact even if the executables donate them.
    """
    times: list[list[float]] = [[] for _ in executables]
    for executable in executables:  # the first call includes one-time setup
        _call_seconds(executable, args, kwargs)
    began = time.perf_counter()
    while len(times[0]) < _MIN_ROUNDS or time.perf_counter() - began < _SECONDS:
        for executable, seconds in zip(executables, times, strict=True):
            seconds.append(_call_seconds(executable, args, kwargs))
    return tuple(statistics.median(seconds) for seconds in times)


def _call_seconds(executable: jax.stages.Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    if executable.donate_argnums:
        args, kwargs = jax.block_until_ready(jax.tree.map(jnp.copy, (args, kwargs)))
    began = time.perf_counter()
    jax.block_until_ready(executable(*args, **kwargs))
    return time.perf_counter() - began
