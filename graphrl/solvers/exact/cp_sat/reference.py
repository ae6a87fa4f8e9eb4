"""A known plan as the models are hinted with it, and plans from where nodes start."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.exact import run_times
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder


class Lengths(NamedTuple):
    """How long nodes are along an axis."""

    op: Sequence[int]  # [n]
    tensor: Sequence[int]  # [t], of its transfers


class Reference:
    """A known plan, its devices numbered as the models number them: by their first op in the graph's order.

    Attributes:
      placement: `[n]` device of each op.
      order: `[m]` node ids.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, placement: np.ndarray, order: np.ndarray) -> None:
        n, devices = graph.arrays.num_ops, problem.devices
        seen = list(dict.fromkeys(placement[graph.arrays.topological].tolist()))
        seen += [device for device in range(devices) if device not in seen]
        renumbered = np.empty(devices, np.int64)
        renumbered[seen] = np.arange(devices)
        self.placement = renumbered[placement]
        tensor, to = np.divmod(np.maximum(order - n, 0), devices)
        self.order = np.where(order < n, order, n + tensor * devices + renumbered[to])
        self._devices = devices
        self._routes = Routes(graph, problem, self.placement)

    def starts(self, lengths: Lengths, transfer: Transfer) -> dict[int, int]:
        """Where each node starts if the plan runs with these lengths, by node id."""
        routes = self._routes
        slots = np.searchsorted(routes.nodes, self.order)
        copies = [lengths.tensor[tensor] for tensor in routes.transfer_tensor.tolist()]
        start, _ = run_times(routes, slots, [*lengths.op, *copies], transfer, self._devices)
        return dict(zip(self.order.tolist(), map(int, start.tolist()), strict=True))


def in_order(
    graph: ComputationGraph, problem: Problem, placement: np.ndarray, start: Mapping[int, int], lengths: Lengths
) -> PlacedOrder:
    """The plan in which nodes run as they start.

    At one moment what has no length goes first, and then what others wait for: so no clock is later than in `start`,
    if no node without length stands inside another. A transfer without a start follows its producer.
    """
    a = graph.arrays
    n = a.num_ops

    def moment(node: int) -> tuple[int, bool, int, int, int]:
        tensor = (node - n) // problem.devices
        op = node if node < n else int(a.producer[tensor])
        if node >= n and node not in start:
            return start[op], lengths.op[op] > 0, int(a.rank[op]), 1, node
        length = lengths.op[op] if node < n else lengths.tensor[tensor]
        return start[node], length > 0, int(a.rank[op]), int(node >= n), node

    nodes = Routes(graph, problem, placement).nodes.tolist()
    return placement, np.array(sorted(nodes, key=moment), np.int64)
