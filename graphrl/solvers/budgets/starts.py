"""Choices to begin with: rules of thumb on a gradient's own cuts."""

from collections.abc import Iterator

import numpy as np

from graphrl.solvers.budgets.alike import alike_places
from graphrl.solvers.budgets.level import Gradient, Level
from graphrl.solvers.budgets.price import COMPUTED, KEPT
from graphrl.solvers.budgets.state import AGAIN, INSIDE, PLAIN, State

CUTS = 8  # groups of places that are tried, of each level
DEAR = 0.02  # a value is dear that takes this part of the pass to compute


def starts(gradient: Gradient) -> Iterator[State]:
    """Choices: nothing computed again; then, cut in several ways, all of it, or all but what kernels compute, or all
    that lies in no memory by itself.
    """
    yield State.plain(gradient)
    for number in range(CUTS):
        for kept in (lambda level: np.zeros(len(level.bytes), bool), _dear, _solid):
            state = State.plain(gradient)
            for level in range(len(gradient.levels)):
                _again(state, gradient, level, number)
                state.keep[level][:] = np.where(kept(gradient.levels[level]), KEPT, COMPUTED)
                state.changed(level)
            yield state


def _again(state: State, gradient: Gradient, level: int, number: int) -> None:
    """Computes all of a level again, cut at a group of places; a loop within stays on its own."""
    starts = state.starts[level]
    groups = alike_places(gradient.levels[level])
    if number and groups:
        group = sorted(groups, key=len, reverse=True)[: 4 * CUTS][min(number, len(groups)) - 1]
        starts[group] = np.where(starts[group] == INSIDE, PLAIN, starts[group])
    loops = [loop.place for loop in gradient.loops[level].values()]
    begins = np.flatnonzero(starts != INSIDE)
    starts[begins[~np.isin(begins, loops)]] = AGAIN


def _dear(level: Level) -> np.ndarray:
    """Named values that take long to compute for their bytes."""
    return level.named & ~level.free & (level.seconds > DEAR / 10 * max(level.forward_seconds, 1e-30))


def _solid(level: Level) -> np.ndarray:
    """Named values that lie in memory by themselves."""
    return level.named & ~level.free & level.solid
