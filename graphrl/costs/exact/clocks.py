"""When everything runs along an order, exactly: the host twin of `device/timing.py`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphrl.compiled import late_entry, shared
from graphrl.compiled.records import LINK, RENDEZVOUS, TRANSFERS, rows_by
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Transfer


class _Run(NamedTuple):
    """A run of s slots on d devices, times in the unit of their lengths: of arrays where it is compiled, else lists."""

    transfer: int
    num_ops: int
    here: Any  # [s] int, device that a slot starts from
    there: Any  # [s] int, device that it ends on
    length: Any  # [s] float
    begins: Any  # [s + 1] int, where in `sources` those of a slot begin
    sources: Any  # [x] int, slots that others wait for
    free: Any  # [d] float, when devices are free
    link: Any  # [d] float, when their outgoing links are
    end: Any  # [s] float, of the slots that have run


@shared
def _step(run: _Run, slot: int) -> float:
    """Runs a slot: its start."""
    transfer, num_ops, device, to, length, begins, sources, free, link, end = run  # in Python quicker than each by name
    here, there, begin = device[slot], to[slot], 0.0
    for row in range(begins[slot], begins[slot + 1]):
        if end[sources[row]] > begin:
            begin = end[sources[row]]
    if slot < num_ops or transfer == RENDEZVOUS:
        begin = max(begin, free[here], free[there])
        free[here] = free[there] = begin + length[slot]
    elif transfer == LINK:
        begin = max(begin, link[here])
        link[here] = begin + length[slot]
    end[slot] = begin + length[slot]
    return begin


@late_entry
def _run_all(run: _Run, slots: np.ndarray, start: np.ndarray) -> None:
    for place in range(len(slots)):
        start[place] = _step(run, slots[place])


class Clocks:
    """Clocks and ends of the slots that have run, in the unit of their lengths; steps can be taken back.

    Attributes:
      free, link: by device, when it and its outgoing link are free.
      end: by slot, of those that have run.
    """

    def __init__(self, routes: Routes, lengths: np.ndarray, transfer: Transfer, devices: int) -> None:
        run = _begun(routes, lengths, transfer, devices)
        self._run = _Run(*(field.tolist() if isinstance(field, np.ndarray) else field for field in run))
        self.free, self.link, self.end = self._run.free, self._run.link, self._run.end
        self._undo: list[tuple[float, float, float]] = []

    def step(self, slot: int) -> tuple[float, float]:
        """Runs a slot: its start and its end."""
        here, there = self._run.here[slot], self._run.there[slot]
        self._undo.append((self.free[here], self.free[there], self.link[here]))
        return _step(self._run, slot), self.end[slot]

    def back(self, slot: int) -> None:
        """Takes back the last step, which ran `slot`."""
        here, there = self._run.here[slot], self._run.there[slot]
        self.free[here], self.free[there], self.link[here] = self._undo.pop()


def run_times(
    routes: Routes, slots: np.ndarray, lengths: Sequence[float] | np.ndarray, transfer: Transfer, devices: int
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of every order entry, in the unit of `lengths`: two `[m] float64`.

    Args:
      slots: `[m]` a topological order of all slots.
      lengths: `[slots]`, how long each op and each transfer takes.
    """
    run, start = _begun(routes, np.asarray(lengths), transfer, devices), np.empty(len(slots))
    _run_all(run, slots, start)
    return start, run.end[slots]


def _begun(routes: Routes, lengths: np.ndarray, transfer: Transfer, devices: int) -> _Run:
    """Before anything has run."""
    slots = len(routes.nodes)
    begins, sources = rows_by(routes.after, routes.before, slots)
    return _Run(
        transfer=TRANSFERS[transfer],
        num_ops=routes.num_ops,
        here=routes.reads_on,
        there=routes.writes_on,
        length=lengths.astype(np.float64),
        begins=begins,
        sources=sources,
        free=np.zeros(devices),
        link=np.zeros(devices),
        end=np.zeros(slots),
    )
