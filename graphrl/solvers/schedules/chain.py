"""One chain of simulated annealing: it draws moves, walks the clocks, and keeps the best schedule that it meets.

Its energy is the makespan, a little of the mean of the devices' last clocks, which tells apart the many schedules of
one makespan, and under a memory limit a penalty for the excess. The limit of Metropolis' rule is drawn before a move is
walked, so that most walks of bad moves are short.
"""

from typing import NamedTuple

import numpy as np

from graphrl.solvers.schedules.clocks import keep, take_back, walk
from graphrl.solvers.schedules.compiled import compiled, integer
from graphrl.solvers.schedules.memory import Memory, excess
from graphrl.solvers.schedules.moves import FIRST, SETTLED, Move, draw, undo
from graphrl.solvers.schedules.random import uniform
from graphrl.solvers.schedules.readers import set_readers
from graphrl.solvers.schedules.state import STRIDE, Schedule
from graphrl.solvers.schedules.tails import make_tails

REFRESH = 2.0  # orders' lengths that are walked in vain before tails are made anew
FRUITLESS = 50  # draws for each move, above which there seem to be none


class Best(NamedTuple):
    """The best schedule so far: the least excess, then the least makespan."""

    order: np.ndarray  # [n] int64
    placement: np.ndarray  # [n] int64
    early: np.ndarray  # [t * d] int32
    makespan: np.ndarray  # [1] float64, seconds
    excess: np.ndarray  # [1] int64, bytes


def no_best(s: Schedule) -> Best:
    """Room for the best of a schedule's neighbours."""
    n, copies = len(s.order), len(s.copies)
    return Best(
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(copies, np.int32), np.zeros(1), np.zeros(1, np.int64)
    )


@compiled
def start(s: Schedule, memory: Memory, best: Best, weight: float, penalty: float) -> None:
    """Sets the clocks of a new schedule, which becomes the best."""
    n, first = len(s.order), integer(0)  # not a literal, which numba compiles functions for
    set_readers(s)
    makespan, mean, checkpoint, _ = walk(s, first, n, np.inf, weight)
    keep(s, first, n, checkpoint)
    over = excess(s, memory) if memory.limit >= 0 else 0
    s.score[0], s.score[1], s.score[2] = (makespan, mean, makespan + weight * mean + penalty * over)
    best.makespan[0], best.excess[0] = np.inf, over
    _keep_best(s, best, over)


@compiled
def _keep_best(s: Schedule, best: Best, over: int) -> None:
    if over < best.excess[0] or (over == best.excess[0] and s.score[0] < best.makespan[0]):
        best.makespan[0], best.excess[0] = s.score[0], over
        for i in range(len(s.order)):
            best.order[i], best.placement[i] = s.order[i], s.ops[i].device
        for i in range(len(s.copies)):
            best.early[i] = s.copies[i].early


@compiled
def anneal(
    s: Schedule,
    memory: Memory,
    move: Move,
    best: Best,
    rng: np.ndarray,
    mix: np.ndarray,
    moves: int,
    hot: float,
    cold: float,
    weight: float,
    penalty: float,
    counts: np.ndarray,
    work: np.ndarray,
) -> int:
    """Makes some moves, at a temperature that falls geometrically from `hot` to `cold`; gives how many it was.

    Args:
      s, memory, best, rng: the chain, as `start` or an earlier call left it.
      move: room for one.
      mix: `[kinds]` float64, cumulative.
      moves: at most.
      hot, cold: seconds of energy.
      weight: of the mean last clock.
      penalty: seconds of energy for a byte of excess.
      counts: `[kinds * 3]` int64, adds up moves, those that were kept, and the places that were walked.
      work: of `make_tails`.
    """
    score, fresh, facts = s.score, s.fresh, move.facts
    made = drawn = 0
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature = hot
    while made < moves and drawn < FRUITLESS * moves:
        drawn += 1
        if fresh[1] > REFRESH * len(s.order):
            make_tails(s, work)
        kind, u = 0, uniform(rng)
        while mix[kind] < u:
            kind += 1
        if not draw(s, move, kind, rng):
            continue
        made += 1
        temperature *= cooling
        limit = score[2] - temperature * np.log(uniform(rng))
        first, settled = facts[FIRST], facts[SETTLED]
        makespan, mean, checkpoint, sends = walk(s, first, settled, limit, weight)
        counts[3 * kind] += 1
        counts[3 * kind + 2] += checkpoint * STRIDE - first
        energy, over = makespan + weight * mean, 0
        if memory.limit >= 0 and energy <= limit:
            over = excess(s, memory)
            energy += penalty * over
        if energy > limit:
            take_back(s, first, checkpoint, sends)
            undo(s, move)
            if fresh[0] > settled:
                fresh[1] += checkpoint * STRIDE - first
            continue
        counts[3 * kind + 1] += 1
        keep(s, first, settled, checkpoint)
        score[0], score[1], score[2] = makespan, mean, energy
        _keep_best(s, best, over)
    return made
