"""What a user asks of a gradient, as an energy to lower."""

import dataclasses
from typing import NamedTuple

from graphrl.compiled import shared
from graphrl.errors import ProblemError
from graphrl.solvers.budgets.choice import Price, Pricing

OVER = 10.0  # energy of being above a limit by as much as the limit: there a search may pass
BEGUN_OVER = 1.0  # likewise of what is yet to be changed: a little above is near
BEYOND = 100.0  # what being above a limit of bytes at all counts beside, where a search ends: no gain is worth it
TIE = 1e-3  # of two choices that are alike, the one with the lower peak, or the faster one
SAME = 1e-6  # part of a limit that is nothing
BY_KEPT, BY_PEAK, BY_SLOWDOWN = range(3)
PEAK = 0.1  # where what is kept is limited: ten per cent of the peak are worth one of the time


@dataclasses.dataclass(frozen=True)
class Goal:
    """One limit of three; what it leaves is made as good as can be: the least peak, or the least time.

    Attributes:
      kept: bytes that may wait in memory for the backward pass.
      peak: bytes that may be in memory at once, beside arguments, results and gradients.
      slowdown: share of the step's seconds that may be added; below 0 that must be saved.
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
        """The same with a part of the limit; of seconds that must be saved, more in that proportion."""
        limits = {name: getattr(self, name) for name in ("kept", "peak", "slowdown")}
        less = {name: None if x is None else x * part if x > 0 else x / part for name, x in limits.items()}
        return Goal(moves=self.moves, **less)

    def slowdown_of(self, pricing: Pricing, price: Price) -> float:
        """Share of a step's seconds that a choice adds."""
        return added(self.aim(pricing), price.seconds)

    def excess(self, pricing: Pricing, price: Price) -> float:
        """By which part of the limit a choice is above it; 0 where it is not."""
        return above(self.aim(pricing), price.kept, price.peak, price.seconds)

    def energy(self, pricing: Pricing, price: Price, *, over: float = OVER) -> float:
        """The lower the better; `over` is what being above the limit by as much as the limit counts."""
        return energy(self.aim(pricing), price.kept, price.peak, price.seconds, over)

    def rank(self, pricing: Pricing, price: Price) -> float:
        """The lower the better of what a search ends with: within a limit of bytes by all means. (Limits of time are
        those of a rougher measure than the user's, see `search_timed`: a little above may be within.)
        """
        return self.energy(pricing, price) + beyond(self.aim(pricing), price.kept, price.peak, price.seconds)

    def aim(self, pricing: Pricing) -> "Aim":
        """The same for one gradient, for compiled code."""
        limits = self.kept, self.peak, self.slowdown
        by, limit = next((by, limit) for by, limit in enumerate(limits) if limit is not None)
        peak, step = max(pricing.plain.peak, 1.0), max(pricing.step_seconds, 1e-30)
        return Aim(by, float(limit), peak, pricing.pass_seconds, step)


class Aim(NamedTuple):
    """A goal for a gradient."""

    by: int  # BY_KEPT, BY_PEAK or BY_SLOWDOWN: what is limited
    limit: float
    peak: float  # of what jax does by itself
    passes: float  # seconds without what choices add
    step: float  # seconds of what jax does by itself


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
    """See `Goal.rank`: what counts beside the energy."""
    return BEYOND if aim.by != BY_SLOWDOWN and above(aim, kept, peak, seconds) > SAME else 0.0
