"""The default method: the plain schedules first, then BRKGA that starts from them for the rest of the budget.

Never worse than list scheduling (on fewer devices too), and done as soon as the lower bound is reached.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress
from graphrl.solvers.list_scheduling import schedule
from graphrl.solvers.plain import given_order

ROUNDING = 1e-5  # relative: the device knows values as float32; an exact look follows
SECONDS_ROUNDING = 1e-9  # relative: the makespan bound is shaved by rounding (costs/bounds.py)
Decisions = tuple[np.ndarray, np.ndarray]  # placement [n] and order [m]


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
    plain: list[Plan] = []
    starts: list[Decisions] = []
    rest = budget

    def finished(*found: Plan) -> Plan:
        """The best of the plain plans and what was found, with what all of them took."""
        best = min([*plain, *found], key=lambda plan: plan.rank)
        evaluations = len(plain) + sum(plan.evaluations for plan in found)
        seconds = time.perf_counter() - started
        return dataclasses.replace(best, method="auto", evaluations=evaluations, seconds=seconds, bound=bound)

    def watch(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        if value <= bound * (1 + ROUNDING) and _optimal(found := plan(), bound):
            raise _Optimal(found)
        if progress is not None:
            progress(len(plain) + evaluations, time.perf_counter() - started, lambda: finished(plan()), value)

    try:
        for start in _candidates(graph, problem):
            plain.append(Plan.from_order(graph, problem, *start, method="auto", seconds=0, evaluations=1, seed=seed))
            starts.append(start)
            left = budget.less(len(plain), time.perf_counter() - started)
            if left is None or _optimal(plain[-1], bound):
                return finished()
            rest = left
        if progress is not None:
            progress(len(plain), time.perf_counter() - started, finished, finished().value)
        from graphrl.solvers.brkga_solver import solve as brkga  # imports jax: not needed before

        return finished(brkga(graph, problem, rest, seed, watch, warm_starts=starts))
    except (MemoryError, ProblemError, RuntimeError) as error:  # RuntimeError: how jax says that memory ran out
        if not plain:
            raise
        fault = " ".join(str(error).split())[:200]
        warnings.warn(f"BRKGA could not run ({fault}): the best plain plan stands", stacklevel=2)
        return finished()
    except _Optimal as stop:
        return finished(stop.plan)
    except Interrupted as stop:
        raise Interrupted(finished(stop.plan)) from None
    except KeyboardInterrupt:
        if not plain:
            raise
        raise Interrupted(finished()) from None


def _candidates(graph: ComputationGraph, problem: Problem) -> Iterator[Decisions]:
    """List scheduling, the given order, and list scheduling on fewer devices, which is sometimes better."""
    yield schedule(graph, problem)
    yield given_order(graph, problem)
    devices = problem.devices // 2
    while devices > 1:
        placement, order = schedule(graph, dataclasses.replace(problem, devices=devices))
        tensor, to = np.divmod(order - len(graph.ops), devices)
        moved = len(graph.ops) + tensor * problem.devices + to  # a transfer's id depends on the number of devices
        yield placement, np.where(order < len(graph.ops), order, moved)
        devices //= 2


def _optimal(plan: Plan, bound: float) -> bool:
    rounding = SECONDS_ROUNDING if plan.problem.objective == "makespan" else 0.0
    return plan.excess == 0 and plan.value <= bound * (1 + rounding)
