"""Peaks of many orders of one device at once, exactly, as NumPy programs over lanes of orders."""

import numpy as np

from graphrl.solvers.flow import Flow

CELLS = 4_000_000  # at most, lanes times uses at once: bounds the memory


class Peaks:
    """Computes the peaks of batches of orders of one graph: aliases, reuses, kept outputs and workspace as
    `costs/exact_memory.py` has them; without resident weights, which add the same to every order.
    """

    def __init__(self, flow: Flow) -> None:
        a = flow.graph.arrays
        self._n = flow.num_ops
        writes = [(buffer, op) for op, buffers in enumerate(flow.writes) for buffer in buffers]
        self._buffers, self._writer = np.array(writes, np.int64).reshape(-1, 2).T  # [b] those of this device
        self._bytes, self._pinned = np.array(flow.size, np.int64), np.array(flow.pinned, bool)  # [t], [t]
        # A buffer is written by the first of its ops and freed after the last: [k] ops, [b] where each buffer's begin.
        ops = [[op, *flow.users[buffer]] for buffer, op in writes]
        self._ops = np.array([op for group in ops for op in group], np.int64)
        self._first = np.cumsum([0, *(len(group) for group in ops)])[:-1]
        self._workspace = a.workspace_bytes  # [n]
        index = {buffer: i for i, (buffer, _) in enumerate(writes)}
        rank = {op: i for i, op in enumerate(flow.topological)}
        producer = a.producer.tolist()
        # An output may take over a buffer that was taken over itself: sources first.
        self._reuses = sorted(
            ((producer[t], index[t], index[source]) for t, source in flow.reuses.items()),
            key=lambda reuse: (rank[reuse[0]], reuse[1]),
        )

    def __call__(self, orders: np.ndarray) -> np.ndarray:
        """Peaks `[lanes] int64`, bytes, of the orders `[lanes, n]` of ops."""
        if not len(self._buffers):
            return np.full(len(orders), self._workspace.max(), np.int64)
        at_once = max(1, CELLS // len(self._ops))
        batches = [self._of_batch(orders[i : i + at_once]) for i in range(0, len(orders), at_once)]
        return np.concatenate(batches)

    def _of_batch(self, orders: np.ndarray) -> np.ndarray:
        lanes, n = orders.shape
        position = np.empty((lanes, n), np.int64)
        np.put_along_axis(position, orders, np.arange(n)[None], axis=1)
        last = np.maximum.reduceat(position[:, self._ops], self._first, axis=1)  # [lanes, b]
        allocated = np.repeat(self._bytes[self._buffers][None], lanes, axis=0)
        freed = np.where(self._pinned[self._buffers], 0, allocated)
        if self._reuses:
            self._take_over(position, last, allocated, freed)
        # A buffer counts from its writer's place to its last op's, both included.
        step = np.arange(lanes)[:, None] * (n + 1)
        change = _sums(step + position[:, self._writer], allocated, lanes * (n + 1))
        change -= _sums(step + last + 1, freed, lanes * (n + 1))
        live = np.cumsum(change.reshape(lanes, n + 1), axis=1)[:, :n]
        return (live + self._workspace[orders]).max(axis=1)

    def _take_over(self, position: np.ndarray, last: np.ndarray, allocated: np.ndarray, freed: np.ndarray) -> None:
        """Sets what is allocated and freed of reused buffers and of those that take them over, in place."""
        holds = freed.copy()  # [lanes, b] bytes of an unpinned buffer while it lives
        taken: dict[tuple[int, int], np.ndarray] = {}
        for op, buffer, source in self._reuses:
            takes = (last[:, source] == position[:, op]) & ~self._pinned[self._buffers[source]]
            if (op, source) in taken:  # the first output that wants a buffer has it
                takes &= ~taken[op, source]
            taken[op, source] = takes | taken.get((op, source), takes)
            allocated[:, buffer] = np.where(takes, 0, allocated[:, buffer])
            held = np.where(takes, holds[:, source], self._bytes[self._buffers[buffer]])
            holds[:, buffer] = held
            freed[:, source] = np.where(takes, 0, freed[:, source])
            freed[:, buffer] = 0 if self._pinned[self._buffers[buffer]] else held


def _sums(index: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    sums = np.zeros(size, np.int64)
    np.add.at(sums, index.reshape(-1), values.reshape(-1))
    return sums
