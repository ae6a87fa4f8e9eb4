"""Which device runs each op, and which transfers that needs, as literals."""

import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import grouped
from graphrl.solvers.exact.cp_sat.engine import Literal, Model


class Placement:
    """Literals of where ops run. Devices are identical, so they are numbered by their first op in the graph's order.

    Attributes:
      devices: d.
      on: `[n][d]`, whether an op runs on a device.
      users: by tensor, the ops that read it.
      producer: by tensor, the op that writes it.
      copies: `[t, b]`, whether the transfer of tensor t to device b is needed; of all transfers that may be.
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
        """The id of a transfer's node."""
        return self.num_ops + tensor * self.devices + device

    def same(self, first: int, second: int) -> Literal:
        """Whether two ops run on one device."""
        pair = min(first, second), max(first, second)
        if self.devices == 1 or first == second:
            return self._model.true
        if pair not in self._same:
            self._same[pair] = self._make_same(*(self.on[op] for op in pair))
        return self._same[pair]

    def sends(self, tensor: int, to: int, device: int) -> Literal:
        """Whether `device` sends a tensor to the device `to`, another one."""
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
        """The first op on device b stands after the first one on device b - 1."""
        for place, op in enumerate(topological):
            for device in range(2, min(self.devices, place + 1)):  # device 1 stands after the first op, on device 0
                before = [self.on[other][device - 1] for other in topological[:place]]
                self._model.cp.add_bool_or([~self.on[op][device], *before])
            for device in range(place + 1, self.devices):
                self._model.cp.add_bool_or([~self.on[op][device]])

    def _make_same(self, first: list[Literal], second: list[Literal]) -> Literal:
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
