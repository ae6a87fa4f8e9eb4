"""The order that keys of ops mean, compiled: of the ready ops the one with the largest key is next."""

import numpy as np

from graphrl.compiled import entry, integer, part
from graphrl.solvers.sending.plans import Placed


@entry
def in_order_of(plan: Placed, keys: np.ndarray, heap: np.ndarray, waits: np.ndarray) -> None:
    """Puts the ops in that order; of equal keys the lower op is first.

    Args:
      plan: whose order is written.
      keys: `[n]` float64.
      heap, waits: `[n]` int64 each, overwritten.
    """
    ops, rows, n, length = plan.ops, plan.rows, len(plan.order), integer(0)
    for v in range(n):
        waits[v] = ops[v + 1].before - ops[v].before
        if waits[v] == 0:
            length = _push(heap, keys, length, v)
    for place in range(n):
        v = heap[0]
        length = _pop(heap, keys, length)
        plan.order[place] = v
        ops[v].place = place
        for e in range(ops[v].after, ops[v + 1].after):
            u = integer(rows[e])
            waits[u] -= 1
            if waits[u] == 0:
                length = _push(heap, keys, length, u)


@part
def _before(keys: np.ndarray, u: int, v: int) -> bool:
    return keys[u] > keys[v] or (keys[u] == keys[v] and u < v)


@part
def _push(heap: np.ndarray, keys: np.ndarray, length: int, v: int) -> int:
    i = length
    while i > 0 and _before(keys, v, heap[(i - 1) // 2]):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = v
    return length + 1


@part
def _pop(heap: np.ndarray, keys: np.ndarray, length: int) -> int:
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
