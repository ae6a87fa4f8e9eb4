"""Which residuals to keep no longer: those of most bytes for each second of computing them again, greedily."""

import math
from typing import NamedTuple

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
      cost: part of the module's run time that computing them again takes, less what keeping them took.
    """

    dropped: Dropped
    cost: float


def chosen(module: HloModule, limit: float) -> list[Choice]:
    """Choices of more and more residuals, each with those of the one before.

    Args:
      module: scheduled.
      limit: part of the module's run time that may be spent.
    """
    pairs = [_Pair(module, loops) for loops in loops_of(module)]
    choices: list[Choice] = []
    spent = 0.0
    while True:
        steps = [(pair, residual, pair.cost_of(residual) - pair.cost) for pair in pairs for residual in pair.left]
        steps = [step for step in steps if spent + step[2] <= limit]
        if not steps:
            return choices
        pair, residual, cost = max(steps, key=lambda step: step[1].bytes / max(_FREE, step[2]))
        pair.drop(residual)
        spent += cost
        choices.append(Choice(numbered(module, {each.loops: each.dropped for each in pairs if each.dropped}), max(0.0, spent)))


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
        self.left = [one for one in loops.residuals if one.bytes >= LEAST_BYTES and loops.readings(one) is not None]
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
