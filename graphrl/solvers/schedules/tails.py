"""Tails: how much later the last clocks are, at least, than those of a checkpoint.

From its clocks on, a schedule is a product of max-plus matrices (the heads and tails of job shops, here with a tail to
every device): an op adds its run time to a clock, a transfer joins two. What a move leaves as it was after some place
gives then, with the clocks there, a bound of what comes out at the end. It is exact but for what ended before that
place and is waited for after it.
"""

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.records import FREE, RENDEZVOUS
from graphrl.solvers.schedules.readers import home
from graphrl.solvers.schedules.state import ABSENT, STRIDE, Schedule


@part
def make_tails(s: Schedule, work: np.ndarray) -> None:
    """Tails of all checkpoints, walked from the end of the order.

    Args:
      s: a schedule whose clocks are right.
      work: `[k * d]` float64, is overwritten.
    """
    ops, begins, copies, rows, order = s.ops, s.begins, s.copies, s.rows, s.order
    tails, onward, fresh = s.tails, s.onward, s.fresh
    n, d = len(order), s.devices
    size = len(s.now) * d
    for i in range(size):
        work[i] = -np.inf
    for device in range(d):
        work[device * d + device] = 0.0
    for i in range(n * d, 2 * n * d):
        onward[i] = -np.inf
    for place in range(n - 1, -1, -1):
        x = integer(order[place])
        op = ops[x]
        here = integer(op.device)
        if op.early:
            for t in range(begins[x + 1].writes - 1, begins[x].writes - 1, -1):
                for there in range(d - 1, -1, -1):
                    copy = copies[t * d + there]
                    if copy.early and copy.first != ABSENT:
                        _before_transfer(s, work, t, here, there, integer(copy.first))
        for last in range(d):
            tail = max(work[here * d + last], onward[(n + x) * d + last]) + op.runtime
            work[here * d + last] = onward[x * d + last] = tail
        for e in range(begins[x].awaits, begins[x + 1].awaits):
            for last in range(d):
                i = (n + rows[e]) * d + last
                onward[i] = max(onward[i], onward[x * d + last])
        number = op.last if op.copies != ABSENT else ABSENT
        while number != ABSENT:
            copy = copies[number]
            if not copy.early:
                _before_transfer(s, work, integer(copy.tensor), home(s, integer(copy.tensor)), here, x)
            number = copy.before
        if place % STRIDE == 0:
            for i in range(size):
                tails[place // STRIDE * size + i] = work[i]
    fresh[0] = fresh[1] = 0


@inlined
def _before_transfer(s: Schedule, work: np.ndarray, t: int, here: int, there: int, reader: int) -> None:
    """Tails before a transfer of t, from those after it; the `reader` is the first op that needs it."""
    tensors, order, onward = s.tensors, s.order, s.onward
    d, seconds = s.devices, tensors[t].seconds
    beyond = (len(order) + tensors[t].producer) * d
    for last in range(d):
        if s.transfer == RENDEZVOUS:
            tail = max(work[here * d + last], work[there * d + last]) + seconds
            work[here * d + last] = work[there * d + last] = tail
        else:
            tail = onward[reader * d + last]
            if s.transfer != FREE:
                tail = max(tail, work[(d + here) * d + last])
                work[(d + here) * d + last] = tail + seconds
            onward[beyond + last] = max(onward[beyond + last], tail + seconds)
