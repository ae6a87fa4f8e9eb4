"""What a user asks of a gradient, as an energy to lower."""

import dataclasses

from graphrl.errors import ProblemError
from graphrl.solvers.budgets.choice import Price, Pricing

OVER = 10.0  # energy of being above a limit by as much as the limit, so that no gain is worth it
BEGUN_OVER = 1.0  # likewise of what is yet to be changed: a little above is near
TIE = 1e-3  # of two choices that are alike, the one with the lower peak, or the faster one
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
        outer, plain = pricing.gradient.levels[0], pricing.plain
        passes = outer.forward_seconds + outer.backward_seconds
        return (passes + price.seconds) / max(passes + plain.seconds, 1e-30) - 1.0

    def excess(self, pricing: Pricing, price: Price) -> float:
        """By which part of the limit a choice is above it; 0 where it is not."""
        if self.kept is not None:
            return max(0.0, price.kept / max(self.kept, 1.0) - 1.0)
        if self.peak is not None:
            return max(0.0, price.peak / max(self.peak, 1.0) - 1.0)
        assert self.slowdown is not None
        return max(0.0, self.slowdown_of(pricing, price) - self.slowdown) / max(abs(self.slowdown), 0.01)

    def energy(self, pricing: Pricing, price: Price, *, over: float = OVER) -> float:
        """The lower the better; `over` is what being above the limit by as much as the limit counts."""
        peak = price.peak / max(pricing.plain.peak, 1.0)
        if self.slowdown is not None:
            value = peak + TIE * self.slowdown_of(pricing, price)
        else:
            value = self.slowdown_of(pricing, price) + (TIE if self.kept is None else PEAK) * peak
        return value + over * self.excess(pricing, price)
