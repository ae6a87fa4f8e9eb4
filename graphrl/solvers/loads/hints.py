"""The best of some quick placements for `max_load`: what is made better by changes of it begins there."""

import math
import time

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.loads import greedy
from graphrl.solvers.loads.stages import stage_dp

GREEDY_SECONDS = 3e-4  # for each op and use, about


def quick_plan(graph: ComputationGraph, problem: Problem, seconds: float = math.inf) -> Plan:
    """The best of equal stages, the best contiguous splits of some topological orders (`stage-dp:ideals=0`: hundredths
    of a second on 2,000 ops, and mostly as good as the best of all contiguous ones), and `greedy-load`.

    Args:
      seconds: that it may take: what is slower is left out, but for equal stages.

    Raises:
      ProblemError: an op can run nowhere.
    """
    end = time.perf_counter() + seconds
    best = stage_dp(Task(graph, problem, _within(seconds)), ideals=0)
    left = end - time.perf_counter()
    if GREEDY_SECONDS * (len(graph.ops) + len(graph.arrays.use_op)) > left:
        return best
    return min(best, greedy.solve(Task(graph, problem, _within(left))), key=lambda plan: plan.rank)


def _within(seconds: float) -> Budget:
    return Budget(evaluations=1, seconds=None if math.isinf(seconds) else max(seconds, 1e-9))
