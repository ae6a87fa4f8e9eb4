"""Greedy choice of residuals that are no longer kept: those of most bytes for each second of computing them again.

`numbered` and `named` translate the choice to numbers for the disk and back, since names differ between processes.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from graphrl.errors import PlanError
from graphrl.graphs.readers.hlo.module import HloModule
from graphrl.xla.bodies import runs_of
from graphrl.xla.recompute.candidates import RunTimes
from graphrl.xla.residuals.loops import Loops, Residual, loops_of
from graphrl.xla.residuals.recipes import Impossible, Recipes

Dropped = tuple[tuple[int, int, int, tuple[int, ...]], ...]


def numbered(module: HloModule, dropped: Mapping[Loops, Sequence[Residual]]) -> Dropped:
    """Residuals without names, which differ from process to process: of each pair of loops the place of its caller in
    `module.sequential`, those of the loops in the caller's instructions, and those of the residuals.
    """
    sequential = [c.name for c in module.sequential]
    pairs = []
    for loops, residuals in dropped.items():
        names = tuple(loops.caller.by_name)
        at = sequential.index(loops.caller.name), names.index(loops.forward.name), names.index(loops.backward.name)
        pairs.append((*at, tuple(sorted(residual.place for residual in residuals))))
    return tuple(pairs)


def named(module: HloModule, dropped: Dropped) -> dict[Loops, list[Residual]]:
    """What `numbered` was given.

    Raises:
      PlanError: the module has no such loops, or not these residuals.
    """
    pairs = {numbered(module, {loops: ()})[0][:3]: loops for loops in loops_of(module)}
    residuals = {}
    for *at, places in dropped:
        loops = pairs.get((at[0], at[1], at[2]))
        own = {} if loops is None else {one.place: one for one in loops.residuals if loops.readings(one)}
        if loops is None or not own.keys() >= set(places):
            raise PlanError(f"{module.name}: the plan drops residuals that its loops do not have")
        residuals[loops] = [own[place] for place in places]
    return residuals


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


def chosen(module: HloModule, limit: float, over: Callable[[], bool] = lambda: False) -> Choice:
    """The residuals to drop: those of most bytes for their cost first, or simply the largest first.

    Args:
      module: scheduled.
      limit: part of the module's run time that may be spent.
      over: whether to stop with what there is.
    """
    loops, costs = list(loops_of(module)), RunTimes(module)
    ranks = (lambda size, cost: (-size / max(_FREE, cost),), lambda size, cost: (-size, cost))
    greedy = (_greedy([_Pair(each, costs) for each in loops], limit, rank, over) for rank in ranks)
    best, spent = max(greedy, key=lambda one: sum(pair.bytes for pair in one[0]))
    dropped = numbered(module, {pair.loops: pair.dropped for pair in best if pair.dropped})
    return Choice(dropped, sum(pair.bytes for pair in best), max(0.0, spent))


def _greedy(
    pairs: list["_Pair"], limit: float, rank: Callable[[int, float], tuple[float, ...]], over: Callable[[], bool]
) -> tuple[list["_Pair"], float]:
    """Drops residuals one by one, as long as the limit lasts, always one of the lowest rank by its bytes and cost; what
    is spent. Costs seldom change much when others are dropped, so that old ones say whom to look at next (Minoux 1978,
    "lazy greedy"); those that could not be dropped are looked at again until no more can.
    """
    spent, count = 0.0, -1
    while count < sum(len(pair.dropped) for pair in pairs):
        count = sum(len(pair.dropped) for pair in pairs)
        queue = [(rank(one.bytes, 0.0), number, one.place) for number, pair in enumerate(pairs) for one in pair.left()]
        heapq.heapify(queue)
        while queue and not over():
            _, number, place = heapq.heappop(queue)
            pair = pairs[number]
            residual = next(one for one in pair.left() if one.place == place)
            cost = pair.cost_of(residual) - pair.cost
            own = rank(residual.bytes, cost)
            if spent + cost > limit:
                continue
            if queue and own > queue[0][0]:
                heapq.heappush(queue, (own, number, place))
            else:
                pair.drop(residual)
                spent += cost
    return pairs, spent


class _Pair:
    """A pair of loops and what it does not keep.

    Attributes:
      loops: the pair.
      dropped: residuals that are no longer kept.
      cost: part of the module's run time.
    """

    def __init__(self, loops: Loops, costs: RunTimes) -> None:
        self.loops, self._costs = loops, costs
        large = (one for one in loops.residuals if one.bytes >= LEAST_BYTES)
        self._large = [one for one in large if loops.readings(one)]
        self.dropped: tuple[Residual, ...] = ()
        self.cost = 0.0
        module, caller = loops.module, costs.of_computation(loops.caller.name)
        # Of a loop without a known number of trips, the part of one trip.
        self._total = max(caller, costs.of_computation(module.entry.name) / runs_of(module)[loops.caller.name])

    @property
    def bytes(self) -> int:
        """Of all that is dropped."""
        return sum(one.bytes for one in self.dropped)

    def left(self) -> list[Residual]:
        """What is kept, and need not be."""
        return [one for one in self._large if one not in self.dropped]

    def drop(self, residual: Residual) -> None:
        """Keeps one more no longer."""
        self.cost = self.cost_of(residual)
        self.dropped = (*self.dropped, residual)

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
