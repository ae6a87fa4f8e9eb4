"""A limit of time by a finer measure than a search's own: its limit is moved until its choice meets the finer one."""

import dataclasses
import time
from collections.abc import Callable

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.found import Found, best_of
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.state import State

PARTS = (0.35, 0.4, 0.5, 1.0)  # of the time that is left, for each search
AHEAD = 0.04  # the first one may be slower by so much: it sees what only its own measure takes for too slow
NEAR = 0.006  # slowdowns that a choice may stay below the limit


def search_timed(
    solver: Callable[..., Found],
    pricing: Pricing,
    goal: Goal,
    measured: Callable[[Choice], float],
    *,
    seed: int,
    seconds: float,
) -> Found:
    """The choice of the least peak that is measured to be within the limit; what jax does by itself always is.

    Args:
      solver: one of `auto.SOLVERS`.
      pricing: of the gradient.
      goal: with a limit of slowdown.
      measured: the slowdown of a choice.
      seed: of random numbers.
      seconds: of all searches and measurements.
    """
    assert goal.slowdown is not None
    limit, own, low, high = goal.slowdown, goal.slowdown + AHEAD, -float("inf"), float("inf")
    best = best_of(pricing, goal, [State.plain(pricing.gradient)])
    until, cost = time.monotonic() + seconds, 0.0
    for part in PARTS:
        left = until - time.monotonic() - cost
        if left <= 0 and cost:
            break
        found = solver(pricing, dataclasses.replace(goal, slowdown=own), seed=seed, seconds=part * left)
        begin = time.monotonic()
        over = measured(found.choice) - limit
        cost = time.monotonic() - begin
        if over <= 0:
            low = max(low, own)
            best = min(best, found, key=lambda each: each.price.peak)
        else:
            high = min(high, own)
        if -NEAR <= over <= 0:
            break
        own -= over + NEAR / 2
        if not low < own < high:
            own = (low + high) / 2
    return best
