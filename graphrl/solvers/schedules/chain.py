"""A compiled chain of annealing over schedules: it draws moves, recomputes the clocks, and keeps the best schedule.

The energy is the makespan plus a small multiple of the mean of the devices' last clocks, which ranks the many schedules
of equal makespan, and under a memory limit a penalty for the excess; or the largest peak alone. The limit of
Metropolis' rule is drawn before a move is walked, so that most walks of bad moves are short.

A walk starts at the checkpoint before the first place that the move changes. It continues to the end of the order, or
ends early where the rest is known:
- the clocks equal those before the move, and no changed end or arrival is read later: the rest is unchanged;
- by the tails the schedule will be worse than the limit.
Changes are logged, so that `keep` and `undo_walk` cost as much as the walk.

Tails are lower bounds of the time from a checkpoint's clocks to the last clocks. From its clocks on, a schedule is a
product of max-plus matrices (the heads and tails of job shops, here with a tail to every device): an op adds its run
time to a clock, a transfer joins two. Where a move leaves the order unchanged after some place, the tails and the
clocks there give a bound of the end. It is exact but for ends before that place that an op waits for after it.

That an op's inputs have arrived mostly follows from its device's clock: an input made there ended before the device was
free, under `rendezvous` a copy too. So a walk checks only arrivals of copies (not under `rendezvous`) and the ends of
control predecessors.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined, integer, part
from graphrl.compiled.structures import uniform
from graphrl.costs.host.clocks import FREE, RENDEZVOUS
from graphrl.costs.problem import Problem
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.schedules.memory import Memory, excess, write_nodes
from graphrl.solvers.schedules.moves import FIRST, SETTLED, Move, draw, undo
from graphrl.solvers.schedules.state import ABSENT, STRIDE, Schedule, home, set_readers

REFRESH = 2.0  # places walked since tails were computed, in lengths of the order, after which they are recomputed
MAX_DRAWS, MIN_DRAWS = 50, 2_000  # draws per move, and in all, after which no move is assumed to exist


class Best(NamedTuple):
    """The best schedule so far: the least excess, then the least makespan."""

    placement: np.ndarray  # [n] int64
    nodes: np.ndarray  # [n + t * d] int64, ids as in `costs`
    facts: np.ndarray  # [2] int64: the number of nodes, and the excess in bytes; -1 before the first schedule
    makespan: np.ndarray  # [1] float64, seconds

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key of schedules, the best first: (excess, makespan)."""
        return int(self.facts[1]), float(self.makespan[0])

    def objective(self, problem: Problem) -> float:
        """Returns the objective: bytes or seconds."""
        return float(self.facts[1] if problem.objective == "peak_memory" else self.makespan[0])

    @property
    def plan(self) -> PlacedOrder:
        """Placement `[n]` and order of nodes `[m]`."""
        return self.placement.copy(), self.nodes[: self.facts[0]].copy()


def empty_best(s: Schedule) -> Best:
    """Returns an empty `Best` with the sizes of a schedule."""
    n = len(s.order)
    return Best(np.zeros(n, np.int64), np.zeros(n + len(s.copies), np.int64), np.full(2, -1), np.zeros(1))


@entry
def anneal(
    s: Schedule,
    memory: Memory | None,
    move: Move,
    best: Best,
    rng: np.ndarray,
    mix: np.ndarray,
    moves: int,
    hot: float,
    cold: float,
    weight: float,
    seconds: float,
    penalty: float,
    counts: np.ndarray,
    work: np.ndarray,
) -> int:
    """Makes at most `moves` moves, at a temperature that falls geometrically from `hot` to `cold`; returns their
    number.

    Args:
      s, memory, best, rng: the chain, new or as an earlier call left it.
      move: work space for one move.
      mix: `[kinds]` float64, cumulative probability of each kind of move.
      moves: maximum number of moves.
      hot, cold: first and last temperature, in units of energy.
      weight: weight of the mean last clock relative to the makespan.
      seconds: energy per second, 0 where time does not count.
      penalty: energy per byte of excess.
      counts: `[kinds * 3]` int64, to which the numbers of moves, accepted moves and walked places are added.
      work: work space of `make_tails`.
    """
    score, fresh, facts = s.score, s.fresh, move.facts
    if best.facts[1] < 0:
        _start(s, memory, best, weight, seconds, penalty)
    done = drawn = 0
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature = hot
    while done < moves and drawn < max(MAX_DRAWS * moves, MIN_DRAWS):
        drawn += 1
        if fresh[1] > REFRESH * len(s.order):
            make_tails(s, work)
        kind, u = 0, uniform(rng)
        while mix[kind] < u:
            kind += 1
        if not draw(s, move, kind, rng):
            continue
        done += 1
        temperature *= cooling
        limit = score[2] - temperature * np.log(uniform(rng))
        first, settled = facts[FIRST], facts[SETTLED]
        makespan, mean, checkpoint, changes = 0.0, 0.0, first // STRIDE, integer(0)
        if seconds > 0:
            makespan, mean, checkpoint, changes = walk(s, first, settled, limit / seconds, weight)
        counts[3 * kind] += 1
        counts[3 * kind + 2] += checkpoint * STRIDE - first
        energy, excess_bytes = seconds * (makespan + weight * mean), integer(0)
        if memory is not None and energy <= limit:  # numba removes this branch where memory is None
            excess_bytes = excess(s, memory)
            energy += penalty * excess_bytes
        if energy > limit:
            undo_walk(s, changes)
            undo(s, move)
            if fresh[0] > settled:
                fresh[1] += checkpoint * STRIDE - first
            continue
        counts[3 * kind + 1] += 1
        keep(s, first, settled, checkpoint)
        score[0], score[1], score[2] = makespan, mean, energy
        _keep_best(s, best, excess_bytes)
    return done


@part
def _start(s: Schedule, memory: Memory | None, best: Best, weight: float, seconds: float, penalty: float) -> None:
    """Computes the clocks of a new schedule, which becomes the best one."""
    n, first = len(s.order), integer(0)  # not a literal, for which numba would compile separate functions
    set_readers(s)
    makespan = mean = 0.0
    if seconds > 0:
        makespan, mean, checkpoint, _ = walk(s, first, n, np.inf, weight)
        keep(s, first, n, checkpoint)
    excess_bytes = integer(0)
    if memory is not None:
        excess_bytes = excess(s, memory)
    s.score[0], s.score[1], s.score[2] = makespan, mean, seconds * (makespan + weight * mean) + penalty * excess_bytes
    best.makespan[0], best.facts[1] = np.inf, excess_bytes
    _keep_best(s, best, excess_bytes)


@part
def make_tails(s: Schedule, work: np.ndarray) -> None:
    """Computes the tails of all checkpoints, from the end of the order.

    Args:
      s: a schedule whose clocks are valid.
      work: `[k * d]` float64, overwritten.
    """
    ops, begins, copies, rows, order = s.ops, s.begins, s.copies, s.rows, s.order
    tails, op_tails, fresh = s.tails, s.op_tails, s.fresh
    n, d = len(order), s.devices
    size = len(s.now) * d
    for i in range(size):
        work[i] = -np.inf
    for device in range(d):
        work[device * d + device] = 0.0
    for i in range(n * d, 2 * n * d):
        op_tails[i] = -np.inf
    for place in range(n - 1, -1, -1):
        x = integer(order[place])
        op = ops[x]
        here = integer(op.device)
        if op.early:
            for t in range(begins[x + 1].writes - 1, begins[x].writes - 1, -1):
                for there in range(d - 1, -1, -1):
                    copy = copies[t * d + there]
                    if copy.early and copy.first != ABSENT:
                        _add_transfer_tail(s, work, t, here, there, integer(copy.first))
        for last in range(d):
            tail = max(work[here * d + last], op_tails[(n + x) * d + last]) + op.runtime
            work[here * d + last] = op_tails[x * d + last] = tail
        for e in range(begins[x].awaits, begins[x + 1].awaits):
            for last in range(d):
                i = (n + rows[e]) * d + last
                op_tails[i] = max(op_tails[i], op_tails[x * d + last])
        number = op.last if op.copies != ABSENT else ABSENT
        while number != ABSENT:
            copy = copies[number]
            if not copy.early:
                _add_transfer_tail(s, work, integer(copy.tensor), home(s, integer(copy.tensor)), here, x)
            number = copy.before
        if place % STRIDE == 0:
            for i in range(size):
                tails[place // STRIDE * size + i] = work[i]
    fresh[0] = fresh[1] = 0


@part
def walk(s: Schedule, first: int, settled: int, limit: float, weight: float) -> tuple[float, float, int, int]:
    """Recomputes the clocks from place `first` on, after a move.

    Args:
      first: before this place nothing has changed.
      settled: from this place on the same ops run on the same devices, with the same transfers between them.
      limit: of the makespan plus the weighted mean last clock: the walk may end once it will be exceeded.
      weight: weight of the mean last clock in the energy.

    Returns:
      Makespan and mean last clock in seconds (the makespan is infinite if above the limit), the checkpoint where the
      walk ended, and the number of changed ends and arrivals.
    """
    ops, begins, copies, rows, order = s.ops, s.begins, s.copies, s.rows, s.order
    clocks, trial, now, changed, score, fresh = s.clocks, s.trial, s.now, s.changed, s.score, s.fresh
    n, d, width = len(order), s.devices, len(now)
    begin = checkpoint = first // STRIDE
    changes = unread = integer(0)  # not literals, for which numba would compile separate functions
    for i in range(width):
        now[i] = clocks[begin * width + i]
    for k in range(begin * STRIDE, n, STRIDE):
        checkpoint = k // STRIDE
        if checkpoint > begin:
            for i in range(width):
                trial[checkpoint * width + i] = now[i]
            if k >= settled and _equals_checkpoint(s, checkpoint):
                unread = _first_read(s, unread, changes, k)
                if unread == changes:
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


@part
def undo_walk(s: Schedule, changes: int) -> None:
    """Undoes the changes of a walk."""
    ops, copies, changed, n = s.ops, s.copies, s.changed, len(s.order)
    for i in range(changes):
        item = changed[i]
        if item < n:
            ops[item].end = ops[item].old_end
        else:
            copies[item - n].arrival = copies[item - n].old_arrival


@part
def keep(s: Schedule, first: int, settled: int, checkpoint: int) -> None:
    """Writes the trial clocks of a walk from place `first` to a checkpoint into the schedule."""
    clocks, trial, fresh, width = s.clocks, s.trial, s.fresh, len(s.now)
    for i in range((first // STRIDE + 1) * width, min(checkpoint * width, len(clocks))):
        clocks[i] = trial[i]
    fresh[0] = max(fresh[0], settled)


@part
def _keep_best(s: Schedule, best: Best, excess_bytes: int) -> None:
    facts = best.facts
    if excess_bytes < facts[1] or (excess_bytes == facts[1] and s.score[0] < best.makespan[0]):
        best.makespan[0], facts[0], facts[1] = s.score[0], write_nodes(s, best.nodes), excess_bytes
        for op in range(len(s.order)):
            best.placement[op] = s.ops[op].device


@inlined
def _add_transfer_tail(s: Schedule, work: np.ndarray, t: int, here: int, there: int, reader: int) -> None:
    """Computes the tails before a transfer of t from those after it; the `reader` is the first op that needs it."""
    tensors, order, op_tails = s.tensors, s.order, s.op_tails
    d, seconds = s.devices, tensors[t].seconds
    output = (len(order) + tensors[t].producer) * d
    for last in range(d):
        if s.transfer == RENDEZVOUS:
            tail = max(work[here * d + last], work[there * d + last]) + seconds
            work[here * d + last] = work[there * d + last] = tail
        else:
            tail = op_tails[reader * d + last]
            if s.transfer != FREE:
                tail = max(tail, work[(d + here) * d + last])
                work[(d + here) * d + last] = tail + seconds
            op_tails[output + last] = max(op_tails[output + last], tail + seconds)


@inlined
def _equals_checkpoint(s: Schedule, checkpoint: int) -> bool:
    """True if the clocks equal those of the checkpoint."""
    clocks, now = s.clocks, s.now
    for i in range(len(now)):  # noqa: SIM110 (numba knows no generators)
        if now[i] != clocks[checkpoint * len(now) + i]:
            return False
    return True


@part
def _first_read(s: Schedule, first_change: int, changes: int, place: int) -> int:
    """Returns the index of the first changed end or arrival, from `first_change` on, that an op at or after a place
    reads; `changes` if no op does.
    """
    ops, begins, copies, rows, changed = s.ops, s.begins, s.copies, s.rows, s.changed
    n = len(s.order)
    while first_change < changes:
        item = changed[first_change]
        if item >= n:
            first = copies[item - n].first
            if first != ABSENT and ops[first].place >= place:
                return first_change
        else:
            for e in range(begins[item].waiters, begins[item + 1].waiters):
                if ops[rows[e]].place >= place:
                    return first_change
            if s.transfer != RENDEZVOUS:
                for copy in range(begins[item].writes * s.devices, begins[item + 1].writes * s.devices):
                    first = copies[copy].first
                    if first != ABSENT and not copies[copy].early and ops[first].place >= place:
                        return first_change
        first_change += 1
    return first_change


@part
def least_energy(s: Schedule, checkpoint: int, weight: float) -> float:
    """Returns a lower bound of the energy: a last clock is at least every clock of a checkpoint plus its tail."""
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


@inlined
def _send(s: Schedule, copy: int, here: int, there: int, changes: int) -> int:
    """Runs a transfer: advances the clocks, or sets the arrival. Returns the number of changes after it."""
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
