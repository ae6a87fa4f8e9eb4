"""Temporaries in one heap: what is written in place, and from when to when every block is taken.

After `HeapSimulator::RunComputation` (xla/service/heap_simulator/heap_simulator.cc).
"""

import dataclasses

import numpy as np

from graphrl.xla.assignment.buffers import ModuleBuffers
from graphrl.xla.assignment.live_ranges import LiveRanges


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
