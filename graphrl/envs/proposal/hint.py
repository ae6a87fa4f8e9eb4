"""What a policy is told of a plan that list scheduling makes. NumPy, on the host."""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.rules.list_scheduling import quick_schedule


def hint(graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """What the genes of `quick_schedule`'s plan would be, `[n, d + 1] float32` between 0 and 1.

    REGAL knows nothing of the kind: its network sees sizes, times and edges, which are alike for all devices, so that
    it cannot tell one half of a graph from the other, and a plan is made of such halves.

    Returns:
      For each op, the affinity of each device (1 where the plan has the op, else 0), and its priority: its place among
      the ops, near 1 for the first and near 0 for the last. Ops that are alike are told apart by the graph's order.
    """
    placement, order = quick_schedule(graph, problem)
    n = len(placement)
    columns = np.zeros((n, problem.devices + 1), np.float32)
    columns[np.arange(n), placement] = 1
    columns[order[order < n], -1] = 1 - (np.arange(n) + 0.5) / n
    return columns
