"""The ready nodes as a binary heap of packed keys, the largest first, in an int32 array.

Whoever takes the first key leaves a hole there. The first push after that fills it: one sift, instead of one for a leaf
that moves up there and one for the new key. A sentinel stands behind the last entry, which may have no sibling.
"""

import numpy as np

from graphrl.compiled import inlined


@inlined
def closed(heap: np.ndarray, size: int, hole: bool) -> int:
    """Fills the hole, if there is one, with the last entry; the new size."""
    if hole:
        size -= 1
        if size > 0:
            _sift_down(heap, size, heap[size])
    return size


@inlined
def push(heap: np.ndarray, size: int, hole: bool, key: int) -> int:
    """Adds a key, and then there is no hole; the new size."""
    if hole:
        _sift_down(heap, size, key)
        return size
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] >= key:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = key
    return size + 1


@inlined
def _sift_down(heap: np.ndarray, size: int, key: int) -> None:
    heap[size] = -1
    i, child = 0, 1
    while child < size:
        child += heap[child + 1] > heap[child]
        if heap[child] <= key:
            break
        heap[i] = heap[child]
        i, child = child, 2 * child + 1
    heap[i] = key
