"""Choices to begin with: programs cut at alike places, and computed again in whole or but for what is dear."""

from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.solvers.budgets.alike import alike_places, crossing
from graphrl.solvers.budgets.level import Gradient, Level
from graphrl.solvers.budgets.price import COMPUTED, KEPT
from graphrl.solvers.budgets.state import AGAIN, INSIDE, PLAIN, State

CUTS = 12  # groups of places that are tried
WIDER = 1.1  # what is across a place between layers may be larger than at others by so much
MOST = 64  # segments: each is traced by itself


def starts(gradient: Gradient) -> Iterator[State]:
    """Choices: nothing computed again; then, cut in several ways, all of it, and all but what lies in memory anyway."""
    yield State.plain(gradient)
    nothing = [np.zeros(len(level.bytes), bool) for level in gradient.levels]
    solid = [level.named & ~level.free & level.solid for level in gradient.levels]
    for begins in cuts(gradient.levels[0]):
        yield again(gradient, begins, nothing)
        yield again(gradient, begins, solid)


def again(gradient: Gradient, begins: np.ndarray, kept: Sequence[np.ndarray]) -> State:
    """The function, cut as `begins` says, and the bodies of loops, computed again but for what is `kept`.

    Args:
      gradient: whose choice this is.
      begins: `[p]`, of each place of the function, INSIDE, PLAIN or AGAIN; what stays apart does in any case.
      kept: `[n]` bool of each level.
    """
    state = State.plain(gradient)
    for number, level in enumerate(gradient.levels):
        own = begins if number == 0 else whole(level)
        fixed = state.starts[number] != INSIDE
        kind = own[np.maximum.accumulate(np.where(own != INSIDE, np.arange(len(own)), 0))]
        state.starts[number][:] = np.where(level.apart, PLAIN, np.where(fixed | (own != INSIDE), kind, INSIDE))
        state.keep[number][:] = np.where(kept[number], KEPT, COMPUTED)
        state.changed(number)
    return state


def whole(level: Level) -> np.ndarray:
    """How a level begins that is one segment, computed again."""
    begins = np.full(len(level.apart), INSIDE)
    begins[:1] = AGAIN
    return begins


def cuts(level: Level) -> Iterator[np.ndarray]:
    """Ways to cut a level, `[p]` each: not at all; then at groups of alike places, those of many first, everything
    computed again, and but for what comes before the first layer and after the last.
    """
    yield whole(level)
    layers = {tuple(_layers(level, group).tolist()) for group in alike_places(level)}
    across = crossing(level)
    ranked = sorted((group for group in layers if len(group) <= MOST), key=lambda group: (-len(group), across[group[0]]))
    for group in ranked[:CUTS]:
        yield _begun(level, group, plain=())
        yield _begun(level, group, plain=(0, group[-1]) if len(group) > 1 else group)


def _begun(level: Level, places: Sequence[int], plain: Sequence[int]) -> np.ndarray:
    begins = whole(level)
    begins[list(places)] = AGAIN
    begins[list(plain)] = PLAIN
    return begins


def _layers(level: Level, places: np.ndarray) -> np.ndarray:
    """Where layers begin and the last one ends, from some places between layers: those of equal distance go on by it to
    both sides as long as no more bytes are across.
    """
    steps = np.unique(np.diff(places))
    if len(steps) != 1:
        return places
    across, step = crossing(level)[:-1], int(steps[0])
    before, after = np.arange(places[0] - step, 0, -step), np.arange(places[-1] + step, len(across), step)
    wide = [np.append(across[more] > WIDER * across[places[0]], True).argmax() for more in (before, after)]
    return np.concatenate([before[: wide[0]][::-1], places, after[: wide[1]]])
