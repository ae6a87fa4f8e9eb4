"""Simulated annealing of a choice: which values are kept, and where a program is cut into segments.

A move changes a group of alike values or places together, a single value or place, or copies the choice for one range
of a level to an alike one, such as from layer to layer (`moves`, `move`). `walk` runs moves of the function's level in
compiled code, `Search` moves loop bodies one at a time. `anneal` starts from the best of some choices. For small
functions, several starts first race against each other.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, inlined, integer
from graphrl.compiled.structures import below, uniform
from graphrl.xla.checkpoint.solvers.choice import INSIDE, PLAIN, RECOMPUTE, Price, Pricing, State, plain_starts
from graphrl.xla.checkpoint.solvers.goal import OVER, START_OVER, Aim, Goal, Solution, beyond, energy
from graphrl.xla.checkpoint.solvers.level import Level, alike_places, alike_values, repeated
from graphrl.xla.checkpoint.solvers.price import Work, price
from graphrl.xla.checkpoint.solvers.starts import MOST

CUTTING = 0.2  # share of the moves that cut a level
SWITCHING = 0.05  # share of the others that switch segments between recomputation and jax's default
REPEATING = 0.15  # share of the moves that copy the choice for a range to others like it
TOGETHER = 0.6  # share of the moves that change all alike values or places
KINDS = 3  # RECOMPUTED, KEPT and MOVED
PER_SEGMENT = 3e-4  # energy of a segment: each is traced separately, and compilers do not optimise across it
HOT, COLD = 1e-3, 1e-5  # temperatures: energies are shares of the plain peak or of the step's seconds
STRETCHING = 0.05  # share of all moves, if there are loops, that change the length of their stretches
ROUND = 64  # moves between two looks at the clock
RACERS, RACING = 8, 0.5  # most starts that race, and the share of the time that they have together
RACED = 850  # most values of a gradient for a race: larger ones spend all of the time on one start


def anneal(
    pricing: Pricing, goal: Goal, starts: Sequence[State], *, seed: int, evaluations: int, seconds: float
) -> Solution:
    """Anneals from the best of some starts, which may exceed the limit slightly, and returns the best choice visited.

    For small gradients, annealing first runs from the best starts with different segments, each for a share of the
    time, and then from the best choice of all these.

    Args:
      pricing: pricing of the gradient.
      goal: the goal to meet.
      starts: states; must not be empty.
      seed: seed of the random numbers.
      evaluations, seconds: most choices to price (the starts included), and time limit; it ends at either.
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
    return Solution(best.choice(), pricing(best.choice()), search.rank(best), count)


def _races(starts: Sequence[State]) -> Iterator[tuple[State | None, float, float]]:
    """Yields starts (None for the best so far), each with the shares of the time at which it begins and ends."""
    if sum(map(len, starts[0].keep)) > RACED:
        yield starts[0], 0.0, 1.0
        return
    for number, start in enumerate(starts[:RACERS]):
        yield start, RACING * number / min(len(starts), RACERS), RACING * (number + 1) / min(len(starts), RACERS)
    yield None, RACING, 1.0


def prepare(pricing: Pricing) -> None:
    """Compiles annealing, or loads it from a cache; call it first so that this does not count as search time."""
    search = Search(pricing, Goal(slowdown=0.0), [State.plain(pricing.gradient)], 0)
    search.start(search.best)
    with announced(walk, "the search for memory budgets"):
        search.walk(0, 1.0)


class Search:
    """A run of simulated annealing. The function's level is annealed in compiled code, loop bodies one move at a time.

    Attributes:
      starts: the best start for each set of segments, the best first.
      state, best: the current state (set by `start`), and the best so far.
    """

    state: State

    def __init__(self, pricing: Pricing, goal: Goal, starts: Sequence[State], seed: int) -> None:
        self._pricing, self._goal, self._random = pricing, goal, np.random.default_rng(seed)
        gradient = pricing.gradient
        self.best = min(starts, key=self.rank).copy()
        self._least = self.rank(self.best)
        near = sorted(starts, key=lambda start: goal.energy(pricing, pricing(start.choice()), over=START_OVER))
        kinds: dict[bytes, State] = {}
        for start in near:
            kinds.setdefault(np.concatenate(start.starts).tobytes(), start)
        self.starts = list(kinds.values())
        self._moves = [moves(level) for level in gradient.levels]
        self._loops = list(gradient.stretchable().items())
        self._words = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        sizes = np.array([max(1, len(level.bytes)) for level in gradient.levels], float)
        self._parts = sizes / sizes.sum()

    def start(self, state: State) -> None:
        """Continues from a state."""
        self.state = state.copy()
        self._energy = self.energy(state)

    def energy(self, state: State) -> float:
        """Returns the energy of a state, which annealing minimizes."""
        return self._measured(state, self._goal.energy)

    def rank(self, state: State) -> float:
        """Returns the rank of a state, which selects the best one."""
        return self._measured(state, self._goal.rank)

    def _measured(self, state: State, measure: Callable[[Pricing, Price], float]) -> float:
        """Returns a goal's measure of a state, plus `PER_SEGMENT` for each segment."""
        choice = state.choice()
        segments = sum(len(cut.recomputed) for cut in choice)
        return measure(self._pricing, self._pricing(choice)) + PER_SEGMENT * segments

    def round(self, heat: float, count: int) -> None:
        """Tries `count` moves, distributed over levels in proportion to their sizes."""
        stretches = self._random.binomial(count, STRETCHING) if self._loops else 0
        outer, *inner = self._random.multinomial(count - stretches, self._parts).tolist()
        for level, tries in enumerate(inner, start=1):
            for _ in range(tries):
                self._try(self._move(level), heat)
        for _ in range(stretches):
            self._try(self._stretch(), heat)
        self.walk(outer, heat)

    def walk(self, count: int, heat: float) -> None:
        """Tries `count` moves of the function's level."""
        state = self.state
        level, work, seconds = self._pricing.outer(state.choice())
        loop_energy = PER_SEGMENT * sum(len(cut.recomputed) for cut in state.choice()[1:])
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
        walk(level, self._moves[0], work, walker, aim, seconds, loop_energy, heat, self._goal.moves, count)
        state.changed(0)
        if walker.energies[1] < self._least:
            best = state.copy()
            best.keep[0][:], best.starts[0][:] = walker.best_keep, walker.best_starts
            best.changed(0)
            self.best = best
        self._energy, self._least = walker.energies.tolist()

    def _try(self, undo: Callable[[], None], heat: float) -> None:
        """Accepts the last change by the Metropolis rule at temperature `heat`, or undoes it."""
        now = self.energy(self.state)
        if now > self._energy and self._random.random() >= math.exp((self._energy - now) / heat):
            undo()
            return
        self._energy = now
        if now < self._least and (rank := self.rank(self.state)) < self._least:
            self.best, self._least = self.state.copy(), rank

    def _move(self, level: int) -> Callable[[], None]:
        """Applies a random move to a level; returns a function that undoes it."""
        keep, starts = self.state.keep[level], self.state.starts[level]
        before = keep.copy(), starts.copy()
        move(self._moves[level], keep, starts, self._words, self._goal.moves)
        self.state.changed(level)

        def undo() -> None:
            keep[:], starts[:] = before
            self.state.changed(level)

        return undo

    def _stretch(self) -> Callable[[], None]:
        """Changes the stretch length of a random loop, to an adjacent or to any; returns a function that undoes it."""
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


class Moves(NamedTuple):
    """Move sets for a level of p places: groups of alike values, of alike places, and of alike ranges (such as layers),
    in compressed rows: group i is from `..._from[i]` to `..._from[i + 1]`.
    """

    values_from: np.ndarray  # int64
    values: np.ndarray  # int64
    places_from: np.ndarray  # int64, places with the fewest bytes across first
    places: np.ndarray  # int64
    begins_from: np.ndarray  # int64
    begins: np.ndarray  # int64, the first place of each range
    length: np.ndarray  # int64, for each group of ranges, their number of places
    fixed: np.ndarray  # [p] bool, whether a segment starts there in any case
    separate: np.ndarray  # [p] bool, see `Level`
    first: np.ndarray  # [p + 1] int64, see `Level`


def moves(level: Level) -> Moves:
    """Returns the move sets of a level."""
    kinds = repeated(level)
    return Moves(
        *_rows(alike_values(level)),
        *_rows([group for group in alike_places(level) if len(group) <= MOST]),
        *_rows([kind.begins for kind in kinds]),
        np.array([kind.length for kind in kinds], np.int64),
        plain_starts(level) != INSIDE,
        level.separate,
        level.first,
    )


def _rows(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([0, *map(len, groups)], dtype=np.int64)
    return ends, np.array(list(chain.from_iterable(groups)), np.int64)


@entry
def move(moves: Moves, keep: np.ndarray, starts: np.ndarray, rng: np.ndarray, moving: bool) -> None:
    """Applies one random move to the choice for a level, in place.

    Args:
      moves: move sets of the level.
      keep, starts: arrays of a `State`, written.
      rng: state of the random numbers, as in `compiled.structures`.
      moving: whether values may be moved to the host.
    """
    if len(moves.length) > 0 and uniform(rng) < REPEATING:
        _repeat(moves, keep, starts, rng)
    elif len(moves.places_from) > 1 and uniform(rng) < CUTTING:
        _cut(moves, starts, rng)
    elif len(moves.values_from) > 1 and uniform(rng) >= SWITCHING:
        _flip(moves, keep, rng, moving)
    else:
        _switch(moves, starts, rng)


@inlined
def _flip(moves: Moves, keep: np.ndarray, rng: np.ndarray, moving: bool) -> None:
    """Changes the fate of a group of values, or of one of them: recomputed, kept or, if `moving`, moved to the host."""
    begin, end = _chosen(moves.values_from, below(rng, len(moves.values_from) - 1))
    if uniform(rng) > TOGETHER:
        begin = begin + below(rng, end - begin)
        end = begin + 1
    kinds = KINDS if moving else KINDS - 1
    kind = (keep[moves.values[begin]] + 1 + below(rng, kinds - 1)) % kinds
    for k in range(begin, end):
        keep[moves.values[k]] = kind


@inlined
def _cut(moves: Moves, starts: np.ndarray, rng: np.ndarray) -> None:
    """Starts or merges segments at a group of alike places; those with few bytes across are chosen more often."""
    count = len(moves.places_from) - 1
    begin, end = _chosen(moves.places_from, min(integer(count * uniform(rng) ** 2), count - 1))
    begins = starts[moves.places[begin]] == INSIDE
    for k in range(begin, end):
        place = moves.places[k]
        if begins and starts[place] == INSIDE:
            first = place
            while starts[first] == INSIDE:
                first -= 1
            starts[place] = starts[first]
        elif not begins and not moves.fixed[place]:
            starts[place] = INSIDE


@inlined
def _repeat(moves: Moves, keep: np.ndarray, starts: np.ndarray, rng: np.ndarray) -> None:
    """Copies the choice for one of several alike ranges to another one, and possibly to some after that."""
    kind = below(rng, len(moves.length))
    begin, end = _chosen(moves.begins_from, kind)
    source = below(rng, end - begin)
    first = (source + 1 + below(rng, end - begin - 1)) % (end - begin)
    stop = first + 1
    if uniform(rng) >= TOGETHER:
        stop = first + 1 + below(rng, end - begin - first)
    from_place = moves.begins[begin + source]
    for other in range(first, stop):
        to_place = moves.begins[begin + other]
        for k in range(moves.first[from_place + moves.length[kind]] - moves.first[from_place]):
            keep[moves.first[to_place] + k] = keep[moves.first[from_place] + k]
        for k in range(moves.length[kind]):
            if starts[from_place + k] != INSIDE or not moves.fixed[to_place + k]:
                starts[to_place + k] = starts[from_place + k]


@inlined
def _switch(moves: Moves, starts: np.ndarray, rng: np.ndarray) -> None:
    """Switches all segments of a level, or one of them, between recomputation and jax's default."""
    count, is_any = integer(0), False
    for place in range(len(starts)):
        if starts[place] != INSIDE and not moves.separate[place]:
            count += 1
            is_any |= starts[place] == RECOMPUTE
    only = below(rng, count) if count > 1 and uniform(rng) > TOGETHER else integer(-1)
    number = integer(0)
    for place in range(len(starts)):
        if starts[place] != INSIDE and not moves.separate[place]:
            if only < 0:
                starts[place] = PLAIN if is_any else RECOMPUTE
            elif only == number:
                starts[place] = PLAIN if starts[place] == RECOMPUTE else RECOMPUTE
            number += 1


@inlined
def _chosen(rows: np.ndarray, row: int) -> tuple[int, int]:
    """Returns the start and end of a compressed row."""
    return rows[row], rows[row + 1]


class Walker(NamedTuple):
    """State of annealing on a level of n values and p places; arrays are int64 unless noted."""

    keep: np.ndarray  # [n]
    starts: np.ndarray  # [p]
    best_keep: np.ndarray  # [n]
    best_starts: np.ndarray  # [p]
    last_keep: np.ndarray  # [n], before a move
    last_starts: np.ndarray  # [p]
    segment: np.ndarray  # [p]
    recomputed: np.ndarray  # [p] bool
    energies: np.ndarray  # [2] float64: energy of the current choice, rank of the best
    rng: np.ndarray  # [1] uint64


@entry
def walk(
    level: Level,
    moves: Moves,
    work: Work,
    walker: Walker,
    aim: Aim,
    seconds: float,
    loop_energy: float,
    heat: float,
    moving: bool,
    count: int,
) -> None:
    """Runs `count` steps of simulated annealing on one level, in compiled code.

    Args:
      level: the level, with the bytes of its loops.
      moves: move sets of the level.
      work: arrays for `price`.
      walker: state of annealing, updated.
      aim: the goal to meet.
      seconds, loop_energy: seconds that the choices for loops add, and energy of the segments in loops.
      heat: temperature of annealing.
      moving: whether values may be moved to the host.
      count: number of moves.
    """
    for _ in range(count):
        _copy(walker.keep, walker.last_keep)
        _copy(walker.starts, walker.last_starts)
        move(moves, walker.keep, walker.starts, walker.rng, moving)
        segments = _walk_cut(walker)
        price(level, walker.keep, walker.segment, walker.recomputed[:segments], integer(1), work)
        prices = work.prices
        added = seconds + prices[4] + prices[6]
        peak = max(prices[2], prices[3])
        now = energy(aim, prices[0], peak, added, OVER) + loop_energy + PER_SEGMENT * segments
        if now <= walker.energies[0] or uniform(walker.rng) < math.exp((walker.energies[0] - now) / heat):
            walker.energies[0] = now
            rank = now + beyond(aim, prices[0], peak, added)
            if rank < walker.energies[1]:
                walker.energies[1] = rank
                _copy(walker.keep, walker.best_keep)
                _copy(walker.starts, walker.best_starts)
        else:
            _copy(walker.last_keep, walker.keep)
            _copy(walker.last_starts, walker.starts)


@inlined
def _walk_cut(walker: Walker) -> int:
    """Computes `walker.segment` and `walker.recomputed` from `walker.starts`; returns the number of segments."""
    count = integer(0)
    for place in range(len(walker.starts)):
        if walker.starts[place] != INSIDE:
            walker.recomputed[count] = walker.starts[place] == RECOMPUTE
            count += 1
        walker.segment[place] = count - 1
    return count


@inlined
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    for k in range(len(source)):
        target[k] = source[k]
