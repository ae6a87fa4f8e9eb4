"""Addresses for the blocks of a heap: `GlobalDecreasingSizeBestFitHeap` and `ChooseBestHeapAlgorithm`.

After xla/service/heap_simulator/heap_simulator.cc.
"""

from collections.abc import Sequence

import numpy as np

from graphrl.xla.assignment.heap import Block


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
