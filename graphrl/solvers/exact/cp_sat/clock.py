"""Nodes along one axis: where each starts and ends, and what cannot overlap.

The axis is the clock of a transfer model; with the `rendezvous` model and lengths of at least 1 it is also the order
of what happens on each device, since then every op and every transfer is alone on the devices that it concerns.

Exactness: no interval of length 0 may stand inside another one (CP-SAT's no_overlap sees to that), so that running
nodes as they start (`reference.in_order`) gives each a start no later than its own; and the clocks of any plan are a
solution.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from graphrl.costs.problem import Transfer
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.exact.cp_sat.engine import Expression, Model
from graphrl.solvers.exact.cp_sat.placement import Placement
from graphrl.solvers.exact.cp_sat.reference import Lengths


class Clock:
    """Starts and ends along an axis.

    Attributes:
      transfer: the model; under `free`, transfers have no nodes.
      lengths: of the nodes.
      horizon: where everything has ended.
      start, end: by node id.
      known_start, known_end: the same in the reference.
      busy: by device, what the lengths of all that occupies it add up to.
    """

    def __init__(
        self,
        model: Model,
        graph: ComputationGraph,
        where: Placement,
        transfer: Transfer,
        lengths: Lengths,
        horizon: int,
        hint_start: Mapping[int, int],
    ) -> None:
        self.model, self.where, self.transfer = model, where, transfer
        self.lengths, self.horizon = lengths, horizon
        self.start: dict[int, Expression] = {}
        self.end: dict[int, Expression] = {}
        self.hint_start: dict[int, int] = {}
        self.hint_end: dict[int, int] = {}
        self.busy: list[list[Expression]] = [[] for _ in range(where.devices)]
        earliest, latest = windows(graph, lengths.op, where.devices, horizon)
        for op in range(where.num_ops):
            self._add(op, earliest[op], latest[op], lengths.op[op], hint_start[op])
        if transfer != "free":
            for tensor, device in where.copies:
                node, producer = where.node(tensor, device), where.producer[tensor]
                hint = hint_start.get(node, self.hint_end[producer])
                self._add(node, 0, max(0, horizon - lengths.tensor[tensor]), lengths.tensor[tensor], hint)
        self._order(graph)
        self._occupy()

    def _add(self, node: int, low: int, high: int, length: int, hint: int) -> None:
        self.start[node] = self.model.integer(low, high, min(hint, high))
        self.end[node] = self.start[node] + length
        self.hint_start[node], self.hint_end[node] = hint, hint + length

    def _order(self, graph: ComputationGraph) -> None:
        """Inputs and control predecessors first."""
        where, a = self.where, graph.arrays
        for source, target in zip(*(ends.tolist() for ends in a.dependencies()), strict=True):
            self.model.ordered(self.end[source], self.start[target])
        if self.transfer != "free":
            for tensor, device in where.copies:
                node, producer = where.node(tensor, device), where.producer[tensor]
                self.model.ordered(self.end[producer], self.start[node], where.copies[tensor, device])
                for user in where.users[tensor]:
                    arrives = where.on[user][device], ~where.on[producer][device]
                    self.model.ordered(self.end[node], self.start[user], *arrives)
            return
        longest: dict[tuple[int, int], int] = {}  # the slowest transfer from op to op
        for tensor, users in enumerate(where.users):
            for user in users if where.devices > 1 else []:
                pair = where.producer[tensor], user
                longest[pair] = max(longest.get(pair, 0), self.lengths.tensor[tensor])
        for (producer, user), length in longest.items():
            if length:
                self.model.ordered(self.end[producer] + length, self.start[user], ~where.same(producer, user))

    def _occupy(self) -> None:
        """What each device, or under `link` its link, does alone."""
        where, cp = self.where, self.model.cp
        devices: list[list[Expression]] = [[] for _ in range(where.devices)]
        links: list[list[Expression]] = [[] for _ in range(where.devices)]

        def occupy(intervals: list[list[Expression]], device: int, node: int, length: int, present: Expression) -> None:
            interval = cp.new_optional_fixed_size_interval_var(self.start[node], length, present, "")
            intervals[device].append(interval)
            if intervals is devices and length:
                self.busy[device].append(length * present)

        for op, on in enumerate(where.on):
            for device, here in enumerate(on):
                occupy(devices, device, op, self.lengths.op[op], here)
        for tensor, to in where.copies if self.transfer != "free" else ():
            node, length = where.node(tensor, to), self.lengths.tensor[tensor]
            for device in range(where.devices):
                if device != to:
                    resource = devices if self.transfer == "rendezvous" else links
                    occupy(resource, device, node, length, where.sends(tensor, to, device))
                elif self.transfer == "rendezvous":
                    occupy(devices, to, node, length, where.copies[tensor, to])
        for intervals in [*devices, *links]:
            cp.add_no_overlap(intervals)
        if where.devices > 1:  # implied, and stronger than the devices one by one
            every = [
                cp.new_fixed_size_interval_var(self.start[op], length, "")
                for op, length in enumerate(self.lengths.op)
                if length
            ]
            cp.add_cumulative(every, [1] * len(every), where.devices)


def windows(graph: ComputationGraph, lengths: Sequence[int], devices: int, horizon: int) -> tuple[list[int], list[int]]:
    """First and last start of each op: by the longest path, and by the work of all that comes before or after it."""
    a = graph.arrays
    order, above = a.topological.tolist(), a.ancestors()
    heads = _heads(order, a.predecessors, above, lengths, devices)
    tails = _heads(order[::-1], a.successors, above.T, lengths, devices)
    return heads, [horizon - tail - length for tail, length in zip(tails, lengths, strict=True)]


def _heads(
    order: list[int], before: list[list[int]], above: np.ndarray, lengths: Sequence[int], devices: int
) -> list[int]:
    work = above @ np.array(lengths, np.int64)
    heads = [0] * len(order)
    for op in order:
        path = max((heads[other] + lengths[other] for other in before[op]), default=0)
        heads[op] = max(path, -(-int(work[op]) // devices))
    return heads
