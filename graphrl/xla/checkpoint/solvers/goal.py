"""Goals: a user's limit as an energy to minimize, and the search for a limit of time by a finer measure.

A `Goal` is one limit of three: bytes kept, bytes at the peak, or slowdown. An `Aim` is a goal for one gradient, whose
energy searches minimize. `Solution` is the best choice of a search. `search_timed` meets a limit of time by a measure
that is finer than a search's own price: it moves the search's limit until the choice meets the true one.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from graphrl.compiled import shared
from graphrl.errors import ProblemError
from graphrl.xla.checkpoint.solvers.choice import Choice, Price, Pricing, State, is_default

OVER = 10.0  # energy of exceeding a limit by 100%: a search may pass through such choices
START_OVER = 1.0  # likewise for states that are still to be changed: slightly above the limit is near
BEYOND = 100.0  # penalty in the final rank for exceeding a limit of bytes at all: no gain is worth it
TIE = 1e-3  # weight that breaks ties: the lower peak, or the faster choice
SAME = 1e-6  # part of a limit that counts as nothing
BY_KEPT, BY_PEAK, BY_SLOWDOWN = range(3)
PEAK = 0.1  # where kept bytes are limited: ten per cent of the peak are worth one per cent of the time
# Of `search_timed`.
SHARE, LEAST = 0.3, 0.05  # parts for each search: of the time that is left, and at least of all the time
FIRST = 0.25  # part of all the time that the first search has, however long measurements take
# Parts of the limit: a choice that is too slow by less may become faster at the same peak. With few turns left that
# must succeed, which it mostly does if the choice is near.
FAR, NEARBY = 0.25, 0.06
NEAR = 0.006  # slowdowns that a choice may stay below the limit
KNOWN = 0.1  # part of a measurement's time: a faster one was cached
ROUNDS = 12
FEW = 3  # turns: if fewer fit, the first one leaves some of the limit
MARGIN, MOST_MARGIN = 0.25, 0.006  # part of the limit, and slowdowns: the usual difference of the two measures


@dataclasses.dataclass(frozen=True)
class Goal:
    """One limit of three. Within it, the other quantity is minimized: the peak, or the time.

    Attributes:
      kept: bytes that may be kept in memory for the backward pass.
      peak: bytes that may be in memory at one time, without arguments, results and gradients.
      slowdown: share of the step's seconds that may be added; if negative, the share that must be saved.
      moves: whether values may be moved to the memory of the host.
    """

    kept: float | None = None
    peak: float | None = None
    slowdown: float | None = None
    moves: bool = False

    def __post_init__(self) -> None:
        if sum(limit is not None for limit in (self.kept, self.peak, self.slowdown)) != 1:
            raise ProblemError("a goal has one limit: kept, peak or slowdown")

    def stricter(self, part: float) -> "Goal":
        """The same goal with a part of the limit; seconds that must be saved grow in that proportion."""
        limits = {name: getattr(self, name) for name in ("kept", "peak", "slowdown")}
        less = {name: None if x is None else x * part if x > 0 else x / part for name, x in limits.items()}
        return Goal(moves=self.moves, **less)

    def slowdown_of(self, pricing: Pricing, price: Price) -> float:
        """Share of a step's seconds that a choice adds."""
        return added(self.aim(pricing), price.seconds)

    def excess(self, pricing: Pricing, price: Price) -> float:
        """Relative excess of a choice over the limit; 0 within it."""
        return above(self.aim(pricing), price.kept, price.peak, price.seconds)

    def energy(self, pricing: Pricing, price: Price, *, over: float = OVER) -> float:
        """Energy of a choice, lower is better; `over` is the energy of exceeding the limit by 100%."""
        return energy(self.aim(pricing), price.kept, price.peak, price.seconds, over)

    def rank(self, pricing: Pricing, price: Price) -> float:
        """Rank of a search's final choice, lower is better; a limit of bytes must not be exceeded at all.

        A limit of time may be exceeded a little: its measure is rougher than the user's, see `search_timed`.
        """
        return self.energy(pricing, price) + beyond(self.aim(pricing), price.kept, price.peak, price.seconds)

    def aim(self, pricing: Pricing) -> "Aim":
        """The same goal for one gradient, for compiled code."""
        limits = self.kept, self.peak, self.slowdown
        by, limit = next((by, limit) for by, limit in enumerate(limits) if limit is not None)
        peak, step = max(pricing.plain.peak, 1.0), max(pricing.step_seconds, 1e-30)
        return Aim(by, float(limit), peak, pricing.pass_seconds, step)


class Aim(NamedTuple):
    """A goal for a gradient."""

    by: int  # BY_KEPT, BY_PEAK or BY_SLOWDOWN: the limited quantity
    limit: float
    peak: float  # of jax's default, bytes
    passes: float  # seconds without those that choices add
    step: float  # seconds of jax's default


@shared
def added(aim: Aim, seconds: float) -> float:
    """Share of a step's seconds that `Price.seconds` add."""
    return (aim.passes + seconds) / aim.step - 1.0


@shared
def above(aim: Aim, kept: float, peak: float, seconds: float) -> float:
    """See `Goal.excess`."""
    if aim.by == BY_SLOWDOWN:
        return max(0.0, added(aim, seconds) - aim.limit) / max(abs(aim.limit), 0.01)
    return max(0.0, (kept if aim.by == BY_KEPT else peak) / max(aim.limit, 1.0) - 1.0)


@shared
def energy(aim: Aim, kept: float, peak: float, seconds: float, over: float) -> float:
    """See `Goal.energy`."""
    share, slowdown = peak / aim.peak, added(aim, seconds)
    if aim.by == BY_SLOWDOWN:
        value = share + TIE * slowdown
    else:
        value = slowdown + (PEAK if aim.by == BY_KEPT else TIE) * share
    return value + over * above(aim, kept, peak, seconds)


@shared
def beyond(aim: Aim, kept: float, peak: float, seconds: float) -> float:
    """Penalty that `Goal.rank` adds to the energy."""
    return BEYOND if aim.by != BY_SLOWDOWN and above(aim, kept, peak, seconds) > SAME else 0.0


class Solution(NamedTuple):
    """The best choice of a search.

    Attributes:
      choice: the best choice.
      price: its price.
      rank: its rank by the goal; see `Goal.rank`.
      evaluations: choices that were priced.
      bound: lower bound over all choices within the limit, if a solver proved one: of `Price.seconds` where bytes are
        limited, of `Price.kept` where seconds are.
    """

    choice: Choice
    price: Price
    rank: float
    evaluations: int
    bound: float | None = None


def best_of(pricing: Pricing, goal: Goal, states: Iterable[State]) -> Solution:
    """The best of at least one state."""
    best: Solution | None = None
    count = 0
    for state in states:
        price = pricing(state.choice())
        count += 1
        rank = goal.rank(pricing, price)
        if best is None or rank < best.rank:
            best = Solution(state.copy().choice(), price, rank, count)
    assert best is not None
    return best._replace(evaluations=count)


def search_timed(
    solver: Callable[..., Solution],
    pricing: Pricing,
    goal: Goal,
    measured: Callable[[Choice], float],
    *,
    seed: int,
    seconds: float,
    late: float = 0.0,
    ahead: float = 0.0,
    start: Solution | None = None,
    once: float = 0.0,
) -> Solution:
    """The choice of the least peak that is measured to be within the limit; jax's default if no choice is.

    Searches alternate. One minimizes the peak within a limit of time, which leaves much of that time unused. If its
    choice is a little too slow, or no lower peak is known, the next one minimizes the time for that peak.

    Args:
      solver: one of `auto.SOLVERS`, called with other limits until its choice is just within this one.
      pricing: pricing of the gradient.
      goal: a goal with a limit of slowdown.
      measured: the slowdown of a choice.
      seed: seed of the random numbers.
      seconds: seconds of all searches and measurements.
      late: additional seconds, while only jax's default is within the limit.
      ahead: slowdown that is added to the limit for the first search, by its own measure.
      start: a choice within the limit: the result is no worse.
      once: seconds that a measurement is expected to take, until there was one.
    """
    assert goal.slowdown is not None
    clock = _Clock(seconds, late, once)
    best = start or best_of(pricing, goal, [State.plain(pricing.gradient)])
    least_over = clock.measure(measured, best.choice) - goal.slowdown if start else -goal.slowdown  # of the best
    fastest = math.inf  # the peak for which the fastest choice was searched
    search_limit = _SearchLimit(goal.slowdown + ahead - _first_margin(goal.slowdown, clock.fitting()))
    subgoal = dataclasses.replace(goal, slowdown=search_limit.slowdown)
    for turn in range(ROUNDS):
        turn_seconds = clock.seconds_of_search(is_first=not turn, may_be_last=not is_default(best.choice))
        solution = solver(pricing, subgoal, seed=seed + turn, seconds=turn_seconds)
        predicted = goal.slowdown_of(pricing, solution.price)
        over = clock.measure(measured, solution.choice) - goal.slowdown
        is_low = solution.price.peak < best.price.peak
        is_faster = solution.price.peak == best.price.peak and over < least_over
        if over <= 0 and (is_low or is_faster or least_over > 0):
            best, least_over = solution, over
        has_none = is_default(best.choice)
        if not clock.fitting(late=has_none):
            break
        by_time, are_few = subgoal.peak is None, clock.fitting() < FEW
        near = max(NEAR, NEARBY * goal.slowdown) if are_few else math.inf
        if by_time and is_low and 0 < over < min(near, FAR * goal.slowdown):
            subgoal = Goal(peak=solution.price.peak, moves=goal.moves)
        elif search_limit.move(predicted, over, by_time, are_few and has_none) or not by_time:
            subgoal = dataclasses.replace(goal, slowdown=search_limit.slowdown)
        elif not has_none and best.price.peak < fastest:
            subgoal = Goal(peak=best.price.peak, moves=goal.moves)
            fastest = best.price.peak
        else:
            break
    return best


def _first_margin(slowdown: float, turns: int) -> float:
    """Slowdown by which the first search stays below the limit: larger if fewer turns are left to correct it."""
    lacking = min(max(FEW - turns, 0) / (FEW - 1), 1.0)
    return min(MARGIN * abs(slowdown), MOST_MARGIN) * lacking


class _Clock:
    """The seconds that are left, for turns of a search and a measurement."""

    def __init__(self, seconds: float, late: float, once: float) -> None:
        self._seconds, self._late, self._once = seconds, late, once
        self._begin, self._measured = time.monotonic(), False

    def fitting(self, *, late: bool = False) -> int:
        """Number of turns that fit, with `late` also into the late seconds."""
        left = self._left() + self._late * late
        return max(0, int(left / max(self._once + LEAST * self._seconds, 1e-9)))

    def seconds_of_search(self, *, is_first: bool, may_be_last: bool) -> float:
        """Seconds for the next search. If few turns are left, another one must fit after it, unless this may be the
        last or the time is too short for two.
        """
        left, least = self._left(), (FIRST if is_first else LEAST) * self._seconds
        if self.fitting() >= FEW:
            return max(SHARE * left, least)
        alone = left - self._once
        shared = alone - self._once - LEAST * self._seconds
        return max(alone if may_be_last or shared < 2 * LEAST * self._seconds else shared, least)

    def measure(self, measured: Callable[[Choice], float], choice: Choice) -> float:
        """Measures a choice, and how long that takes. Cached measurements do not change the expected time."""
        begin = time.monotonic()
        value = measured(choice)
        elapsed = time.monotonic() - begin
        if elapsed > KNOWN * self._once:
            self._once = max(elapsed, self._once * self._measured)
            self._measured = True
        return value

    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._begin)


class _SearchLimit:
    """The limit of a search by its own measure, chosen such that its choice is just within the true limit.

    Attributes:
      slowdown: the limit by the search's own measure, like all numbers here except `over`.
    """

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._within, self._over = -math.inf, math.inf  # the slowest choice within the true limit, the fastest above it
        self._failed = 0  # choices above it, before there was one within: each subtracts more from the limit

    def move(self, slowdown: float, over: float, was_limit: bool, must_hold: bool) -> bool:
        """Moves to where the next choice is expected just within the limit; False if there is nothing to gain.

        Args:
          slowdown: slowdown of the last choice.
          over: its slowdown above the true limit, by the finer measure.
          was_limit: whether the last search had this limit, and not another one.
          must_hold: whether the next choice should be within the true limit, since few turns are left.
        """
        if over <= 0:
            self._within = max(self._within, slowdown)
        else:
            self._over = min(self._over, slowdown)
            self._failed += math.isinf(self._within)
        # assumes that the two measures differ there as they do here
        moved = slowdown - over * max(1, self._failed) - (1.5 if must_hold else 0.5) * NEAR
        if over <= 0 and (over >= -NEAR or (was_limit and moved <= self.slowdown)):
            return False  # near enough, or the search knows no slower choice with a lower peak
        if not self._within < moved < self._over:
            moved = self._over - NEAR if math.isinf(self._within) else (self._within + min(self._over, 1.0)) / 2
        self.slowdown = moved
        return moved > -1.0
