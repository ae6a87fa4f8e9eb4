"""What a model of a problem is to the search: something to minimise, and the way back to a plan."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.exact.cp_sat.clock import Clock
from graphrl.solvers.exact.cp_sat.engine import Expression, Model
from graphrl.solvers.exact.cp_sat.reference import Lengths, in_order


class Built(NamedTuple):
    """A model of a problem."""

    model: Model
    objective: Expression
    variables: list[Expression]  # whose values make a solution
    decode: Callable[[Sequence[int]], PlacedOrder]


def built(model: Model, objective: Expression, axis: Clock, graph: ComputationGraph, problem: Problem) -> Built:
    """The model whose plans are read from where ops are placed and where nodes start along `axis`."""
    n, nodes = axis.where.num_ops, list(axis.start)
    devices = [sum(device * here for device, here in enumerate(on)) for on in axis.where.on]

    def decode(values: Sequence[int]) -> PlacedOrder:
        start = dict(zip(nodes, values[n:], strict=True))
        return in_order(graph, problem, np.array(values[:n], np.int64), start, axis.lengths)

    return Built(model, objective, [*devices, *axis.start.values()], decode)


def unit_lengths(graph: ComputationGraph) -> Lengths:
    """Every node of length 1: the axis is the order itself."""
    return Lengths([1] * graph.arrays.num_ops, [1] * graph.arrays.num_tensors)


def most_nodes(graph: ComputationGraph, devices: int) -> int:
    """Nodes that an order can have: ops, and a transfer from each tensor to each other device that has a user."""
    users = np.bincount(graph.arrays.use_tensor, minlength=graph.arrays.num_tensors)
    return graph.arrays.num_ops + int(np.minimum(users, devices - 1).sum())
