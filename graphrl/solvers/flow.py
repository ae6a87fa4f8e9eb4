"""A graph as lists for methods that process its ops one by one (`Flow`), and the memory along many orders (`Usage`).

In a `Flow` shared buffers (alias) count once. It ignores that an output may reuse an input's buffer; the exact costs
decide. `Usage` is exact for orders of one device, a NumPy program over lanes of orders.
"""

from collections.abc import Iterable

import numpy as np

from graphrl.costs.exact.memory import MemoryWalk, SharedBuffers
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting, grouped


class Flow:
    """A graph as lists, for passes over its ops. Buffers are those of one device, named by the tensor that allocates
    them.

    Attributes:
      topological: the ops in topological order.
      predecessors, successors: for each op, the ops that it depends on, and those that depend on it.
      after: for each op, its control predecessors.
      inputs: for each op, the tensors that it reads.
      reads, writes: for each op, the buffers that it reads, and those that it allocates.
      of: for each tensor, its buffer.
      users, size: for each buffer, the ops that read it, and its bytes.
      pinned: for each buffer, True if it is never freed.
      reuses: for each buffer that may take over another one, that other buffer.
      evaluations: number of orders whose peak was computed.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        a = graph.arrays
        n = a.num_ops
        self.graph, self.num_ops = graph, n
        self.routes = Routes(graph, Problem(), np.zeros(n, np.int64))
        buffers = SharedBuffers(graph, Problem(), self.routes)
        self.topological = a.topological.tolist()
        self.predecessors, self.successors = a.predecessors, a.successors
        self.after = grouped(a.control_target, a.control_source, n)
        self.inputs = grouped(a.use_op, a.use_tensor, n)
        users = np.unique(np.stack([buffers.of[a.use_tensor], a.use_op.astype(np.int64)], 1), axis=0)
        self.users = grouped(users[:, 0], users[:, 1], a.num_tensors)
        self.reads = grouped(users[:, 1], users[:, 0], n)
        own = np.flatnonzero(buffers.of == np.arange(a.num_tensors))
        self.writes = grouped(a.producer[own], own, n)
        self.of, self.size, self.pinned = buffers.of.tolist(), buffers.bytes.tolist(), buffers.pinned.tolist()
        self.reuses = {t: self.of[a.reuses[t]] for t in np.flatnonzero(a.reuses >= 0).tolist()}
        self.evaluations = 0

    def waiting(self) -> Waiting:
        """Returns a new `Waiting` for the ops: it determines which ops become ready as others run."""
        return self.graph.arrays.waiting()

    def kept_bytes(self, op: int) -> int:
        """Returns the bytes that an op allocates and leaves behind."""
        return sum(self.size[b] for b in self.writes[op] if self.users[b] or self.pinned[b])

    def peak(self, order: list[int]) -> int:
        """Computes the exact peak of an order on one device, in bytes, without resident weights."""
        self.evaluations += 1
        return max(map(MemoryWalk(self.graph, Problem(), self.routes).step, order))

    def least_peak(self, orders: Iterable[list[int]]) -> list[int]:
        """Returns the order of least peak, the first of equals."""
        return min(orders, key=self.peak)


CELLS = 4_000_000  # limit of lanes times uses in one batch: bounds the memory


class Usage:
    """Computes the memory along orders `[..., n]` of the ops: bytes `[..., n] int64` while the op at each place runs.
    Counts aliases, reuses, kept outputs and workspace as in `costs/exact/memory.py`, but not resident weights, which
    add the same to every order.
    """

    def __init__(self, flow: Flow) -> None:
        writes = [(buffer, op) for op, buffers in enumerate(flow.writes) for buffer in buffers]
        index = {buffer: i for i, (buffer, _) in enumerate(writes)}
        buffers, self._writer = np.array(writes, np.int64).reshape(-1, 2).T  # [b] those of this device
        self._bytes = np.array(flow.size, np.int64)[buffers]
        self._pinned = np.array(flow.pinned, bool)[buffers]
        self._freed = np.where(self._pinned, 0, self._bytes)
        # A buffer is written by the first of its ops and freed after the last: [k] ops, [b] start of each buffer's ops.
        ops = [[op, *flow.users[buffer]] for buffer, op in writes]
        self._ops = np.array([op for group in ops for op in group], np.int64)
        self._first = np.cumsum([0, *(len(group) for group in ops)])[:-1]
        self._workspace = flow.graph.arrays.workspace_bytes  # [n]
        # (buffer, source, op that writes the one and may be the last to use the other): if two outputs want one buffer,
        # the first gets it; a buffer that is never freed is not reused
        producer = flow.graph.arrays.producer.tolist()
        claims: dict[tuple[int, int], tuple[int, int, int]] = {}
        for buffer, source in sorted(flow.reuses.items()):
            if not flow.pinned[source]:
                op = producer[buffer]
                claims.setdefault((op, source), (index[buffer], index[source], op))
        self._reuses = np.array(list(claims.values()), np.int64).reshape(-1, 3).T  # [3, r]

    def __call__(self, orders: np.ndarray) -> np.ndarray:
        n = orders.shape[-1]
        flat = orders.reshape(-1, n)
        row = np.arange(len(flat))[:, None]
        place = np.empty(flat.shape, np.int64)
        place.reshape(-1)[row * n + flat] = np.arange(n)
        change = np.zeros(len(flat) * (n + 1), np.int64)
        if len(self._writer):
            last = np.maximum.reduceat(place.take(self._ops, axis=1), self._first, axis=1)  # [lanes, b]
            allocated, freed = self._allocated_and_freed(place, last)
            # A buffer counts from its writer's place to its last op's, both included.
            row *= n + 1
            np.add.at(change, (row + place.take(self._writer, axis=1)).reshape(-1), allocated.reshape(-1))
            np.subtract.at(change, (row + last + 1).reshape(-1), freed.reshape(-1))
        live = change.reshape(-1, n + 1).cumsum(axis=1)[:, :n]
        return (live + self._workspace[flat]).reshape(orders.shape)

    def peaks(self, orders: np.ndarray) -> np.ndarray:
        """Computes the peaks `[lanes] int64`, in bytes, of the orders `[lanes, n]`, in batches that fit in memory."""
        batch = max(1, CELLS // max(1, len(self._ops)))
        return np.concatenate([self(orders[i : i + batch]).max(axis=1) for i in range(0, len(orders), batch)])

    def _allocated_and_freed(self, place: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the bytes `[lanes, b]` that each buffer allocates at its writer and frees after its last op."""
        lanes, buffers = last.shape
        allocated = np.repeat(self._bytes[None], lanes, axis=0)
        freed = np.repeat(self._freed[None], lanes, axis=0)
        buffer, source, op = self._reuses
        if not len(op):
            return allocated, freed
        lane, taken = (last.take(source, axis=1) == place.take(op, axis=1)).nonzero()
        reuser = lane * buffers + buffer[taken]  # index in the flattened lanes
        holder = lane * buffers + source[taken]
        origin, first = np.arange(last.size), holder
        origin[reuser] = first
        while not np.array_equal(further := origin[first], first):  # a reused buffer may be reused again
            origin[reuser] = first = further
        freed.reshape(-1)[reuser] = np.where(self._pinned[buffer[taken]], 0, allocated.reshape(-1)[first])
        freed.reshape(-1)[holder] = 0
        allocated.reshape(-1)[reuser] = 0
        return allocated, freed
