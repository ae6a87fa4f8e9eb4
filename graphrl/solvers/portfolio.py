"""Several methods one after the other, as one: each may start from what those before it found."""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.plan import Plan
from graphrl.solvers import find_solver, padded_to
from graphrl.solvers.base import Budget, Decisions, Interrupted, Progress

ROUNDING = 1e-5  # relative: the device knows values as float32; an exact look follows
SECONDS_ROUNDING = 1e-9  # relative: the makespan bound is shaved by rounding (costs/bounds)


class Stage(NamedTuple):
    """One method of a portfolio."""

    method: str
    share: float = 1.0  # of what is left of the budget
    seconds: float = math.inf  # at most
    options: Callable[[list[Decisions]], dict[str, Any]] = lambda found: {}  # from the plans so far, the best first


class _Optimal(Exception):
    """Thrown through a search by its progress callback: its best plan reaches the bound."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


class Portfolio:
    """Collects plans within one budget.

    Attributes:
      bound: the best that is known, also by proof of a method.
    """

    def __init__(
        self,
        method: str,
        graph: ComputationGraph,
        problem: Problem,
        budget: Budget,
        seed: int,
        progress: Progress | None,
        bound: float,
        sizes: Sizes | None = None,
    ) -> None:
        self.bound = bound
        self._method, self._graph, self._problem, self._budget = method, graph, problem, budget
        self._seed, self._progress, self._sizes = seed, progress, sizes
        self._started = time.perf_counter()
        self._plans: list[Plan] = []

    def add(self, decisions: Iterable[Decisions]) -> None:
        """Plans made without search, an evaluation each, until the budget ends or one is optimal; the first always."""
        for placement, order in decisions:
            if self.done:
                return
            self._plans.append(
                Plan.from_order(
                    self._graph,
                    self._problem,
                    placement,
                    order,
                    method=self._method,
                    seconds=0.0,
                    evaluations=1,
                    seed=self._seed,
                )
            )

    def run(self, stages: Iterable[Stage]) -> Plan:
        """Runs the stages that the budget is enough for, and gives the best plan of all.

        Raises:
          Interrupted: on Ctrl-C; it has the best plan so far.
        """
        if self._progress is not None and self._plans:
            self._progress(self._evaluations(), self._seconds, self.best, self.best().value)
        try:
            for stage in stages:
                left = self._left()
                if self.done or left is None:
                    break
                self._run(stage, left)
        except _Optimal as stop:
            self._plans.append(stop.plan)
        except Interrupted as stop:
            raise Interrupted(self.best(stop.plan)) from None
        except KeyboardInterrupt:
            if not self._plans:
                raise
            raise Interrupted(self.best()) from None
        return self.best()

    @property
    def done(self) -> bool:
        """Whether there is a plan and nothing is left, or nothing to gain."""
        return bool(self._plans) and (self._left() is None or self._is_optimal(min(self._plans, key=_rank)))

    def best(self, *more: Plan) -> Plan:
        """The best plan so far, with what all of them took."""
        best = min([*self._plans, *more], key=_rank)
        evaluations = self._evaluations() + sum(plan.evaluations for plan in more)
        return dataclasses.replace(
            best, method=self._method, evaluations=evaluations, seconds=self._seconds, bound=self.bound
        )

    def _run(self, stage: Stage, left: Budget) -> None:
        part = Budget(
            None if left.evaluations is None else max(1, int(stage.share * left.evaluations)),
            None if left.seconds is None else min(stage.share * left.seconds, stage.seconds),
        )
        ranked = [plan.decisions(self._graph) for plan in sorted(self._plans, key=_rank)]
        try:
            solver = padded_to(find_solver(stage.method), self._sizes)
            found = solver(self._graph, self._problem, part, self._seed, self._watch, **stage.options(ranked))
        except ProblemError:  # the method does not take such graphs or problems
            return
        except (MemoryError, RuntimeError) as error:  # RuntimeError: how jax says that memory ran out
            fault = " ".join(str(error).split())[:200]
            warnings.warn(f"{stage.method} could not run ({fault}): the best plan so far stands", stacklevel=4)
            return
        self._plans.append(found)
        if found.bound is not None:
            self.bound = max(self.bound, found.bound)

    def _watch(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        """The progress of a stage."""
        if value <= self.bound * (1 + ROUNDING) and self._is_optimal(found := plan()):
            raise _Optimal(found)
        if self._progress is not None:
            known = min(self._plans, key=_rank)
            value = min(value, known.value) if known.excess == 0 else value
            self._progress(self._evaluations() + evaluations, self._seconds, lambda: self.best(plan()), value)

    def _is_optimal(self, plan: Plan) -> bool:
        rounding = SECONDS_ROUNDING if self._problem.objective == "makespan" else 0.0
        return plan.excess == 0 and plan.value <= self.bound * (1 + rounding)

    def _left(self) -> Budget | None:
        return self._budget.less(self._evaluations(), self._seconds)

    def _evaluations(self) -> int:
        return sum(plan.evaluations for plan in self._plans)

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started


def _rank(plan: Plan) -> tuple[int, float]:
    return plan.rank
