"""What a solver works on: one search, with its budget, seed, clock and whoever watches.

It reports, and says when time is over; a `Task`, which has a graph and a problem, makes plans too.
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

REPORT_SECONDS = 0.3  # between two reports
MAX_EVALUATIONS = 2**31 - 1  # counters are int32 on the device


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much a solver may spend: it stops at whichever limit comes first.

    Attributes:
      evaluations: decoded and costed solutions, or None for no limit.
      seconds: of wall clock, JAX's compilation included (what numba compiles once on a machine is not), or None for
        no limit. A solver may leave out what it begins with:
        "auto" and "regal+" have the first list schedule and the bound on top.

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

    def less(self, evaluations: int, seconds: float) -> "Budget | None":
        """What is left after spending so much, or None if nothing is."""
        count = None if self.evaluations is None else self.evaluations - evaluations
        time = None if self.seconds is None else self.seconds - seconds
        if (count is not None and count < 1) or (time is not None and time <= 0):
            return None
        return Budget(count, time)


class Progress(Protocol):
    """Called by a solver between its chunks of work, a few times a second at most.

    Arguments:
      evaluations: spent so far.
      seconds: since the solver began.
      plan: makes the best plan so far (exact costs, on the host: call it only where it is needed).
      value: the best objective so far as the device knows it (float32, bytes or seconds): good enough to show.
    """

    def __call__(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None: ...


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came while a solver had a plan already.

    It is a KeyboardInterrupt, so that code which knows nothing of it stops all the same.

    Attributes:
      plan: the best until then, a `Plan`, or a `MemoryMap` of a search for maps.
    """

    def __init__(self, plan: Any) -> None:
        super().__init__("interrupted: the best plan so far is in .plan")
        self.plan = plan


class Answer(Protocol):
    """What a search gives: a plan or a memory map."""

    @property
    def evaluations(self) -> int: ...

    @property
    def value(self) -> float: ...


A = TypeVar("A", bound=Answer)


class Search(Generic[A]):
    """What every search has: what may be spent on it, a clock that runs from the construction, and who watches.

    Attributes:
      budget, seed: of the search.
      progress: is told of it as `Progress` says, or None.
      method: what its answers are said to be found by; a `Method` writes its name here.
      best: makes the best answer so far; None while there is none.
      started, end: of the search, as `time.perf_counter` counts; the end may be infinite.
      forgiven: seconds that did not count.
    """

    def __init__(
        self, budget: Budget, seed: int, progress: Callable[[int, float, Callable[[], A], float], None] | None
    ) -> None:
        self.budget, self.seed, self.progress, self.method = budget, seed, progress, ""
        self.best: Callable[[], A] | None = None
        self.forgiven = 0.0
        self.restart()

    def restart(self) -> None:
        """Starts the clock anew: what was done so far does not count."""
        self.started = self._reported = self._warm = time.perf_counter()
        self.end = self.started + (math.inf if self.budget.seconds is None else self.budget.seconds)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """The clock stands still in it: for what is compiled once on a machine."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.forgive(max(0.0, time.perf_counter() - began))

    def forgive(self, seconds: float) -> None:
        """Seconds that have passed do not count."""
        self.forgiven += seconds
        self.started, self.end, self._reported, self._warm = (
            moment + seconds for moment in (self.started, self.end, self._reported, self._warm)
        )

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def left(self, evaluations: int) -> Budget | None:
        """The budget that is left after so many evaluations, None if none is."""
        return self.budget.less(evaluations, self.seconds)

    def over(self, evaluations: int = 0) -> bool:
        """Whether the budget is spent."""
        spent = self.budget.evaluations is not None and evaluations >= self.budget.evaluations
        return spent or time.perf_counter() >= self.end

    def share(self, steps: int, total: int | None) -> tuple[float, float]:
        """How far a search of equal steps is, for temperatures that fall: the share of the budget that is spent before
        its next step, and what that step takes; both in [0, 1].

        With evaluations alone it depends on nothing else, so that runs repeat exactly. Time counts from the end of the
        first step, which compiles.

        Args:
          steps: that were made.
          total: steps that the evaluations are enough for, None where they are not limited.
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
        """Reports an answer that nothing follows, and gives it back."""
        self.best = lambda: answer
        self.report(answer.evaluations, answer.value, at_once=True)
        return answer

    def report(self, evaluations: int, value: float, *, at_once: bool = False) -> None:
        """Tells the progress, if there is one, of `best`, whose objective is `value`; not if the last report was just
        now, unless it is to be at once.
        """
        now = time.perf_counter()
        if self.progress is not None and self.best is not None and (at_once or now - self._reported >= REPORT_SECONDS):
            self._reported = now
            self.progress(evaluations, now - self.started, self.best, value)


class Task(Search[Plan]):
    """One search for a plan: what is planned, beside what every search has.

    Attributes:
      graph, problem: of the plan.
      sizes: to pad the graph to, so that graphs of one size after the other need one program; None is its own bucket.
        Only solvers whose results do not depend on that look at it.
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
        """The plan of decisions, with exact costs.

        Args:
          placement: device `[n]` of each op; None is device 0.
          order: `[m]` node ids.
          evaluations: that it took to find.
          bound: of the objective, as far as one is proved.
          optimal: whether no plan is better: then the bound is the plan's value, if it keeps the memory limit.
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

    def known(self, plan: Plan, evaluations: int = 1) -> Plan:
        """A plan of this graph as an answer of this search; costed again only if it is of another problem."""
        if plan.problem != self.problem:
            return self.plan(*plan.decisions(self.graph), evaluations=evaluations)
        return dataclasses.replace(
            plan, method=self.method, seed=self.seed, seconds=self.seconds, evaluations=evaluations, bound=None
        )

    def order_value(self, peak: float) -> float:
        """What an order of one device is worth, from its peak without resident weights: bytes or seconds."""
        a = self.graph.arrays
        if self.problem.objective == "makespan":
            return float(a.runtime.sum())
        return peak + (int(a.weight_bytes.sum()) if self.problem.resident_weights else 0)
