"""Methods that build one plan and search no further: list scheduling and the graph's own order. One evaluation each."""

import time

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.solvers.list_scheduling import schedule


def given_order(graph: ComputationGraph, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Everything on device 0, in the order in which the graph stands, as far as its dependencies allow.

    For a traced program or an ONNX file this is the order in which it was written, often a good one for memory.

    Returns:
      The placement `[n] int64`, all 0, and the order `[n] int64` of ops: no transfer is needed.
    """
    return np.zeros(len(graph.ops), np.int64), graph.arrays.topological.astype(np.int64)


def solve_list(
    graph: ComputationGraph, problem: Problem, budget: Budget, seed: int, progress: Progress | None = None
) -> Plan:
    """The `Solver` "list": list scheduling. Budget and seed do not matter to it."""
    started = time.perf_counter()
    placement, order = schedule(graph, problem)
    return _plan(graph, problem, placement, order, "list", started, seed, progress)


def solve_given(
    graph: ComputationGraph, problem: Problem, budget: Budget, seed: int, progress: Progress | None = None
) -> Plan:
    """The `Solver` "given": `given_order`. Budget and seed do not matter to it."""
    started = time.perf_counter()
    placement, order = given_order(graph, problem)
    return _plan(graph, problem, placement, order, "given", started, seed, progress)


def _plan(
    graph: ComputationGraph,
    problem: Problem,
    placement: np.ndarray,
    order: np.ndarray,
    method: str,
    started: float,
    seed: int,
    progress: Progress | None,
) -> Plan:
    seconds = time.perf_counter() - started
    plan = Plan.from_order(graph, problem, placement, order, method=method, seconds=seconds, evaluations=1, seed=seed)
    if progress is not None:
        progress(1, seconds, lambda: plan, plan.value)
    return plan
