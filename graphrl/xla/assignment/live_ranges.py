"""From when to when every value is needed in a given schedule: `HloLiveRange` (xla/hlo/utils/hlo_live_range.cc)."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from graphrl.graphs.readers.hlo.module import Computation
from graphrl.xla.assignment.buffers import ModuleBuffers


@dataclasses.dataclass(slots=True)
class LiveRanges:
    """Times count the instructions of all computations that run in sequence, those of a callee before its caller.

    Attributes:
      start, end: first and last time of every value, both included. [V]
      time: of every instruction, of the start and of the end of every computation: `ModuleBuffers.times`. [N + 2C]
      stop: the time after the last instruction.
    """

    start: np.ndarray
    end: np.ndarray
    time: np.ndarray
    stop: int


def live_ranges(buffers: ModuleBuffers, schedule: Mapping[str, Sequence[str]]) -> LiveRanges:
    """The live ranges of a module's values when its computations, by name, run in these orders of all instructions."""
    time, stop = _times(buffers, schedule)
    values = range(len(buffers.flow.values))
    start = time[[buffers.start_time(v) for v in values]]
    end = np.zeros(len(values), np.int64)
    first = np.flatnonzero(np.diff(buffers.owner, prepend=-1))
    end[buffers.owner[first]] = np.maximum.reduceat(time[buffers.times], first)
    for buffer in buffers.buffers:
        if buffer.kind == "parameter" and not buffer.donated:
            makers = [buffers.flow.nodes[buffers.flow.values[v].node].instruction.opcode for v in buffer.values]
            end[[v for v, opcode in zip(buffer.values, makers, strict=True) if opcode == "parameter"]] = stop
    for buffer in buffers.buffers:
        if len(buffer.values) > 1:
            _one_after_the_other(buffer.values, start, end)
    return LiveRanges(start, end, time, stop)


def _one_after_the_other(values: Sequence[int], start: np.ndarray, end: np.ndarray) -> None:
    """A value in a shared buffer ends where the next one begins (`HloLiveRange::NormalizeAliasedBuffers`)."""
    order = sorted(values, key=lambda v: (start[v], end[v], v))
    for v, after in itertools.pairwise(order):
        end[after] = max(end[v], end[after])
        end[v] = min(end[v], start[after])


def _times(buffers: ModuleBuffers, schedule: Mapping[str, Sequence[str]]) -> tuple[np.ndarray, int]:
    flow = buffers.flow
    time = np.full(len(flow.nodes) + 2 * len(flow.computations), -1)
    now = 0

    def run(computation: Computation) -> None:
        nonlocal now
        k = flow.place[computation.name]
        if time[buffers.starts + k] >= 0:
            return
        time[buffers.starts + k] = now
        for name in schedule.get(computation.name, computation.by_name):
            place = flow.node_of[k][name]
            instruction = flow.nodes[place].instruction
            if instruction.opcode in ("call", "conditional", "while"):
                called = instruction.called[::-1] if instruction.opcode == "while" else instruction.called
                for other in called:  # of a while, the condition first
                    run(buffers.module.computations[other])
            time[place] = now
            now += 1
        time[buffers.ends + k] = now

    run(buffers.module.entry)
    return time, now
