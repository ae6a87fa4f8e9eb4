"""When everything runs along an order, exactly: the host twin of `device/timing.py`."""

from collections.abc import Sequence

import numpy as np

from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Transfer
from graphrl.graphs.topology import grouped


class Clocks:
    """Clocks and ends of the slots that have run, in the unit of their lengths; steps can be taken back.

    Attributes:
      free, link: by device, when it and its outgoing link are free.
      end: by slot, of those that have run.
    """

    def __init__(self, routes: Routes, lengths: Sequence[float], transfer: Transfer, devices: int) -> None:
        self._lengths, self._transfer, self._num_ops = lengths, transfer, routes.num_ops
        self._sources = grouped(routes.after, routes.before, len(routes.nodes))
        self._device = routes.placement.tolist() + routes.home[routes.transfer_tensor].tolist()  # where it starts from
        self._to = routes.placement.tolist() + routes.transfer_to.tolist()
        self.free, self.link = [0.0] * devices, [0.0] * devices
        self.end = [0.0] * len(routes.nodes)
        self._undo: list[tuple[float, float, float]] = []

    def step(self, slot: int) -> tuple[float, float]:
        """Runs a slot: its start and its end."""
        here, there = self._device[slot], self._to[slot]
        self._undo.append((self.free[here], self.free[there], self.link[here]))
        begin = 0.0
        for source in self._sources[slot]:
            if self.end[source] > begin:
                begin = self.end[source]
        if slot < self._num_ops or self._transfer == "rendezvous":
            begin = max(begin, self.free[here], self.free[there])
            self.free[here] = self.free[there] = begin + self._lengths[slot]
        elif self._transfer == "link":
            begin = max(begin, self.link[here])
            self.link[here] = begin + self._lengths[slot]
        self.end[slot] = begin + self._lengths[slot]
        return begin, self.end[slot]

    def back(self, slot: int) -> None:
        """Takes back the last step, which ran `slot`."""
        here, there = self._device[slot], self._to[slot]
        self.free[here], self.free[there], self.link[here] = self._undo.pop()


def run_times(
    routes: Routes, slots: np.ndarray, lengths: Sequence[float], transfer: Transfer, devices: int
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of every order entry, in the unit of `lengths`: two `[m] float64`.

    Args:
      slots: `[m]` a topological order of all slots.
      lengths: `[slots]`, how long each op and each transfer takes.
    """
    clocks = Clocks(routes, lengths, transfer, devices)
    start = np.array([clocks.step(slot)[0] for slot in slots.tolist()])
    return start, np.array(clocks.end)[slots]
