"""Binary heaps of items whose keys lie in an array by item: the least key comes first, of equal keys the lower item."""

import numpy as np

from graphrl.compiled import inlined, integer


@inlined
def push(heap: np.ndarray, keys: np.ndarray, length: int, item: int) -> int:
    """Adds an item; gives how many there are then."""
    i = length
    while i > 0 and _before(keys, item, heap[(i - 1) // 2]):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = item
    return length + 1


@inlined
def pop(heap: np.ndarray, keys: np.ndarray, length: int) -> int:
    """Drops the first item, `heap[0]`; gives how many there are then."""
    length -= 1
    last, i = heap[length], integer(0)
    while True:
        child = 2 * i + 1
        if child + 1 < length and _before(keys, heap[child + 1], heap[child]):
            child += 1
        if child >= length or not _before(keys, heap[child], last):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = last
    return length


@inlined
def _before(keys: np.ndarray, u: int, v: int) -> bool:
    return keys[u] < keys[v] or (keys[u] == keys[v] and u < v)
