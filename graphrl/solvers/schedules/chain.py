"""One chain of simulated annealing: it draws moves, walks the clocks, and keeps the best schedule that it meets.

Its energy is the makespan, a little of the mean of the devices' last clocks, which tells apart the many schedules of
one makespan, and under a memory limit a penalty for the excess; or the largest peak alone. The limit of Metropolis'
rule is drawn before a move is walked, so that most walks of bad moves are short.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, integer, part
from graphrl.compiled.random import uniform
from graphrl.costs.problem import Problem
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.schedules.clocks import keep, take_back, walk
from graphrl.solvers.schedules.memory import Memory, excess, write_nodes
from graphrl.solvers.schedules.moves import FIRST, SETTLED, Move, draw, undo
from graphrl.solvers.schedules.readers import set_readers
from graphrl.solvers.schedules.state import STRIDE, Schedule
from graphrl.solvers.schedules.tails import make_tails

REFRESH = 2.0  # orders' lengths that are walked in vain before tails are made anew
FRUITLESS, LEAST_DRAWS = 50, 2_000  # draws for each move, and in all, above which there seem to be none


class Best(NamedTuple):
    """The best schedule so far: the least excess, then the least makespan."""

    placement: np.ndarray  # [n] int64
    nodes: np.ndarray  # [n + t * d] int64, ids as costs have them
    facts: np.ndarray  # [2] int64: the number of nodes, and the excess in bytes; -1 before there is any
    makespan: np.ndarray  # [1] float64, seconds

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts the best first."""
        return int(self.facts[1]), float(self.makespan[0])

    def objective(self, problem: Problem) -> float:
        """Bytes or seconds."""
        return float(self.facts[1] if problem.objective == "peak_memory" else self.makespan[0])

    @property
    def plan(self) -> PlacedOrder:
        """Placement `[n]` and order of nodes `[m]`."""
        return self.placement.copy(), self.nodes[: self.facts[0]].copy()


def no_best(s: Schedule) -> Best:
    """Room for the best of a schedule's neighbours."""
    n = len(s.order)
    return Best(np.zeros(n, np.int64), np.zeros(n + len(s.copies), np.int64), np.full(2, -1), np.zeros(1))


@part
def _start(s: Schedule, memory: Memory | None, best: Best, weight: float, seconds: float, penalty: float) -> None:
    """Sets the clocks of a new schedule, which becomes the best."""
    n, first = len(s.order), integer(0)  # not a literal, which numba compiles functions for
    set_readers(s)
    makespan = mean = 0.0
    if seconds > 0:
        makespan, mean, checkpoint, _ = walk(s, first, n, np.inf, weight)
        keep(s, first, n, checkpoint)
    over = integer(0)
    if memory is not None:
        over = excess(s, memory)
    s.score[0], s.score[1], s.score[2] = makespan, mean, seconds * (makespan + weight * mean) + penalty * over
    best.makespan[0], best.facts[1] = np.inf, over
    _keep_best(s, best, over)


@part
def _keep_best(s: Schedule, best: Best, over: int) -> None:
    facts = best.facts
    if over < facts[1] or (over == facts[1] and s.score[0] < best.makespan[0]):
        best.makespan[0], facts[0], facts[1] = s.score[0], write_nodes(s, best.nodes), over
        for op in range(len(s.order)):
            best.placement[op] = s.ops[op].device


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
    """Makes some moves, at a temperature that falls geometrically from `hot` to `cold`; gives how many it was.

    Args:
      s, memory, best, rng: the chain, new or as an earlier call left it.
      move: room for one.
      mix: `[kinds]` float64, cumulative.
      moves: at most.
      hot, cold: of energy.
      weight: of the mean last clock beside the makespan.
      seconds: energy for a second, 0 where time does not count.
      penalty: energy for a byte of excess.
      counts: `[kinds * 3]` int64, adds up moves, those that were kept, and the places that were walked.
      work: of `make_tails`.
    """
    score, fresh, facts = s.score, s.fresh, move.facts
    if best.facts[1] < 0:
        _start(s, memory, best, weight, seconds, penalty)
    made = drawn = 0
    cooling = (cold / hot) ** (1.0 / max(1, moves))
    temperature = hot
    while made < moves and drawn < max(FRUITLESS * moves, LEAST_DRAWS):
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
        makespan, mean, checkpoint, changes = 0.0, 0.0, first // STRIDE, integer(0)
        if seconds > 0:
            makespan, mean, checkpoint, changes = walk(s, first, settled, limit / seconds, weight)
        counts[3 * kind] += 1
        counts[3 * kind + 2] += checkpoint * STRIDE - first
        energy, over = seconds * (makespan + weight * mean), integer(0)
        if memory is not None and energy <= limit:  # numba leaves that out where there is none
            over = excess(s, memory)
            energy += penalty * over
        if energy > limit:
            take_back(s, changes)
            undo(s, move)
            if fresh[0] > settled:
                fresh[1] += checkpoint * STRIDE - first
            continue
        counts[3 * kind + 1] += 1
        keep(s, first, settled, checkpoint)
        score[0], score[1], score[2] = makespan, mean, energy
        _keep_best(s, best, over)
    return made
