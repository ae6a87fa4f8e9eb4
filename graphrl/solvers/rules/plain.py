"""Methods that search no further than a few rules: list scheduling and the graph's own order."""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.rules.list_scheduling import best_schedule
from graphrl.solvers.rules.one_pass import Decided, one_pass


def given_order(graph: ComputationGraph, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Everything on device 0, in the order in which the graph stands, as far as its dependencies allow.

    For a traced program or an ONNX file this is the order in which it was written, often a good one for memory.

    Returns:
      The placement `[n] int64`, all 0, and the order `[n] int64` of ops: no transfer is needed.
    """
    return np.zeros(len(graph.ops), np.int64), graph.arrays.topological.astype(np.int64)


solve_given = one_pass("given", lambda graph, problem: Decided(*given_order(graph, problem)))
solve_list = one_pass("list", best_schedule)
