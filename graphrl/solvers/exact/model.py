"""Parts that the CP-SAT models share: placement, nodes along an axis, the known plan, and plans from solutions.

- `Placement`: literals for the device of each op, and for the transfers that this needs.
- `Clock`: start and end of nodes along one axis, and the nodes that cannot overlap.
- `Reference`: a known plan, the hint of the models.
- `in_order`: the plan in which nodes run in the order of their starts.
- `Built`: a model with an objective to minimise and the decoding of solutions to plans.

An axis is the clock of a transfer model. Under `rendezvous` with lengths of at least 1 it is also the order of each
device, since then every op and every transfer is alone on its devices.

Exactness: no interval of length 0 may be inside another one (CP-SAT's no_overlap ensures that). So `in_order` gives
each node a start no later than its own, and the clocks of any plan are a solution.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.exact import run_times
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import grouped
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.exact.engine import Expression, Literal, Model


class Placement:
    """Literals for the placement of ops. Devices are identical, so they are numbered by their first op in the graph's
    order.

    Attributes:
      devices: d.
      on: `[n][d]`, literals that are true if an op runs on a device.
      users: for each tensor, the ops that read it.
      producer: for each tensor, the op that writes it.
      copies: for each possible transfer (tensor t, device b), a literal that is true if it is needed.
    """

    def __init__(self, model: Model, graph: ComputationGraph, devices: int, hints: np.ndarray) -> None:
        a = graph.arrays
        self.devices, self.num_ops = devices, a.num_ops
        self.producer: list[int] = a.producer.tolist()
        self.users = grouped(a.use_tensor, a.use_op, a.num_tensors)
        self._model = model
        self._same: dict[tuple[int, int], Literal] = {}
        self.on = [self._devices_of(int(device)) for device in hints]
        self._number_devices(a.topological.tolist())
        self.copies: dict[tuple[int, int], Literal] = {}
        for tensor, users in enumerate(self.users):
            for device in range(devices if devices > 1 and users else 0):
                self.copies[tensor, device] = self._needed(self.producer[tensor], users, device)

    def node(self, tensor: int, device: int) -> int:
        """Returns the id of a transfer's node."""
        return self.num_ops + tensor * self.devices + device

    def same(self, first: int, second: int) -> Literal:
        """Returns a literal that is true if two ops run on one device."""
        pair = min(first, second), max(first, second)
        if self.devices == 1 or first == second:
            return self._model.true
        if pair not in self._same:
            self._same[pair] = self._new_same(*(self.on[op] for op in pair))
        return self._same[pair]

    def sends(self, tensor: int, to: int, device: int) -> Literal:
        """Returns a literal that is true if `device` sends a tensor to the device `to`, another one."""
        if self.devices == 2:
            return self.copies[tensor, to]
        return self._model.both(self.copies[tensor, to], self.on[self.producer[tensor]][device])

    def _devices_of(self, device: int) -> list[Literal]:
        if self.devices == 1:
            return [self._model.true]
        if self.devices == 2:
            second = self._model.boolean(device == 1)
            return [~second, second]
        on = [self._model.boolean(device == other) for other in range(self.devices)]
        self._model.cp.add_exactly_one(on)
        return on

    def _number_devices(self, topological: list[int]) -> None:
        """Numbers the devices: the first op on device b comes after the first one on device b - 1."""
        for place, op in enumerate(topological):
            for device in range(2, min(self.devices, place + 1)):  # device 1 follows the first op, on device 0
                before = [self.on[other][device - 1] for other in topological[:place]]
                self._model.cp.add_bool_or([~self.on[op][device], *before])
            for device in range(place + 1, self.devices):
                self._model.cp.add_bool_or([~self.on[op][device]])

    def _new_same(self, first: list[Literal], second: list[Literal]) -> Literal:
        same = self._model.boolean(
            any(self._model.holds(a) and self._model.holds(b) for a, b in zip(first, second, strict=True))
        )
        for a, b in zip(first, second, strict=True):
            self._model.cp.add_bool_or([~a, ~b, same])
            self._model.cp.add_bool_or([~a, b, ~same])
        return same

    def _needed(self, producer: int, users: list[int], device: int) -> Literal:
        model, home = self._model, self.on[producer][device]
        there = [self.on[user][device] for user in users]
        needed = model.boolean(not model.holds(home) and any(model.holds(literal) for literal in there))
        model.cp.add_implication(needed, ~home)
        model.cp.add_bool_or([~needed, *there])
        for literal in there:
            model.cp.add_bool_or([~literal, home, needed])
        return needed


class Lengths(NamedTuple):
    """Lengths of nodes along an axis."""

    op: Sequence[int]  # [n] length of each op
    tensor: Sequence[int]  # [t] length of each transfer of a tensor


class Reference:
    """A known plan, its devices numbered as the models number them: by their first op in the graph's order.

    Attributes:
      placement: `[n]` device of each op.
      order: `[m]` node ids.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, placement: np.ndarray, order: np.ndarray) -> None:
        n, devices = graph.arrays.num_ops, problem.devices
        devices_in_order = list(dict.fromkeys(placement[graph.arrays.topological].tolist()))
        devices_in_order += [device for device in range(devices) if device not in devices_in_order]
        renumbered = np.empty(devices, np.int64)
        renumbered[devices_in_order] = np.arange(devices)
        self.placement = renumbered[placement]
        tensor, to = np.divmod(np.maximum(order - n, 0), devices)
        self.order = np.where(order < n, order, n + tensor * devices + renumbered[to])
        self._devices = devices
        self._routes = Routes(graph, problem, self.placement)

    def starts(self, lengths: Lengths, transfer: Transfer) -> dict[int, int]:
        """Returns the start of each node if the plan runs with these lengths, by node id."""
        routes = self._routes
        slots = np.searchsorted(routes.nodes, self.order)
        copies = [lengths.tensor[tensor] for tensor in routes.transfer_tensor.tolist()]
        start, _ = run_times(routes, slots, [*lengths.op, *copies], transfer, self._devices)
        return dict(zip(self.order.tolist(), map(int, start.tolist()), strict=True))


def in_order(
    graph: ComputationGraph, problem: Problem, placement: np.ndarray, start: Mapping[int, int], lengths: Lengths
) -> PlacedOrder:
    """Returns the plan in which nodes run in the order of their starts.

    Of equal starts nodes without length go first, then by topological order. So no clock is later than in `start`, if
    no node without length is inside another. A transfer without a start follows its producer.
    """
    a = graph.arrays
    n = a.num_ops

    def key(node: int) -> tuple[int, bool, int, int, int]:
        tensor = (node - n) // problem.devices
        op = node if node < n else int(a.producer[tensor])
        if node >= n and node not in start:
            return start[op], lengths.op[op] > 0, int(a.rank[op]), 1, node
        length = lengths.op[op] if node < n else lengths.tensor[tensor]
        return start[node], length > 0, int(a.rank[op]), int(node >= n), node

    nodes = Routes(graph, problem, placement).nodes.tolist()
    return placement, np.array(sorted(nodes, key=key), np.int64)


class Clock:
    """Variables for starts and ends of nodes along an axis, with their constraints.

    Attributes:
      transfer: transfer model; under `free`, transfers have no nodes.
      lengths: lengths of the nodes.
      horizon: upper bound of all ends.
      start, end: expressions by node id.
      hint_start, hint_end: the same in the reference.
      busy: for each device, the lengths of all nodes that occupy it, to be added up.
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
        """Lets inputs and control predecessors run first."""
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
        """Lets a device, or under `link` its link, run one node at a time."""
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
    """Returns first and last start of each op: by the longest path, and by the work of all ops before or after it."""
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


class Built(NamedTuple):
    """A model of a problem, with the decoding of its solutions."""

    model: Model
    objective: Expression
    variables: list[Expression]  # variables whose values make a solution
    decode: Callable[[Sequence[int]], PlacedOrder]


def build_model(model: Model, objective: Expression, axis: Clock, graph: ComputationGraph, problem: Problem) -> Built:
    """Completes a model: its plans are read from the placement of ops and the starts of nodes along `axis`."""
    n, nodes = axis.where.num_ops, list(axis.start)
    devices = [sum(device * here for device, here in enumerate(on)) for on in axis.where.on]

    def decode(values: Sequence[int]) -> PlacedOrder:
        start = dict(zip(nodes, values[n:], strict=True))
        return in_order(graph, problem, np.array(values[:n], np.int64), start, axis.lengths)

    return Built(model, objective, [*devices, *axis.start.values()], decode)


def order_axis(model: Model, graph: ComputationGraph, where: Placement, reference: Reference) -> Clock:
    """Builds the axis that is the order itself. Every node has length 1: an op, or a transfer from a tensor to another
    device that has a user of it.
    """
    a = graph.arrays
    lengths = Lengths([1] * a.num_ops, [1] * a.num_tensors)
    users = np.bincount(a.use_tensor, minlength=a.num_tensors)
    most = a.num_ops + int(np.minimum(users, where.devices - 1).sum())
    return Clock(model, graph, where, "rendezvous", lengths, most, reference.starts(lengths, "rendezvous"))
