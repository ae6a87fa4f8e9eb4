"""What a model of a problem is to the search: something to minimise, and the way back to a plan."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.exact.cp_sat.clock import Clock
from graphrl.solvers.exact.cp_sat.engine import Expression, Model
from graphrl.solvers.exact.cp_sat.placement import Placement
from graphrl.solvers.exact.cp_sat.reference import Lengths, Reference, in_order


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


def order_axis(model: Model, graph: ComputationGraph, where: Placement, reference: Reference) -> Clock:
    """The axis that is the order itself: every node, an op or a transfer from a tensor to another device that has a
    user of it, is of length 1.
    """
    a = graph.arrays
    lengths = Lengths([1] * a.num_ops, [1] * a.num_tensors)
    users = np.bincount(a.use_tensor, minlength=a.num_tensors)
    most = a.num_ops + int(np.minimum(users, where.devices - 1).sum())
    return Clock(model, graph, where, "rendezvous", lengths, most, reference.starts(lengths, "rendezvous"))
