"""A plan that grows op by op: what the next op would cost on each device, and appending it to the best."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.solvers.flow import Flow


class Trial(NamedTuple):
    """What appending an op on a device would mean."""

    start: float  # seconds
    finish: float  # seconds
    lost: float  # seconds by which the clocks of other devices advance (rendezvous: they send)
    busy: float  # seconds for which the device is still busy when the first device is free
    peak: int  # bytes, the device's peak so far or with this op, by the builder's estimate
    added: int  # bytes that stay on the device
    device: int


class Builder:
    """Appends ops, each with the transfers that it still needs, and keeps the clocks as `exact.evaluate` will.

    Memory is estimated from above: a buffer is held on every device that has any of its tensors until all its users
    are placed, since their devices are not known before.

    Attributes:
      order: node ids so far.
      placement: device of each op, -1 if it has none yet.
      end: seconds, of each op.
      free: seconds, when each device is.
    """

    def __init__(self, flow: Flow, problem: Problem) -> None:
        a = flow.graph.arrays
        self.flow, self.problem = flow, problem
        self.order: list[int] = []
        self.placement = [-1] * flow.num_ops
        self.end = [0.0] * flow.num_ops
        self.free = [0.0] * problem.devices
        self.runtime, self.workspace = a.runtime.tolist(), a.workspace_bytes.tolist()
        self.weight = a.weight_bytes.tolist() if problem.resident_weights else [0] * flow.num_ops
        self.producer, self.tensor_bytes = a.producer.tolist(), a.tensor_bytes.tolist()
        self.seconds = [problem.transfer_seconds(num_bytes) for num_bytes in self.tensor_bytes]
        self._clocks = [0.0] * problem.devices if problem.transfer == "link" else self.free  # that transfers wait for
        self._arrival: dict[tuple[int, int], float] = {}  # of a tensor's copy on a device
        self._users_left = [len(users) for users in flow.users]
        self._held: list[dict[int, int]] = [{} for _ in range(a.num_tensors)]  # by buffer: bytes on each device
        self._live, self._peak, self._weights = ([0] * problem.devices for _ in range(3))

    def append(self, op: int, choose: Callable[[Trial], tuple]) -> None:
        """Appends `op` where its trial is least by `choose`."""
        best = min((self.trial(op, device) for device in range(self.problem.devices)), key=choose)
        self.place(op, best.device)

    def plan(self) -> tuple[np.ndarray, np.ndarray]:
        """Placement `[n] int64` and order `[m] int64` of node ids."""
        return np.array(self.placement, np.int64), np.array(self.order, np.int64)

    def peaks(self) -> list[int]:
        """Bytes of each device's peak so far, by the estimate."""
        return [peak + weights for peak, weights in zip(self._peak, self._weights, strict=True)]

    def has_inputs(self, op: int, device: int) -> bool:
        """Whether `op` could run on a device without a transfer."""
        return all(
            self.placement[self.producer[tensor]] == device or (tensor, device) in self._arrival
            for tensor in self.flow.inputs[op]
        )

    def trial(self, op: int, device: int) -> Trial:
        """What appending `op`, whose predecessors must be placed, would mean on a device."""
        start, arrivals, clocks = self._times(op, device)
        lost = 0.0
        if self.problem.transfer == "rendezvous":
            lost = sum(clock - self.free[other] for other, clock in clocks.items() if other != device)
        written = self._written(op, device)
        added = sum(self.tensor_bytes[t] for t in arrivals) + sum(size for _, size, source in written if source < 0)
        peak = max(self._peak[device], self._live[device] + added + self.workspace[op])
        peak += self._weights[device] + self.weight[op]
        busy = self.free[device] - min(self.free)
        return Trial(start, start + self.runtime[op], lost, busy, peak, added, device)

    def _times(self, op: int, device: int) -> tuple[float, dict[int, float], dict[int, float]]:
        """When `op` would start on a device; the end of each transfer that it still needs, in the order in which they
        would run (the earliest written first); and the clocks that these change.
        """
        start, missing = 0.0, []
        for tensor in self.flow.inputs[op]:
            written = self.end[self.producer[tensor]]
            if self.placement[self.producer[tensor]] == device:
                start = max(start, written)
            elif (tensor, device) in self._arrival:
                start = max(start, self._arrival[tensor, device])
            else:
                missing.append((written, tensor))
        clocks: dict[int, float] = {}
        arrivals: dict[int, float] = {}
        for written, tensor in sorted(missing):
            source, begin = self.placement[self.producer[tensor]], written
            if self.problem.transfer != "free":
                begin = max(begin, clocks.get(source, self._clocks[source]))
            if self.problem.transfer == "rendezvous":
                begin = max(begin, clocks.get(device, self._clocks[device]))
                clocks[device] = begin + self.seconds[tensor]
            if self.problem.transfer != "free":
                clocks[source] = begin + self.seconds[tensor]
            arrivals[tensor] = begin + self.seconds[tensor]
            start = max(start, arrivals[tensor])
        for before in self.flow.after[op]:
            start = max(start, self.end[before])
        return max(start, self.free[device]), arrivals, clocks

    def _written(self, op: int, device: int) -> list[tuple[int, int, int]]:
        """(buffer, bytes, buffer that it takes over or -1) of the buffers that an op writes."""
        written, taken = [], set()
        for buffer in self.flow.writes[op]:
            size, source = self.flow.size[buffer], self.flow.reuses.get(buffer, -1)
            if source < 0 or self.flow.pinned[source]:
                written.append((buffer, size, -1))
                continue
            # Whether the op is really the last user on its device may only turn out later: the larger size is safe.
            size = max(size, self._held[source].get(device, 0))
            takes = self._users_left[source] == 1 and device in self._held[source] and source not in taken
            if takes:
                taken.add(source)
            written.append((buffer, size, source if takes else -1))
        return written

    def place(self, op: int, device: int) -> None:
        """Appends `op`, whose predecessors must be placed, on a device."""
        start, arrivals, clocks = self._times(op, device)
        for clock_of, clock in clocks.items():
            self._clocks[clock_of] = clock
        self.placement[op] = device
        self.end[op] = self.free[device] = start + self.runtime[op]
        for tensor, arrival in arrivals.items():
            self._arrival[tensor, device] = arrival
            self.order.append(self.flow.num_ops + tensor * self.problem.devices + device)
            self._hold(self.flow.of[tensor], device, self.tensor_bytes[tensor])
        self.order.append(op)
        self._weights[device] += self.weight[op]
        for buffer, size, source in self._written(op, device):
            if source >= 0:
                size = self._held[source].pop(device)
                self._held[buffer][device] = size
            else:
                self._hold(buffer, device, size)
        self._peak[device] = max(self._peak[device], self._live[device] + self.workspace[op])
        self._release(op)

    def _hold(self, buffer: int, device: int, size: int) -> None:
        self._held[buffer][device] = self._held[buffer].get(device, 0) + size
        self._live[device] += size

    def _release(self, op: int) -> None:
        for buffer in self.flow.reads[op]:
            self._users_left[buffer] -= 1
        for buffer in (*self.flow.reads[op], *self.flow.writes[op]):
            if self._users_left[buffer] == 0 and not self.flow.pinned[buffer]:
                for device, size in self._held[buffer].items():
                    self._live[device] -= size
                self._held[buffer] = {}
