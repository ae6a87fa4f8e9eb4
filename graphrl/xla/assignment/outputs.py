"""What lies in buffers of its own outside the heap: results, donated parameters, and temporaries that fit into them.

After `BufferAssigner::AssignBuffersForComputations` (xla/service/buffer_assignment.cc).
"""

import dataclasses

import numpy as np

from graphrl.xla.assignment.buffers import Buffer, ModuleBuffers
from graphrl.xla.assignment.heap import LiveRanges


@dataclasses.dataclass(slots=True, eq=False)
class Allocation:
    """A block of memory of its own.

    Attributes:
      bytes: its size.
      reusable: whether something else may be written into it when its content is not needed.
      is_temporary: whether it counts as temporary memory.
      values: what lies in it, at different times.
    """

    bytes: int
    reusable: bool
    is_temporary: bool
    values: list[int]


def assign_outputs(buffers: ModuleBuffers, ranges: LiveRanges) -> tuple[list[Allocation], np.ndarray]:
    """Gives every buffer a block of its own, that of another one, or leaves it to the heap.

    Args:
      buffers: of the module.
      ranges: for the schedule.

    Returns:
      The blocks in XLA's order, and whether a value is left to the heap. [V]
    """
    return _Assigner(buffers, ranges).run()


class _Assigner:
    def __init__(self, buffers: ModuleBuffers, ranges: LiveRanges) -> None:
        self.buffers, self.ranges = buffers, ranges
        self.start, self.end = ranges.start.tolist(), ranges.end.tolist()
        self.allocations: list[Allocation] = []
        self.open: list[Allocation] = []  # those that later (smaller) buffers may use
        self.open_until = np.zeros(len(buffers.buffers), np.int64)  # what ends later does not fit into `open[k]`
        self.home: dict[int, Allocation] = {}  # by value
        self.in_heap = np.zeros(len(buffers.flow.values), bool)

    def run(self) -> tuple[list[Allocation], np.ndarray]:
        for buffer in self.buffers.buffers:
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
        self.home.update(dict.fromkeys(buffer.values, allocation))
        if reusable:
            single = buffer.kind == "array" and len(buffer.values) == 1  # a result: there to the end
            self.open_until[len(self.open)] = self.start[buffer.values[0]] if single else self.ranges.stop
            self.open.append(allocation)

    def _in_operand(self, buffer: Buffer) -> bool:
        flow = self.buffers.flow
        for value in buffer.values:
            for operand in flow.nodes[flow.values[value].node].operands:
                block = self.home.get(flow.nodes[operand].values[0])
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
        self.home.update(dict.fromkeys(buffer.values, block))
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
        """Whether `new` is a copy of `old`: a copy never lies where its operand does."""
        flow = self.buffers.flow
        node = flow.nodes[flow.values[new].node]
        return node.instruction.opcode == "copy" and node.operands[0] in self.buffers.positions(old)

    def _overwrites(self, user: int, operand: int) -> bool:
        """Whether the instruction that makes `user` may write it over `operand`, whose last time is then."""
        return self.buffers.may_overwrite(user, operand, self._last_position(operand))

    def _last_position(self, value: int) -> int:
        """Under which name a value is found last (`ComputeValueLiveRangeEnd`)."""
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
