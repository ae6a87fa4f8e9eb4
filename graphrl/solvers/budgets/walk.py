"""Annealing's steps on a function, whose loops stay as they are. Compiled."""

import math
from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined, integer
from graphrl.compiled.random import uniform
from graphrl.solvers.budgets.goal import OVER, Aim, beyond, energy
from graphrl.solvers.budgets.level import Level
from graphrl.solvers.budgets.moves import Moves, move
from graphrl.solvers.budgets.price import price
from graphrl.solvers.budgets.state import AGAIN, INSIDE
from graphrl.solvers.budgets.work import Work

PER_SEGMENT = 3e-4  # energy of a segment: each is traced by itself, and keeps the compiler from working across it


class Walker(NamedTuple):
    """Where annealing is on a level of n values and p places."""

    keep: np.ndarray  # [n] int64, as all below
    starts: np.ndarray  # [p]
    best_keep: np.ndarray  # [n]
    best_starts: np.ndarray  # [p]
    last_keep: np.ndarray  # [n], before a move
    last_starts: np.ndarray  # [p]
    segment: np.ndarray  # [p]
    again: np.ndarray  # [p] bool
    energies: np.ndarray  # [2] float64: now, and the rank of the best
    rng: np.ndarray  # [1] uint64


@entry
def walk(
    level: Level,
    own: Moves,
    work: Work,
    walker: Walker,
    aim: Aim,
    seconds: float,
    beside: float,
    heat: float,
    moving: bool,
    count: int,
) -> None:
    """Tries so many moves.

    Args:
      level: with the bytes of its loops.
      own: moves of it.
      work: for `price`.
      walker: written.
      aim: what is wanted.
      seconds, beside: of the loops' choices, and energy of theirs.
      heat: temperature.
      moving: whether values may be moved to the host.
      count: of moves.
    """
    for _ in range(count):
        _copy(walker.keep, walker.last_keep)
        _copy(walker.starts, walker.last_starts)
        move(own, walker.keep, walker.starts, walker.rng, moving)
        segments = _cut(walker)
        price(level, walker.keep, walker.segment, walker.again[:segments], integer(1), work)
        prices = work.prices
        took = seconds + prices[4] + prices[6]
        peak = max(prices[2], prices[3])
        now = energy(aim, prices[0], peak, took, OVER) + beside + PER_SEGMENT * segments
        if now <= walker.energies[0] or uniform(walker.rng) < math.exp((walker.energies[0] - now) / heat):
            walker.energies[0] = now
            rank = now + beyond(aim, prices[0], peak, took)
            if rank < walker.energies[1]:
                walker.energies[1] = rank
                _copy(walker.keep, walker.best_keep)
                _copy(walker.starts, walker.best_starts)
        else:
            _copy(walker.last_keep, walker.keep)
            _copy(walker.last_starts, walker.starts)


@inlined
def _cut(walker: Walker) -> int:
    """Writes the segments of the starts; gives how many there are."""
    count = integer(0)
    for place in range(len(walker.starts)):
        if walker.starts[place] != INSIDE:
            walker.again[count] = walker.starts[place] == AGAIN
            count += 1
        walker.segment[place] = count - 1
    return count


@inlined
def _copy(given: np.ndarray, written: np.ndarray) -> None:
    for k in range(len(given)):
        written[k] = given[k]
