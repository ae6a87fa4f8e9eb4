"""The memory along one order of one device, exactly, as a NumPy program."""

import numpy as np

from graphrl.solvers.flow import Flow


class Usage:
    """Computes, for an order `[n]` of the ops, the bytes `[n] int64` while the op at each place runs: aliases, reuses,
    kept outputs and workspace as `costs/exact_memory.py` has them; without resident weights.
    """

    def __init__(self, flow: Flow) -> None:
        a = flow.graph.arrays
        writes = [(buffer, op) for op, buffers in enumerate(flow.writes) for buffer in buffers]
        index = {buffer: i for i, (buffer, _) in enumerate(writes)}
        buffers, self._writer = np.array(writes, np.int64).reshape(-1, 2).T  # [b]
        self._bytes = np.array(flow.size, np.int64)[buffers]
        self._pinned = np.array(flow.pinned, bool)[buffers]
        # A buffer is freed after the last of its ops: [k] ops, [b] where each buffer's begin.
        ops = [[op, *flow.users[buffer]] for buffer, op in writes]
        self._ops = np.array([op for group in ops for op in group], np.int64)
        self._first = np.cumsum([0, *(len(group) for group in ops)])[:-1]
        self._workspace = a.workspace_bytes
        # (buffer, source, op that writes the one and may be the last to use the other): of two outputs that want one
        # buffer, the first has it
        wanted: dict[tuple[int, int], tuple[int, int, int]] = {}
        for buffer, source in sorted(flow.reuses.items()):
            op = int(a.producer[buffer])
            wanted.setdefault((op, source), (index[buffer], index[source], op))
        self._reuses = np.array(list(wanted.values()), np.int64).reshape(-1, 3).T

    def __call__(self, order: np.ndarray) -> np.ndarray:
        n = len(order)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        change = np.zeros(n + 1, np.int64)
        if len(self._writer):
            last = np.maximum.reduceat(place[self._ops], self._first)
            allocated, freed = self._taken_over(place, last)
            # A buffer counts from its writer's place to its last op's, both included.
            np.add.at(change, place[self._writer], allocated)
            np.add.at(change, last + 1, -freed)
        return np.cumsum(change)[:n] + self._workspace[order]

    def _taken_over(self, place: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that each buffer allocates and frees."""
        buffer, source, op = self._reuses
        takes = (last[source] == place[op]) & ~self._pinned[source]
        buffer, source = buffer[takes], source[takes]
        origin = np.arange(len(last))
        origin[buffer] = source
        while not np.array_equal(further := origin[origin], origin):  # what was taken over may be taken over again
            origin = further
        allocated, freed = self._bytes.copy(), np.where(self._pinned, 0, self._bytes[origin])
        allocated[buffer] = 0
        freed[source] = 0
        return allocated, freed
