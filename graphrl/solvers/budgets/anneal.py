"""Simulated annealing on what is kept and where a program is cut, by moves of alike values and places together."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from graphrl.compiled import announced
from graphrl.solvers.budgets.choice import Price, Pricing
from graphrl.solvers.budgets.found import Found
from graphrl.solvers.budgets.goal import BEGUN_OVER, Goal
from graphrl.solvers.budgets.moves import TOGETHER, move, moves
from graphrl.solvers.budgets.state import State
from graphrl.solvers.budgets.walk import PER_SEGMENT, Walker, walk

HOT, COLD = 1e-3, 1e-5  # temperatures: energies are shares of the plain peak or of the step's seconds
STRETCHING = 0.05  # part of all moves, where there are loops, that group their steps otherwise
ROUND = 64  # moves between two looks at the clock
RACERS, RACING = 8, 0.5  # starts at most, and the part of the time that they have together
RACED = 850  # values at most of gradients that race: larger ones take all of the time from one start


def anneal(
    pricing: Pricing, goal: Goal, starts: Sequence[State], *, seed: int, evaluations: int, seconds: float
) -> Found:
    """The best choice that annealing meets, from the best of some starts, which may be a little over the limit. Small
    gradients race: from the best starts of different segments, each for a part of the time, and then from the best of
    all that.

    Args:
      pricing: of the gradient.
      goal: what is wanted.
      starts: at least one.
      seed: of its random numbers.
      evaluations, seconds: after which it ends.
    """
    search = Search(pricing, goal, starts, seed)
    begin, count = time.monotonic(), len(starts)
    for start, first, last in _races(search.starts):
        search.start(start or search.best)
        while count < evaluations:
            done = max(count / evaluations, (time.monotonic() - begin) / seconds)
            if done >= last:
                break
            part = max(0.0, (done - first) / (last - first))
            search.round(HOT * (COLD / HOT) ** part, tries := min(ROUND, evaluations - count))
            count += tries
    best = search.best
    return Found(best.choice(), pricing(best.choice()), search.rank(best), count)


def _races(starts: Sequence[State]) -> Iterator[tuple[State | None, float, float]]:
    """Starts, None for the best so far, and from which part of the time to which they run."""
    if sum(map(len, starts[0].keep)) > RACED:
        yield starts[0], 0.0, 1.0
        return
    for number, start in enumerate(starts[:RACERS]):
        yield start, RACING * number / min(len(starts), RACERS), RACING * (number + 1) / min(len(starts), RACERS)
    yield None, RACING, 1.0


def prepare(pricing: Pricing) -> None:
    """Compiles annealing, or loads it, which is no part of a search."""
    search = Search(pricing, Goal(slowdown=0.0), [State.plain(pricing.gradient)], 0)
    search.start(search.best)
    with announced(walk, "the search for memory budgets"):
        search.walk(0, 1.0)


class Search:
    """Where annealing is: the function's level changes in compiled code, loops' bodies one move at a time.

    Attributes:
      starts: the best ones of different segments, the best first.
      state, best: now, from `start` on, and the best so far.
    """

    state: State

    def __init__(self, pricing: Pricing, goal: Goal, starts: Sequence[State], seed: int) -> None:
        self._pricing, self._goal, self._random = pricing, goal, np.random.default_rng(seed)
        gradient = pricing.gradient
        self.best = min(starts, key=self.rank).copy()
        self._least = self.rank(self.best)
        near = sorted(starts, key=lambda start: goal.energy(pricing, pricing(start.choice()), over=BEGUN_OVER))
        kinds: dict[bytes, State] = {}
        for start in near:
            kinds.setdefault(np.concatenate(start.starts).tobytes(), start)
        self.starts = list(kinds.values())
        self._moves = [moves(level) for level in gradient.levels]
        self._loops = list(gradient.stretched().items())
        self._words = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        sizes = np.array([max(1, len(level.bytes)) for level in gradient.levels], float)
        self._parts = sizes / sizes.sum()

    def start(self, state: State) -> None:
        """Goes on from a state."""
        self.state = state.copy()
        self._energy = self.energy(state)

    def energy(self, state: State) -> float:
        """Of a state: where annealing goes."""
        return self._measured(state, self._goal.energy)

    def rank(self, state: State) -> float:
        """Of a state: which is best."""
        return self._measured(state, self._goal.rank)

    def _measured(self, state: State, measure: Callable[[Pricing, Price], float]) -> float:
        """By a goal's measure; a little more for each segment."""
        choice = state.choice()
        segments = sum(len(cut.again) for cut in choice)
        return measure(self._pricing, self._pricing(choice)) + PER_SEGMENT * segments

    def round(self, heat: float, count: int) -> None:
        """Tries so many moves, on levels by their sizes."""
        stretches = self._random.binomial(count, STRETCHING) if self._loops else 0
        outer, *inner = self._random.multinomial(count - stretches, self._parts).tolist()
        for level, tries in enumerate(inner, start=1):
            for _ in range(tries):
                self._try(self._move(level), heat)
        for _ in range(stretches):
            self._try(self._stretch(), heat)
        self.walk(outer, heat)

    def walk(self, count: int, heat: float) -> None:
        """Tries so many moves of the function's level."""
        state = self.state
        level, work, seconds = self._pricing.outer(state.choice())
        beside = PER_SEGMENT * sum(len(cut.again) for cut in state.choice()[1:])
        keep, starts = state.keep[0], state.starts[0]
        walker = Walker(
            keep,
            starts,
            *(keep.copy(), starts.copy(), np.empty_like(keep), np.empty_like(starts)),
            *(np.empty_like(starts), np.empty(len(starts), bool)),
            np.array([self._energy, self._least]),
            self._words,
        )
        aim = self._goal.aim(self._pricing)
        walk(level, self._moves[0], work, walker, aim, seconds, beside, heat, self._goal.moves, count)
        state.changed(0)
        if walker.energies[1] < self._least:
            best = state.copy()
            best.keep[0][:], best.starts[0][:] = walker.best_keep, walker.best_starts
            best.changed(0)
            self.best = best
        self._energy, self._least = walker.energies.tolist()

    def _try(self, undo: Callable[[], None], heat: float) -> None:
        """Keeps what was changed, or takes it back."""
        now = self.energy(self.state)
        if now > self._energy and self._random.random() >= math.exp((self._energy - now) / heat):
            undo()
            return
        self._energy = now
        if now < self._least and (rank := self.rank(self.state)) < self._least:
            self.best, self._least = self.state.copy(), rank

    def _move(self, level: int) -> Callable[[], None]:
        """Changes a level; what it returns takes that back."""
        keep, starts = self.state.keep[level], self.state.starts[level]
        before = keep.copy(), starts.copy()
        move(self._moves[level], keep, starts, self._words, self._goal.moves)
        self.state.changed(level)

        def undo() -> None:
            keep[:], starts[:] = before
            self.state.changed(level)

        return undo

    def _stretch(self) -> Callable[[], None]:
        """Makes a loop's stretches longer or shorter, by a step or by any."""
        level, loop = self._loops[self._random.integers(len(self._loops))]
        before, kinds = self.state.stretches[level], loop.stretches
        now = kinds.index(before)
        near = [kinds[k] for k in (now - 1, now + 1) if 0 <= k < len(kinds)]
        others = near if self._random.random() < TOGETHER else [kind for kind in kinds if kind != before]
        self._set_stretch(level, int(self._random.choice(others)))
        return lambda: self._set_stretch(level, before)

    def _set_stretch(self, level: int, stretch: int) -> None:
        self.state.stretches[level] = stretch
        self.state.changed(level)
