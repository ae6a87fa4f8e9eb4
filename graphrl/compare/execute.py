"""Making one run: the method under a clock, its curve, its faults as an error in the row."""

import contextlib
import dataclasses
import datetime
import gc
import math
import time
import warnings
from collections.abc import Callable

from graphrl.bench.machine import device_name
from graphrl.compare.runs import Case, Point, Row, Run
from graphrl.compile_clock import compile_clock, maps_run_short
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress, Task

WARM_UP_SECONDS = 1.0  # at most: enough that a portfolio gets past its first stage
COMPILE_SHARE = 0.05  # of the budget: a run that compiled for longer is made once more
BOUND_ROUNDING = 1e-9  # relative, of makespans: sums of floats depend on their order
_MAX_PROGRAMS = 200  # (method, sizes) pairs whose compiled programs are kept: thousands would fill the memory
_LOOK_SECONDS = 1.0  # between two exact looks at the best plan, under a memory limit


class Executor:
    """Makes runs, one after another, in this process. Remembers bounds, and what is compiled already."""

    def __init__(self) -> None:
        self._bounds: dict[Case, float] = {}
        self._warm: set[tuple[str, Problem, Sizes]] = set()

    def execute(self, run: Run) -> Row:
        """The row of a run; whatever goes wrong inside the method is its `error`.

        With `run.warm_up` and a budget in seconds, the method first runs for a second at most on this graph, unless it
        has run on one of the same padded sizes (whatever latency, bandwidth and limit were: compiled programs take
        them as arguments). A run that nevertheless compiled for more than a twentieth of its budget (a stage that only
        a larger budget reaches) is made once more, and the second one counts.

        Raises:
          KeyboardInterrupt: Ctrl-C; the run is lost.
        """
        if maps_run_short():  # of a method that compiles for every graph, some hundred runs
            self._forget_programs()
        warm = run.warm_up and run.budget.seconds is not None
        if warm:
            self._warm_up(run)
        row = self._measure(run)
        if warm and row.compile_seconds > COMPILE_SHARE * (run.budget.seconds or 0):
            row = self._measure(run)
        return row

    def _warm_up(self, run: Run) -> None:
        limit = None if run.problem.memory_limit is None else 1  # one program for any limit
        problem = dataclasses.replace(run.problem, latency=0.0, bandwidth=math.inf, memory_limit=limit)
        program = (run.method, problem, run.sizes or common_sizes([run.graph]))
        if program in self._warm:
            return
        if len(self._warm) >= _MAX_PROGRAMS:
            self._forget_programs()
        seconds = min(WARM_UP_SECONDS, run.budget.seconds or WARM_UP_SECONDS)
        with contextlib.suppress(Exception), warnings.catch_warnings():  # the run itself will tell
            warnings.simplefilter("ignore")
            _solved(run, Budget(run.budget.evaluations, seconds))
        self._warm.add(program)

    def _forget_programs(self) -> None:
        import jax

        jax.clear_caches()
        gc.collect()
        self._warm.clear()

    def _measure(self, run: Run) -> Row:
        curve = _Curve(run.problem)
        with compile_clock() as compiling, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            started = time.perf_counter()
            try:
                plan = _solved(run, run.budget, curve)
                seconds = time.perf_counter() - started
                plan.check(run.graph)
                bound = self._bound(run, plan)
            except Exception as error:  # a comparison outlives any fault of a method, ours included
                return row_of(run, seconds=time.perf_counter() - started, error=fault_of(error))
        return row_of(
            run,
            value=plan.value,
            bound=bound,
            excess=plan.excess,
            makespan=plan.makespan,
            peak_memory=plan.peak_memory,
            seconds=seconds,
            compile_seconds=compiling(),
            evaluations=plan.evaluations,
            note=fault_of(warned[0].message) if warned else None,
            curve=curve.ended(seconds, plan),
        )

    def _bound(self, run: Run, plan: Plan) -> float:
        case = run.fingerprint, run.problem
        if case not in self._bounds:
            self._bounds[case] = lower_bound(run.graph, run.problem)
        bound = max(self._bounds[case], plan.bound or 0)
        if below(plan.value, bound, run.problem):
            raise GraphrlError(f"the value {plan.value!r} is below the lower bound {bound!r}: one of them is wrong")
        return bound


def _solved(run: Run, budget: Budget, progress: Progress | None = None) -> Plan:
    import jax.numpy as jnp

    # an accelerator decodes in as many steps as padded rows may need, a CPU only in those of the real ones
    (device,) = jnp.zeros(()).devices()  # where computations go: not always one of the default backend
    sizes = run.sizes if device.platform == "cpu" else None
    return find_solver(run.method)(Task(run.graph, run.problem, budget, run.seed, progress, sizes=sizes))


def below(value: float, bound: float, problem: Problem) -> bool:
    """Whether a value is below a bound, by more than rounding."""
    return value < bound * (1 - (0 if problem.objective == "peak_memory" else BOUND_ROUNDING))


def row_of(run: Run, **fields: object) -> Row:
    """The row of a run with what is known before it, and `fields`."""
    import graphrl

    return Row(
        key=run.key,
        graph=run.graph.name,
        fingerprint=run.fingerprint,
        ops=len(run.graph.ops),
        method=run.method,
        problem=run.problem,
        seed=run.seed,
        budget=run.budget,
        cores=run.cores,
        warm_up=run.warm_up,
        machine=device_name(),
        graphrl=graphrl.__version__,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **fields,  # type: ignore[arg-type]
    )


class _Curve:
    """A progress callback that keeps improvements."""

    def __init__(self, problem: Problem) -> None:
        self._limited = problem.memory_limit is not None
        self._points: list[Point] = []
        self._started = time.perf_counter()
        self._looked = float("-inf")

    def __call__(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        now = time.perf_counter() - self._started
        if self._limited:  # the device's value mixes time and excess: only the plan can tell
            if now - self._looked < _LOOK_SECONDS:
                return
            self._looked, best = now, plan()
            if best.excess:
                return
            value = best.value
        if not self._points or value < self._points[-1][2]:
            self._points.append((now, evaluations, value))

    def ended(self, seconds: float, plan: Plan) -> tuple[Point, ...]:
        """The curve with the plan at its end; earlier points are float32, and never below the exact value."""
        earlier = ((s, e, max(v, plan.value)) for s, e, v in self._points if s < seconds)
        final = () if plan.excess else ((seconds, plan.evaluations, plan.value),)
        return (*earlier, *final)


def fault_of(error: object) -> str:
    """A fault or a warning in one line; of faults that are no user's the kind is told."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, GraphrlError | Warning):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
