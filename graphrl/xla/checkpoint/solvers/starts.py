"""Starting choices: regular cuts, greedy recomputation, and moves to the host.

- `starts`: programs cut into segments at alike places (`cuts`), with each segment computed again, in whole or except
  for values that are written to memory anyway; `with_stretches` adds the same choices with loops in stretches.
- `greedy`: repeatedly recomputes the group of alike values that saves most bytes per second, by exact prices.
- `moved_states`: moves kept values to the host, one group of alike values after another, as long as it pays. Values
  that come back take memory from the start of the first segment that reads them, so large segments gain nothing. The
  choice is therefore also cut into smaller segments that keep the same values.
"""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from graphrl.xla.checkpoint.solvers.choice import INSIDE, PLAIN, RECOMPUTE, Price, Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.solvers.level import (
    KEPT,
    MOVED,
    RECOMPUTED,
    Gradient,
    Level,
    alike_places,
    alike_values,
    crossing,
)

CUTS = 15  # number of groups of places that are tried
PARTS = 16, 32, 8, 4  # numbers of parts of equal bytes; each part is cut at its narrowest place (fewest bytes across)
WIDER = 1.1  # factor by which the bytes across a place between layers may exceed the median
MOST = 64  # most segments: each is traced separately
Group = tuple[int, np.ndarray]  # number of a level, and values of it that are alike
WAITING = 0.3  # weight of a kept byte, with 1 for a byte of the peak: it limits the gain of the next step
LARGE = 2e-3  # share of the peak: only larger values are moved one by one
MOVED_CUTS = 12  # number of cuts that are tried with moves


def starts(gradient: Gradient) -> Iterator[State]:
    """Yields choices: nothing recomputed; then, for each cut, all values recomputed, and all but materialized ones."""
    yield State.plain(gradient)
    nothing = [np.zeros(len(level.bytes), bool) for level in gradient.levels]
    materialized = [level.named & ~level.free & level.materialized for level in gradient.levels]
    for begins in cuts(gradient.levels[0]):
        yield recompute_state(gradient, begins, nothing)
        yield recompute_state(gradient, begins, materialized)


def recompute_state(gradient: Gradient, begins: np.ndarray, kept: Sequence[np.ndarray]) -> State:
    """Creates a state that recomputes the function and the bodies of its loops, except for `kept` values.

    Args:
      gradient: the gradient whose choice this is.
      begins: `[p]`: segments of the function, as in `State.starts`; places that are `separate` are plain segments in
        any case.
      kept: for each level, `[n]` bool: whether each value is kept.
    """
    state = State.plain(gradient)
    for number, level in enumerate(gradient.levels):
        starts_at = begins if number == 0 else one_segment(level)
        fixed = state.starts[number] != INSIDE
        kind = starts_at[np.maximum.accumulate(np.where(starts_at != INSIDE, np.arange(len(starts_at)), 0))]
        state.starts[number][:] = np.where(level.separate, PLAIN, np.where(fixed | (starts_at != INSIDE), kind, INSIDE))
        state.keep[number][:] = np.where(kept[number], KEPT, RECOMPUTED)
        state.changed(number)
    return state


def with_stretches(pricing: Pricing, states: Iterable[State]) -> Iterator[State]:
    """Yields states, each followed by copies with loops in stretches of least memory: of all, and of unrolled ones."""
    loops = pricing.gradient.stretchable()
    for state in states:
        yield state
        for unrolled in (False, True) if loops else ():
            other = state.copy()
            for number, loop in reversed(loops.items()):  # the bytes that a loop keeps depend on the loops in it
                costs = pricing.loop_costs(other.choice(), number)
                allowed = [stretch for stretch in costs if not unrolled or loop.is_unrolled(stretch)]
                other.stretches[number] = min(allowed or [1], key=lambda k: costs[k].kept + costs[k].backward)
                other.changed(number)
            if other.stretches != state.stretches:
                yield other


def one_segment(level: Level) -> np.ndarray:
    """Returns `[p]`: the `State.starts` of a level that is a single recomputed segment."""
    begins = np.full(len(level.separate), INSIDE)
    begins[:1] = RECOMPUTE
    return begins


def cuts(level: Level) -> Iterator[np.ndarray]:
    """Yields ways to cut a level into segments, each `[p]` as in `State.starts`.

    The first is a single segment. The others cut between layers, at alike places and at narrow places. They recompute
    all segments, or those between the first and the last cut, or those before the last cut. The latter needs a single
    cut, or a first layer that may start with the program. If more comes before the first layer, such as an embedding,
    that may be computed once.
    """
    yield one_segment(level)
    if not len(level.separate):
        return
    across, alike = crossing(level)[:-1], alike_places(level)
    layers = sorted(
        _layers(across, alike), key=lambda places: (-len(places) - _begin_the_program(places), across[places].max())
    )
    kinds = layers, sorted(alike, key=len, reverse=True), _narrow(level, across)
    ranked = (group for groups in itertools.zip_longest(*kinds) for group in groups if group is not None)
    different = dict.fromkeys(tuple(group.tolist()) for group in ranked if 0 < len(group) <= MOST)
    for group in itertools.islice(different, CUTS):
        yield _segments_at(level, group, plain=())
        if len(group) == 1 or _begin_the_program(np.array(group)):
            yield _segments_at(level, group, plain=group[-1:])
        if len(group) > 1:
            yield _segments_at(level, group, plain=(0, group[-1]))
            if (first := _first_layer(across, group)) is not None:
                yield _segments_at(level, (first, *group), plain=(0, group[-1]))
                yield _segments_at(level, (first, *group), plain=(0,))


def _segments_at(level: Level, places: Sequence[int], plain: Sequence[int]) -> np.ndarray:
    begins = one_segment(level)
    begins[list(places)] = RECOMPUTE
    begins[list(plain)] = PLAIN
    return begins


def _layers(across: np.ndarray, alike: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields places at equal distances where layers may start and the last one may end, for each offset of the first.

    The distance is the most frequent one between alike places. Of each offset it takes the longest run of places with
    at most `WIDER` times the median bytes across.
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


def _first_layer(across: np.ndarray, places: Sequence[int]) -> int | None:
    """Returns the first place with nearly the bytes across of the first of these places; None without."""
    share = across[1 : places[0]] / max(across[places[0]], 1.0)
    alike = np.flatnonzero((share >= 1 / WIDER) & (share <= WIDER))
    return 1 + int(alike[0]) if len(alike) else None


def _begin_the_program(places: np.ndarray) -> bool:
    """True if all distances between places equal the distance of the first place from the start."""
    steps = np.diff(places, prepend=0)
    return len(places) > 1 and bool((steps == steps[0]).all())


def _narrow(level: Level, across: np.ndarray) -> Iterator[np.ndarray]:
    """Yields, for several numbers of parts of equal bytes, the place with the fewest bytes across in each part."""
    written = np.where(level.materialized & ~level.free & (level.place >= 0), level.bytes, 0.0)
    before = np.bincount(np.maximum(level.place, 0), written, len(across)).cumsum()
    for count in PARTS:
        part = (count * before / max(before[-1], 1.0)).astype(int)
        order = np.lexsort((across, part))
        firsts = order[np.diff(part[order], prepend=-1) > 0]
        yield np.unique(firsts[firsts > 0])


def greedy(pricing: Pricing, goal: Goal, state: State, until: float) -> State:
    """Recomputes groups of kept values one by one, each time the group that saves the most bytes per second.

    It stops when no group saves any, or at the time `until` (`time.monotonic()`), and returns the best choice on the
    way. Choices above the limit do not stop it, since later ones may be within the limit.
    """
    gradient = pricing.gradient
    groups = [(level, group) for level in range(len(gradient.levels)) for group in alike_values(gradient.levels[level])]
    state = state.copy()
    now = pricing(state.choice())
    best, least = state.copy(), goal.rank(pricing, now)
    while (groups := _kept(groups, state)) and time.monotonic() < until:
        prices = [_without(pricing, state, *group) for group in groups]
        gains = [_worth(now, price) for price in prices]
        chosen = max(range(len(groups)), key=gains.__getitem__)
        if gains[chosen] <= 0.0:
            break
        level, group = groups[chosen]
        state.keep[level][group] = RECOMPUTED
        now = prices[chosen]
        if goal.rank(pricing, now) < least:
            best, least = state.copy(), goal.rank(pricing, now)
    return best


def _kept(groups: Sequence[Group], state: State) -> list[Group]:
    """Returns the groups that have values which are kept or moved."""
    return [(level, group) for level, group in groups if state.keep[level][group].any()]


def _without(pricing: Pricing, state: State, level: int, group: np.ndarray) -> Price:
    """Returns the price of the state if a group of values were computed again."""
    keep = state.keep[level]
    before = keep[group].copy()
    keep[group] = RECOMPUTED
    price = pricing(state.choice())
    keep[group] = before
    return price


def _worth(now: Price, then: Price) -> float:
    """Returns the bytes saved per additional second; kept bytes have weight `WAITING`."""
    saved = (now.peak - then.peak) + WAITING * (now.kept - then.kept)
    return saved / max(then.seconds - now.seconds, 1e-9)


def moved_states(pricing: Pricing, goal: Goal, states: Sequence[State], until: float) -> Iterator[State]:
    """Yields choices with some of their kept values moved to the host, with additional cuts into segments.

    Args:
      pricing: pricing of the gradient.
      goal: a goal that allows moves.
      states: choices to start from.
      until: end by `time.monotonic()`; at least one choice is tried whatever the time.
    """
    bases = [_kept_by_name(pricing, each) for each in states]
    kinds = itertools.islice(cuts(pricing.gradient.levels[0]), MOVED_CUTS)
    for count, (begins, base) in enumerate(itertools.product(kinds, bases)):
        if count and time.monotonic() > until:
            return
        state = base.copy()
        state.starts[0][(begins != INSIDE) & (state.starts[0] == INSIDE)] = RECOMPUTE
        state.changed(0)
        _move(pricing, goal, state)
        yield state


def _kept_by_name(pricing: Pricing, start: State) -> State:
    """Makes all segments recomputed but keeps the same values by name, since only recomputed segments move values."""
    pricing(start.choice())
    state = start.copy()
    for number, level in enumerate(pricing.gradient.levels):
        state.keep[number][:] = np.where(level.named & ~level.free, pricing.stored(number), state.keep[number])
        state.starts[number][(state.starts[number] != INSIDE) & ~level.separate] = RECOMPUTE
        state.changed(number)
    return state


def _move(pricing: Pricing, goal: Goal, state: State) -> None:
    """Moves groups of kept values to the host if that lowers the rank, largest first; else large values one by one."""
    least = goal.rank(pricing, pricing(state.choice()))
    gradient = pricing.gradient
    groups = [(number, group) for number, level in enumerate(gradient.levels) for group in alike_values(level)]
    sizes = [gradient.trips(number) * gradient.levels[number].bytes[group].sum() for number, group in groups]
    for k in sorted(range(len(groups)), key=lambda k: -sizes[k]):
        number, group = groups[k]
        single = gradient.trips(number) * gradient.levels[number].bytes[group[0]] > LARGE * pricing.plain.peak
        for chosen in (group, *(group[[i]] for i in range(len(group)) if single and len(group) > 1)):
            keep = state.keep[number]
            before = keep[chosen].copy()
            if not (before == KEPT).all():
                continue
            keep[chosen] = MOVED
            rank = goal.rank(pricing, pricing(state.choice()))
            if rank < least:
                least = rank
            else:
                keep[chosen] = before
