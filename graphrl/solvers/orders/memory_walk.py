"""Memory along an order that is extended and taken back step by step: for searches over orders.

`costs/exact/memory.py` has the rules; this is its stepwise twin, held to it by tests.
"""

import numpy as np

from graphrl.costs.exact.memory import SharedBuffers
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import grouped


class MemoryWalk:
    """The memory of every device after some slots (ops and transfers, as in `Routes`) have run.

    Attributes:
      live: by device, bytes.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        a, n, t = graph.arrays, routes.num_ops, routes.num_tensors
        buffers = SharedBuffers(graph, problem, routes)
        self.live = [0] * problem.devices
        if problem.resident_weights:
            for device, weight in zip(routes.placement.tolist(), a.weight_bytes.tolist(), strict=True):
                self.live[device] += weight
        self._bytes, self._pinned = buffers.bytes.tolist(), buffers.pinned.tolist()
        self._size = list(self._bytes)  # of a buffer: not its bytes once it has taken over another
        self._left = buffers.uses.tolist()
        copies = len(routes.transfers)
        read_op = np.concatenate([a.use_op, n + np.arange(copies)])
        read = np.concatenate([buffers.of[routes.use_instance], buffers.of[routes.transfer_tensor]])
        self._reads = grouped(read_op, read, n + copies)
        own = np.flatnonzero(buffers.allocates)
        written = np.concatenate([own, t + np.arange(copies)])
        self._writes = grouped(np.concatenate([a.producer[own], n + np.arange(copies)]), written, n + copies)
        self._unused = [[b for b in group if not self._left[b] and not self._pinned[b]] for group in self._writes[:n]]
        self._device = routes.placement.tolist() + routes.home[routes.transfer_tensor].tolist()  # that it reads on
        self._to = routes.placement.tolist() + routes.transfer_to.tolist()  # that it writes on
        self._workspace = a.workspace_bytes.tolist() + [0] * copies
        self._reuses = {
            tensor: int(buffers.of[routes.instance(int(a.reuses[tensor]), int(routes.home[tensor]), problem.devices)])
            for tensor in np.flatnonzero(a.reuses >= 0).tolist()
        }
        self._num_ops = n
        self._undo: list[tuple[int, int, list[tuple[int, int]]]] = []

    @property
    def reuses(self) -> bool:
        """Whether live bytes depend on more than the set of slots that have run: some output may reuse an input."""
        return bool(self._reuses)

    def step(self, slot: int) -> int:
        """Runs a slot that is ready: the bytes that are compared with the peak of the device that it writes on."""
        live, size, left = self.live, self._size, self._left
        device, to, reads = self._device[slot], self._to[slot], self._reads[slot]
        before = live[device], live[to]
        taken: list[tuple[int, int]] = []
        if self._reuses:
            taken = self._take_over(slot)
        for buffer in self._writes[slot]:
            live[to] += size[buffer]
        for buffer, source in taken:  # only now: nothing new was allocated for it
            live[to] -= self._bytes[buffer]
            size[buffer], size[source] = size[source], 0  # so that the release below frees nothing
        compared = live[to] + self._workspace[slot]
        for buffer in reads:
            left[buffer] -= 1
            if left[buffer] == 0 and not self._pinned[buffer]:
                live[device] -= size[buffer]
        if slot < self._num_ops:
            for buffer in self._unused[slot]:
                live[to] -= size[buffer]
        self._undo.append((*before, taken))
        return compared

    def back(self, slot: int) -> None:
        """Takes back the last step, which ran `slot`."""
        live_device, live_to, taken = self._undo.pop()
        self.live[self._to[slot]] = live_to
        self.live[self._device[slot]] = live_device
        for buffer in self._reads[slot]:
            self._left[buffer] += 1
        for buffer, source in taken:
            self._size[source], self._size[buffer] = self._size[buffer], self._bytes[buffer]

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(buffer, bytes) of what lives in a taken-over buffer of other than its own bytes: with the set of slots that
        have run, all that matters for what follows.
        """
        return tuple(
            (buffer, self._size[buffer])
            for buffer in self._reuses
            if self._size[buffer] != self._bytes[buffer] and (self._left[buffer] or self._pinned[buffer])
        )

    def _take_over(self, slot: int) -> list[tuple[int, int]]:
        """(output's buffer, buffer that it takes over) of an op: those that it holds all uses of that are left."""
        taken: dict[int, int] = {}
        for buffer in self._writes[slot]:
            source = self._reuses.get(buffer, -1)
            if source < 0 or source in taken or self._pinned[source]:
                continue
            if self._left[source] == self._reads[slot].count(source):
                taken[source] = buffer
        return [(buffer, source) for source, buffer in taken.items()]
