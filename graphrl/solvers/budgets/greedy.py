"""Dropping or keeping what is worth most, one group of alike values after another, by exact prices."""

from graphrl.solvers.budgets.alike import alike_values
from graphrl.solvers.budgets.choice import Price, Pricing
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.price import COMPUTED
from graphrl.solvers.budgets.state import State

WAITING = 0.3  # what a byte kept beside the peak counts as: it stands in the way of the next step


def greedy(pricing: Pricing, goal: Goal, state: State) -> State:
    """Computes groups of kept values again, each time the one that saves the most bytes for its seconds, as long as the
    time allows (where that is the limit) or until the memory suffices.
    """
    gradient = pricing.gradient
    groups = [(level, group) for level in range(len(gradient.levels)) for group in alike_values(gradient.levels[level])]
    state = state.copy()
    now = pricing(state.choice())
    while goal.slowdown is not None or goal.excess(pricing, now) > 0:
        best, gain, price = None, 0.0, now
        for level, group in groups:
            before = state.keep[level][group].copy()
            if not before.any():
                continue
            state.keep[level][group] = COMPUTED
            then = pricing(state.choice())
            state.keep[level][group] = before
            worth = _worth(now, then)
            if worth > gain and (goal.slowdown is None or goal.excess(pricing, then) == 0.0):
                best, gain, price = (level, group), worth, then
        if best is None:
            break
        state.keep[best[0]][best[1]] = COMPUTED
        now = price
    return state


def _worth(now: Price, then: Price) -> float:
    """Bytes saved for each second."""
    saved = (now.peak - then.peak) + WAITING * (now.kept - then.kept)
    return saved / max(then.seconds - now.seconds, 1e-9)
