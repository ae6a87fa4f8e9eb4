"""Simulated annealing on what is kept and where a program is cut, by moves of alike values and places together."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.solvers.budgets.alike import alike_places, alike_values
from graphrl.solvers.budgets.choice import Choice, Price, Pricing
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.price import COMPUTED, KEPT, MOVED
from graphrl.solvers.budgets.state import AGAIN, INSIDE, PLAIN, State

HOT, COLD = 3e-2, 1e-5  # temperatures: energies are shares of the plain peak or of the step's seconds
TOGETHER = 0.6  # part of the moves that change all that are alike
PER_SEGMENT = 1e-5  # energy of a segment: of two choices that are alike, the one with fewer


class Found(NamedTuple):
    """The best of a search, its price, and how many choices were priced."""

    choice: Choice
    price: Price
    energy: float
    evaluations: int


def anneal(
    pricing: Pricing, goal: Goal, starts: Sequence[State], *, seed: int, evaluations: int, seconds: float
) -> Found:
    """The best choice that annealing meets, from the best of some starts.

    Args:
      pricing: of the gradient.
      goal: what is wanted.
      starts: at least one.
      seed: of its random numbers.
      evaluations, seconds: after which it ends.
    """
    search = _Search(pricing, goal, np.random.default_rng(seed))
    energies = [search.energy(start) for start in starts]
    state, energy = starts[int(np.argmin(energies))].copy(), min(energies)
    best, least = state.copy(), energy
    begin, count, heat = time.monotonic(), len(starts), HOT
    while count < evaluations:
        if count % 64 == 0:
            done = max(count / evaluations, (time.monotonic() - begin) / seconds)
            heat = HOT * (COLD / HOT) ** done
            if done >= 1:
                break
        undo = search.move(state)
        now = search.energy(state)
        count += 1
        if now <= energy or search.random.random() < math.exp((energy - now) / heat):
            energy = now
            if now < least:
                best, least = state.copy(), now
        else:
            undo()
    return Found(best.choice(), pricing(best.choice()), least, count)


class _Search:
    """Moves, and what they are worth."""

    def __init__(self, pricing: Pricing, goal: Goal, random: np.random.Generator) -> None:
        self._pricing, self._goal, self.random = pricing, goal, random
        gradient = pricing.gradient
        self._values = [alike_values(level) for level in gradient.levels]
        self._places = [alike_places(level) for level in gradient.levels]
        sizes = np.array([len(level.bytes) for level in gradient.levels], float)
        self._weights = np.cumsum(sizes / sizes.sum())
        self._plain = pricing(State.plain(gradient).choice())

    def energy(self, state: State) -> float:
        """Of a state."""
        choice = state.choice()
        price = self._pricing(choice)
        segments = sum(len(cut.again) for cut in choice)
        return self._goal.energy(self._pricing.gradient, price, self._plain) + PER_SEGMENT * segments

    def move(self, state: State) -> Callable[[], None]:
        """Changes a state; what it returns takes that back."""
        level = int(np.searchsorted(self._weights, self.random.random()))
        kind = self.random.random()
        if kind < 0.6 and self._values[level]:
            return self._flip(state, level)
        if kind < 0.85 and self._places[level]:
            return self._cut(state, level)
        return self._switch(state, level)

    def _some(self, groups: Sequence[np.ndarray], of: np.ndarray) -> np.ndarray:
        """A group, or one of its members; `of` is which group."""
        group = groups[int(of)]
        if self.random.random() < TOGETHER:
            return group
        return group[[self.random.integers(len(group))]]

    def _flip(self, state: State, level: int) -> Callable[[], None]:
        """Keeps values, moves them or does neither."""
        chosen = self._some(self._values[level], self.random.integers(len(self._values[level])))
        keep = state.keep[level]
        before = keep[chosen].copy()
        kinds = [COMPUTED, KEPT, MOVED] if self._goal.link else [COMPUTED, KEPT]
        keep[chosen] = self.random.choice([kind for kind in kinds if kind != before[0]])

        def undo() -> None:
            keep[chosen] = before

        return undo

    def _cut(self, state: State, level: int) -> Callable[[], None]:
        """Begins or ends segments at some places: narrow ones more often."""
        number = int(len(self._places[level]) * self.random.random() ** 2)
        chosen = self._some(self._places[level], np.int64(number))
        starts = state.starts[level]
        before = starts.copy()
        if starts[chosen[0]] == INSIDE:
            first = np.maximum.accumulate(np.where(starts != INSIDE, np.arange(len(starts)), 0))
            starts[chosen] = np.where(starts[chosen] == INSIDE, starts[first[chosen]], starts[chosen])
        else:
            starts[chosen] = INSIDE
        return self._written(state, level, before)

    def _switch(self, state: State, level: int) -> Callable[[], None]:
        """Computes a segment again, or all of them, or none."""
        starts = state.starts[level]
        before = starts.copy()
        begins = np.flatnonzero(starts != INSIDE)
        if self.random.random() < TOGETHER:
            begins = begins[[self.random.integers(len(begins))]]
        starts[begins] = PLAIN if starts[begins[0]] == AGAIN else AGAIN
        return self._written(state, level, before)

    def _written(self, state: State, level: int, before: np.ndarray) -> Callable[[], None]:
        state.changed(level)

        def undo() -> None:
            state.starts[level] = before
            state.changed(level)

        return undo
