"""Choices: what happens to every value of a gradient, and their prices, loops in loops."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from graphrl.compiled import announced
from graphrl.solvers.budgets.level import Gradient, Level
from graphrl.solvers.budgets.price import price
from graphrl.solvers.budgets.stretches import LoopCost, loop_cost
from graphrl.solvers.budgets.work import COMPUTED, Work, work

if TYPE_CHECKING:
    from graphrl.solvers.budgets.state import State


class Cut(NamedTuple):
    """What happens to a level of n values, whose p places are cut into s segments.

    Attributes:
      keep: `[n]` int64: COMPUTED, KEPT or MOVED, as far as it is not computed again all the same.
      segment: `[p]` int64, of each place, from 0 to s - 1; nondecreasing.
      again: `[s]` bool, of each segment, whether it is computed again; elsewhere jax keeps what it always does.
      stretch: of a loop, steps that run forward once more together before they run backward; 1 where none do. Where
        they stand one after the other, see `Loop`, no segment is computed again.
    """

    keep: np.ndarray
    segment: np.ndarray
    again: np.ndarray
    stretch: int = 1


Choice = tuple[Cut, ...]  # of each level


@dataclasses.dataclass(frozen=True)
class Price:
    """What a choice costs.

    Attributes:
      kept: bytes that wait in memory for the backward pass.
      moved: bytes that wait for it in the memory of the host.
      peak: most bytes at once beside arguments, results and gradients.
      seconds: of computing again, of writing what is kept only and gradients that segments wait for, and of waiting for
        what is moved.
    """

    kept: float
    moved: float
    peak: float
    seconds: float


class Pricing:
    """Prices choices for one gradient. Not for several threads.

    Attributes:
      gradient: it is.
      plain: the price of what jax does by itself.
      step_seconds: of both passes by what jax does by itself; those of the gradient's levels, until whoever knows them
        better sets it.
      begun: what `auto` anneals from: what its first call began with, and what each call found.
    """

    def __init__(self, gradient: Gradient) -> None:
        self.gradient = gradient
        self.begun: list[State] = []
        self._work: list[Work] = [work(level) for level in gradient.levels]
        self._levels: list[Level] = [
            level._replace(
                bytes=level.bytes.copy(), workspace=level.workspace.copy(), kernel_bytes=level.kernel_bytes.copy()
            )
            for level in gradient.levels  # what loops in them cost is written into these
        ]
        # of loops' bodies that stand one after the other, which share those
        self._unrolled = [level._replace(trips=0, keeping=level.writing) for level in self._levels]
        with announced(price, "memory budgets"):
            self.plain = self(untouched(gradient))
        outer = gradient.levels[0]
        self.step_seconds = outer.forward_seconds + outer.backward_seconds + self.plain.seconds

    def __call__(self, choice: Choice) -> Price:
        """The price of a choice."""
        count = len(self._levels)
        moved, seconds = np.zeros(count), np.zeros(count)
        for number in range(count - 1, -1, -1):
            level, given = self._levels[number], self.gradient.levels[number]
            for inner, loop in self.gradient.loops[number].items():
                trips = self._levels[inner].trips
                stretch = choice[inner].stretch
                cost = loop_cost(loop, trips, stretch, self._step(inner, loop.is_unrolled(stretch)))
                level.bytes[loop.kept[0]] = cost.kept
                level.workspace[loop.outputs[0]] = cost.forward
                level.kernel_bytes[loop.kernel] = given.kernel_bytes[loop.kernel] + cost.backward
                moved[number] += trips * moved[inner]
                seconds[number] += trips * seconds[inner]
            cut = choice[number]
            if self.gradient.is_unrolled(number, cut.stretch):
                price(self._unrolled[number], *cut._replace(again=np.zeros_like(cut.again)), self._work[number])
            else:
                price(level, *cut, self._work[number])
            moved[number] += self._work[number].prices[1]
            seconds[number] += self._work[number].prices[4] + self._work[number].prices[6]
        kept, _, forward, backward = self._work[0].prices[:4]
        return Price(float(kept), float(moved[0]), float(max(forward, backward)), float(seconds[0]))

    @property
    def pass_seconds(self) -> float:
        """Of both passes without what choices add."""
        return self.step_seconds - self.plain.seconds

    def outer(self, choice: Choice) -> tuple[Level, Work, float]:
        """The function's level with the bytes of its loops by a choice, what `price` works with there, and the seconds
        of its loops' choices: what a search needs that changes this level alone.
        """
        seconds = self(choice).seconds
        work = self._work[0]
        return self._levels[0], work, seconds - float(work.prices[4] + work.prices[6])

    def loop_costs(self, choice: Choice, number: int) -> dict[int, LoopCost]:
        """What the loop whose body a level is would cost in stretches of each kind, by their steps."""
        loop, trips = self.gradient.loop(number), self.gradient.levels[number].trips
        assert loop is not None
        costs: dict[int, LoopCost] = {}
        for is_unrolled in (False, True):
            stretches = [stretch for stretch in loop.stretches if loop.is_unrolled(stretch) == is_unrolled]
            if stretches:  # a step of all of them is the same
                cut = choice[number]._replace(stretch=stretches[0])
                self((*choice[:number], cut, *choice[number + 1 :]))
                step = self._step(number, is_unrolled)
                costs |= {stretch: loop_cost(loop, trips, stretch, step) for stretch in stretches}
        return costs

    def _step(self, number: int, is_unrolled: bool) -> LoopCost:
        """One step of a loop by the choice that was priced last; what it shares with the next one counts once."""
        kept, _, forward, backward, *_, twice = self._work[number].prices.tolist()
        return LoopCost(kept - twice * is_unrolled, forward, backward)

    def stored(self, level: int) -> np.ndarray:
        """What happens to each value of a level by the choice that was priced last: COMPUTED, KEPT or MOVED."""
        return self._work[level].stored.copy()

    def sent(self, level: int) -> np.ndarray:
        """Of each value that a level moves, the value that waits for its copy, by the choice that was priced last."""
        return self._work[level].sent.copy()

    def computed_again(self, level: int) -> np.ndarray:
        """Of each value of a level, whether the choice that was priced last computes it again."""
        work = self._work[level]
        again = (work.mark >= 0) & (work.ran[self.gradient.levels[level].op] >= 0)
        return (again | work.rerun) & (work.stored == COMPUTED)

    def timeline(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of the function over its forward and its backward pass, by the choice that was priced last."""
        work, level = self._work[0], self._levels[0]
        steps = int(work.prices[5])
        forward = np.cumsum(work.forward)[: len(level.bytes)] + level.workspace * level.needed
        backward = np.cumsum(work.backward[:steps]) + work.beside[:steps]
        return level.resident + forward, level.resident + backward


def untouched(gradient: Gradient) -> Choice:
    """What jax does by itself."""
    return tuple(
        Cut(np.zeros(len(level.bytes), np.int64), np.zeros(len(level.first) - 1, np.int64), np.zeros(1, bool))
        for level in gradient.levels
    )


def is_untouched(choice: Choice) -> bool:
    """Whether a choice leaves all to jax."""
    return not any(cut.again.any() or cut.stretch > 1 for cut in choice)
