"""Goals: a user's limit as an objective to minimize, and searches within a limit of time that is measured exactly.

A `Goal` is one limit of three: bytes kept, bytes at the peak, or slowdown. An `Aim` is a goal for one gradient, with
the numbers of which searches minimize the energy. `Solution` is the best choice of a search. Searches estimate time by
`Price.seconds`. `search_timed` meets a limit of time by a more exact measure: it adapts the limit of the search until
the choice is within the user's limit.
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
TIE = 1e-3  # weight that breaks ties, in favour of the lower peak or the faster choice
SAME = 1e-6  # relative excess over a limit that counts as none
BY_KEPT, BY_PEAK, BY_SLOWDOWN = range(3)
PEAK = 0.1  # where kept bytes are limited: ten per cent of the peak are worth one per cent of the time
# Of `search_timed`.
SHARE, LEAST = 0.3, 0.05  # time of each search: share of the time that is left, and least share of all the time
FIRST = 0.25  # least share of all the time for the first search, however long measurements take
# Parts of the limit: a choice that is too slow by less may become faster at the same peak. With few turns left that
# must succeed, which it mostly does if the choice is near.
FAR, NEARBY = 0.25, 0.06
NEAR = 0.006  # slowdowns that a choice may stay below the limit
KNOWN = 0.1  # share of a measurement's usual time: a faster one was cached
ROUNDS = 12
LATE = 3  # turns in any case, while only jax's default is within the limit
FEW = 3  # turns (a search and a measurement): if fewer fit, the first search gets a lower limit
MARGIN, MOST_MARGIN = 0.25, 0.006  # share of the limit, and slowdown: the usual difference of the two measures


@dataclasses.dataclass(frozen=True)
class Goal:
    """One limit, of memory or of time. Within a limit of memory the time is minimized, and vice versa.

    Attributes:
      kept: limit of the bytes kept in device memory for the backward pass.
      peak: limit of the bytes in memory at one time, without arguments, results and gradients.
      slowdown: share of the step's time that may be added; if negative, the share that must be saved.
      moves: whether values may be moved to host memory.
    """

    kept: float | None = None
    peak: float | None = None
    slowdown: float | None = None
    moves: bool = False

    def __post_init__(self) -> None:
        if sum(limit is not None for limit in (self.kept, self.peak, self.slowdown)) != 1:
            raise ProblemError("a goal has one limit: kept, peak or slowdown")

    def stricter(self, part: float) -> "Goal":
        """Returns the goal with its limit scaled by `part`, 0 < part <= 1; a negative slowdown is divided by it."""
        limits = {name: getattr(self, name) for name in ("kept", "peak", "slowdown")}
        less = {name: None if x is None else x * part if x > 0 else x / part for name, x in limits.items()}
        return Goal(moves=self.moves, **less)

    def slowdown_of(self, pricing: Pricing, price: Price) -> float:
        """Returns the share of the step's time that a choice adds."""
        return added(self.aim(pricing), price.seconds)

    def excess(self, pricing: Pricing, price: Price) -> float:
        """Returns by how much a choice exceeds the limit, as a share of the limit; 0 within it."""
        return above(self.aim(pricing), price.kept, price.peak, price.seconds)

    def energy(self, pricing: Pricing, price: Price, *, over: float = OVER) -> float:
        """Returns the objective of a search, lower is better; `over` is the penalty for exceeding the limit by 100%."""
        return energy(self.aim(pricing), price.kept, price.peak, price.seconds, over)

    def rank(self, pricing: Pricing, price: Price) -> float:
        """Returns the objective for a search's final choice, lower is better: a limit of bytes must not be exceeded.

        A limit of time may be exceeded slightly: `Price.seconds` are rougher than the final measure (`search_timed`).
        """
        return self.energy(pricing, price) + beyond(self.aim(pricing), price.kept, price.peak, price.seconds)

    def aim(self, pricing: Pricing) -> "Aim":
        """Returns the goal for one gradient as numbers, for compiled code."""
        limits = self.kept, self.peak, self.slowdown
        by, limit = next((by, limit) for by, limit in enumerate(limits) if limit is not None)
        peak, step = max(pricing.plain.peak, 1.0), max(pricing.step_seconds, 1e-30)
        return Aim(by, float(limit), peak, pricing.pass_seconds, step)


class Aim(NamedTuple):
    """A goal for one gradient, as numbers for compiled code."""

    by: int  # BY_KEPT, BY_PEAK or BY_SLOWDOWN: the limited quantity
    limit: float
    peak: float  # peak bytes of jax's default
    passes: float  # seconds of both passes, without those that choices add
    step: float  # seconds of both passes by jax's default


@shared
def added(aim: Aim, seconds: float) -> float:
    """Returns the slowdown of a choice, given its `Price.seconds`."""
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
    """Returns the penalty that `Goal.rank` adds to the energy."""
    return BEYOND if aim.by != BY_SLOWDOWN and above(aim, kept, peak, seconds) > SAME else 0.0


class Solution(NamedTuple):
    """The best choice of a search.

    Attributes:
      choice: the best choice.
      price: its price.
      rank: its rank by the goal; see `Goal.rank`.
      evaluations: number of choices that were priced.
      bound: proven lower bound over all choices within the limit, of `Price.seconds` if bytes are limited, of
        `Price.kept` if time is; None without a proof.
    """

    choice: Choice
    price: Price
    rank: float
    evaluations: int
    bound: float | None = None


def best_of(pricing: Pricing, goal: Goal, states: Iterable[State]) -> Solution:
    """Prices states and returns the one with the lowest rank. `states` must not be empty."""
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
    ahead: float = 0.0,
    start: Solution | None = None,
    once: float = 0.0,
) -> Solution:
    """Searches for the choice of the lowest peak whose measured slowdown is within the limit.

    Searches alternate. One minimizes the peak within a limit of time, which leaves much of that time unused. If its
    choice is a little too slow, or no lower peak is known, the next one minimizes the time for that peak. The result is
    jax's default if no choice is within the limit, of `LATE` at least, however long they take.

    Args:
      solver: one of `auto.SOLVERS`, called with other limits until its choice is just within this one.
      pricing: pricing of the gradient.
      goal: a goal with a limit of slowdown.
      measured: function that measures the slowdown of a choice.
      seed: seed of the random numbers.
      seconds: time limit of all searches and measurements together, in seconds.
      ahead: slowdown that is added to the limit for the first search.
      start: a choice within the limit; the result is no worse.
      once: seconds that the first measurement is expected to take.
    """
    assert goal.slowdown is not None
    clock = _Clock(seconds, once)
    best = start or best_of(pricing, goal, [State.plain(pricing.gradient)])
    least_over = clock.measure(measured, best.choice) - goal.slowdown if start else -goal.slowdown  # of `best`
    fastest = math.inf  # the peak for which the fastest choice has been searched
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
        if not clock.fitting() and (turn + 1 >= LATE or not has_none):
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
    """Returns by how much slowdown the first search stays below the limit: more if few turns are left to correct it."""
    lacking = min(max(FEW - turns, 0) / (FEW - 1), 1.0)
    return min(MARGIN * abs(slowdown), MOST_MARGIN) * lacking


class _Clock:
    """Distributes the time that is left over turns; a turn is a search and a measurement of its choice."""

    def __init__(self, seconds: float, once: float) -> None:
        self._seconds, self._once = seconds, once
        self._begin, self._measured = time.monotonic(), False

    def fitting(self) -> int:
        """Returns how many turns still fit."""
        return max(0, int(self._left() / max(self._once + LEAST * self._seconds, 1e-9)))

    def seconds_of_search(self, *, is_first: bool, may_be_last: bool) -> float:
        """Returns the seconds for the next search. If few turns are left, another one must fit after it, unless this
        may be the last or the time is too short for two.
        """
        left, least = self._left(), (FIRST if is_first else LEAST) * self._seconds
        if self.fitting() >= FEW:
            return max(SHARE * left, least)
        alone = left - self._once
        shared = alone - self._once - LEAST * self._seconds
        return max(alone if may_be_last or shared < 2 * LEAST * self._seconds else shared, least)

    def measure(self, measured: Callable[[Choice], float], choice: Choice) -> float:
        """Measures a choice, and updates the time that a measurement is expected to take (not if it was cached)."""
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
    """The limit to give to a search, adapted until the choice that it returns is just within the user's limit.

    Attributes:
      slowdown: the limit as a slowdown by `Price.seconds`, like all numbers here except `over`.
    """

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self._within, self._over = -math.inf, math.inf  # the slowest choice within the user's limit, the fastest above
        self._failed = 0  # number of choices above it before there was one within: each lowers the limit by more

    def move(self, slowdown: float, over: float, was_limit: bool, must_hold: bool) -> bool:
        """Sets the limit such that the next choice should be just within the user's; False if that gains nothing.

        Args:
          slowdown: slowdown of the last choice, by `Price.seconds`.
          over: its measured slowdown minus the user's limit.
          was_limit: whether the last search had this limit, and not a limit of the peak.
          must_hold: whether the next choice should be safely within the user's limit, since few turns are left.
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
