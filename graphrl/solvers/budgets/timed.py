"""A limit of time by a finer measure than a search's own: its limit is moved until its choice meets the finer one."""

import dataclasses
import math
import time
from collections.abc import Callable

from graphrl.solvers.budgets.choice import Choice, Pricing
from graphrl.solvers.budgets.found import Found, best_of
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.state import State

SHARE, LEAST = 0.3, 0.05  # parts that each search has: of the time that is left, and of all, whatever is left
FAR = 0.25  # part of the limit: a choice that is too slow by less may be made faster, as low as it is
NEAR = 0.006  # slowdowns that a choice may stay below the limit
ROUNDS = 12
LATE = 2  # turns after the time, at most, where nothing is within the limit yet
FEW = 3  # turns: where fewer fit, each takes all of the time, and the first leaves some of the limit
SPARE, MOST_SPARE = 0.25, 0.03  # part of the limit, and slowdowns: measures differ by as much


def search_timed(
    solver: Callable[..., Found],
    pricing: Pricing,
    goal: Goal,
    measured: Callable[[Choice], float],
    *,
    seed: int,
    seconds: float,
    ahead: float = 0.0,
    begun: Found | None = None,
    once: float = 0.0,
) -> Found:
    """The choice of the least peak that is measured to be within the limit; jax's own where none is.

    Searches take turns: for the least peak within a limit of time, which leaves much of that time unused, and, where
    its choice is a little too slow or nothing lower is known, for the fastest that is as low.

    Args:
      solver: one of `auto.SOLVERS`, asked with other limits until its choice is within this one, and just so.
      pricing: of the gradient.
      goal: with a limit of slowdown.
      measured: the slowdown of a choice.
      seed: of random numbers.
      ahead: what is added to the limit for the first search, by its own measure.
      begun: a choice within the limit: what is found is no worse.
      seconds: of all searches and measurements, but for `LATE` turns where nothing else is within the limit yet.
      once: seconds that a measurement takes, before there was one.
    """
    assert goal.slowdown is not None
    plain = best_of(pricing, goal, [State.plain(pricing.gradient)])
    best = begun or plain
    least_over, fastest = -goal.slowdown, math.inf  # of the best; the peak for which the fastest choice was asked
    begin = time.monotonic()
    lacking = max(0, FEW - _fitting(seconds, once, seconds)) / (FEW - 1)
    spared = min(SPARE * abs(goal.slowdown), MOST_SPARE) * min(1.0, lacking)
    late = 0
    own_limit = _OwnLimit(goal.slowdown + ahead - spared)
    asked = dataclasses.replace(goal, slowdown=own_limit.slowdown)
    for turn in range(ROUNDS):
        left = seconds - (time.monotonic() - begin)
        own = _seconds_of_turn(left, once, seconds, may_be_last=best is not plain)
        found = solver(pricing, asked, seed=seed + turn, seconds=own)
        searched = time.monotonic()
        over = measured(found.choice) - goal.slowdown
        now = time.monotonic()
        once = max(once * (turn > 0), now - searched)
        is_low = found.price.peak < best.price.peak
        is_faster = found.price.peak == best.price.peak and over < least_over
        if over <= 0 and (is_low or is_faster or least_over > 0):
            best, least_over = found, over
        left, has_none = seconds - (now - begin), best is plain
        if not _fitting(left, once, seconds):
            late += 1
            if late > LATE * has_none:
                break
        is_slow, are_few = asked.peak is None, _fitting(left, once, seconds) < FEW
        if is_slow and is_low and 0 < over < (NEAR if are_few else FAR * goal.slowdown):
            asked = Goal(peak=found.price.peak, moves=goal.moves)
        elif own_limit.move(goal.slowdown_of(pricing, found.price), over, is_slow, are_few and has_none) or not is_slow:
            asked = dataclasses.replace(goal, slowdown=own_limit.slowdown)
        elif best is not plain and best.price.peak < fastest:
            asked = Goal(peak=best.price.peak, moves=goal.moves)
            fastest = best.price.peak
        else:
            break
    return best


def _seconds_of_turn(left: float, once: float, seconds: float, *, may_be_last: bool) -> float:
    """What a search may take of the time that is left of all: so much that another turn fits after it, unless it may be
    the last one or there is too little for two.
    """
    if _fitting(left, once, seconds) >= FEW:
        return max(SHARE * left, LEAST * seconds)
    alone = left - once
    shared = alone - once - LEAST * seconds
    return max(alone if may_be_last or shared < 2 * LEAST * seconds else shared, LEAST * seconds)


def _fitting(left: float, once: float, seconds: float) -> int:
    """How many turns fit into the time that is left of all."""
    return max(0, int(left / max(once + LEAST * seconds, 1e-9)))


class _OwnLimit:
    """The limit that a search has by its own measure, so that its choice is just within the true one.

    Attributes:
      slowdown: by the search's own measure, as all here but what is `over`.
    """

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._within, self._over = -math.inf, math.inf  # the slowest choice within the true limit, the quickest over it
        self._failed = 0  # choices over it, before there was one within: each time more is taken off

    def move(self, own: float, over: float, was_asked: bool, must_hold: bool) -> bool:
        """Moves to where the next choice is expected just within the limit; False if there is nothing to gain.

        Args:
          own: slowdown of the last choice.
          over: by how much the finer measure has it above the true limit.
          was_asked: whether this limit was asked for with it, and not another one.
          must_hold: whether a next choice over the true limit would be one too many.
        """
        if over <= 0:
            self._within = max(self._within, own)
        else:
            self._over = min(self._over, own)
            self._failed += math.isinf(self._within)
        # where both measures differ there as they do here
        moved = own - over * max(1, self._failed) - (1.5 if must_hold else 0.5) * NEAR
        if over <= 0 and (over >= -NEAR or (was_asked and moved <= self.slowdown)):
            return False  # near enough, or the search knows of nothing slower that is lower
        if not self._within < moved < self._over:
            moved = self._over - NEAR if math.isinf(self._within) else (self._within + min(self._over, 1.0)) / 2
        self.slowdown = moved
        return True
