"""The clocks of a schedule: what a move does to them, walked from the first place that it changes.

A walk starts at the checkpoint before that place. It ends early where the rest is known:

- the clocks stand as they stood before the move, and nothing that ended otherwise is waited for: the rest is as it was;
- by the tails (tails.py) the schedule will be worse than the limit.

Otherwise it goes to the end of the order. What it writes is logged, so that `keep` and `take_back` cost what it walked.

That an op's inputs are there is mostly known from the clock of its device: an input that was made there ended before
the device was free, under `rendezvous` a copy too. So only arrivals of copies (not under `rendezvous`) and the ends of
control predecessors are looked at.
"""

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.graphs.arrays import NONE
from graphrl.solvers.schedules.readers import home
from graphrl.solvers.schedules.state import FREE, RENDEZVOUS, STRIDE, Schedule


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
      walk ended, and the length of the log.
    """
    ops, tensors, copies, rows, order = s.ops, s.tensors, s.copies, s.rows, s.order
    clocks, trial, now, changed, score, fresh = s.clocks, s.trial, s.now, s.changed, s.score, s.fresh
    n, d = len(order), s.devices
    begin = checkpoint = first // STRIDE
    sends = num_changed = seen = integer(0)  # not literals, which numba compiles functions for
    for i in range(2 * d):
        now[i] = clocks[begin * 2 * d + i]
    for k in range(begin * STRIDE, n, STRIDE):
        checkpoint = k // STRIDE
        if checkpoint > begin:
            for i in range(2 * d):
                trial[checkpoint * 2 * d + i] = now[i]
            if k >= settled and _same(s, checkpoint):
                seen = _unread(s, seen, num_changed, k)
                if seen == num_changed:
                    return score[0], score[1], checkpoint, sends
            if k >= settled and k >= fresh[0] and least_energy(s, checkpoint, weight) > limit:
                return np.inf, 0.0, checkpoint, sends
        for place in range(k, min(k + STRIDE, n)):
            x = order[place]
            op = ops[x]
            here, start = op.device, 0.0
            copy = op.copies
            while copy != NONE:
                if not copies[copy].early:
                    _send(s, copy, home(s, copies[copy].tensor), here, sends)
                    sends += 1
                if s.transfer != RENDEZVOUS and copies[copy].arrival > start:
                    start = copies[copy].arrival
                copy = copies[copy].after
            for e in range(op.awaits, ops[x + 1].awaits):
                if ops[rows[e]].end > start:
                    start = ops[rows[e]].end
            end = (start if start > now[here] else now[here]) + op.runtime
            op.old_end = op.end
            if end != op.end:
                changed[num_changed] = x
                num_changed += 1
            op.end = now[here] = end
            for t in range(op.writes, ops[x + 1].writes):
                if tensors[t].early:
                    for there in range(d):
                        copy = t * d + there
                        if copies[copy].early and copies[copy].first != NONE:
                            _send(s, copy, here, there, sends)
                            sends += 1
                            if copies[copy].arrival != copies[copy].old_arrival:
                                changed[num_changed] = n + copy
                                num_changed += 1
    makespan = total = 0.0
    for device in range(d):
        makespan = max(makespan, now[device])
        total += now[device]
    return makespan, total / d, checkpoint + 1, sends


@inlined
def _send(s: Schedule, copy: int, here: int, there: int, line: int) -> None:
    """A transfer: clocks move, and it is written into a line of the log."""
    now, entry = s.now, s.copies[copy]
    tensor = s.tensors[entry.tensor]
    if s.transfer == RENDEZVOUS:
        arrival = (now[here] if now[here] > now[there] else now[there]) + tensor.seconds
        now[here] = now[there] = arrival
    elif s.transfer == FREE:
        arrival = s.ops[tensor.producer].end + tensor.seconds
    else:
        arrival = max(s.ops[tensor.producer].end, now[s.devices + here]) + tensor.seconds
        now[s.devices + here] = arrival
    s.log[line] = copy
    entry.old_arrival, entry.arrival = entry.arrival, arrival


@inlined
def _same(s: Schedule, checkpoint: int) -> bool:
    """Whether the clocks are those of the checkpoint."""
    clocks, now = s.clocks, s.now
    for i in range(2 * s.devices):  # noqa: SIM110 (numba knows no generators)
        if now[i] != clocks[checkpoint * 2 * s.devices + i]:
            return False
    return True


@part
def _unread(s: Schedule, seen: int, num_changed: int, place: int) -> int:
    """How many of the changed ends and arrivals, from the number `seen` on, nobody looks at from a place on; up to the
    first that somebody does.
    """
    ops, copies, rows, changed = s.ops, s.copies, s.rows, s.changed
    n = len(s.order)
    while seen < num_changed:
        item = changed[seen]
        if item >= n:
            first = copies[item - n].first
            if first != NONE and ops[first].place >= place:
                return seen
        else:
            for e in range(ops[item].waiters, ops[item + 1].waiters):
                if ops[rows[e]].place >= place:
                    return seen
            if s.transfer != RENDEZVOUS:
                for copy in range(ops[item].writes * s.devices, ops[item + 1].writes * s.devices):
                    first = copies[copy].first
                    if first != NONE and not copies[copy].early and ops[first].place >= place:
                        return seen
        seen += 1
    return seen


@part
def least_energy(s: Schedule, checkpoint: int, weight: float) -> float:
    """A bound of the energy: each device's last clock is at least every clock of a checkpoint and its tail."""
    now, tails = s.now, s.tails
    d = s.devices
    makespan = total = 0.0
    for last in range(d):
        clock = 0.0
        for i in range(2 * d):
            clock = max(clock, now[i] + tails[(checkpoint * 2 * d + i) * d + last])
        makespan = max(makespan, clock)
        total += clock
    return makespan + weight * (total / d)


@part
def keep(s: Schedule, first: int, settled: int, checkpoint: int) -> None:
    """Makes what a walk from place `first` to a checkpoint has written the schedule's own."""
    clocks, trial, fresh, d = s.clocks, s.trial, s.fresh, s.devices
    for i in range((first // STRIDE + 1) * 2 * d, min(checkpoint * 2 * d, len(clocks))):
        clocks[i] = trial[i]
    fresh[0] = max(fresh[0], settled)


@part
def take_back(s: Schedule, first: int, checkpoint: int, sends: int) -> None:
    """Undoes what a walk has written, before the move itself is undone."""
    ops, copies, order, log = s.ops, s.copies, s.order, s.log
    for place in range(first // STRIDE * STRIDE, min(checkpoint * STRIDE, len(order))):
        op = ops[order[place]]
        op.end = op.old_end
    for line in range(sends):
        copy = copies[log[line]]
        copy.arrival = copy.old_arrival
