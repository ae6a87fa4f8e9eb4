"""Annealing of large graphs in levels, as a `Solver`: first of a small graph whose ops are segments of the order, then
of larger ones, each from the schedule of the one before (Walshaw 2004; what graph partitioners do), and the whole graph
from the best so far, which on graphs without chains is often the plan that it began with.
"""

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
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.list_scheduling import quick_schedule, timely_schedule
from graphrl.solvers.rules.simple import depth_first
from graphrl.solvers.schedules.coarsening import coarse_graph, expanded, segments
from graphrl.solvers.schedules.solver import solve as anneal_schedule
from graphrl.solvers.solver import solver

COARSE, FACTOR = 1_000, 5.0  # ops of the smallest graph, and how many times as many the next has
START_SHARE = 0.1  # of the time for its list schedules
COARSE_SHARE = 0.3  # of the budget for the smallest; the others share the rest


@solver("multilevel", "anneal-schedule on a graph of large pieces, then of smaller ones, for 5,000 ops and more")
def solve(task: Task, *, coarse: int = COARSE, hint: PlacedOrder | None = None) -> Plan:
    """An evaluation is one move of one chain on any level.

    Args:
      coarse: ops of the smallest graph.
      hint: placement `[n]` and order `[m]` of a plan, that the answer is not worse than, in place of a list schedule.

    Raises:
      ProblemError: coarse is out of range.
    """
    if coarse < 1:
        raise ProblemError(f"coarse is {coarse}: must be at least 1")
    graph, problem = task.graph, task.problem
    best = task.plan(*(quick_schedule(graph, problem) if hint is None else hint), evaluations=1)
    task.best = lambda: best
    levels = _levels(graph, problem, coarse)
    seconds = math.inf if task.budget.seconds is None else START_SHARE * (task.end - time.perf_counter())
    decisions, spent = timely_schedule(levels[-1].graph, problem, seconds), 1

    def tell(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        task.report(spent + evaluations, best.value)

    for number in range(len(levels) - 1, -1, -1):
        left = task.left(spent)
        if left is None:
            break
        share = COARSE_SHARE if number == len(levels) - 1 > 0 else 1 / (number + 1)
        part = Task(levels[number].graph, problem, _part(left, share), task.seed, tell)
        plan = anneal_schedule.search(part, hint=decisions if number else best.decisions(graph))
        task.forgive(part.forgiven)
        spent += plan.evaluations
        decisions = plan.decisions(part.graph)
        fine = decisions
        for level in reversed(levels[:number]):
            fine = level.expanded(problem, fine)
        best = min(best, task.plan(*fine, evaluations=spent), key=attrgetter("rank"))
        if number:
            decisions = levels[number - 1].expanded(problem, decisions)
    return task.plan(*best.decisions(graph), evaluations=spent)


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
    order = np.array(depth_first(Flow(graph)), np.int64)
    while len(graph.ops) > FACTOR / 2 * coarse:
        segment = segments(graph, problem, order, max(coarse, int(len(graph.ops) / FACTOR)))
        levels.append(_Level(graph, order, segment))
        graph = coarse_graph(graph, segment)
        order = np.arange(len(graph.ops))
    return [*levels, _Level(graph, order, order)]


def _part(left: Budget, share: float) -> Budget:
    return Budget(
        None if left.evaluations is None else max(1, int(share * left.evaluations)),
        None if left.seconds is None else share * left.seconds,
    )
