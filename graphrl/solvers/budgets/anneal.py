"""Simulated annealing on what is kept and where a program is cut, by moves of alike values and places together."""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from graphrl.solvers.budgets.alike import alike_places, alike_values
from graphrl.solvers.budgets.choice import Pricing
from graphrl.solvers.budgets.found import Found
from graphrl.solvers.budgets.goal import BEGUN_OVER, Goal
from graphrl.solvers.budgets.repeats import repeated
from graphrl.solvers.budgets.starts import MOST
from graphrl.solvers.budgets.state import AGAIN, INSIDE, PLAIN, State
from graphrl.solvers.budgets.work import COMPUTED, KEPT, MOVED

HOT, COLD = 1e-3, 1e-5  # temperatures: energies are shares of the plain peak or of the step's seconds
CUTTING = 0.2  # part of the moves that cut a function or a loop's body
SWITCHING = 0.05  # part of the others that leave segments to jax, or take them from it
REPEATING = 0.15  # part of the moves that do with a stretch of a function what is done with another one like it
STRETCHING = 0.05  # part of all moves, where there are loops, that group their steps otherwise
TOGETHER = 0.6  # part of the moves that change all that are alike
PER_SEGMENT = 3e-4  # energy of a segment: each is traced by itself, and keeps the compiler from working across it


def anneal(
    pricing: Pricing, goal: Goal, starts: Sequence[State], *, seed: int, evaluations: int, seconds: float
) -> Found:
    """The best choice that annealing meets, from the best of some starts, of which one may be a little over the limit.

    Args:
      pricing: of the gradient.
      goal: what is wanted.
      starts: at least one.
      seed: of its random numbers.
      evaluations, seconds: after which it ends.
    """
    search = _Search(pricing, goal, np.random.default_rng(seed))
    best = min(starts, key=search.energy)
    state = min(starts, key=lambda start: goal.energy(pricing, pricing(start.choice()), over=BEGUN_OVER)).copy()
    least, energy = search.energy(best), search.energy(state)
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
        self._places = [[group for group in alike_places(level) if len(group) <= MOST] for level in gradient.levels]
        self._repeated = repeated(gradient.levels[0])
        self._loops = list(gradient.stretched().items())
        self._fixed = [starts != INSIDE for starts in State.plain(gradient).starts]
        sizes = np.array([max(1, len(level.bytes)) for level in gradient.levels], float)
        self._weights = np.cumsum(sizes / sizes.sum())

    def energy(self, state: State) -> float:
        """Of a state."""
        choice = state.choice()
        price = self._pricing(choice)
        segments = sum(len(cut.again) for cut in choice)
        return self._goal.energy(self._pricing, price) + PER_SEGMENT * segments

    def move(self, state: State) -> Callable[[], None]:
        """Changes a state; what it returns takes that back."""
        if self._loops and self.random.random() < STRETCHING:
            return self._stretch(state)
        if self._repeated and self.random.random() < REPEATING:
            return self._repeat(state)
        level = int(np.searchsorted(self._weights, self.random.random()))
        if self._places[level] and self.random.random() < CUTTING:
            return self._cut(state, level)
        if self.random.random() < SWITCHING or not self._values[level]:
            return self._switch(state, level)
        return self._flip(state, level)

    def _flip(self, state: State, level: int) -> Callable[[], None]:
        """Keeps values, moves them or does neither."""
        chosen = self._values[level][self.random.integers(len(self._values[level]))]
        if self.random.random() > TOGETHER:
            chosen = chosen[[self.random.integers(len(chosen))]]
        keep = state.keep[level]
        before = keep[chosen].copy()
        kinds = [COMPUTED, KEPT, MOVED] if self._goal.moves else [COMPUTED, KEPT]
        keep[chosen] = self.random.choice([kind for kind in kinds if kind != before[0]])

        def undo() -> None:
            keep[chosen] = before

        return undo

    def _cut(self, state: State, level: int) -> Callable[[], None]:
        """Begins or ends segments of a level at places that are alike: narrow ones more often."""
        chosen = self._places[level][int(len(self._places[level]) * self.random.random() ** 2)]
        starts = state.starts[level]
        before = starts.copy()
        if starts[chosen[0]] == INSIDE:
            first = np.maximum.accumulate(np.where(starts != INSIDE, np.arange(len(starts)), 0))
            starts[chosen] = np.where(starts[chosen] == INSIDE, starts[first[chosen]], starts[chosen])
        else:
            starts[chosen[~self._fixed[level][chosen]]] = INSIDE
        return self._written(state, level, before)

    def _repeat(self, state: State) -> Callable[[], None]:
        """Does with one of some stretches that are alike, or with the next ones too, what is done with another one."""
        kind = self._repeated[self.random.integers(len(self._repeated))]
        level, keep, starts = self._pricing.gradient.levels[0], state.keep[0], state.starts[0]
        before = keep.copy(), starts.copy()
        count = len(kind.begins)
        source, first = self.random.choice(count, 2, replace=False).tolist()
        stop = first + 1 if self.random.random() < TOGETHER else self.random.integers(first, count) + 1
        kept, begun = keep[kind.values(level, source)].copy(), starts[kind.places(source)].copy()
        for other in range(first, stop):
            keep[kind.values(level, other)] = kept
            places = kind.places(other)
            starts[places] = np.where(self._fixed[0][places] & (begun == INSIDE), starts[places], begun)
        state.changed(0)

        def undo() -> None:
            keep[:], state.starts[0] = before
            state.changed(0)

        return undo

    def _switch(self, state: State, level: int) -> Callable[[], None]:
        """Computes all of a level again or one of its segments, or leaves it to jax."""
        starts = state.starts[level]
        before = starts.copy()
        begins = np.flatnonzero((starts != INSIDE) & ~self._pricing.gradient.levels[level].apart)
        if len(begins) > 1 and self.random.random() > TOGETHER:
            begins = begins[[self.random.integers(len(begins))]]
        starts[begins] = PLAIN if (starts[begins] == AGAIN).any() else AGAIN
        return self._written(state, level, before)

    def _stretch(self, state: State) -> Callable[[], None]:
        """Makes a loop's stretches longer or shorter, by a step or by any."""
        level, loop = self._loops[self.random.integers(len(self._loops))]
        before, kinds = state.stretches[level], loop.stretches
        now = kinds.index(before)
        near = [kinds[k] for k in (now - 1, now + 1) if 0 <= k < len(kinds)]
        others = near if self.random.random() < TOGETHER else [kind for kind in kinds if kind != before]
        self._set_stretch(state, level, int(self.random.choice(others)))
        return lambda: self._set_stretch(state, level, before)

    def _set_stretch(self, state: State, level: int, stretch: int) -> None:
        state.stretches[level] = stretch
        state.changed(level)

    def _written(self, state: State, level: int, before: np.ndarray) -> Callable[[], None]:
        state.changed(level)

        def undo() -> None:
            state.starts[level] = before
            state.changed(level)

        return undo
