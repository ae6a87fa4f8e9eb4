"""Base classes of a solver's input: one search, with its budget, seed, clock and progress callback.

A `Search` reports progress and checks the budget. A `Task` adds a graph and a problem, and makes plans.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan

if TYPE_CHECKING:
    from graphrl.graphs.padding import Sizes

PlacedOrder = tuple[np.ndarray, np.ndarray]  # placement [n] of ops, order [m] of node ids as in costs/exact

REPORT_SECONDS = 0.3  # least time between two reports
MAX_EVALUATIONS = 2**31 - 1  # counters are int32 on the device


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of a solver: it stops at whichever limit comes first.

    Attributes:
      evaluations: maximum number of solutions to decode and cost, or None for no limit.
      seconds: maximum wall-clock time, or None for no limit. JAX's compilation counts; numba's, once per machine, does
        not. A solver may exclude its first steps: "auto" and "regal+" exclude the first list schedule and the bound.

    Raises:
      ProblemError: neither is given, or one is out of range.
    """

    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.evaluations is None and self.seconds is None:
            raise ProblemError("a budget needs evaluations or seconds: neither was given")
        count, seconds = self.evaluations, self.seconds
        if count is not None and (type(count) is not int or not 1 <= count <= MAX_EVALUATIONS):
            raise ProblemError(f"evaluations is {count!r}: must be an integer from 1 to 2^31 - 1")
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf
        ):
            raise ProblemError(f"seconds is {seconds!r}: must be a finite number above 0")

    def minus(self, evaluations: int, seconds: float) -> "Budget | None":
        """Returns what is left after spending some evaluations and seconds, or None if nothing is left."""
        count = None if self.evaluations is None else self.evaluations - evaluations
        time = None if self.seconds is None else self.seconds - seconds
        if (count is not None and count < 1) or (time is not None and time <= 0):
            return None
        return Budget(count, time)


class Progress(Protocol):
    """Called by a solver between its chunks of work, a few times a second at most.

    Arguments:
      evaluations: number of evaluations so far.
      seconds: seconds since the start of the solver.
      plan: function that makes the best plan so far (exact costs, on the host: call it only where it is needed).
      value: the best objective so far as the device computed it (float32, bytes or seconds): exact enough to display.
    """

    def __call__(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None: ...


class Interrupted(KeyboardInterrupt):
    """Ctrl-C after a solver found its first plan.

    It is a KeyboardInterrupt, so that code that does not know this class stops too.

    Attributes:
      plan: the best plan so far: a `Plan`, or a `MemoryMap` if the search is for maps; for `optimize_batch` the list of
        plans so far, None for graphs without one.
    """

    def __init__(self, plan: Any) -> None:
        super().__init__("interrupted: the best plan so far is in .plan")
        self.plan = plan


class Answer(Protocol):
    """Result of a search: a plan or a memory map."""

    @property
    def evaluations(self) -> int: ...

    @property
    def value(self) -> float: ...


A = TypeVar("A", bound=Answer)


class Search(Generic[A]):
    """Budget, clock, seed and progress callback of any search; the clock runs from the construction.

    Attributes:
      budget, seed: arguments of the search.
      progress: called as `Progress` describes, or None.
      method: name of the method, which its answers carry; a `Method` writes its name here.
      best: function that makes the best answer so far; None before the first answer.
      started, end: start and latest end of the search, as `time.perf_counter` counts; the end may be infinite.
      excluded_seconds: seconds so far that do not count towards the budget.
    """

    def __init__(
        self, budget: Budget, seed: int, progress: Callable[[int, float, Callable[[], A], float], None] | None
    ) -> None:
        self.budget, self.seed, self.progress, self.method = budget, seed, progress, ""
        self.best: Callable[[], A] | None = None
        self.excluded_seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Restarts the clock: the time so far does not count."""
        self.started = self._reported = self._warm = time.perf_counter()
        self.end = self.started + (math.inf if self.budget.seconds is None else self.budget.seconds)

    @contextlib.contextmanager
    def paused_clock(self) -> Iterator[None]:
        """Excludes the time of a `with` block from the budget: for code that is compiled once per machine."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.exclude_time(max(0.0, time.perf_counter() - start))

    def exclude_time(self, seconds: float) -> None:
        """Excludes some seconds that have passed from the budget."""
        self.excluded_seconds += seconds
        self.started, self.end, self._reported, self._warm = (
            moment + seconds for moment in (self.started, self.end, self._reported, self._warm)
        )

    @property
    def seconds(self) -> float:
        """Seconds since the start, without excluded time."""
        return time.perf_counter() - self.started

    def left(self, evaluations: int) -> Budget | None:
        """Returns the budget that is left after some evaluations and the time so far, or None if nothing is left."""
        return self.budget.minus(evaluations, self.seconds)

    def is_spent(self, evaluations: int = 0) -> bool:
        """True if the budget is spent."""
        spent = self.budget.evaluations is not None and evaluations >= self.budget.evaluations
        return spent or time.perf_counter() >= self.end

    def share(self, steps: int, total: int | None) -> tuple[float, float]:
        """Returns the share of the budget that is spent before a search's next step, and the share of that step, in [0,
        1].

        For searches of equal steps whose temperature falls. If only evaluations are limited, the result depends on the
        steps alone, so that runs repeat exactly. Time counts from the end of the first step, which compiles.

        Args:
          steps: number of steps so far.
          total: number of steps within the limit of evaluations, None if they are not limited.
        """
        now = time.perf_counter()
        if steps <= 1:
            self._warm = now
        shares = [(0.0, 0.0)] if total is None else [(steps / total, 1 / total)]
        if self.budget.seconds is not None:
            spent = (now - self._warm) / max(self.end - self._warm, 1e-9)
            shares.append((spent, spent / max(1, steps - 1)))
        share, step = max(shares)
        return min(1.0, share), min(1.0, step)

    def answer(self, answer: A) -> A:
        """Reports a final answer and returns it."""
        self.best = lambda: answer
        self.report(answer.evaluations, answer.value, force=True)
        return answer

    def report(self, evaluations: int, value: float, *, force: bool = False) -> None:
        """Calls `progress`, if there is one, with `best`, whose objective is `value`. Skips the call within
        `REPORT_SECONDS` of the last report, unless `force`.
        """
        now = time.perf_counter()
        if self.progress is not None and self.best is not None and (force or now - self._reported >= REPORT_SECONDS):
            self._reported = now
            self.progress(evaluations, now - self.started, self.best, value)


class Task(Search[Plan]):
    """A search for one plan: a `Search` with its graph and problem.

    Attributes:
      graph, problem: the graph to plan, and the problem.
      sizes: array sizes to pad the graph to, so that several graphs share one compiled program; None for the graph's
        own bucket. Only solvers whose results do not depend on the padding read it.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        problem: Problem,
        budget: Budget,
        seed: int = 0,
        progress: Progress | None = None,
        *,
        sizes: "Sizes | None" = None,
    ) -> None:
        self.graph, self.problem, self.sizes = graph, problem, sizes
        super().__init__(budget, seed, progress)

    def plan(
        self,
        placement: np.ndarray | Sequence[int] | None,
        order: np.ndarray | Sequence[int],
        *,
        evaluations: int,
        bound: float | None = None,
        optimal: bool = False,
    ) -> Plan:
        """Builds the plan of a placement and an order, with exact costs.

        Args:
          placement: device `[n]` of each op; None is device 0.
          order: `[m]` node ids.
          evaluations: number of evaluations spent to find the plan.
          bound: a proved lower bound of the objective, or None.
          optimal: True if the plan is proved optimal: then the bound is the plan's value, if it keeps the memory limit.
        """
        plan = Plan.from_order(
            self.graph,
            self.problem,
            np.zeros(len(self.graph.ops), np.int64) if placement is None else placement,
            np.asarray(order, np.int64),
            method=self.method,
            seconds=self.seconds,
            evaluations=evaluations,
            seed=self.seed,
            bound=bound,
        )
        return dataclasses.replace(plan, bound=plan.value) if optimal and plan.excess == 0 else plan

    def as_answer(self, plan: Plan, evaluations: int = 1) -> Plan:
        """Returns a plan of this graph as an answer of this search. Costs it again only if its problem differs."""
        if plan.problem != self.problem:
            return self.plan(*plan.decisions(self.graph), evaluations=evaluations)
        return dataclasses.replace(
            plan, method=self.method, seed=self.seed, seconds=self.seconds, evaluations=evaluations, bound=None
        )

    def order_value(self, peak: float) -> float:
        """Returns the objective (bytes or seconds) of a one-device order, given its peak without resident weights."""
        a = self.graph.arrays
        if self.problem.objective == "makespan":
            return float(a.runtime.sum())
        return peak + (int(a.weight_bytes.sum()) if self.problem.resident_weights else 0)
