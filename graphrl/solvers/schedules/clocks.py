"""The clocks of a schedule: what a move does to them, walked from the first place that it changes.

A walk starts at the checkpoint before that place. It ends early where the rest is known:

- the clocks stand as they stood before the move, and nothing that ended otherwise is waited for: the rest is as it was;
- by the tails (tails.py) the schedule will be worse than the limit.

Otherwise it goes to the end of the order. What changes is logged, so that `keep` and `take_back` cost what it walked.

That an op's inputs are there is mostly known from the clock of its device: an input that was made there ended before
the device was free, under `rendezvous` a copy too. So only arrivals of copies (not under `rendezvous`) and the ends of
control predecessors are looked at.
"""

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.records import FREE, RENDEZVOUS
from graphrl.solvers.schedules.readers import home
from graphrl.solvers.schedules.state import ABSENT, STRIDE, Schedule


@part
def walk(s: Schedule, first: int, settled: int, limit: float, weight: float) -> tuple[float, float, int, int]:
    """Clocks from place `first` on, after a move.

    Args:
      first: before this place nothing has changed.
      settled: from this place on the same ops run on the same devices, with the same transfers between them.
      limit: of the energy, above which the schedule need not be known.
      weight: of the mean last clock in the energy.

    Returns:
      Makespan and mean last clock in seconds (the makespan is infinite if above the limit), the checkpoint where the
      walk ended, and how many ends and arrivals changed.
    """
    ops, begins, copies, rows, order = s.ops, s.begins, s.copies, s.rows, s.order
    clocks, trial, now, changed, score, fresh = s.clocks, s.trial, s.now, s.changed, s.score, s.fresh
    n, d, width = len(order), s.devices, len(now)
    begin = checkpoint = first // STRIDE
    changes = seen = integer(0)  # not literals, which numba compiles functions for
    for i in range(width):
        now[i] = clocks[begin * width + i]
    for k in range(begin * STRIDE, n, STRIDE):
        checkpoint = k // STRIDE
        if checkpoint > begin:
            for i in range(width):
                trial[checkpoint * width + i] = now[i]
            if k >= settled and _same(s, checkpoint):
                seen = _unread(s, seen, changes, k)
                if seen == changes:
                    return score[0], score[1], checkpoint, changes
            if k >= settled and k >= fresh[0] and least_energy(s, checkpoint, weight) > limit:
                return np.inf, 0.0, checkpoint, changes
        for place in range(k, min(k + STRIDE, n)):
            x = integer(order[place])
            op = ops[x]
            here, start = integer(op.device), 0.0
            copy = integer(op.copies)
            while copy != ABSENT:
                if not copies[copy].early:
                    changes = _send(s, copy, home(s, integer(copies[copy].tensor)), here, changes)
                if s.transfer != RENDEZVOUS and copies[copy].arrival > start:
                    start = copies[copy].arrival
                copy = integer(copies[copy].after)
            if op.awaits:
                for e in range(begins[x].awaits, begins[x + 1].awaits):
                    if ops[rows[e]].end > start:
                        start = ops[rows[e]].end
            end = (start if start > now[here] else now[here]) + op.runtime
            now[here] = end
            if end != op.end:
                op.old_end, op.end = op.end, end
                changed[changes] = x
                changes += 1
            if op.early:
                for t in range(integer(begins[x].writes), integer(begins[x + 1].writes)):
                    for there in range(d):
                        copy = t * d + there
                        if copies[copy].early and copies[copy].first != ABSENT:
                            changes = _send(s, copy, here, there, changes)
    makespan = total = 0.0
    for device in range(d):
        makespan = max(makespan, now[device])
        total += now[device]
    return makespan, total / d, checkpoint + 1, changes


@inlined
def _send(s: Schedule, copy: int, here: int, there: int, changes: int) -> int:
    """A transfer moves clocks, or the arrival; gives how many changes there are then."""
    now, entry = s.now, s.copies[copy]
    tensor = s.tensors[entry.tensor]
    if s.transfer == RENDEZVOUS:
        now[here] = now[there] = (now[here] if now[here] > now[there] else now[there]) + tensor.seconds
        return changes
    arrival = s.ops[tensor.producer].end + tensor.seconds
    if s.transfer != FREE:
        arrival = max(s.ops[tensor.producer].end, now[s.devices + here]) + tensor.seconds
        now[s.devices + here] = arrival
    if arrival != entry.arrival:
        entry.old_arrival, entry.arrival = entry.arrival, arrival
        s.changed[changes] = len(s.order) + copy
        changes += 1
    return changes


@inlined
def _same(s: Schedule, checkpoint: int) -> bool:
    """Whether the clocks are those of the checkpoint."""
    clocks, now = s.clocks, s.now
    for i in range(len(now)):  # noqa: SIM110 (numba knows no generators)
        if now[i] != clocks[checkpoint * len(now) + i]:
            return False
    return True


@part
def _unread(s: Schedule, seen: int, changes: int, place: int) -> int:
    """How many of the changed ends and arrivals, from the number `seen` on, nobody looks at from a place on; up to the
    first that somebody does.
    """
    ops, begins, copies, rows, changed = s.ops, s.begins, s.copies, s.rows, s.changed
    n = len(s.order)
    while seen < changes:
        item = changed[seen]
        if item >= n:
            first = copies[item - n].first
            if first != ABSENT and ops[first].place >= place:
                return seen
        else:
            for e in range(begins[item].waiters, begins[item + 1].waiters):
                if ops[rows[e]].place >= place:
                    return seen
            if s.transfer != RENDEZVOUS:
                for copy in range(begins[item].writes * s.devices, begins[item + 1].writes * s.devices):
                    first = copies[copy].first
                    if first != ABSENT and not copies[copy].early and ops[first].place >= place:
                        return seen
        seen += 1
    return seen


@part
def least_energy(s: Schedule, checkpoint: int, weight: float) -> float:
    """A bound of the energy: each device's last clock is at least every clock of a checkpoint and its tail."""
    now, tails = s.now, s.tails
    d, width = s.devices, len(now)
    makespan = total = 0.0
    for last in range(d):
        clock = 0.0
        for i in range(width):
            clock = max(clock, now[i] + tails[(checkpoint * width + i) * d + last])
        makespan = max(makespan, clock)
        total += clock
    return makespan + weight * (total / d)


@part
def keep(s: Schedule, first: int, settled: int, checkpoint: int) -> None:
    """Makes what a walk from place `first` to a checkpoint has written the schedule's own."""
    clocks, trial, fresh, width = s.clocks, s.trial, s.fresh, len(s.now)
    for i in range((first // STRIDE + 1) * width, min(checkpoint * width, len(clocks))):
        clocks[i] = trial[i]
    fresh[0] = max(fresh[0], settled)


@part
def take_back(s: Schedule, changes: int) -> None:
    """Undoes the changes of a walk."""
    ops, copies, changed, n = s.ops, s.copies, s.changed, len(s.order)
    for i in range(changes):
        item = changed[i]
        if item < n:
            ops[item].end = ops[item].old_end
        else:
            copies[item - n].arrival = copies[item - n].old_arrival
