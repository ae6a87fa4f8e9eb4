"""What the tests of "approximate-dp" share."""

import dataclasses

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.base import Budget

ONE = Problem()
ANY = Budget(evaluations=2**31 - 1)


def scaled(graph: ComputationGraph, by: int) -> ComputationGraph:
    """The graph with all bytes multiplied."""

    def op(op: Op) -> Op:
        outputs = tuple(dataclasses.replace(t, bytes=t.bytes * by) for t in op.outputs)
        return dataclasses.replace(op, outputs=outputs, workspace_bytes=op.workspace_bytes * by)

    return dataclasses.replace(graph, ops=tuple(map(op, graph.ops)))
