"""The order that keys of ops mean, compiled: of the ready ops the one with the least key is next."""

import numpy as np

from graphrl.compiled import entry, integer
from graphrl.compiled.heap import pop, push
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
            length = push(heap, keys, length, v)
    for place in range(n):
        v = heap[0]
        length = pop(heap, keys, length)
        plan.order[place] = v
        ops[v].place = place
        for e in range(ops[v].after, ops[v + 1].after):
            u = integer(rows[e])
            waits[u] -= 1
            if waits[u] == 0:
                length = push(heap, keys, length, u)
