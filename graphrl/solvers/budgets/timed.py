"""A limit of time by a finer measure than a search's own: its limit is moved until its choice meets the finer one."""

import dataclasses
import math
import time
from collections.abc import Callable

from graphrl.solvers.budgets.choice import Choice, Pricing, is_untouched
from graphrl.solvers.budgets.found import Found, best_of
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.state import State

SHARE, LEAST = 0.3, 0.05  # parts that each search has: of the time that is left, and of all, whatever is left
FIRST = 0.25  # part of all that the first search has, whatever measurements take
# Parts of the limit: a choice that is too slow by less may be made faster, as low as it is. Where few turns are left
# that has to succeed, which it mostly does if it is near.
FAR, NEARBY = 0.25, 0.06
NEAR = 0.006  # slowdowns that a choice may stay below the limit
KNOWN = 0.1  # part of a measurement's time: what takes less was measured before
ROUNDS = 12
FEW = 3  # turns: where fewer fit, the first one leaves some of the limit
SPARE, MOST_SPARE = 0.25, 0.006  # part of the limit, and slowdowns: measures differ by as much


def search_timed(
    solver: Callable[..., Found],
    pricing: Pricing,
    goal: Goal,
    measured: Callable[[Choice], float],
    *,
    seed: int,
    seconds: float,
    late: float = 0.0,
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
      seconds: of all searches and measurements.
      late: more of them, as long as nothing but jax's own choice is within the limit.
      ahead: what is added to the limit for the first search, by its own measure.
      begun: a choice within the limit: what is found is no worse.
      once: seconds that a measurement takes, before there was one.
    """
    assert goal.slowdown is not None
    clock = _Clock(seconds, late, once)
    best = begun or best_of(pricing, goal, [State.plain(pricing.gradient)])
    least_over = clock.measure(measured, best.choice) - goal.slowdown if begun else -goal.slowdown  # of the best
    fastest = math.inf  # the peak for which the fastest choice was asked
    own_limit = _OwnLimit(goal.slowdown + ahead - _spared(goal.slowdown, clock.fitting()))
    asked = dataclasses.replace(goal, slowdown=own_limit.slowdown)
    for turn in range(ROUNDS):
        own = clock.seconds_of_search(is_first=not turn, may_be_last=not is_untouched(best.choice))
        found = solver(pricing, asked, seed=seed + turn, seconds=own)
        over = clock.measure(measured, found.choice) - goal.slowdown
        is_low = found.price.peak < best.price.peak
        is_faster = found.price.peak == best.price.peak and over < least_over
        if over <= 0 and (is_low or is_faster or least_over > 0):
            best, least_over = found, over
        has_none = is_untouched(best.choice)
        if not clock.fitting(late=has_none):
            break
        by_time, are_few = asked.peak is None, clock.fitting() < FEW
        near = max(NEAR, NEARBY * goal.slowdown) if are_few else math.inf
        if by_time and is_low and 0 < over < min(near, FAR * goal.slowdown):
            asked = Goal(peak=found.price.peak, moves=goal.moves)
        elif own_limit.move(goal.slowdown_of(pricing, found.price), over, by_time, are_few and has_none) or not by_time:
            asked = dataclasses.replace(goal, slowdown=own_limit.slowdown)
        elif not has_none and best.price.peak < fastest:
            asked = Goal(peak=best.price.peak, moves=goal.moves)
            fastest = best.price.peak
        else:
            break
    return best


def _spared(slowdown: float, turns: int) -> float:
    """What the first search leaves of the limit: the more, the fewer turns there are to put it right."""
    lacking = min(max(FEW - turns, 0) / (FEW - 1), 1.0)
    return min(SPARE * abs(slowdown), MOST_SPARE) * lacking


class _Clock:
    """The seconds that are left, for turns of a search and a measurement."""

    def __init__(self, seconds: float, late: float, once: float) -> None:
        self._seconds, self._late, self._once = seconds, late, once
        self._begin, self._measured = time.monotonic(), False

    def fitting(self, *, late: bool = False) -> int:
        """How many turns fit; also into what comes `late`."""
        left = self._left() + self._late * late
        return max(0, int(left / max(self._once + LEAST * self._seconds, 1e-9)))

    def seconds_of_search(self, *, is_first: bool, may_be_last: bool) -> float:
        """What the next search may take: of few turns so much that another one fits after it, unless it may be the last
        or there is too little for two.
        """
        left, least = self._left(), (FIRST if is_first else LEAST) * self._seconds
        if self.fitting() >= FEW:
            return max(SHARE * left, least)
        alone = left - self._once
        shared = alone - self._once - LEAST * self._seconds
        return max(alone if may_be_last or shared < 2 * LEAST * self._seconds else shared, least)

    def measure(self, measured: Callable[[Choice], float], choice: Choice) -> float:
        """Measures a choice, and how long that takes: what was known before takes no time, which says nothing."""
        begin = time.monotonic()
        value = measured(choice)
        took = time.monotonic() - begin
        if took > KNOWN * self._once:
            self._once = max(took, self._once * self._measured)
            self._measured = True
        return value

    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._begin)


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
          must_hold: whether the next choice had better be within the true limit, since there are few more.
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
        return moved > -1.0
