"""Memory of every device along an order, exactly. `graphrl.costs` has the rules; these are those of shared buffers:

- A device holds *buffers*. A tensor that is produced or transferred there has its own buffer, of its declared bytes,
  except an output with `alias`: it lives in the buffer that the aliased tensor has on that device (the tensor itself
  or its transferred copy), or, if the aliased tensor is an external input, in no counted memory at all (0 bytes).
  A transfer of an alias allocates its declared bytes at the receiver, as a buffer of its own.
- A buffer is freed when all uses on its device of all tensors in it are done (at once, after the comparison, if there
  are none), unless a tensor that was produced into it is in the graph's `outputs`: then never. Copies of such a
  tensor on other devices are freed like any other.
- An output that `reuses` an input takes over that input's buffer if the op holds the last uses of all tensors in the
  buffer, and the buffer is neither kept nor external: nothing is allocated, nothing is freed, and the buffer keeps the
  *input's* size until the output's own uses are done (an output may in turn pass it on). Otherwise it allocates as
  usual. If two outputs of an op want one buffer, the first has it.
"""

import numpy as np

from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.arrays import EXTERNAL
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import grouped


class SharedBuffers:
    """Which instances share a buffer, named by the instance that allocates it (see the module's memory rules)."""

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        a = graph.arrays
        t = a.num_tensors
        self.of = np.arange(t + len(routes.transfers))  # [instances] the buffer of each
        aliases = np.flatnonzero(a.alias >= 0)
        for tensor in aliases[np.argsort(a.rank[a.producer[aliases]], kind="stable")].tolist():
            source = routes.instance(int(a.alias[tensor]), int(routes.home[tensor]), problem.devices)
            self.of[tensor] = self.of[source]
        self.allocates = (a.alias < 0).tolist()  # [t]
        self.bytes = np.concatenate([np.where(a.alias < 0, a.tensor_bytes, 0), a.tensor_bytes[routes.transfer_tensor]])
        self.bytes[:t][a.alias == EXTERNAL] = 0
        self.pinned = np.zeros(len(self.of), bool)  # never freed
        self.pinned[self.of[:t][a.kept | (a.alias == EXTERNAL)]] = True
        used = np.concatenate([routes.use_instance, routes.transfer_tensor])
        self.uses = np.bincount(self.of[used], minlength=len(self.of))  # [instances] uses on the device, of the buffer


def memory_changes(
    graph: ComputationGraph, problem: Problem, routes: Routes, slots: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Per device `[c, 3] int64`: order entry, bytes compared with the peak, bytes after the entry's releases."""
    if np.any(graph.arrays.reuses >= 0):
        return _walked_changes(MemoryWalk(graph, problem, routes), slots)
    return _summed_changes(graph, problem, routes, slots)


def _walked_changes(walk: "MemoryWalk", slots: np.ndarray) -> tuple[np.ndarray, ...]:
    """Entry by entry: who takes over which buffer depends on what has run."""
    changes = [[(-1, bytes_live, bytes_live)] for bytes_live in walk.live]
    for entry, slot in enumerate(slots.tolist()):
        device, to = walk.device[slot], walk.to[slot]
        before = walk.live[device]
        compared = walk.step(slot)
        if device != to:  # a transfer: its source allocates nothing
            changes[device].append((entry, before, walk.live[device]))
        changes[to].append((entry, compared, walk.live[to]))
    return tuple(np.array(device, np.int64) for device in changes)


def _summed_changes(
    graph: ComputationGraph, problem: Problem, routes: Routes, slots: np.ndarray
) -> tuple[np.ndarray, ...]:
    """All at once, where no buffer is taken over: each is there from the entry that writes it to its last use."""
    a, n, m = graph.arrays, routes.num_ops, len(slots)
    buffers, copies = SharedBuffers(graph, problem, routes), np.arange(len(routes.transfers))
    entry = np.empty(m, np.int64)  # of each slot
    entry[slots] = np.arange(m)
    own = np.flatnonzero(buffers.allocates)
    written = np.concatenate([own, routes.num_tensors + copies])
    writes = entry[np.concatenate([a.producer[own], n + copies])]
    last = np.full(len(buffers.of), -1)
    last[written] = writes
    read = buffers.of[np.concatenate([routes.use_instance, routes.transfer_tensor])]
    np.maximum.at(last, read, entry[np.concatenate([a.use_op, n + copies])])
    freed = written[~buffers.pinned[written]]
    added, removed = np.zeros(m, np.int64), np.zeros(m, np.int64)
    np.add.at(added, writes, buffers.bytes[written])
    np.add.at(removed, last[freed], buffers.bytes[freed])
    workspace = np.concatenate([a.workspace_bytes, np.zeros_like(copies)])[slots]
    source = np.concatenate([routes.placement, routes.home[routes.transfer_tensor]])[slots]
    to = np.concatenate([routes.placement, routes.transfer_to])[slots]
    changes = []
    for device in range(problem.devices):
        at = np.flatnonzero((source == device) | (to == device))
        writes_here = to[at] == device
        more = np.where(writes_here, added[at], 0)
        less = np.where(source[at] == device, removed[at], 0)
        start = int(a.weight_bytes[routes.placement == device].sum()) if problem.resident_weights else 0
        after = start + np.cumsum(more - less)
        compared = after + less + np.where(writes_here, workspace[at], 0)
        changes.append(np.concatenate([[(-1, start, start)], np.stack([at, compared, after], 1)]))
    return tuple(changes)


class MemoryWalk:
    """The memory of every device after some slots (as in `Routes`) have run; steps can be taken back.

    Attributes:
      live: by device, bytes.
      device, to: by slot, the device that it reads on, and that it writes on.
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
        self.device = routes.placement.tolist() + routes.home[routes.transfer_tensor].tolist()
        self.to = routes.placement.tolist() + routes.transfer_to.tolist()
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
        device, to, reads = self.device[slot], self.to[slot], self._reads[slot]
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
        self.live[self.to[slot]] = live_to
        self.live[self.device[slot]] = live_device
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
