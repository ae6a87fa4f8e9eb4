"""`graphrl.compile`: XLA's executable of one program, in the order that needs the least memory."""

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from graphrl.errors import ProblemError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.optimize import DEFAULT_SECONDS
from graphrl.plan import Plan
from graphrl.solvers.base import Progress
from graphrl.units import format_bytes
from graphrl.xla import hook
from graphrl.xla.callback import Answer, Unplanned
from graphrl.xla.jit import PlannedFunction, in_words
from graphrl.xla.libraries import Library, library_of
from graphrl.xla.planning.planner import Planner
from graphrl.xla.planning.search import memory_of, plan_of
from graphrl.xla.report import Report
from graphrl.xla.settings import Settings

_MIN_ROUNDS = 5  # of calls that are timed
_SECONDS = 2.0  # for all rounds beyond that


class Executable:
    """A compiled program. It is called like the function, and has whatever `jax.stages.Compiled` has:
    `memory_analysis()`, `cost_analysis()`, `as_text()`, `input_shardings`, ...

    Attributes:
      compiled: what jax made.
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

    def __repr__(self) -> str:  # one line: the program, and what became of its order
        report = self._report
        temporaries = "" if report.temp_bytes is None else f"{format_bytes(report.temp_bytes)} of temporaries, "
        order = f"in graphrl's order ({report.found_by})" if report.planned else f"in XLA's order: {report.reason}"
        return f"<graphrl.compile of {report.program!r}: {temporaries}{order}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.compiled)})

    @functools.cached_property
    def plan(self) -> Plan | None:
        """The plan that the program runs, of the module's graph; None where XLA's schedule stays."""
        return self._plan()

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What planning gained.

        Args:
          *args, **kwargs: arrays to call the program with: then the time of a step before and after is measured too,
            which compiles XLA's own schedule and takes some calls of both. Donated ones are copied before.
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
) -> Executable:
    """Compiles a function for given arguments and has XLA run it in the order that needs the least memory.

    Bodies of loops, branches and calls are ordered too. Never worse than XLA: where no order is found that lowers what
    its better scheduler needs, that one's schedule is taken. Donated arguments are. The results are the same to the
    bit: the instructions are XLA's, only their order changes and, with `recompute`, some of them run twice. (But LLVM
    compiles some by where their buffers lie, and may round a last bit otherwise, as under XLA's schedulers.) Where jax
    has no hook for schedules, or the program is for another platform than the CPU, a warning says so and XLA's schedule
    stays.

    Args:
      fn: a function; or what `jax.jit` or `graphrl.jit` gave, with static and donated arguments, shardings, ...; or
        what `lower` of these gave, without arguments here. Modules of Flax NNX and Equinox among the arguments are what
        they are to `graphrl.jit`.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s: it is traced, not run. Static ones as they are.
      objective: "peak_memory", the only one that one program's schedule has.
      seconds: of planning at most, of wall clock, XLA's pass for its memory scheduler included; what has begun is
        ended.
      method: as in `graphrl.optimize`.
      seed: 0 to 2^32 - 1.
      progress: as in `graphrl.optimize`.
      cache: whether plans are looked for, and kept, on disk: `$XDG_CACHE_HOME/graphrl/plans`.
      recompute: part of the program's estimated run time, 0 to 1, that may be spent on computing values again instead
        of keeping them, with the same bits. 0.05 often halves what a training step needs.
      kwargs: keyword arguments of `fn`.

    Returns:
      The executable, with `.plan` and `.report()`.

    Raises:
      GraphrlError: an option is at fault, or an argument has a symbolic dimension; one line says which.
      Interrupted: Ctrl-C in the search.
    """
    settings = Settings(objective, seconds, method, seed, progress, cache, recompute)
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise ProblemError(f"kwargs is of type {type(kwargs).__name__}: must be a dict of keyword arguments of fn")
    library = _library(fn, args, kwargs or {})
    lowered = _lowered(fn, args, kwargs or {}) if library is None else library.lowered(args, kwargs or {})
    for argument in jax.tree.leaves(lowered.args_info):
        if any(map(is_symbolic_dim, argument.shape)):
            raise ProblemError(f"an argument of shape {argument.shape} has a symbolic dimension: compile takes numbers")
    missing = hook.available(hook.platform_of(lowered))
    if missing is None:
        try:
            return _planned(lowered, Planner(settings), library)
        except ProblemError:
            raise
        except Exception as error:  # whatever it is, say a module that graphrl cannot read: the program runs
            missing = in_words(error)
    hook.warn_once(f"graphrl.compile: {missing}; XLA's schedule stays")
    report = Report(getattr(fn, "__name__", "program"), False, missing)
    return Executable(lowered.compile(), lowered, report, library)


def _library(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Library | None:
    """The function as one over arrays, if an argument is a module of a library and `fn` is not what `jax.jit` gave."""
    if isinstance(fn, PlannedFunction):
        return fn.library_for(args, kwargs)
    if not callable(fn) or isinstance(fn, type(jax.jit(abs))):
        return None
    library = library_of((args, kwargs))
    return None if library is None else library(fn, {})


def _lowered(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> jax.stages.Lowered:
    if isinstance(fn, jax.stages.Lowered):
        if args or kwargs:
            raise ProblemError("a lowered program has its arguments already: give it alone")
        return fn
    if not callable(fn):
        raise ProblemError(f"fn is of type {type(fn).__name__}: must be a function, or what jit or lower gives")
    lowered = (fn if hasattr(fn, "lower") else jax.jit(fn)).lower(*args, **kwargs)
    if not isinstance(lowered, jax.stages.Lowered):
        raise ProblemError(f"{type(fn).__name__}.lower gives no jax.stages.Lowered: give a function that jax.jit takes")
    return lowered


def _planned(lowered: jax.stages.Lowered, planner: Planner, library: Library | None) -> Executable:
    seen: list[HloModule] = []

    def rule(module: HloModule) -> Answer | None:
        seen[:] = [module]
        return planner.rule(module)

    try:
        compiled = hook.compile_by(lowered, rule)
    except Unplanned as unplanned:
        planner.plan(lowered, unplanned)
        compiled = hook.compile_by(lowered, rule)
    (module,) = seen
    decision = planner.decision(module)
    executable = Executable(compiled, lowered, planner.reports[module.fingerprint], library)
    if decision is not None:
        executable._plan = lambda: plan_of(decision, module)
    return executable


def step_seconds(
    executables: Sequence[jax.stages.Compiled], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[float, ...]:
    """The median of one call of each, taken in turns, so that a change of the machine's load meets all alike.

    Args:
      executables: of one signature.
      args, kwargs: to call them with; they are left intact, also where the executables donate them.
    """
    times: list[list[float]] = [[] for _ in executables]
    for executable in executables:  # the first call sets things up
        _call_seconds(executable, args, kwargs)
    began = time.perf_counter()
    while len(times[0]) < _MIN_ROUNDS or time.perf_counter() - began < _SECONDS:
        for executable, spent in zip(executables, times, strict=True):
            spent.append(_call_seconds(executable, args, kwargs))
    return tuple(statistics.median(spent) for spent in times)


def _call_seconds(executable: jax.stages.Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    if executable.donate_argnums:
        args, kwargs = jax.block_until_ready(jax.tree.map(jnp.copy, (args, kwargs)))
    began = time.perf_counter()
    jax.block_until_ready(executable(*args, **kwargs))
    return time.perf_counter() - began
