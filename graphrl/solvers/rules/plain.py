"""Methods that search no further than a few rules: list scheduling and the graph's own order."""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task, solver
from graphrl.solvers.rules.list_scheduling import best_schedule


def given_order(graph: ComputationGraph, problem: Problem) -> PlacedOrder:
    """Everything on device 0, in the order in which the graph stands, as far as its dependencies allow.

    For a traced program or an ONNX file this is the order in which it was written, often a good one for memory.

    Returns:
      The placement `[n] int64`, all 0, and the order `[n] int64` of ops: no transfer is needed.
    """
    return np.zeros(len(graph.ops), np.int64), graph.arrays.topological.astype(np.int64)


@solver("given", "everything on one device, in the order in which the graph stands")
def solve_given(task: Task) -> Plan:
    """One plan, whatever the budget and the seed."""
    return task.answer(task.plan(*given_order(task.graph, task.problem), evaluations=1))


@solver("list", "the best of several list schedules")
def solve_list(task: Task) -> Plan:
    """A few plans, whatever the budget and the seed."""
    plan, evaluations = best_schedule(task.graph, task.problem)
    return task.answer(task.plan(*plan, evaluations=evaluations))
