"""Allocation of a module's values in a given schedule: in separate buffers, or in XLA's heap of temporaries.

Each step is after a file of XLA:

- `live_ranges`: first and last time of each value; `HloLiveRange` (xla/hlo/utils/hlo_live_range.cc);
- `assign_outputs`: buffers outside the heap: results, donated parameters, and temporaries that fit into them;
  `BufferAssigner::AssignBuffersForComputations` (xla/service/buffer_assignment.cc);
- `heap_blocks`: values that are written in place share a block, which is allocated and freed at certain times;
  `HeapSimulator::RunComputation` (xla/service/heap_simulator/heap_simulator.cc);
- `heap_size`: addresses for the blocks; `GlobalDecreasingSizeBestFitHeap`, `ChooseBestHeapAlgorithm` (the same file).
"""

import dataclasses
import itertools
from collections.abc import Container, Mapping, Sequence

import numpy as np

from graphrl.graphs.readers.hlo.module import Computation
from graphrl.xla.assignment.buffers import Buffer, ModuleBuffers


@dataclasses.dataclass(slots=True)
class LiveRanges:
    """Live ranges of a module's V values under a schedule.

    Times count the instructions of all computations that run in sequence. A call's time is after those of the
    instructions that it runs.

    Attributes:
      start, end: `[V]`: first and last time of every value, both included.
      time: `[N + 2 C]`: times of the N instructions, and of the starts and ends of the C computations, in the order of
        `ModuleBuffers.times`.
      stop: the time after the last instruction.
    """

    start: np.ndarray
    end: np.ndarray
    time: np.ndarray
    stop: int


def live_ranges(buffers: ModuleBuffers, schedule: Mapping[str, Sequence[str]]) -> LiveRanges:
    """Computes live ranges under a schedule: name of a computation -> names of all its instructions in order."""
    time, stop = _times(buffers, schedule)
    values = range(len(buffers.flow.values))
    start = time[[buffers.start_time(v) for v in values]]
    end = np.zeros(len(values), np.int64)
    first = np.flatnonzero(np.diff(buffers.owner, prepend=-1))
    end[buffers.owner[first]] = np.maximum.reduceat(time[buffers.times], first)
    for buffer in buffers.buffers:
        if buffer.kind == "parameter" and not buffer.donated:
            opcodes = [buffers.flow.nodes[buffers.flow.values[v].node].instruction.opcode for v in buffer.values]
            end[[v for v, opcode in zip(buffer.values, opcodes, strict=True) if opcode == "parameter"]] = stop
    for buffer in buffers.buffers:
        if len(buffer.values) > 1:
            _end_in_turn(buffer.values, start, end)
    return LiveRanges(start, end, time, stop)


def _end_in_turn(values: Sequence[int], start: np.ndarray, end: np.ndarray) -> None:
    """Ends each value of a shared buffer where the next one begins (`HloLiveRange::NormalizeAliasedBuffers`)."""
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
    """A range of addresses in the heap that several values use one after another.

    Attributes:
      first: number of the first of these values; it breaks ties.
      bytes: size of the block.
      spans: first and last time of each of the values, both included, in increasing order. Times count events of the
        heap (allocations and frees), not instructions.
      values: numbers of the values.
    """

    first: int
    bytes: int
    spans: list[tuple[int, int]]
    values: list[int] = dataclasses.field(default_factory=list)


def heap_blocks(buffers: ModuleBuffers, ranges: LiveRanges, in_heap: np.ndarray) -> list[Block]:
    """Simulates the program and records when every block of the heap is allocated and freed.

    Args:
      buffers: buffers of the module.
      ranges: live ranges of its values.
      in_heap: `[V]`: whether each value is in the heap.

    Returns:
      The blocks of more than 0 bytes, in the order of their allocation.
    """
    start, end = ranges.start.tolist(), ranges.end.tolist()
    values = sorted(np.flatnonzero(in_heap).tolist(), key=lambda v: (start[v], end[v], v))
    defined: list[list[int]] = [[] for _ in range(ranges.stop + 1)]
    freed: list[dict[int, None]] = [{} for _ in range(ranges.stop + 1)]
    for v in values:
        defined[start[v]].append(v)
        freed[end[v]][v] = None
    simulation = _HeapSimulation(buffers)
    for now in range(ranges.stop + 1):
        for v in defined[now]:
            if simulation.join_buffer(v):
                continue
            overwritten = buffers.overwritable(v, freed[now])
            if overwritten is None:
                simulation.take(v)
            else:
                del freed[now][overwritten]
                simulation.free(overwritten)
                simulation.join(v, overwritten)
        for v in freed[now]:
            simulation.free(v)
    return [block for block in simulation.blocks.values() if block.bytes]


class _HeapSimulation:
    def __init__(self, buffers: ModuleBuffers) -> None:
        self.buffers = buffers
        self.now = 0
        self.blocks: dict[int, Block] = {}  # first value -> block
        self.block_of: dict[int, Block] = {}  # value -> block
        self.first_values: dict[int, int] = {}  # buffer -> its first value
        self.since: dict[int, int] = {}

    def take(self, value: int) -> None:
        buffer = int(self.buffers.buffer_of[value])
        self.first_values[buffer] = value
        self.block_of[value] = self.blocks[value] = Block(value, self.buffers.buffers[buffer].bytes, [])
        self._start(value)

    def join_buffer(self, value: int) -> bool:
        """Puts a value into its buffer's block and returns True, if the buffer has one already."""
        first = self.first_values.get(int(self.buffers.buffer_of[value]))
        if first is None:
            return False
        self.join(value, first)
        return True

    def join(self, value: int, other: int) -> None:
        self.block_of[value] = self.block_of[other]
        self._start(value)

    def _start(self, value: int) -> None:
        self.block_of[value].values.append(value)
        self.since[value] = self.now
        self.now += 1

    def free(self, value: int) -> None:
        self.block_of[value].spans.append((self.since[value], self.now))
        self.now += 1


def heap_size(blocks: Sequence[Block], alignment: int) -> int:
    """Computes the bytes of the heap into which XLA packs the blocks, in the better one of two orders.

    Args:
      blocks: blocks of the heap.
      alignment: alignment of block addresses in bytes.
    """
    by_size = sorted(blocks, key=lambda b: (-b.bytes, b.spans[0][0] - b.spans[0][1], b.first))
    by_time = sorted(blocks, key=lambda b: (b.spans[0][0] - b.spans[-1][1], -b.bytes, b.first))
    return min(_pack(by_size, alignment), _pack(by_time, alignment))


def _pack(blocks: Sequence[Block], alignment: int) -> int:
    """Computes the bytes of the heap if blocks are packed in the given order.

    Each goes into the smallest hole that is free during its spans, the lowest of equal ones.
    """
    room = sum(len(b.spans) for b in blocks)
    low, high = np.zeros(room, np.int64), np.zeros(room, np.int64)  # addresses of placed blocks, increasing
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
    """Merges spans that follow each other without a gap."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _best_hole(low: np.ndarray, high: np.ndarray, size: int) -> int:
    """Returns the address of the smallest hole of at least `size` bytes between blocks at [low, high), sorted."""
    if not len(low):
        return 0
    below = np.concatenate(([0], np.maximum.accumulate(high)))  # where each hole begins
    holes = low - below[:-1]
    fitting = np.flatnonzero(holes >= size)
    return int(below[fitting[np.argmin(holes[fitting])]] if len(fitting) else below[-1])


@dataclasses.dataclass(slots=True, eq=False)
class Allocation:
    """A separate block of memory outside the heap.

    Attributes:
      bytes: its size.
      reusable: True if other buffers may use it while its content is not needed.
      is_temporary: True if it counts as temporary memory.
      values: the values that it stores, at different times.
    """

    bytes: int
    reusable: bool
    is_temporary: bool
    values: list[int]


def assign_outputs(
    buffers: ModuleBuffers, ranges: LiveRanges, without: Container[int] = ()
) -> tuple[list[Allocation], np.ndarray]:
    """Assigns every buffer to a new block, to the block of another buffer, or to the heap.

    Args:
      buffers: buffers of the module.
      ranges: live ranges under the schedule.
      without: buffers to leave out, as if the program did not have them: their indices in `buffers.buffers`.

    Returns:
      The blocks in XLA's order; and `[V]`: whether each value is left to the heap.
    """
    return _Assigner(buffers, ranges).run(without)


class _Assigner:
    def __init__(self, buffers: ModuleBuffers, ranges: LiveRanges) -> None:
        self.buffers, self.ranges = buffers, ranges
        self.start, self.end = ranges.start.tolist(), ranges.end.tolist()
        self.allocations: list[Allocation] = []
        self.open: list[Allocation] = []  # those that later (smaller) buffers may use
        self.open_until = np.zeros(len(buffers.buffers), np.int64)  # buffers that end later do not fit into `open[k]`
        self.allocation_of: dict[int, Allocation] = {}  # value -> block
        self.in_heap = np.zeros(len(buffers.flow.values), bool)

    def run(self, without: Container[int]) -> tuple[list[Allocation], np.ndarray]:
        for k, buffer in enumerate(self.buffers.buffers):
            if k in without:
                continue
            if buffer.kind != "array":
                self._new(buffer, buffer.donated)
            elif not (self._in_operand(buffer) or self._in_open(buffer)):
                if buffer.lives_out:
                    self._new(buffer, True)
                else:
                    self.in_heap[list(buffer.values)] = True
        return self.allocations, self.in_heap

    def _new(self, buffer: Buffer, reusable: bool) -> None:
        allocation = Allocation(
            buffer.bytes, reusable, buffer.kind == "table" and not buffer.lives_out, list(buffer.values)
        )
        self.allocations.append(allocation)
        self.allocation_of.update(dict.fromkeys(buffer.values, allocation))
        if reusable:
            single = buffer.kind == "array" and len(buffer.values) == 1  # a result: it lives to the end
            self.open_until[len(self.open)] = self.start[buffer.values[0]] if single else self.ranges.stop
            self.open.append(allocation)

    def _in_operand(self, buffer: Buffer) -> bool:
        flow = self.buffers.flow
        for value in buffer.values:
            for operand in flow.nodes[flow.values[value].node].operands:
                block = self.allocation_of.get(flow.nodes[operand].values[0])
                if block is not None and self._add(buffer, block):
                    return True
        return False

    def _in_open(self, buffer: Buffer) -> bool:
        last = max(self.end[v] for v in buffer.values)
        candidates = np.flatnonzero(self.open_until[: len(self.open)] >= last)
        return any(self._add(buffer, self.open[k]) for k in candidates[::-1].tolist())

    def _add(self, buffer: Buffer, block: Allocation) -> bool:
        if not block.reusable or buffer.bytes > block.bytes or (buffer.lives_out and buffer.bytes != block.bytes):
            return False
        if any(self._interfere(new, old) for old in block.values for new in buffer.values):
            return False
        block.values += buffer.values
        self.allocation_of.update(dict.fromkeys(buffer.values, block))
        return True

    def _interfere(self, new: int, old: int) -> bool:
        start, end = self.start, self.end
        if end[new] < start[old] or end[old] < start[new]:
            return self._copies(new, old)
        if end[new] == start[old]:
            return not self._overwrites(old, new) or self._copies(new, old)
        if end[old] == start[new]:
            return not self._overwrites(new, old) or self._copies(new, old)
        return True

    def _copies(self, new: int, old: int) -> bool:
        """True if `new` is a copy of `old`: a copy never shares the block of its operand."""
        flow = self.buffers.flow
        node = flow.nodes[flow.values[new].node]
        return node.instruction.opcode == "copy" and node.operands[0] in self.buffers.positions(old)

    def _overwrites(self, user: int, operand: int) -> bool:
        """True if the instruction that defines `user` may overwrite `operand`, whose live range ends there."""
        return self.buffers.may_overwrite(user, operand, self._last_position(operand))

    def _last_position(self, value: int) -> int:
        """Returns the index in `flow.nodes` of a value's last position in the schedule (`ComputeValueLiveRangeEnd`)."""
        first, *others = self.buffers.positions(value)
        best, latest = first, self._time(first)
        for place in others:
            if self._time(place) > latest:
                best, latest = place, self._time(place)
        return best

    def _time(self, place: int) -> int:
        flow = self.buffers.flow
        computation = flow.nodes[place].computation
        is_root = flow.nodes[place].instruction.is_root
        return int(self.ranges.time[self.buffers.ends + computation if is_root else place])
