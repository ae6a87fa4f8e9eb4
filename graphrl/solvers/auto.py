"""The default method: the plain schedules first, then BRKGA that starts from them for the rest of the budget.

Never worse than list scheduling, and done as soon as the lower bound is reached.
"""

import dataclasses
import time
from collections.abc import Callable

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress
from graphrl.solvers.list_scheduling import schedule
from graphrl.solvers.plain import given_order

ROUNDING = 1e-6  # relative: the device knows values as float32


class _Optimal(Exception):
    """Thrown through the search by its progress callback: its best plan reaches the bound."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


def solve(
    graph: ComputationGraph, problem: Problem, budget: Budget, seed: int, progress: Progress | None = None
) -> Plan:
    """The `Solver` "auto" (see the module).

    Raises:
      Interrupted: on Ctrl-C, once there is a plan; it has the best of all so far.
    """
    started = time.perf_counter()
    bound = lower_bound(graph, problem)
    plain, starts = _plain(graph, problem, budget, seed)
    spent = len(plain)

    def finished(found: list[Plan]) -> Plan:
        """The best of the plain plans and what was found, with what all of them took."""
        best = min([*plain, *found], key=lambda plan: plan.rank)
        evaluations = spent + sum(plan.evaluations for plan in found)
        seconds = time.perf_counter() - started
        return dataclasses.replace(best, method="auto", evaluations=evaluations, seconds=seconds, bound=bound)

    def watch(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        if value <= bound * (1 + ROUNDING) and _optimal(found := plan(), bound):
            raise _Optimal(found)
        if progress is not None:
            progress(spent + evaluations, time.perf_counter() - started, lambda: finished([plan()]), value)

    if progress is not None:
        progress(spent, time.perf_counter() - started, lambda: finished([]), finished([]).value)
    left = budget.less(spent, time.perf_counter() - started)
    if left is None or _optimal(finished([]), bound):
        return finished([])
    try:
        from graphrl.solvers.brkga_solver import solve as brkga  # imports jax: not needed before

        return finished([brkga(graph, problem, left, seed, watch, warm_starts=starts)])
    except _Optimal as stop:
        return finished([stop.plan])
    except Interrupted as stop:
        raise Interrupted(finished([stop.plan])) from None
    except KeyboardInterrupt:
        raise Interrupted(finished([])) from None


def _plain(graph: ComputationGraph, problem: Problem, budget: Budget, seed: int) -> tuple[list[Plan], list]:
    """List scheduling and, if the budget has a second evaluation, the graph's own order: plans and decisions."""
    decisions = [schedule(graph, problem)]
    if budget.evaluations is None or budget.evaluations > 1:
        decisions.append(given_order(graph, problem))
    plans = [
        Plan.from_order(graph, problem, placement, order, method="auto", seconds=0, evaluations=1, seed=seed)
        for placement, order in decisions
    ]
    return plans, decisions


def _optimal(plan: Plan, bound: float) -> bool:
    return plan.excess == 0 and plan.value <= bound
