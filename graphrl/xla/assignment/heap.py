"""Size of XLA's heap of temporaries in a given schedule.

Three steps, each after a file of XLA:

- `live_ranges`: from when to when each value is needed; `HloLiveRange` (xla/hlo/utils/hlo_live_range.cc);
- `heap_blocks`: values that are written in place share a block, which is taken and freed at certain times;
  `HeapSimulator::RunComputation` (xla/service/heap_simulator/heap_simulator.cc);
- `heap_size`: addresses for the blocks; `GlobalDecreasingSizeBestFitHeap`, `ChooseBestHeapAlgorithm` (the same file).
"""

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


@dataclasses.dataclass(slots=True)
class Block:
    """Values that lie in the same place of the heap one after the other.

    Attributes:
      first: the value that came first: it breaks ties.
      bytes: the size.
      spans: times from when to when each of the values is there, both included, in increasing order. They count what
        happens in the heap, not instructions.
    """

    first: int
    bytes: int
    spans: list[tuple[int, int]]


def heap_blocks(buffers: ModuleBuffers, ranges: LiveRanges, in_heap: np.ndarray) -> list[Block]:
    """Walks through the program and notes when every block of the heap is taken and freed.

    Args:
      buffers: of the module.
      ranges: of its values.
      in_heap: which values lie in the heap. [V]

    Returns:
      The blocks that have a size, in the order in which they are taken.
    """
    start, end = ranges.start.tolist(), ranges.end.tolist()
    values = sorted(np.flatnonzero(in_heap).tolist(), key=lambda v: (start[v], end[v], v))
    defined: list[list[int]] = [[] for _ in range(ranges.stop + 1)]
    freed: list[dict[int, None]] = [{} for _ in range(ranges.stop + 1)]
    for v in values:
        defined[start[v]].append(v)
        freed[end[v]][v] = None
    clock = _Clock(buffers)
    for now in range(ranges.stop + 1):
        for v in defined[now]:
            if clock.join_buffer(v):
                continue
            over = buffers.overwritable(v, freed[now])
            if over is None:
                clock.take(v)
            else:
                del freed[now][over]
                clock.free(over)
                clock.join(v, over)
        for v in freed[now]:
            clock.free(v)
    return [block for block in clock.blocks.values() if block.bytes]


class _Clock:
    def __init__(self, buffers: ModuleBuffers) -> None:
        self.buffers = buffers
        self.now = 0
        self.blocks: dict[int, Block] = {}  # by first value
        self.block_of: dict[int, Block] = {}
        self.taken: dict[int, int] = {}  # buffers: their first value
        self.since: dict[int, int] = {}

    def take(self, value: int) -> None:
        buffer = int(self.buffers.buffer_of[value])
        self.taken[buffer] = value
        self.block_of[value] = self.blocks[value] = Block(value, self.buffers.buffers[buffer].bytes, [])
        self._start(value)

    def join_buffer(self, value: int) -> bool:
        """Puts a value where its buffer already is, if it is."""
        first = self.taken.get(int(self.buffers.buffer_of[value]))
        if first is None:
            return False
        self.join(value, first)
        return True

    def join(self, value: int, other: int) -> None:
        self.block_of[value] = self.block_of[other]
        self._start(value)

    def _start(self, value: int) -> None:
        self.since[value] = self.now
        self.now += 1

    def free(self, value: int) -> None:
        self.block_of[value].spans.append((self.since[value], self.now))
        self.now += 1


def heap_size(blocks: Sequence[Block], alignment: int) -> int:
    """Bytes of the heap that XLA packs the blocks into: the better one of two orders of packing.

    Args:
      blocks: those of the heap.
      alignment: of every block's address, in bytes.
    """
    by_size = sorted(blocks, key=lambda b: (-b.bytes, b.spans[0][0] - b.spans[0][1], b.first))
    by_time = sorted(blocks, key=lambda b: (b.spans[0][0] - b.spans[-1][1], -b.bytes, b.first))
    return min(_pack(by_size, alignment), _pack(by_time, alignment))


def _pack(blocks: Sequence[Block], alignment: int) -> int:
    """Puts each block into the smallest hole that is free while it is needed; the lowest of equal ones."""
    room = sum(len(b.spans) for b in blocks)
    low, high = np.zeros(room, np.int64), np.zeros(room, np.int64)  # addresses of what is placed, increasing
    start, end = np.zeros(room, np.int64), np.zeros(room, np.int64)
    count, size = 0, 0
    for block in blocks:
        spans = _merged(block.spans)
        near = np.zeros(count, bool)
        for first, last in spans:
            near |= (start[:count] <= last) & (end[:count] >= first)
        address = _best_hole(low[:count][near], high[:count][near], block.bytes)
        size = max(size, address + block.bytes)
        at = int(np.searchsorted(low[:count], address, side="right"))
        n = len(spans)
        for array, new in (
            (low, address),
            (high, -(-(address + block.bytes) // alignment) * alignment),
            (start, [s for s, _ in spans]),
            (end, [e for _, e in spans]),
        ):
            array[at + n : count + n] = array[at:count].copy()
            array[at : at + n] = new
        count += n
    return size


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that follow each other without a gap made one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _best_hole(low: np.ndarray, high: np.ndarray, size: int) -> int:
    """Address of the smallest hole of at least `size` between what lies at [low, high), sorted by `low`."""
    if not len(low):
        return 0
    below = np.concatenate(([0], np.maximum.accumulate(high)))  # where each hole begins
    holes = low - below[:-1]
    fitting = np.flatnonzero(holes >= size)
    return int(below[fitting[np.argmin(holes[fitting])]] if len(fitting) else below[-1])
