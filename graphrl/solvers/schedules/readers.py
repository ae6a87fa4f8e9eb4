"""Which copies of tensors are needed, and by whom first: kept up to date as ops move.

A copy is needed on every device but the producer's that reads the tensor. An op links the copies of which it is the
first reader, in ascending order: those of them that are sent late are sent right before it.
"""

from graphrl.compiled import inlined, integer, part
from graphrl.solvers.schedules.state import ABSENT, Schedule


@part
def set_first(s: Schedule, copy: int, x: int) -> None:
    """Makes op x the first reader of a copy, or ABSENT."""
    ops, copies = s.ops, s.copies
    entry = copies[copy]
    if entry.first != ABSENT:
        if entry.before == ABSENT:
            ops[entry.first].copies = entry.after
        else:
            copies[entry.before].after = entry.after
        if entry.after == ABSENT:
            ops[entry.first].last = entry.before
        else:
            copies[entry.after].before = entry.before
    entry.first = x
    if x == ABSENT:
        return
    before, after = ABSENT, ops[x].copies
    while after != ABSENT and after < copy:
        before, after = after, copies[after].after
    entry.before, entry.after = before, after
    if before == ABSENT:
        ops[x].copies = copy
    else:
        copies[before].after = copy
    if after == ABSENT:
        ops[x].last = copy
    else:
        copies[after].before = copy


@part
def first_reader(s: Schedule, t: int, device: int) -> int:
    """The first op on a device that reads a tensor, or ABSENT."""
    ops, rows = s.ops, s.rows
    first, place = ABSENT, len(s.order)
    if s.copies[t * s.devices + device].readers:
        for e in range(s.tensors[t].users, s.tensors[t + 1].users):
            user = ops[rows[e]]
            if user.device == device and user.place < place:
                first, place = rows[e], user.place
    return first


@inlined
def home(s: Schedule, t: int) -> int:
    """The device of a tensor's producer."""
    return integer(s.ops[s.tensors[t].producer].device)


@part
def set_readers(s: Schedule) -> None:
    """First readers of all copies of a schedule that has none."""
    for t in range(len(s.tensors) - 1):
        for device in range(s.devices):
            if device != home(s, t):
                set_first(s, t * s.devices + device, first_reader(s, t, device))
