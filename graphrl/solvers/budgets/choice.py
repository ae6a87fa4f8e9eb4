"""Choices: what happens to every value of a gradient, and their prices, loops in loops."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from graphrl.compiled import announced
from graphrl.solvers.budgets.level import Gradient, Level
from graphrl.solvers.budgets.price import COMPUTED, Work, price, work

if TYPE_CHECKING:
    from graphrl.solvers.budgets.state import State


class Cut(NamedTuple):
    """What happens to a level of n values, whose p places are cut into s segments.

    Attributes:
      keep: `[n]` int64: COMPUTED, KEPT or MOVED, as far as it is not computed again all the same.
      segment: `[p]` int64, of each place, from 0 to s - 1; nondecreasing.
      again: `[s]` bool, of each segment, whether it is computed again; elsewhere jax keeps what it always does.
    """

    keep: np.ndarray
    segment: np.ndarray
    again: np.ndarray


Choice = tuple[Cut, ...]  # of each level


@dataclasses.dataclass(frozen=True)
class Price:
    """What a choice costs.

    Attributes:
      kept: bytes that wait in memory for the backward pass.
      moved: bytes that wait for it in the memory of the host.
      peak: most bytes at once beside arguments, results and gradients.
      seconds: of computing again, of writing what is kept only, and of waiting for what is moved.
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
        with announced(price, "memory budgets"):
            self.plain = self(untouched(gradient))

    def __call__(self, choice: Choice) -> Price:
        """The price of a choice."""
        count = len(self._levels)
        moved, seconds = np.zeros(count), np.zeros(count)
        for number in range(count - 1, -1, -1):
            level, given = self._levels[number], self.gradient.levels[number]
            for inner, loop in self.gradient.loops[number].items():
                trips = self._levels[inner].trips
                prices = self._work[inner].prices
                level.bytes[loop.kept[0]] = trips * prices[0]
                level.workspace[loop.outputs[0]] = prices[2]
                level.kernel_bytes[loop.kernel] = given.kernel_bytes[loop.kernel] + prices[3]
                moved[number] += trips * moved[inner]
                seconds[number] += trips * seconds[inner]
            price(level, *choice[number], self._work[number])
            moved[number] += self._work[number].prices[1]
            seconds[number] += self._work[number].prices[4]
        kept, _, forward, backward, _, _ = self._work[0].prices
        return Price(float(kept), float(moved[0]), float(max(forward, backward)), float(seconds[0]))

    def stored(self, level: int) -> np.ndarray:
        """What happens to each value of a level by the choice that was priced last: COMPUTED, KEPT or MOVED."""
        return self._work[level].stored.copy()

    def sent(self, level: int) -> np.ndarray:
        """Of each value that a level moves, the value that waits for its copy, by the choice that was priced last."""
        return self._work[level].sent.copy()

    def computed_again(self, level: int) -> np.ndarray:
        """Of each value of a level, whether the choice that was priced last computes it again."""
        work = self._work[level]
        again = (work.mark >= 0) & (work.stored == COMPUTED)
        return again & (work.ran[self.gradient.levels[level].op] >= 0)

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
