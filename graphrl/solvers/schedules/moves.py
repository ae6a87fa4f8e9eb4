"""Moves of a schedule. Each is drawn and made at once; `undo` takes it back.

- shift: an op goes to another place between its predecessors and its successors, near by or anywhere;
- device: an op goes to another device;
- cluster: some ops that depend on one another go to one device;
- stretch: of ops that follow one another, those of one device go to another, or the two change places;
- send: a copy is sent late instead of early, or the other way round.
"""

from typing import NamedTuple

import numpy as np

from graphrl.solvers.schedules.compiled import compiled, inlined
from graphrl.solvers.schedules.random import below, coin, uniform
from graphrl.solvers.schedules.state import NEVER, RENDEZVOUS, Schedule

KINDS = ("shift", "device", "cluster", "stretch", "send")
SHIFT, DEVICE, CLUSTER, STRETCH, SEND = range(5)

NEAR = 50  # places of a shift that stays near
STRETCH_OPS = 60
SMALL, LARGE = 6.0, 40.0  # mean ops of a cluster beyond the second; every fourth is a large one

# of Move.facts
LOW, PLACES, OPS, TENSORS, COPY_SENT, FIRST, SETTLED, ALIKE, STAMP = range(9)


class Move(NamedTuple):
    """A move that has been made, and what undoes it."""

    facts: np.ndarray  # [9] int64: the first of the places that changed, how many places, ops and tensors did, the
    # copy that is sent at another time or -1, `first`, `settled` and `alike` of clocks.walk, the stamp of marks
    old_order: np.ndarray  # [n] int64, the ops that stood at those places
    ops: np.ndarray  # [2n] int64, ops that went to another device, and, n places on, from which
    tensors: np.ndarray  # [t] int64, whose copies may be others
    queue: np.ndarray  # [8n + 64] int64
    first: np.ndarray  # [d] int64, places


def no_move(s: Schedule) -> Move:
    """Room for moves of a schedule."""
    n = len(s.order)
    return Move(
        facts=np.zeros(9, np.int64),
        old_order=np.zeros(n, np.int64),
        ops=np.zeros(2 * n, np.int64),
        tensors=np.zeros(len(s.tensors), np.int64),
        queue=np.zeros(8 * n + 64, np.int64),
        first=np.zeros(s.devices, np.int64),
    )


@compiled
def draw(s: Schedule, m: Move, kind: int, rng: np.ndarray) -> bool:
    """Makes a random move of a kind; False if there is none where it looked, and nothing has changed."""
    ops, order = s.ops, s.order
    facts = m.facts
    facts[PLACES] = facts[OPS] = facts[TENSORS] = 0
    facts[COPY_SENT] = -1
    if kind == SHIFT:
        return _shift(s, m, rng)
    if kind == SEND:
        return _send(s, m, rng)
    if kind == DEVICE:
        op, device = below(rng, len(order)), below(rng, s.devices)
        if ops[op].device != device:
            _place(s, m, op, device)
    elif kind == CLUSTER:
        _cluster(s, m, rng)
    else:
        _stretch(s, m, rng)
    if facts[OPS] == 0:
        return False
    _span_of_placement(s, m)
    return True


@compiled
def undo(s: Schedule, m: Move) -> None:
    """Takes the move back."""
    ops, order = s.ops, s.order
    facts, old_order = m.facts, m.old_order
    for i in range(facts[PLACES]):
        op = old_order[i]
        order[facts[LOW] + i] = op
        ops[op].place = facts[LOW] + i
    for i in range(facts[OPS]):
        _set_device(s, m.ops[i], m.ops[len(order) + i])
    if facts[COPY_SENT] >= 0:
        _flip(s, facts[COPY_SENT])


@compiled
def _shift(s: Schedule, m: Move, rng: np.ndarray) -> bool:
    ops, rows, order = s.ops, s.rows, s.order
    facts, old_order = m.facts, m.old_order
    n = len(order)
    x = below(rng, n)
    place, low, high = ops[x].place, 0, n - 1
    for e in range(ops[x].before, ops[x + 1].before):
        low = max(low, ops[rows[e]].place + 1)
    for e in range(ops[x].after, ops[x + 1].after):
        high = min(high, ops[rows[e]].place - 1)
    if coin(rng):
        reach = 1 + below(rng, NEAR)
        low, high = max(low, place - reach), min(high, place + reach)
    if low >= high:
        return False
    to = low + below(rng, high - low)
    if to >= place:
        to += 1
    first, last = min(place, to), max(place, to)
    for k in range(first, last + 1):
        old_order[k - first] = order[k]
    step = 1 if to > place else -1
    for k in range(place, to, step):
        order[k] = order[k + step]
        ops[order[k]].place = k
    order[to] = x
    ops[x].place = to
    facts[LOW], facts[PLACES] = first, last - first + 1
    facts[FIRST], facts[SETTLED], facts[ALIKE] = first, last + 1, last + 1
    return True


@compiled
def _place(s: Schedule, m: Move, x: int, device: int) -> None:
    ops, order = s.ops, s.order
    facts = m.facts
    count = facts[OPS]
    m.ops[count], m.ops[len(order) + count] = x, ops[x].device
    facts[OPS] = count + 1
    _set_device(s, x, device)


@inlined
def _set_device(s: Schedule, x: int, device: int) -> None:
    ops, copies, rows = s.ops, s.copies, s.rows
    op = ops[x]
    for e in range(op.reads, ops[x + 1].reads):
        copy = rows[e] * s.devices
        copies[copy + op.device].readers -= 1
        copies[copy + device].readers += 1
    op.device = device


@compiled
def _cluster(s: Schedule, m: Move, rng: np.ndarray) -> None:
    ops, order = s.ops, s.order
    facts, queue = m.facts, m.queue
    device = below(rng, s.devices)
    mean = SMALL if below(rng, 4) else LARGE
    size = 2 + int(-np.log(uniform(rng)) * mean)
    facts[STAMP] += 1
    queue[0] = below(rng, len(order))
    waiting, taken = np.int64(1), 0
    while waiting > 0 and taken < size:
        i = below(rng, waiting)
        x = queue[i]
        waiting -= 1
        queue[i] = queue[waiting]
        if ops[x].mark == facts[STAMP]:
            continue
        ops[x].mark = facts[STAMP]
        taken += 1
        if ops[x].device != device:
            _place(s, m, x, device)
        waiting = _join(s, m, waiting, ops[x].before, ops[x + 1].before, rng)
        waiting = _join(s, m, waiting, ops[x].after, ops[x + 1].after, rng)


@compiled
def _join(s: Schedule, m: Move, waiting: int, begin: int, end: int, rng: np.ndarray) -> int:
    """Half of a row's ops join the queue, which gets so long."""
    rows = s.rows
    queue = m.queue
    for e in range(begin, end):
        if waiting < len(queue) and coin(rng):
            queue[waiting] = rows[e]
            waiting += 1
    return waiting


@compiled
def _stretch(s: Schedule, m: Move, rng: np.ndarray) -> None:
    ops, order = s.ops, s.order
    n = len(order)
    begin, size = below(rng, n), 2 + below(rng, STRETCH_OPS)
    here, there = ops[order[begin]].device, below(rng, s.devices)
    exchange = coin(rng)
    if here == there:
        return
    for k in range(begin, min(n, begin + size)):
        x = order[k]
        if ops[x].device == here:
            _place(s, m, x, there)
        elif exchange and ops[x].device == there:
            _place(s, m, x, here)


@compiled
def _send(s: Schedule, m: Move, rng: np.ndarray) -> bool:
    ops, tensors, rows, order = s.ops, s.tensors, s.rows, s.order
    facts = m.facts
    x = below(rng, len(order))
    begin, count = ops[x].reads, ops[x + 1].reads - ops[x].reads
    if count == 0:
        return False
    t = np.int64(rows[begin + below(rng, count)])
    producer, here = ops[tensors[t].producer], ops[x].device
    if producer.device == here:
        return False
    _flip(s, t * s.devices + here)
    first = NEVER
    for e in range(tensors[t].users, tensors[t + 1].users):
        user = ops[rows[e]]
        if user.device == here:
            first = min(first, user.place)
    facts[COPY_SENT] = t * s.devices + here
    facts[FIRST], facts[SETTLED], facts[ALIKE] = producer.place, first + 1, first + 1
    return True


@inlined
def _flip(s: Schedule, copy: int) -> None:
    tensors, copies = s.tensors, s.copies
    copies[copy].early = 1 - copies[copy].early
    tensors[copy // s.devices].early += 2 * copies[copy].early - 1


@compiled
def _span_of_placement(s: Schedule, m: Move) -> None:
    """What ops on other devices change: first the earliest of them and of those who send to them early, and up to the
    place where all copies that they make or read have been sent, before the move and after it.
    """
    ops, tensors, copies, rows, order = s.ops, s.tensors, s.copies, s.rows, s.order
    facts = m.facts
    n, d = len(order), s.devices
    first, settled, alike = n, 0, 0
    facts[STAMP] += 1
    for i in range(facts[OPS]):
        x = m.ops[i]
        first, settled = min(first, ops[x].place), max(settled, ops[x].place + 1)
        for t in range(ops[x].writes, ops[x + 1].writes):
            settled = max(settled, _sent_by(s, m, t))
            for e in range(tensors[t].users, tensors[t + 1].users):
                alike = max(alike, ops[rows[e]].place + 1)
    for i in range(facts[OPS]):
        x = m.ops[i]
        for e in range(ops[x].reads, ops[x + 1].reads):
            t = np.int64(rows[e])
            if copies[t * d + m.ops[n + i]].early or copies[t * d + ops[x].device].early:
                first = min(first, ops[tensors[t].producer].place)
            settled = max(settled, _sent_by(s, m, t))
    if s.transfer == RENDEZVOUS:  # a device that has a copy was held until it came
        alike = settled
    facts[FIRST], facts[SETTLED], facts[ALIKE] = first, settled, max(settled, alike)


@compiled
def _sent_by(s: Schedule, m: Move, t: int) -> int:
    """The place by which all copies of a tensor are sent; 0 if the tensor has been looked at for this move."""
    ops, tensors, copies, rows = s.ops, s.tensors, s.copies, s.rows
    facts, first = m.facts, m.first
    d, tensor = s.devices, tensors[t]
    if tensor.mark == facts[STAMP]:
        return 0
    tensor.mark = facts[STAMP]
    m.tensors[facts[TENSORS]] = t
    facts[TENSORS] += 1
    settled = 0
    for device in range(d):
        first[device] = NEVER
        if copies[t * d + device].sent != NEVER:
            settled = max(settled, copies[t * d + device].sent + 1)
    for e in range(tensor.users, tensors[t + 1].users):
        user = ops[rows[e]]
        first[user.device] = min(first[user.device], user.place)
    for device in range(d):
        if first[device] != NEVER and device != ops[tensor.producer].device:
            settled = max(settled, first[device] + 1)
    return settled
