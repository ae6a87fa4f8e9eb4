"""What to move to the host: of what a choice keeps, one group of alike values after another, as long as it pays.

What comes back takes memory from the begin of the first segment that reads it: large segments gain nothing, so that the
choice is cut into smaller ones, too, which keep the same.
"""

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.solvers.budgets.alike import alike_values
from graphrl.solvers.budgets.choice import Pricing
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.starts import cuts
from graphrl.solvers.budgets.state import AGAIN, INSIDE, State
from graphrl.solvers.budgets.work import KEPT, MOVED

LARGE = 2e-3  # part of the peak that a value has at least that is moved alone
CUTS = 12


def states(pricing: Pricing, goal: Goal, begun: Sequence[State], until: float) -> Iterator[State]:
    """Choices with some of what they keep moved, in segments of several kinds, until that `time.monotonic()`.

    Args:
      pricing: of the gradient.
      goal: that allows it.
      begun: choices.
      until: at least one is tried whatever the time.
    """
    bases = [_kept_by_name(pricing, each) for each in begun]
    kinds = itertools.islice(cuts(pricing.gradient.levels[0]), CUTS)
    for count, (begins, base) in enumerate(itertools.product(kinds, bases)):
        if count and time.monotonic() > until:
            return
        state = base.copy()
        state.starts[0][(begins != INSIDE) & (state.starts[0] == INSIDE)] = AGAIN
        state.changed(0)
        _move(pricing, goal, state)
        yield state


def _kept_by_name(pricing: Pricing, begun: State) -> State:
    """A choice that keeps the same where jax does so by itself: only segments that are computed again move values."""
    pricing(begun.choice())
    state = begun.copy()
    for number, level in enumerate(pricing.gradient.levels):
        state.keep[number][:] = np.where(level.named & ~level.free, pricing.stored(number), state.keep[number])
        state.starts[number][(state.starts[number] != INSIDE) & ~level.apart] = AGAIN
        state.changed(number)
    return state


def _move(pricing: Pricing, goal: Goal, state: State) -> None:
    """Moves groups of kept values, the largest first, where that lowers the rank; else the large ones of it alone."""
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
