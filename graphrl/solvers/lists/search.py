"""Annealing of a list of ops where transfers cost nothing: each list is played, and its schedule alone decides.

Without transfers a schedule follows from a list: time runs along the device that is free first, and of the ops whose
predecessors have ended by then the first in the list is next there (Graham 1966; the parallel schedule generation
scheme of resource-constrained project scheduling, Kolisch 1996). No device waits while an op is ready, which leaves
out some schedules, seldom all of the best.

The makespan of almost all lists is one of a few numbers. The energy is finer: the device seconds that run beyond a
bound of the makespan. It is 0 where the bound is reached, and what devices wait before the bound tells early that it
will be large.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, integer, part
from graphrl.compiled.random import below, uniform
from graphrl.graphs.graph import ComputationGraph

NEAR = 4  # places between two ops that are swapped, at most, in half of all moves; else they are any two

OP = np.dtype(
    [
        ("runtime", np.float64),  # seconds
        ("ready", np.float64),  # when the last of its predecessors that have run ends
        ("place", np.uint32),  # in the list
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
    best: np.ndarray  # [n] uint32, the same in the best list
    queue: np.ndarray  # [n] uint32, ops that wait for no other, in no order
    played: np.ndarray  # [n] uint32, ops as they started
    free: np.ndarray  # [d] float64, seconds
    score: np.ndarray  # [2] float64, seconds: energy of the list, makespan of the best
    rng: np.ndarray  # [1] uint64


def lists(graph: ComputationGraph, devices: int, seed: np.random.SeedSequence) -> Lists:
    """The list by levels, the longest path to the end first."""
    a = graph.arrays
    n, (source, target) = a.num_ops, a.dependencies()
    ops = np.zeros(n + 1, OP)
    ops["runtime"][:-1] = a.runtime
    ops["awaits"][:-1] = np.bincount(target, minlength=n)
    ops["after"][1:] = np.cumsum(np.bincount(source, minlength=n))
    listed = np.argsort(-(a.tail + a.runtime), kind="stable").astype(np.uint32)
    queue, played = np.zeros(n, np.uint32), np.zeros(n, np.uint32)
    rng = seed.generate_state(1, np.uint64)
    return Lists(
        ops, target.astype(np.uint32), listed, listed.copy(), queue, played, np.zeros(devices), np.full(2, np.inf), rng
    )


@entry
def anneal(s: Lists, moves: int, hot: float, cold: float, bound: float) -> int:
    """Swaps ops at a temperature that falls geometrically from `hot` to `cold`, seconds, until a list reaches the
    bound; gives how many lists were played. The list that it is given is played first.
    """
    n = len(s.listed)
    for place in range(n):
        s.ops[s.listed[place]].place = place
    s.score[0] = _play(s, bound, np.inf)
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature, made = hot, integer(1)
    while made < moves and n > 1 and s.score[1] > bound:
        made += 1
        temperature *= cooling
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
    return made


@part
def _swap(s: Lists, one: int, other: int) -> None:
    a, b = s.listed[one], s.listed[other]
    s.listed[one], s.listed[other] = b, a
    s.ops[a].place, s.ops[b].place = other, one


@part
def _play(s: Lists, bound: float, limit: float) -> float:
    """The energy of the list, or one above the limit; keeps the list if its makespan is the least so far.

    Device seconds that run beyond the bound are those that wait before it, less those that may.
    """
    ops, queue, free, d = s.ops, s.queue, s.free, len(s.free)
    n = len(s.listed)
    count, may_wait = 0, d * bound
    for op in range(n):
        ops[op].left, ops[op].ready = ops[op].awaits, 0.0
        may_wait -= ops[op].runtime
        if ops[op].awaits == 0:
            queue[count] = op
            count += 1
    free[:] = 0.0
    done, waited = 0, 0.0
    while done < n:
        device = 0
        for other in range(1, d):
            if free[other] < free[device]:
                device = other
        now, soon, first, at = free[device], np.inf, n, 0
        for i in range(count):
            op = queue[i]
            if ops[op].ready > now:
                soon = min(soon, ops[op].ready)
            elif ops[op].place < first:
                first, at = ops[op].place, i
        if first == n:
            waited += max(0.0, min(soon, bound) - now)
            if waited - may_wait > limit:
                return np.inf
            free[device] = soon
            continue
        op = queue[at]
        count -= 1
        queue[at] = queue[count]
        end = now + ops[op].runtime
        free[device], ops[op].device, s.played[done] = end, device, op
        done += 1
        for row in range(ops[op].after, ops[op + 1].after):
            after = s.rows[row]
            ops[after].left -= 1
            ops[after].ready = max(ops[after].ready, end)
            if ops[after].left == 0:
                queue[count] = after
                count += 1
    energy = makespan = 0.0
    for device in range(d):
        energy += max(0.0, free[device] - bound)
        makespan = max(makespan, free[device])
    if makespan < s.score[1]:
        s.score[1] = makespan
        for place in range(n):  # numba would copy a whole array twice
            s.best[place] = s.listed[place]
    return energy
