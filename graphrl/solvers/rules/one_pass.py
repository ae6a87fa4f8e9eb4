"""Methods that build a plan by a rule and search no further, as solvers: `one_pass` and `one_device` make them.

Budget and seed do not matter to them: they take what they take, and say so in the plan.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress, Solver
from graphrl.solvers.flow import Flow


class Decided(NamedTuple):
    """A placement, an order, and what they cost to find."""

    placement: np.ndarray  # [n] int64, device of each op
    order: np.ndarray  # [m] int64, node ids
    evaluations: int = 1  # plans or orders that were costed


def one_pass(method: str, decide: Callable[[ComputationGraph, Problem], Decided]) -> Solver:
    """The `Solver` of that name which answers with what `decide` says."""

    def solve(
        graph: ComputationGraph, problem: Problem, budget: Budget, seed: int, progress: Progress | None = None
    ) -> Plan:
        started = time.perf_counter()
        placement, order, evaluations = decide(graph, problem)
        seconds = time.perf_counter() - started
        plan = Plan.from_order(
            graph, problem, placement, order, method=method, seconds=seconds, evaluations=evaluations, seed=seed
        )
        if progress is not None:
            progress(evaluations, seconds, lambda: plan, plan.value)
        return plan

    return solve


def one_device(method: str, order_of: Callable[[Flow], Sequence[int]]) -> Solver:
    """The `Solver` of that name which runs the ops of one device in the order `[n]` that `order_of` says.

    The solver raises:
      ProblemError: there are several devices.
    """

    def decide(graph: ComputationGraph, problem: Problem) -> Decided:
        require_one_device(method, problem)
        flow = Flow(graph)
        order = np.array(order_of(flow), np.int64)
        return Decided(np.zeros(flow.num_ops, np.int64), order, max(1, flow.evaluations))

    return one_pass(method, decide)


def require_one_device(method: str, problem: Problem) -> None:
    """For methods that order the ops of one device.

    Raises:
      ProblemError: there are several.
    """
    if problem.devices != 1:
        devices = problem.devices
        raise ProblemError(f"method {method!r} orders the ops of one device: devices must be 1, and is {devices}")


def one_device_value(graph: ComputationGraph, problem: Problem, peak: float) -> float:
    """What an order of one device is worth, from its peak without resident weights: bytes, or seconds of makespan."""
    if problem.objective == "makespan":
        return float(graph.arrays.runtime.sum())
    return peak + (int(graph.arrays.weight_bytes.sum()) if problem.resident_weights else 0)
