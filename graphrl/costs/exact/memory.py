"""Exact memory of every device along an order. `graphrl.costs` has the rules, except those of shared buffers:

- A device holds *buffers*. A tensor that is produced or transferred there has its own buffer, of its declared bytes,
  except an output with `alias`: it lives in the buffer that the aliased tensor has on that device (the tensor itself
  or its transferred copy), or, if the aliased tensor is an external input, in no counted memory at all (0 bytes).
  A transfer of an alias allocates its declared bytes at the receiver, as a buffer of its own.
- A buffer is freed when all uses on its device of all tensors in it are done (immediately after the comparison, if
  there are no uses), unless a tensor that was produced into it is in the graph's `outputs`: then never. Copies of such
  a tensor on other devices are freed like any other.
- An output that `reuses` an input takes over that input's buffer if the op holds the last uses of all tensors in the
  buffer, and the buffer is neither kept nor external: nothing is allocated, nothing is freed, and the buffer keeps the
  *input's* size until the output's own uses are done (another output may then take it over). Otherwise it allocates as
  usual. If two outputs of an op can take one buffer, the first does.
"""

from typing import Any, NamedTuple

import numpy as np

from graphrl.compiled import late_entry, shared
from graphrl.compiled.structures import rows_by
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import EXTERNAL, NONE, ComputationGraph


class SharedBuffers:
    """Buffers of a graph under a placement, named by the instance (see `Routes`) that allocates each of them.

    Slots are those of `routes`; a transfer reads one buffer and writes another.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        a, transfers = graph.arrays, np.arange(len(routes.transfers))
        t = a.num_tensors
        self.of = np.arange(t + len(routes.transfers))  # [instances] the buffer of each
        aliases = np.flatnonzero(a.alias >= 0)
        aliases = aliases[np.argsort(a.rank[a.producer[aliases]], kind="stable")]
        sources = routes.instances(a.alias[aliases], routes.home[aliases], problem.devices)
        for tensor, source in zip(aliases.tolist(), sources.tolist(), strict=True):
            self.of[tensor] = self.of[source]
        self.bytes = np.concatenate([np.where(a.alias < 0, a.tensor_bytes, 0), a.tensor_bytes[routes.transfer_tensor]])
        self.bytes[:t][a.alias == EXTERNAL] = 0
        self.pinned = np.zeros(len(self.of), bool)  # never freed
        self.pinned[self.of[:t][a.kept | (a.alias == EXTERNAL)]] = True
        own = np.flatnonzero(a.alias < 0)
        self.written = np.concatenate([own, t + transfers])  # [w] every buffer, and the slot that writes it
        self.writer = np.concatenate([a.producer[own], a.num_ops + transfers])
        self.read = self.of[np.concatenate([routes.use_instance, routes.transfer_tensor])]  # [u] buffer of every use
        self.reader = np.concatenate([a.use_op, a.num_ops + transfers])  # [u] the slot of every use
        self.uses = np.bincount(self.read, minlength=len(self.of))  # [instances] uses of each buffer


def memory_changes(
    graph: ComputationGraph, problem: Problem, routes: Routes, slots: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Returns, per device, `[c, 3] int64`: order entry, bytes compared with the peak, bytes after its releases."""
    if np.any(graph.arrays.reuses >= 0):
        return _walked_changes(_walk(graph, problem, routes), slots)
    return _summed_changes(graph, problem, routes, slots)


def _walked_changes(walk: "_Walk", slots: np.ndarray) -> tuple[np.ndarray, ...]:
    """Computes memory changes entry by entry, as buffers taken over depend on the entries before."""
    start, counts = walk.live.tolist(), np.empty((len(slots), 4), np.int64)
    _walk_all(walk, slots, counts)
    source, to, changes = walk.device[slots], walk.to[slots], list[np.ndarray]()
    for device, bytes_live in enumerate(start):
        at = np.flatnonzero((source == device) | (to == device))
        # the source of a transfer allocates nothing
        rows = np.where((to[at] == device)[:, None], counts[at][:, [1, 3]], counts[at][:, [0, 2]])
        changes.append(np.concatenate([[(-1, bytes_live, bytes_live)], np.column_stack([at, rows])]))
    return tuple(changes)


def _summed_changes(
    graph: ComputationGraph, problem: Problem, routes: Routes, slots: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Computes memory changes without a loop, if no buffer is taken over: each lives from its write to its last use."""
    buffers, m = SharedBuffers(graph, problem, routes), len(slots)
    entry = np.empty(m, np.int64)  # order entry of each slot
    entry[slots] = np.arange(m)
    last = np.full(len(buffers.of), -1)
    last[buffers.written] = entry[buffers.writer]
    np.maximum.at(last, buffers.read, entry[buffers.reader])
    freed = buffers.written[~buffers.pinned[buffers.written]]
    added, removed = np.zeros(m, np.int64), np.zeros(m, np.int64)
    np.add.at(added, entry[buffers.writer], buffers.bytes[buffers.written])
    np.add.at(removed, last[freed], buffers.bytes[freed])
    workspace = _workspace(graph, routes)[slots]
    source, to = routes.reads_on[slots], routes.writes_on[slots]
    changes = []
    for device, start in enumerate(_resident(graph, problem, routes).tolist()):
        at = np.flatnonzero((source == device) | (to == device))
        writes_here = to[at] == device
        allocated = np.where(writes_here, added[at], 0)
        released = np.where(source[at] == device, removed[at], 0)
        after = start + np.cumsum(allocated - released)
        compared = after + released + np.where(writes_here, workspace[at], 0)
        changes.append(np.concatenate([[(-1, start, start)], np.stack([at, compared, after], 1)]))
    return tuple(changes)


def _resident(graph: ComputationGraph, problem: Problem, routes: Routes) -> np.ndarray:
    """Returns the live bytes on each device before the first entry: `[d] int64`."""
    live = np.zeros(problem.devices, np.int64)
    if problem.resident_weights:
        np.add.at(live, routes.placement, graph.arrays.weight_bytes)
    return live


def _workspace(graph: ComputationGraph, routes: Routes) -> np.ndarray:
    """Returns the workspace of each slot: `[slots] int64` bytes."""
    return np.concatenate([graph.arrays.workspace_bytes, np.zeros(len(routes.transfers), np.int64)])


class _Walk(NamedTuple):
    """State of memory on d devices while s slots (as in `Routes`) run, whose tensors are in b buffers.

    Fields are arrays in compiled code, else lists.
    """

    live: Any  # [d] int, bytes
    size: Any  # [b] int, present bytes of a buffer; if it has taken over another, the other's
    left: Any  # [b] int, number of remaining uses on its device
    reused: Any  # [b] int, 1 if it has taken over another
    device: Any  # [s] int, device that a slot reads on
    to: Any  # [s] int, device that it writes on
    workspace: Any  # [s] int, bytes
    read_begins: Any  # [s + 1] int, start of each slot's buffers in `reads`
    reads: Any  # int, buffers
    write_begins: Any  # [s + 1] int, start of each slot's buffers in `writes`
    writes: Any  # int, buffers
    bytes: Any  # [b] int, declared bytes of a buffer
    pinned: Any  # [b] bool, never freed
    unused: Any  # [b] bool, freed as soon as it is written
    source: Any  # [b] int, the buffer that it may take over, or NONE


@shared
def _step(walk: _Walk, slot: int) -> int:
    """Runs a ready slot; returns the bytes to compare with the peak of the device that it writes on."""
    (  # in Python faster than attribute access
        live, size, left, reused, device, to, workspace, read_begins, reads, write_begins, writes, _, pinned, unused,
        source,
    ) = walk  # fmt: skip
    here, there, first, last = device[slot], to[slot], write_begins[slot], write_begins[slot + 1]
    for row in range(first, last):
        buffer = writes[row]
        if source[buffer] >= 0 and _reuses(walk, slot, buffer):
            reused[buffer] = 1
            size[buffer], size[source[buffer]] = size[source[buffer]], 0  # so that the release below frees nothing
        else:
            live[there] += size[buffer]
    compared = live[there] + workspace[slot]
    for row in range(read_begins[slot], read_begins[slot + 1]):
        buffer = reads[row]
        left[buffer] -= 1
        if left[buffer] == 0 and not pinned[buffer]:
            live[here] -= size[buffer]
    for row in range(first, last):
        if unused[writes[row]]:
            live[there] -= size[writes[row]]
    return compared


@shared
def _reuses(walk: _Walk, slot: int, buffer: int) -> bool:
    """True if an op's output takes over its possible source buffer.

    The op must have all remaining uses of that buffer, and no output before this one may have taken it."""
    source, reads = walk.source[buffer], 0
    if walk.pinned[source]:
        return False
    for row in range(walk.write_begins[slot], walk.write_begins[slot + 1]):
        if walk.reused[walk.writes[row]] and walk.source[walk.writes[row]] == source:
            return False
    for row in range(walk.read_begins[slot], walk.read_begins[slot + 1]):
        if walk.reads[row] == source:
            reads += 1
    return walk.left[source] == reads


@late_entry
def _walk_all(walk: _Walk, slots: np.ndarray, counts: np.ndarray) -> None:
    """Walks all entries and writes four byte counts of each to `counts`, `[m, 4]`.

    They are: live before it where it reads, compared where it writes, live after it where it reads, and where it
    writes.
    """
    for place in range(len(slots)):
        slot = slots[place]
        counts[place, 0] = walk.live[walk.device[slot]]
        counts[place, 1] = _step(walk, slot)
        counts[place, 2], counts[place, 3] = walk.live[walk.device[slot]], walk.live[walk.to[slot]]


def _walk(graph: ComputationGraph, problem: Problem, routes: Routes) -> _Walk:
    """Returns the state before the first slot."""
    a, buffers, slots = graph.arrays, SharedBuffers(graph, problem, routes), len(routes.nodes)
    read_begins, reads = rows_by(buffers.reader, buffers.read, slots)
    write_begins, writes = rows_by(buffers.writer, buffers.written, slots)
    reusing = np.flatnonzero(a.reuses >= 0)
    source = np.full(len(buffers.of), NONE, np.int64)
    source[reusing] = buffers.of[routes.instances(a.reuses[reusing], routes.home[reusing], problem.devices)]
    return _Walk(
        live=_resident(graph, problem, routes),
        size=buffers.bytes.copy(),
        left=buffers.uses.astype(np.int64),
        reused=np.zeros_like(source),
        device=routes.reads_on,
        to=routes.writes_on,
        workspace=_workspace(graph, routes),
        read_begins=read_begins,
        reads=reads,
        write_begins=write_begins,
        writes=writes,
        bytes=buffers.bytes,
        pinned=buffers.pinned,
        unused=(buffers.uses == 0) & ~buffers.pinned,
        source=source,
    )


class MemoryWalk:
    """Memory of every device after some slots (as in `Routes`) have run; steps can be undone.

    Attributes:
      live: live bytes of each device.
      reuses: True if live bytes depend on more than the set of slots that have run: some output may reuse an input.
    """

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        walk = self._walk = _Walk(*(field.tolist() for field in _walk(graph, problem, routes)))
        self.live = walk.live
        self._reusing = [buffer for buffer, source in enumerate(walk.source) if source >= 0]
        self.reuses = bool(self._reusing)
        self._undo: list[tuple[int, int]] = []

    def step(self, slot: int) -> int:
        """Runs a ready slot; returns the bytes to compare with the peak of the device that it writes on."""
        self._undo.append((self.live[self._walk.device[slot]], self.live[self._walk.to[slot]]))
        return _step(self._walk, slot)

    def back(self, slot: int) -> None:
        """Undoes the last step, which ran `slot`."""
        walk = self._walk
        self.live[walk.device[slot]], self.live[walk.to[slot]] = self._undo.pop()
        for row in range(walk.read_begins[slot], walk.read_begins[slot + 1]):
            walk.left[walk.reads[row]] += 1
        for row in range(walk.write_begins[slot], walk.write_begins[slot + 1]):
            buffer = walk.writes[row]
            if walk.reused[buffer]:
                walk.size[walk.source[buffer]], walk.size[buffer] = walk.size[buffer], walk.bytes[buffer]
                walk.reused[buffer] = 0

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Returns (buffer, bytes) for every live buffer that took over one of another size.

        With the set of slots that have run, they determine all later steps.
        """
        walk = self._walk
        return tuple(
            (buffer, walk.size[buffer])
            for buffer in self._reusing
            if walk.size[buffer] != walk.bytes[buffer] and (walk.left[buffer] or walk.pinned[buffer])
        )
