"""A limit of time by a finer measure than a search's own: its limit is moved until its choice meets the finer one."""

import dataclasses
import math
import time
from collections.abc import Callable

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.found import Found, best_of
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.state import State

FIRST, LATER = 0.4, 0.4  # part of the time for the first search, and of what is left for each later one
AHEAD = 0.04  # the first one may be slower by so much: it sees what only its own measure takes for too slow
NEAR = 0.006  # slowdowns that a choice may stay below the limit
ROUNDS = 7


def search_timed(
    solver: Callable[..., Found],
    pricing: Pricing,
    goal: Goal,
    measured: Callable[[Choice], float],
    *,
    seed: int,
    seconds: float,
) -> Found:
    """The choice of the least peak that is measured to be within the limit, as jax's own choice always is.

    Args:
      solver: one of `auto.SOLVERS`, asked with other limits until its choice is within this one, and just so.
      pricing: of the gradient.
      goal: with a limit of slowdown.
      measured: the slowdown of a choice.
      seed: of random numbers.
      seconds: of all searches and measurements; more where nothing else is within the limit yet.
    """
    assert goal.slowdown is not None
    limit, low, high = goal.slowdown, -float("inf"), float("inf")
    plain = best = best_of(pricing, goal, [State.plain(pricing.gradient)])
    begin, own = time.monotonic(), limit + AHEAD
    found = solver(pricing, dataclasses.replace(goal, slowdown=own), seed=seed, seconds=FIRST * seconds)
    for turn in range(1, ROUNDS):
        over, owned = measured(found.choice) - limit, goal.slowdown_of(pricing, found.price)
        if over <= 0:
            low = max(low, owned)
            best = min(best, found, key=lambda each: each.price.peak)
        else:
            high = min(high, owned)
        left = seconds - (time.monotonic() - begin)
        own = owned - over - NEAR / 2
        late = left <= 0 and best is not plain
        exhausted = own <= low and math.isinf(high)  # the search knows of nothing slower that is lower
        if -NEAR <= over <= 0 or late or exhausted:
            break
        if not low < own < high:
            own = high - NEAR if math.isinf(low) else (low + high) / 2
        again = max(LATER * left, 0.1 * seconds)
        found = solver(pricing, dataclasses.replace(goal, slowdown=own), seed=seed + turn, seconds=again)
    return best
