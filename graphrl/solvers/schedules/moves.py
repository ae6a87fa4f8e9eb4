"""Random moves of a schedule: `draw` draws and applies one in one call, and `undo` takes it back.

- shift: an op goes to another place between its predecessors and its successors, near by or anywhere;
- device: an op goes to another device;
- join: an op goes to the device of one that it depends on or that depends on it;
- jump: one of those two, and a shift;
- cluster: some ops that depend on one another go to one device;
- stretch: the ops of one device in a stretch of the order go to another, half of the time in exchange for those there;
- send: a copy is sent late instead of early, or the other way round.

An op takes the ops that it is colocated with along to another device.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.structures import below, coin, uniform
from graphrl.solvers.schedules.state import ABSENT, Schedule, first_reader, home, set_first

KINDS = ("shift", "device", "join", "jump", "cluster", "stretch", "send")
SHIFT, DEVICE, JOIN, JUMP, CLUSTER, STRETCH, SEND = range(7)

MAX_SHIFT = 50  # largest distance of a local shift, in places
MAX_STRETCH = 60  # maximum number of places of a stretch beyond the second
SMALL_CLUSTER, LARGE_CLUSTER = (6.0, 40.0)  # mean number of ops beyond the second; every fourth cluster is a large one

LOW, PLACES, OPS, COPIES, FLIPPED, FIRST, SETTLED, STAMP = range(8)  # indices of Move.facts


class Move(NamedTuple):
    """A move that has been applied, and the state that undoes it."""

    facts: np.ndarray  # [8] int64: first changed place; numbers of changed places, ops and copies; the copy
    # that is sent at another time or ABSENT, `first` and `settled` of `chain.walk`, the stamp of marks
    old_order: np.ndarray  # [n] int64, the ops that were at those places
    ops: np.ndarray  # [2n] int64, ops that went to another device, and, n places on, from which
    copies: np.ndarray  # [2k] int64, copies that got another first reader, and, k places on, the old one
    queue: np.ndarray  # [8n + 64] int64, ops that may join a cluster


def empty_move(s: Schedule) -> Move:
    """Returns an empty `Move` with the sizes of a schedule."""
    n = len(s.order)
    changes = 2 * int(s.begins["reads"][n] + s.begins["writes"][n])  # a move changes each use at most twice
    return Move(*(np.zeros(size, np.int64) for size in (8, n, 2 * n, 2 * changes, 8 * n + 64)))


@part
def draw(s: Schedule, m: Move, kind: int, rng: np.ndarray) -> bool:
    """Draws and applies a random move of a kind. Returns False if no such move was found: then nothing has changed."""
    ops, order = s.ops, s.order
    facts = m.facts
    facts[PLACES] = facts[OPS] = facts[COPIES] = facts[SETTLED] = 0
    facts[FLIPPED], facts[FIRST] = ABSENT, len(order)
    x = below(rng, len(order))
    if kind == SHIFT:
        return _shift(s, m, x, rng)
    if kind == SEND:
        return _send(s, m, x, rng)
    if kind == CLUSTER:
        _cluster(s, m, x, rng)
        return facts[OPS] > 0
    if kind == STRETCH:
        return _stretch(s, m, integer(ops[x].place), rng)
    to_neighbour = kind == JOIN or (kind == JUMP and coin(rng))
    device = _neighbour_device(s, x, rng) if to_neighbour else below(rng, s.devices)
    if device == ops[x].device or (kind == JUMP and not _shift(s, m, x, rng)):
        return False
    _move_group(s, m, x, device)
    return True


@part
def undo(s: Schedule, m: Move) -> None:
    """Undoes the last move."""
    ops, order = s.ops, s.order
    facts, old_order = m.facts, m.old_order
    for i in range(facts[PLACES]):
        op = old_order[i]
        order[facts[LOW] + i] = op
        ops[op].place = facts[LOW] + i
    for i in range(facts[OPS]):
        _move_reads(s, m.ops[i], m.ops[len(order) + i])
    for i in range(facts[COPIES] - 1, -1, -1):
        set_first(s, m.copies[i], m.copies[len(m.copies) // 2 + i])
    if facts[FLIPPED] != ABSENT:
        _toggle_early(s, facts[FLIPPED])


@part
def _shift(s: Schedule, m: Move, x: int, rng: np.ndarray) -> bool:
    ops, begins, rows, order = s.ops, s.begins, s.rows, s.order
    facts, old_order = m.facts, m.old_order
    n = len(order)
    place, low, high = integer(ops[x].place), 0, n - 1
    for e in range(begins[x].before, begins[x + 1].before):
        low = max(low, ops[rows[e]].place + 1)
    for e in range(begins[x].after, begins[x + 1].after):
        high = min(high, ops[rows[e]].place - 1)
    if coin(rng):
        reach = 1 + below(rng, integer(MAX_SHIFT))
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
    here = integer(ops[x].device)
    for e in range(begins[x].reads, begins[x + 1].reads):
        t = integer(rows[e])
        reader = s.copies[t * s.devices + here].first
        if reader == x:
            _set_reader(s, m, t * s.devices + here, first_reader(s, t, here))
        elif reader != ABSENT and to < ops[reader].place:
            _set_reader(s, m, t * s.devices + here, x)
    facts[LOW], facts[PLACES] = first, last - first + 1
    facts[FIRST], facts[SETTLED] = first, last + 1
    return True


@part
def _set_reader(s: Schedule, m: Move, copy: int, x: int) -> None:
    """Makes op x, or ABSENT, the first reader of a copy, and logs that for `undo`."""
    ops, facts = s.ops, m.facts
    entry = s.copies[copy]
    if entry.first == x:
        return
    m.copies[facts[COPIES]], m.copies[len(m.copies) // 2 + facts[COPIES]] = copy, entry.first
    facts[COPIES] += 1
    for reader in (integer(entry.first), x):
        if reader != ABSENT:
            facts[SETTLED] = max(facts[SETTLED], ops[reader].place + 1)
        elif entry.early:
            facts[FIRST] = min(facts[FIRST], ops[s.tensors[entry.tensor].producer].place)
    set_first(s, copy, x)


@part
def _neighbour_device(s: Schedule, x: int, rng: np.ndarray) -> int:
    """Returns the device of a random op that x depends on or that depends on x; x's own device if x has no such op."""
    ops, begins = s.ops, s.begins
    before = integer(begins[x + 1].before) - integer(begins[x].before)
    count = before + begins[x + 1].after - begins[x].after
    if count == 0:
        return integer(ops[x].device)
    i = below(rng, count)
    entry = begins[x].before + i if i < before else begins[x].after + i - before
    return integer(ops[s.rows[entry]].device)


@part
def _move_group(s: Schedule, m: Move, x: int, there: int) -> None:
    """Moves an op and its colocated ops to another device, and marks them with the current stamp."""
    ops, member = s.ops, x
    while True:
        ops[member].mark = m.facts[STAMP]
        _move_op(s, m, member, there)
        member = integer(ops[member].next_member)
        if member == x:
            return


@part
def _move_op(s: Schedule, m: Move, x: int, there: int) -> None:
    """Moves an op to another device, and updates the first readers."""
    ops, begins, copies, rows = s.ops, s.begins, s.copies, s.rows
    d, facts, op = s.devices, m.facts, ops[x]
    here = integer(op.device)
    m.ops[facts[OPS]], m.ops[len(s.order) + facts[OPS]] = x, here
    facts[OPS] += 1
    facts[FIRST] = min(facts[FIRST], op.place)
    facts[SETTLED] = max(facts[SETTLED], op.place + 1)
    _move_reads(s, x, there)
    for e in range(begins[x].reads, begins[x + 1].reads):
        t = integer(rows[e])
        if copies[t * d + here].first == x:
            _set_reader(s, m, t * d + here, first_reader(s, t, here))
        if home(s, t) != there:
            reader = copies[t * d + there].first
            if reader == ABSENT or op.place < ops[reader].place:
                _set_reader(s, m, t * d + there, x)
    for t in range(integer(begins[x].writes), integer(begins[x + 1].writes)):
        _set_reader(s, m, t * d + there, integer(ABSENT))
        _set_reader(s, m, t * d + here, first_reader(s, t, here))
        for copy in range(t * d, t * d + d):
            if copies[copy].first != ABSENT:
                facts[SETTLED] = max(facts[SETTLED], ops[copies[copy].first].place + 1)


@part
def _move_reads(s: Schedule, x: int, there: int) -> None:
    """Moves an op to another device, and the counts of its reads."""
    begins, copies, rows = s.begins, s.copies, s.rows
    op = s.ops[x]
    for e in range(begins[x].reads, begins[x + 1].reads):
        copy = rows[e] * s.devices
        copies[copy + op.device].readers -= 1
        copies[copy + there].readers += 1
    op.device = there


@part
def _cluster(s: Schedule, m: Move, x: int, rng: np.ndarray) -> None:
    ops, begins = s.ops, s.begins
    facts, queue = m.facts, m.queue
    device = below(rng, s.devices)
    mean = SMALL_CLUSTER if below(rng, integer(4)) else LARGE_CLUSTER
    size = 2 + int(-np.log(uniform(rng)) * mean)
    facts[STAMP] += 1
    queue[0] = x
    waiting, count = integer(1), 0
    while waiting > 0 and count < size:
        i = below(rng, waiting)
        x = queue[i]
        waiting -= 1
        queue[i] = queue[waiting]
        if ops[x].mark == facts[STAMP]:
            continue
        ops[x].mark = facts[STAMP]
        count += 1
        if ops[x].device != device:
            _move_group(s, m, x, device)
        waiting = _join(s, m, waiting, integer(begins[x].before), integer(begins[x + 1].before), rng)
        waiting = _join(s, m, waiting, integer(begins[x].after), integer(begins[x + 1].after), rng)


@part
def _stretch(s: Schedule, m: Move, place: int, rng: np.ndarray) -> bool:
    ops, order = s.ops, s.order
    here, there = integer(ops[order[place]].device), below(rng, s.devices)
    if here == there:
        return False
    exchange = coin(rng)
    m.facts[STAMP] += 1
    for k in range(place, min(place + 2 + below(rng, integer(MAX_STRETCH)), len(order))):
        x = integer(order[k])
        if ops[x].mark == m.facts[STAMP]:
            continue
        if ops[x].device == here:
            _move_group(s, m, x, there)
        elif exchange and ops[x].device == there:
            _move_group(s, m, x, here)
    return True


@part
def _join(s: Schedule, m: Move, waiting: int, begin: int, end: int, rng: np.ndarray) -> int:
    """Adds about half of the ops of a row to the queue; returns the queue's new length."""
    rows = s.rows
    queue = m.queue
    for e in range(begin, end):
        if waiting < len(queue) and coin(rng):
            queue[waiting] = rows[e]
            waiting += 1
    return waiting


@part
def _send(s: Schedule, m: Move, x: int, rng: np.ndarray) -> bool:
    ops, begins, rows = s.ops, s.begins, s.rows
    begin = integer(begins[x].reads)
    count = begins[x + 1].reads - begin
    if count == 0:
        return False
    copy = integer(rows[begin + below(rng, count)]) * s.devices + ops[x].device
    reader = s.copies[copy].first
    if reader == ABSENT:
        return False
    _toggle_early(s, copy)
    m.facts[FLIPPED] = copy
    m.facts[FIRST] = ops[s.tensors[s.copies[copy].tensor].producer].place
    m.facts[SETTLED] = ops[reader].place + 1
    return True


@inlined
def _toggle_early(s: Schedule, copy: int) -> None:
    entry = s.copies[copy]
    entry.early = 1 - entry.early
    s.ops[s.tensors[entry.tensor].producer].early += 2 * entry.early - 1
