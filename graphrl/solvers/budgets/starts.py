"""Choices to begin with: programs cut at alike places, and computed again in whole or but for what is dear."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from graphrl.solvers.budgets.alike import alike_places, crossing
from graphrl.solvers.budgets.choice import Pricing
from graphrl.solvers.budgets.level import Gradient, Level
from graphrl.solvers.budgets.state import AGAIN, INSIDE, PLAIN, State
from graphrl.solvers.budgets.work import COMPUTED, KEPT

CUTS = 15  # groups of places that are tried
PARTS = 16, 32, 8, 4  # that are cut at their narrowest places
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


def stretched(pricing: Pricing, states: Iterable[State]) -> Iterator[State]:
    """Choices, and each again with its loops in the stretches that take the least memory: of all, and unrolled."""
    loops = pricing.gradient.stretched()
    for state in states:
        yield state
        for unrolled in (False, True) if loops else ():
            other = state.copy()
            for number, loop in reversed(loops.items()):  # what a loop keeps depends on those in it
                costs = pricing.loop_costs(other.choice(), number)
                some = [stretch for stretch in costs if not unrolled or loop.is_unrolled(stretch)]
                other.stretches[number] = min(some or [1], key=lambda k: costs[k].kept + costs[k].backward)
                other.changed(number)
            if other.stretches != state.stretches:
                yield other


def whole(level: Level) -> np.ndarray:
    """How a level begins that is one segment, computed again."""
    begins = np.full(len(level.apart), INSIDE)
    begins[:1] = AGAIN
    return begins


def cuts(level: Level) -> Iterator[np.ndarray]:
    """Ways to cut a level, `[p]` each: not at all; then between layers, at alike places and at narrow ones, everything
    computed again, and but for what comes before the first of these places and after the last, or only after the last
    where the first layer may begin with the program.
    """
    yield whole(level)
    if not len(level.apart):
        return
    across, alike = crossing(level)[:-1], alike_places(level)
    layers = sorted(
        _layers(across, alike), key=lambda places: (-len(places) - _begin_the_program(places), across[places].max())
    )
    kinds = layers, sorted(alike, key=len, reverse=True), _narrow(level, across)
    ranked = (group for groups in itertools.zip_longest(*kinds) for group in groups if group is not None)
    different = dict.fromkeys(tuple(group.tolist()) for group in ranked if 0 < len(group) <= MOST)
    for group in itertools.islice(different, CUTS):
        yield _begun(level, group, plain=())
        if len(group) == 1 or _begin_the_program(np.array(group)):
            yield _begun(level, group, plain=group[-1:])
        if len(group) > 1:
            yield _begun(level, group, plain=(0, group[-1]))


def _begun(level: Level, places: Sequence[int], plain: Sequence[int]) -> np.ndarray:
    begins = whole(level)
    begins[list(places)] = AGAIN
    begins[list(plain)] = PLAIN
    return begins


def _layers(across: np.ndarray, alike: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Where layers may begin and the last one end: places as far from one another as most that are alike, as many in a
    row as about the same bytes are across.
    """
    steps = Counter(int(step) for group in alike for step in np.unique(np.diff(group)))
    if not steps:
        return
    step = max(steps, key=lambda step: (steps[step], -step))
    for first in range(1, min(step, len(across)) + 1):
        places = np.arange(first, len(across), step)
        narrow = across[places] <= WIDER * np.median(across[places])
        ends = np.flatnonzero(np.diff(np.concatenate([[False], narrow, [False]]))).reshape(-1, 2)
        begin, end = max(ends.tolist(), key=lambda run: run[1] - run[0], default=(0, 0))
        if end - begin > 1:
            yield places[begin:end]


def _begin_the_program(places: np.ndarray) -> bool:
    """Whether places are as far from one another as the first of them is from the begin."""
    steps = np.diff(places, prepend=0)
    return len(places) > 1 and bool((steps == steps[0]).all())


def _narrow(level: Level, across: np.ndarray) -> Iterator[np.ndarray]:
    """The narrowest place of each part, for parts of equal bytes."""
    written = np.where(level.solid & ~level.free & (level.place >= 0), level.bytes, 0.0)
    before = np.bincount(np.maximum(level.place, 0), written, len(across)).cumsum()
    for count in PARTS:
        part = (count * before / max(before[-1], 1.0)).astype(int)
        order = np.lexsort((across, part))
        firsts = order[np.diff(part[order], prepend=-1) > 0]
        yield np.unique(firsts[firsts > 0])
