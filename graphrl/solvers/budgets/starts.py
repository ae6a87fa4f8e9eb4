"""Choices to begin with: programs cut at alike places, and computed again in whole or but for what is dear."""

from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.solvers.budgets.alike import alike_places
from graphrl.solvers.budgets.level import Gradient, Level
from graphrl.solvers.budgets.price import COMPUTED, KEPT
from graphrl.solvers.budgets.state import AGAIN, INSIDE, PLAIN, State

CUTS = 12  # groups of places that are tried
MOST = 64  # segments: each is traced by itself


def starts(gradient: Gradient) -> Iterator[State]:
    """Choices: nothing computed again; then, cut in several ways, all of it, and all but what lies in memory anyway."""
    yield State.plain(gradient)
    nothing = [np.zeros(len(level.bytes), bool) for level in gradient.levels]
    solid = [level.named & ~level.free & level.solid for level in gradient.levels]
    for places in cuts(gradient.levels[0]):
        yield again(gradient, places, nothing)
        yield again(gradient, places, solid)


def again(gradient: Gradient, places: np.ndarray, kept: Sequence[np.ndarray]) -> State:
    """The function, cut at some places, and the bodies of loops, computed again but for what is `kept`: `[n]` bool of
    each level.
    """
    state = State.plain(gradient)
    state.starts[0][places] = np.where(state.starts[0][places] == INSIDE, PLAIN, state.starts[0][places])
    for number, level in enumerate(gradient.levels):
        begins = (state.starts[number] != INSIDE) & ~level.apart
        state.starts[number][begins] = AGAIN
        state.keep[number][:] = np.where(kept[number], KEPT, COMPUTED)
        state.changed(number)
    return state


def cuts(level: Level) -> Iterator[np.ndarray]:
    """Places to cut at: none, then groups of alike ones, narrow ones first of those that are many."""
    yield np.zeros(0, np.int64)
    groups = [group for group in alike_places(level) if len(group) <= MOST]
    groups.sort(key=len, reverse=True)
    yield from groups[:CUTS]
