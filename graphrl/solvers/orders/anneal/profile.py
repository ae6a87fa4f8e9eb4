"""The memory along orders of one device, in quanta, for many orders at once, on the host."""

import numpy as np

from graphrl.solvers.orders.anneal.moves import WeighedBuffers


class Profile:
    """Computes what annealing keeps of its orders; called at its start, and between chunks, where a left-out buffer
    (moves.py) may have made what it keeps inexact.
    """

    def __init__(self, buffers: WeighedBuffers, quantum: float) -> None:
        size = np.rint(buffers.size / quantum)
        self._needed = np.rint(buffers.workspace / quantum)  # [n]
        np.add.at(self._needed, buffers.writer, size)
        lasting = [b for b, users in enumerate(buffers.users) if users or buffers.pinned[b]]
        self._writer, self._size = np.array(buffers.writer, np.int64)[lasting], size[lasting]
        freed = [b for b in lasting if not buffers.pinned[b]]
        self._users = np.array([user for b in freed for user in buffers.users[b]], np.int64)
        self._first = np.cumsum([0, *(len(buffers.users[b]) for b in freed)])[:-1]
        self._freed = size[freed]

    def __call__(self, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Quanta `[lanes, n]` while the op at each place runs, and `[lanes, n + 1]` live before it and at the end."""
        lanes, n = orders.shape
        position = np.empty((lanes, n), np.int64)
        np.put_along_axis(position, orders, np.arange(n)[None], axis=1)
        lane = np.arange(lanes)[:, None]
        change = np.zeros((lanes, n + 1))  # of live memory, by the op before each place
        np.add.at(change, (lane, position[:, self._writer] + 1), self._size)
        if len(self._users):
            last = np.maximum.reduceat(position[:, self._users], self._first, axis=1)
            np.add.at(change, (lane, last + 1), -self._freed)
        live = np.cumsum(change, axis=1)
        return live[:, :n] + self._needed[orders], live
