"""Computing again what saves most for its time, one group of alike values after another, by exact prices."""

import time
from collections.abc import Sequence

import numpy as np

from graphrl.solvers.budgets.alike import alike_values
from graphrl.solvers.budgets.choice import Price, Pricing
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.state import State
from graphrl.solvers.budgets.work import COMPUTED

Group = tuple[int, np.ndarray]  # a level, and values of it that are alike

WAITING = 0.3  # what a byte kept beside the peak counts as: it stands in the way of the next step


def greedy(pricing: Pricing, goal: Goal, state: State, until: float) -> State:
    """Computes groups of kept values again, each time the one that saves the most bytes for its seconds, to the end or
    until that `time.monotonic()`; the best choice on the way. (A limit may be met again behind where it is not.)
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
        state.keep[level][group] = COMPUTED
        now = prices[chosen]
        if goal.rank(pricing, now) < least:
            best, least = state.copy(), goal.rank(pricing, now)
    return best


def _kept(groups: Sequence[Group], state: State) -> list[Group]:
    """Those of which some value is kept."""
    return [(level, group) for level, group in groups if state.keep[level][group].any()]


def _without(pricing: Pricing, state: State, level: int, group: np.ndarray) -> Price:
    """The price where some values are computed again."""
    keep = state.keep[level]
    before = keep[group].copy()
    keep[group] = COMPUTED
    price = pricing(state.choice())
    keep[group] = before
    return price


def _worth(now: Price, then: Price) -> float:
    """Bytes saved for each second."""
    saved = (now.peak - then.peak) + WAITING * (now.kept - then.kept)
    return saved / max(then.seconds - now.seconds, 1e-9)
