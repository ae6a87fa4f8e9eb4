"""Annealing of large graphs in levels, as a `Solver`: first of a small graph whose ops are segments of the order, then
of larger ones, each from the schedule of the one before (Walshaw 2004; what graph partitioners do), and the whole graph
from the best so far, which on graphs without chains is often the plan that it began with.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.rules.list_scheduling import quick_schedule, timely_schedule
from graphrl.solvers.rules.plan_builder.build import prepare
from graphrl.solvers.rules.simple import depth_first
from graphrl.solvers.schedules.coarsening import coarse_graph, expanded, segments
from graphrl.solvers.schedules.solver import solve as anneal_schedule
from graphrl.solvers.solver import solver

COARSE, FACTOR = 1_000, 5.0  # ops of the smallest graph, and how many times as many the next has
START_SHARE = 0.1  # of the time for its list schedules
COARSE_SHARE = 0.3  # of the budget for the smallest; the others share the rest


@solver(
    "multilevel",
    "anneal-schedule on a graph of large pieces, then of smaller ones, for 3,000 ops and more",
    prepare=prepare,
)
def solve(task: Task, *, coarse: int = COARSE, hint: Plan | None = None) -> Plan:
    """An evaluation is one move of one chain on any level.

    Args:
      coarse: ops of the smallest graph.
      hint: a plan that the answer is not worse than, in place of a list schedule.

    Raises:
      ProblemError: coarse is out of range.
    """
    if coarse < 1:
        raise ProblemError(f"coarse is {coarse}: must be at least 1")
    if hint is None:
        first = task.plan(*quick_schedule(task.graph, task.problem), evaluations=1)
    else:
        first = task.known(hint)
    task.best = lambda: first
    search = _Search(task, first, coarse)
    task.best = search.current
    search.run()
    return search.current()


class _Search:
    """The levels of one graph, and the best plan so far."""

    def __init__(self, task: Task, first: Plan, coarse: int) -> None:
        self._task, self._best, self._spent = task, first, 1
        self._levels = _levels(task.graph, task.problem, coarse)
        seconds = math.inf if task.budget.seconds is None else START_SHARE * (task.end - time.perf_counter())
        self._number = len(self._levels) - 1
        self._part = self._started(self._number)
        self._decisions = timely_schedule(self._part.graph, task.problem, seconds)
        self._best = self._better(self._part.plan(*self._decisions, evaluations=1), 1)

    def run(self) -> None:
        """Anneals every level for its share of the budget."""
        task = self._task
        for number in range(len(self._levels) - 1, -1, -1):
            if task.left(self._spent) is None:
                return
            self._number, self._part = number, self._started(number)
            hint = self._part.plan(*self._decisions, evaluations=1) if number else self._best
            plan = anneal_schedule.search(self._part, hint=hint)
            task.forgive(self._part.forgiven)
            self._part.best, self._spent = None, self._spent + plan.evaluations
            self._best = self._better(plan, self._spent)
            if number:
                decisions = plan.decisions(self._part.graph)
                self._decisions = self._levels[number - 1].expanded(task.problem, decisions)

    def current(self) -> Plan:
        """The best plan so far, of the whole graph."""
        if self._part.best is None:  # no level is being annealed
            return dataclasses.replace(self._best, evaluations=self._spent, seconds=self._task.seconds)
        plan = self._part.best()
        return self._better(plan, self._spent + plan.evaluations)

    def _better(self, plan: Plan, evaluations: int) -> Plan:
        """The best plan, or that for which a plan of the level stands."""
        if self._number:
            decisions = plan.decisions(self._part.graph)
            for level in reversed(self._levels[: self._number]):
                decisions = level.expanded(self._task.problem, decisions)
            whole = self._task.plan(*decisions, evaluations=evaluations)
        else:
            whole = self._task.known(plan, evaluations)
        return min(self._best, whole, key=attrgetter("rank"))

    def _started(self, number: int) -> Task:
        """The search of a level, for its share of what is left of the budget."""
        task, left = self._task, self._task.left(self._spent) or self._task.budget
        share = COARSE_SHARE if number == len(self._levels) - 1 > 0 else 1 / (number + 1)
        part = Budget(
            None if left.evaluations is None else max(1, int(share * left.evaluations)),
            None if left.seconds is None else share * left.seconds,
        )
        return Task(self._levels[number].graph, task.problem, part, task.seed, self._tell)

    def _tell(self, evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        whole = value if self._number == 0 and self._best.excess == 0 else self._best.value
        self._task.report(self._spent + evaluations, min(self._best.value, whole))


class _Level(NamedTuple):
    """A graph, and how the next smaller one is made from it."""

    graph: ComputationGraph
    order: np.ndarray  # [n] ops
    segment: np.ndarray  # [n]

    def expanded(self, problem: Problem, coarse: PlacedOrder) -> PlacedOrder:
        """The plan that a plan of the next smaller graph stands for."""
        return expanded(self.graph, problem.devices, self.order, self.segment, coarse)


def _levels(graph: ComputationGraph, problem: Problem, coarse: int) -> list[_Level]:
    """The graph, and smaller and smaller ones."""
    levels: list[_Level] = []
    order = np.array(depth_first(graph.arrays.waiting()), np.int64)
    while len(graph.ops) > FACTOR / 2 * coarse:
        segment = segments(graph, problem, order, max(coarse, int(len(graph.ops) / FACTOR)))
        levels.append(_Level(graph, order, segment))
        graph = coarse_graph(graph, segment)
        order = np.arange(len(graph.ops))
    return [*levels, _Level(graph, order, order)]
