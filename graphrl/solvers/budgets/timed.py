"""A limit of time by a finer measure than a search's own: its limit is moved until its choice meets the finer one."""

import dataclasses
import math
import time
from collections.abc import Callable

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.found import Found, best_of
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.state import State

FIRST, LATER = 0.4, 0.4  # parts of the time that is left, for the first search and for each later one
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
      seconds: of all searches and measurements; up to twice as many where nothing else is within the limit yet.
    """
    assert goal.slowdown is not None
    limit, low, high = goal.slowdown, -math.inf, math.inf
    plain = best = best_of(pricing, goal, [State.plain(pricing.gradient)])
    begin, own, share = time.monotonic(), limit + AHEAD, FIRST
    for turn in range(ROUNDS):
        left = seconds - (time.monotonic() - begin)
        found = solver(
            pricing,
            dataclasses.replace(goal, slowdown=own),
            seed=seed + turn,
            seconds=max(share * left, 0.1 * seconds),
        )
        searched = time.monotonic()
        over, owned = measured(found.choice) - limit, goal.slowdown_of(pricing, found.price)
        now = time.monotonic()
        if over <= 0:
            low = max(low, owned)
            best = min(best, found, key=lambda each: each.price.peak)
        else:
            high = min(high, owned)
        asked, own, share = own, owned - over - NEAR / 2, LATER
        next_one = 0.1 * seconds + now - searched
        late = now - begin + next_one > (2.0 if best is plain else 1.0) * seconds
        exhausted = over <= 0 and own <= asked  # the search knows of nothing slower that is lower
        if -NEAR <= over <= 0 or late or exhausted:
            break
        if not low < own < high:
            own = high - NEAR if math.isinf(low) else (low + min(high, 1.0)) / 2
    return best
