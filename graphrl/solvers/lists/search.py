"""Annealing of a list of ops where transfers cost nothing: each list is played, and its schedule alone decides.

Without transfers a schedule follows from a list: time runs along the device that is free first, and of the ops whose
predecessors have ended by then the first in the list is next there (Graham 1966; the parallel schedule generation
scheme of resource-constrained project scheduling, Kolisch 1996). No device waits while an op is ready, which leaves
out some schedules: where a device had better wait for an op of the longest path, all of the best.

The makespan of almost all lists is one of a few numbers. The energy is finer: the device seconds that run beyond a
bound of the makespan. It is 0 where the bound is reached, and what devices wait before the bound tells early that it
will be large.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, integer, part
from graphrl.compiled.heap import pop, push
from graphrl.compiled.random import below, uniform
from graphrl.graphs.graph import ComputationGraph

NEAR = 4  # places between two ops that are swapped, at most, in half of all moves; else they are any two

OP = np.dtype(
    [
        ("runtime", np.float64),  # seconds
        ("awaits", np.uint32),  # predecessors
        ("left", np.uint32),  # of them, that have not run
        ("after", np.uint32),  # where its row of successors begins
        ("device", np.uint32),
    ],
    align=True,
)


class Lists(NamedTuple):
    """A list of n ops on d devices, with m dependencies, and the best that was met."""

    ops: np.ndarray  # [n + 1] OP
    rows: np.ndarray  # [m] uint32, successors
    listed: np.ndarray  # [n] uint32, the ops by their places
    place: np.ndarray  # [n] float64, the places of the ops
    best: np.ndarray  # [n] uint32, the ops by their places in the best list
    ready: np.ndarray  # [n] float64, when the last of an op's predecessors that have run ends, seconds
    waiting: np.ndarray  # [n] uint32, heap by `ready` of ops whose predecessors have run but not all ended
    able: np.ndarray  # [n] uint32, heap by `place` of ops that could run now
    played: np.ndarray  # [n] uint32, ops as they started
    free: np.ndarray  # [d] float64, seconds
    score: np.ndarray  # [2] float64, seconds: energy of the list, infinite before it is played; makespan of the best
    rng: np.ndarray  # [1] uint64

    def restart(self, listed: np.ndarray) -> None:
        """Goes on from another list."""
        self.listed[:] = listed
        self.score[0] = np.inf


def lists(graph: ComputationGraph, devices: int, seed: np.random.SeedSequence) -> Lists:
    """The list by levels, the longest path to the end first."""
    a = graph.arrays
    n, (source, target) = a.num_ops, a.dependencies()
    ops = np.zeros(n + 1, OP)
    ops["runtime"][:-1] = a.runtime
    ops["awaits"][:-1] = np.bincount(target, minlength=n)
    ops["after"][1:] = np.cumsum(np.bincount(source, minlength=n))
    listed = np.argsort(-(a.tail + a.runtime), kind="stable").astype(np.uint32)
    waiting, able, played = np.zeros((3, n), np.uint32)
    return Lists(
        ops=ops,
        rows=target.astype(np.uint32),
        listed=listed,
        place=np.zeros(n),
        best=listed.copy(),
        ready=np.zeros(n),
        waiting=waiting,
        able=able,
        played=played,
        free=np.zeros(devices),
        score=np.full(2, np.inf),
        rng=seed.generate_state(1, np.uint64),
    )


@entry
def anneal(s: Lists, moves: int, temperature: float, cooling: float, bound: float) -> int:
    """Swaps ops until a list reaches the bound; gives how many lists were played, `moves` at most. A list that was not
    played yet is played first.

    Args:
      s: goes on from where an earlier call left it.
      moves: at least 1.
      temperature: of the first move, seconds.
      cooling: factor of the temperature, a move.
      bound: of the makespan, seconds.
    """
    n, made = len(s.listed), integer(0)
    if s.score[0] == np.inf:
        for place in range(n):
            s.place[s.listed[place]] = place
        s.score[0] = _play(s, bound, np.inf)
        made += 1
    while made < moves and n > 1 and s.score[1] > bound:
        made += 1
        one = below(s.rng, n)
        if uniform(s.rng) < 0.5:
            other = (one + 1 + below(s.rng, min(NEAR, n - 1))) % n
        else:
            other = (one + 1 + below(s.rng, n - 1)) % n
        _swap(s, one, other)
        limit = s.score[0] - temperature * np.log(uniform(s.rng))
        energy = _play(s, bound, limit)
        if energy <= limit:
            s.score[0] = energy
        else:
            _swap(s, one, other)
        temperature *= cooling
    return made


@part
def _swap(s: Lists, one: int, other: int) -> None:
    a, b = s.listed[one], s.listed[other]
    s.listed[one], s.listed[other] = b, a
    s.place[a], s.place[b] = other, one


@part
def _play(s: Lists, bound: float, limit: float) -> float:
    """The energy of the list, or one above the limit; keeps the list if its makespan is the least so far.

    Device seconds that run beyond the bound are those that wait before it, less those that may.
    """
    ops, ready, free, d = s.ops, s.ready, s.free, len(s.free)
    n = len(s.listed)
    waits = able = integer(0)
    may_wait = d * bound
    for op in range(n):
        ops[op].left, ready[op] = ops[op].awaits, 0.0
        may_wait -= ops[op].runtime
        if ops[op].awaits == 0:
            able = push(s.able, s.place, able, op)
    free[:] = 0.0
    done, waited = 0, 0.0
    while done < n:
        device = 0
        for other in range(1, d):
            if free[other] < free[device]:
                device = other
        now = free[device]
        while waits > 0 and ready[s.waiting[0]] <= now:
            able = push(s.able, s.place, able, integer(s.waiting[0]))
            waits = pop(s.waiting, ready, waits)
        if able == 0:
            soon = ready[s.waiting[0]]
            waited += max(0.0, min(soon, bound) - now)
            if waited - may_wait > limit:
                return np.inf
            free[device] = soon
            continue
        op = integer(s.able[0])
        able = pop(s.able, s.place, able)
        end = now + ops[op].runtime
        free[device], ops[op].device, s.played[done] = end, device, op
        done += 1
        for row in range(ops[op].after, ops[op + 1].after):
            after = integer(s.rows[row])
            ops[after].left -= 1
            ready[after] = max(ready[after], end)
            if ops[after].left == 0:
                waits = push(s.waiting, ready, waits, after)
    energy = makespan = 0.0
    for device in range(d):
        energy += max(0.0, free[device] - bound)
        makespan = max(makespan, free[device])
    if makespan < s.score[1]:
        s.score[1] = makespan
        for place in range(n):  # numba would copy a whole array twice
            s.best[place] = s.listed[place]
    return energy
