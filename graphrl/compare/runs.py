"""A run (one method on one graph with one seed and budget), its result as a row of a file, and its executor.

A row's file format is "graphrl-run", version 1: one JSON object a line (`comparison.py`), bytes and seconds as numbers,
null for missing values. The curve is a list of [seconds, evaluations, value] for every improvement that the method
reported; its last point is the plan's exact value at the end.

`Executor` times the method; its errors are recorded in the row.
"""

import contextlib
import dataclasses
import datetime
import functools
import gc
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from graphrl.bench.machine import device_name
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes, shared_sizes
from graphrl.graphs.readers.json import graph_to_dict
from graphrl.methods import digest, find_solver
from graphrl.plan import Plan
from graphrl.process import near_mmap_limit
from graphrl.progress import compile_clock
from graphrl.solvers.base import Budget, Progress, Task

FORMAT, VERSION = "graphrl-run", 1
Case = tuple[str, Problem]  # one graph (its fingerprint) under one problem: values are comparable within a case
Point = tuple[float, int, float]  # seconds, evaluations, value
WARM_UP_SECONDS = 1.0  # at most: enough for a portfolio to pass its first stage
COMPILE_SHARE = 0.05  # of the budget: a run that compiled for longer is repeated
BOUND_ROUNDING = 1e-9  # relative, of makespans: sums of floats depend on their order
_MAX_PROGRAMS = 200  # (method, sizes) pairs whose compiled programs are kept: thousands would fill the memory
_CHECK_SECONDS = 1.0  # between two exact evaluations of the best plan, under a memory limit


def fingerprint(graph: ComputationGraph) -> str:
    """Hashes a graph's content, including names of ops and tensors but not the graph's own: 16 hexadecimal digits.

    Methods may break ties by name or by the order of ops, so equal fingerprints mean equal results.
    """
    value = graph_to_dict(graph)
    del value["name"]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One run: a method on a graph under a problem and a budget.

    Attributes:
      graph, fingerprint: the graph, and its `fingerprint`.
      problem, method, seed, budget: arguments of the solver; the method may carry options
        ("approximate-dp:width=1000").
      cores: number of cores that the run may use.
      warm_up: True to compile programs before the clock starts; only under a budget in seconds.
      trained: digest of the trained policy that the method uses (`methods.digest`), "" for other methods.
      sizes: padded sizes, for methods whose results do not depend on padding; None for the graph's own bucket.
    """

    graph: ComputationGraph
    fingerprint: str
    problem: Problem
    method: str
    seed: int
    budget: Budget
    cores: int
    warm_up: bool = True
    trained: str = ""
    sizes: Sizes | None = None

    @functools.cached_property
    def key(self) -> str:
        """Hashes the graph's content and every setting that can change the result: 32 hexadecimal digits.

        Equal runs have equal keys. The number of cores and the warm-up count only under a budget in seconds.
        """
        settings: dict[str, Any] = {
            "version": VERSION,
            "graph": self.fingerprint,
            "problem": _problem_to_dict(self.problem),
            "method": self.method,
            "seed": self.seed,
            "budget": dataclasses.asdict(self.budget),
        }
        if self.trained:
            settings["trained"] = self.trained
        if self.budget.seconds is not None:
            settings |= {"cores": self.cores, "warm_up": self.warm_up}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Row:
    """Result of a run, one line of the results file.

    Attributes:
      key: `Run.key` of the run.
      graph, fingerprint, ops: graph name, `fingerprint`, and number of ops.
      method, problem, seed, budget, cores, warm_up: settings of the run, see `Run`.
      value: exact value of the objective; None if the run failed.
      bound: best lower bound from the method and `costs/bounds`.
      excess: bytes above the memory limit.
      makespan, peak_memory: makespan in seconds, and peak bytes of each device.
      seconds: wall-clock time, measured around the method.
      compile_seconds: part of `seconds` that JAX spent on compiling.
      evaluations: number of evaluations, as the method counts them.
      error: one line on why there is no plan, or None.
      note: the method's first warning, one line, or None.
      curve: improvements as (seconds, evaluations, value).
      machine, graphrl, date: machine of the run, version of graphrl, and time of the run (UTC, ISO 8601).
    """

    key: str
    graph: str
    fingerprint: str
    ops: int
    method: str
    problem: Problem
    seed: int
    budget: Budget
    cores: int
    warm_up: bool
    value: float | None = None
    bound: float | None = None
    excess: int | None = None
    makespan: float | None = None
    peak_memory: tuple[int, ...] | None = None
    seconds: float = 0.0
    compile_seconds: float = 0.0
    evaluations: int = 0
    error: str | None = None
    note: str | None = None
    curve: tuple[Point, ...] = ()
    machine: str = ""
    graphrl: str = ""
    date: str = ""

    @property
    def case(self) -> Case:
        """Graph and problem of the row; values are comparable within one case."""
        return self.fingerprint, self.problem

    @property
    def feasible(self) -> bool:
        """True if there is a plan within the memory limit."""
        return self.value is not None and self.excess == 0

    def to_dict(self) -> dict[str, Any]:
        """Converts the row to a JSON object of the file's format."""
        value: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for field in dataclasses.fields(self):
            value[field.name] = getattr(self, field.name)
        model = _problem_to_dict(value.pop("problem"))
        return {**value, "objective": model.pop("objective"), "model": model, "budget": dataclasses.asdict(self.budget)}

    @staticmethod
    def from_dict(value: object) -> "Row":
        """Reads a row from a JSON object of the file's format.

        Raises:
          GraphrlError: the value is not such an object.
        """
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise GraphrlError(f'not a run: must have "format": "{FORMAT}"')
        if value.get("version") != VERSION:
            raise GraphrlError(f'version is {value.get("version")!r}: this graphrl reads "version": {VERSION}')
        fields = {key: item for key, item in value.items() if key not in ("format", "version", "objective", "model")}
        try:
            model = {"objective": value["objective"], **value["model"]}
            model["bandwidth"] = math.inf if model["bandwidth"] is None else model["bandwidth"]
            fields |= {"problem": Problem(**model), "budget": Budget(**value["budget"])}
            fields["curve"] = tuple((float(s), int(e), v) for s, e, v in value["curve"])
            fields["peak_memory"] = None if value["peak_memory"] is None else tuple(value["peak_memory"])
            return Row(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise GraphrlError(f"a field of the run is missing, unknown or wrong: {error}") from None


def make_runs(
    graphs: Iterable[ComputationGraph],
    problem: Problem,
    methods: Sequence[str],
    seeds: Sequence[int],
    budget: Budget,
    *,
    cores: int,
    warm_up: bool = True,
) -> list[Run]:
    """Creates a run for every graph, method and seed; of graphs with equal content only the first is used.

    If the budget is in evaluations alone, graphs of similar sizes share compiled programs. Under a budget in seconds
    they do not, since padding takes time, and programs are compiled before the clock starts.
    """
    distinct: dict[str, ComputationGraph] = {}
    for graph in graphs:
        distinct.setdefault(fingerprint(graph), graph)
    trained = {method: digest(method, problem) for method in methods}
    once = list(distinct.values())
    shared: Sequence[Sizes | None] = shared_sizes(once) if budget.seconds is None else [None] * len(once)
    return [
        Run(graph, content, problem, method, seed, budget, cores, warm_up, trained[method], sizes)
        for (content, graph), sizes in zip(distinct.items(), shared, strict=True)
        for method in methods
        for seed in seeds
    ]


class Executor:
    """Executes runs sequentially in this process; caches bounds and remembers compiled programs."""

    def __init__(self) -> None:
        self._bounds: dict[Case, float] = {}
        self._warm: set[tuple[str, Problem, Sizes]] = set()

    def execute(self, run: Run) -> Row:
        """Executes a run; any exception inside the method becomes the row's `error`.

        With `run.warm_up` and a budget in seconds, the method first runs for at most a second on this graph. It does
        not if it has run on a graph of the same padded sizes, with any latency, bandwidth and limit, which are
        arguments of compiled programs. A run that nevertheless compiled for more than a twentieth of its budget (a
        stage that only a larger budget reaches) is repeated, and the second run counts.

        Raises:
          KeyboardInterrupt: Ctrl-C; the run is lost.
        """
        if near_mmap_limit():  # after some hundred runs of a method that compiles for every graph
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
        with contextlib.suppress(Exception), warnings.catch_warnings():  # the run itself reports errors
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
        with compile_clock() as compiling, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            started = time.perf_counter()
            try:
                plan = _solved(run, run.budget, curve)
                seconds = time.perf_counter() - started
                plan.check(run.graph)
                bound = self._bound(run, plan)
            except Exception as error:  # an error in a method, also one of graphrl, must not end the comparison
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
            note=fault_of(caught[0].message) if caught else None,
            curve=curve.until(seconds, plan),
        )

    def _bound(self, run: Run, plan: Plan) -> float:
        case = run.fingerprint, run.problem
        if case not in self._bounds:
            self._bounds[case] = lower_bound(run.graph, run.problem)
        bound = max(self._bounds[case], plan.bound or 0)
        if below(plan.value, bound, run.problem):
            raise GraphrlError(f"the value {plan.value!r} is below the lower bound {bound!r}: one of them is wrong")
        return bound


def below(value: float, bound: float, problem: Problem) -> bool:
    """True if a value is below a bound, by more than rounding."""
    return value < bound * (1 - (0 if problem.objective == "peak_memory" else BOUND_ROUNDING))


def row_of(run: Run, **fields: object) -> Row:
    """Builds the row of a run from its settings and further `fields`."""
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


def fault_of(error: object) -> str:
    """Formats an error or a warning in one line, with its type if the user cannot have caused it."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, GraphrlError | Warning):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _problem_to_dict(problem: Problem) -> dict[str, Any]:
    value = dataclasses.asdict(problem)
    return {**value, "bandwidth": None if math.isinf(problem.bandwidth) else problem.bandwidth}


def _solved(run: Run, budget: Budget, progress: Progress | None = None) -> Plan:
    import jax.numpy as jnp

    # an accelerator decodes in the number of steps that padded rows may need, a CPU in that of the real ones
    (device,) = jnp.zeros(()).devices()  # device of computations: not always of the default backend
    sizes = run.sizes if device.platform == "cpu" else None
    return find_solver(run.method)(Task(run.graph, run.problem, budget, run.seed, progress, sizes=sizes))


class _Curve:
    """A progress callback that records improvements."""

    def __init__(self, problem: Problem) -> None:
        self._limited = problem.memory_limit is not None
        self._points: list[Point] = []
        self._started = time.perf_counter()
        self._last_check = float("-inf")

    def __call__(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        now = time.perf_counter() - self._started
        if self._limited:  # the device's value mixes time and excess: evaluate the plan
            if now - self._last_check < _CHECK_SECONDS:
                return
            self._last_check, best = now, plan()
            if best.excess:
                return
            value = best.value
        if not self._points or value < self._points[-1][2]:
            self._points.append((now, evaluations, value))

    def until(self, seconds: float, plan: Plan) -> tuple[Point, ...]:
        """Returns the curve, ended by the plan's exact value; earlier points (float32) are clipped to be no lower."""
        earlier = ((s, e, max(v, plan.value)) for s, e, v in self._points if s < seconds)
        final = () if plan.excess else ((seconds, plan.evaluations, plan.value),)
        return (*earlier, *final)
