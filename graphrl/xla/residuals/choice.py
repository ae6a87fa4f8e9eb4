"""Which residuals to keep no longer: those of most bytes for each second of computing them again, greedily."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla.bodies import runs_of
from graphrl.xla.recompute.cost import RunTimes
from graphrl.xla.residuals.loops import Dropped, Loops, Residual, loops_of, numbered
from graphrl.xla.residuals.recipes import Impossible, Recipes

LEAST_BYTES = 2**16  # of a residual: smaller ones stay
_FREE = 1e-7  # of the run time: what costs less is as good as free


class Choice(NamedTuple):
    """Residuals that are no longer kept.

    Attributes:
      dropped: which.
      bytes: of all of them.
      cost: part of the module's run time that computing them again takes, less what keeping them took.
    """

    dropped: Dropped
    bytes: int
    cost: float


def chosen(module: HloModule, limit: float) -> Choice:
    """The residuals to drop: those of most bytes for their cost first, or simply the largest first.

    Args:
      module: scheduled.
      limit: part of the module's run time that may be spent.
    """
    pairs = list(loops_of(module))
    ranks = (lambda size, cost: size / max(_FREE, cost), lambda size, cost: (size, -cost))
    return max((_greedy(module, pairs, limit, rank) for rank in ranks), key=lambda choice: choice.bytes)


def _greedy(module: HloModule, loops: Sequence[Loops], limit: float, rank: Callable[[int, float], Any]) -> Choice:
    """Residuals one by one, as long as the limit lasts, always the one of the highest rank by its bytes and cost."""
    pairs, spent = [_Pair(module, each) for each in loops], 0.0
    while True:
        steps = [(pair, one, pair.cost_of(one) - pair.cost) for pair in pairs for one in pair.left]
        steps = [step for step in steps if spent + step[2] <= limit]
        if not steps:
            break
        pair, residual, cost = max(steps, key=lambda step: rank(step[1].bytes, step[2]))
        pair.drop(residual)
        spent += cost
    dropped = numbered(module, {pair.loops: pair.dropped for pair in pairs if pair.dropped})
    return Choice(dropped, sum(one.bytes for pair in pairs for one in pair.dropped), max(0.0, spent))


class _Pair:
    """A pair of loops and what it does not keep.

    Attributes:
      loops: the pair.
      dropped, left: residuals that are no longer kept, and others for which that can be.
      cost: part of the module's run time.
    """

    def __init__(self, module: HloModule, loops: Loops) -> None:
        self.loops = loops
        self.dropped: tuple[Residual, ...] = ()
        self.left = [one for one in loops.residuals if one.bytes >= LEAST_BYTES and loops.readings(one)]
        self.cost = 0.0
        self._costs = RunTimes(module)
        caller = self._costs.of_computation(loops.caller.name)
        # Of a loop without a known number of trips, the part of one trip.
        self._total = max(caller, self._costs.of_computation(module.entry.name) / runs_of(module)[loops.caller.name])

    def drop(self, residual: Residual) -> None:
        """Keeps one more no longer."""
        self.cost = self.cost_of(residual)
        self.dropped = (*self.dropped, residual)
        self.left.remove(residual)

    def cost_of(self, residual: Residual) -> float:
        """With one more that is no longer kept; infinite where that cannot be."""
        loops, dropped = self.loops, (*self.dropped, residual)
        recipes = Recipes(loops, [one for one in loops.residuals if one not in dropped], self._costs)
        try:
            wanted = [recipes.of(one) for one in dropped]
        except Impossible:
            return math.inf
        body = loops.ahead.computation
        saved = sum(self._costs.of(body.by_name[one.writer], body) for one in dropped)
        return (loops.trips or 0) * (recipes.seconds(wanted) - saved) / self._total
