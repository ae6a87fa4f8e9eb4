"""Choices and their prices: what happens to every value of a gradient, with loops within loops.

A `Choice` is one `Cut` a level: which values are kept, computed again or moved, and where the level is cut into
segments. `Pricing` prices choices of one gradient, from the innermost loops outwards. `State` is a choice that a search
changes in place.

Loops may run in stretches: of n steps, k at a time are computed again by one more forward pass before they run
backward. A loop of n steps keeps what it carries at every step. In stretches of k it keeps that of each k-th step only,
and while a stretch runs backward what its k steps keep: about 2 sqrt(n) in place of n (Chen et al. 2016, section 4.3).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced
from graphrl.xla.checkpoint.solvers.level import COMPUTED, Gradient, Level, Loop
from graphrl.xla.checkpoint.solvers.price import Work, price, work

NEAR = 1.5  # factor from what is wanted by which a divisor may differ
INSIDE, PLAIN, AGAIN = 0, 1, 2  # a place: in the segment of the one before, or the first of one


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


class LoopCost(NamedTuple):
    """What a loop, or a step of it, costs what is around it, in bytes.

    Attributes:
      kept: for the backward pass.
      forward, backward: at the peaks of the two passes.
    """

    kept: float
    forward: float
    backward: float


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


class State:
    """A choice as arrays that moves write.

    Attributes:
      keep: of each level, `[n]` int64.
      starts: of each level, `[p]` int64: INSIDE, PLAIN or AGAIN, by whether the segment that begins there is computed
        again; never INSIDE at 0.
      stretches: of each level, the steps of a stretch.
    """

    def __init__(self, keep: list[np.ndarray], starts: list[np.ndarray], stretches: Sequence[int] = ()) -> None:
        self.keep, self.starts, self.stretches = keep, starts, list(stretches) or [1] * len(keep)
        self._cuts = [self._cut(level) for level in range(len(keep))]

    @classmethod
    def plain(cls, gradient: Gradient) -> "State":
        """What jax does by itself, cut around what stays apart."""
        keep = [np.zeros(len(level.bytes), np.int64) for level in gradient.levels]
        return cls(keep, [begun(level) for level in gradient.levels])

    @classmethod
    def of(cls, choice: Choice) -> "State":
        """A choice's own."""
        begins = [np.diff(cut.segment, prepend=-1) > 0 for cut in choice]
        kinds = [np.where(cut.again[cut.segment], AGAIN, PLAIN) for cut in choice]
        starts = [np.where(first, kind, INSIDE) for first, kind in zip(begins, kinds, strict=True)]
        return cls([cut.keep.copy() for cut in choice], starts, [cut.stretch for cut in choice])

    def changed(self, level: int) -> None:
        """To be called when a level's starts or stretches have changed."""
        self._cuts[level] = self._cut(level)

    def choice(self) -> Choice:
        """As it is now; it changes with the state."""
        return tuple(self._cuts)

    def copy(self) -> "State":
        """One of its own."""
        return State([array.copy() for array in self.keep], [array.copy() for array in self.starts], self.stretches)

    def _cut(self, level: int) -> Cut:
        starts = self.starts[level]
        begins = starts != INSIDE
        return Cut(self.keep[level], np.cumsum(begins) - 1, starts[begins] == AGAIN, self.stretches[level])


def begun(level: Level) -> np.ndarray:
    """`[p]` int64: the starts of a level that is left to jax, cut around what stays apart."""
    return np.where(level.apart | np.concatenate([[True], level.apart[:-1]]), PLAIN, INSIDE)


def loop_cost(loop: Loop, trips: int, stretch: int, step: LoopCost) -> LoopCost:
    """What a loop costs.

    A stretch that is not the whole loop has slices of what the loop reads and writes of each step, and sums gradients
    by itself. Where the last one is shorter, all steps' slices are cut and joined. Steps that stand one after the other
    work on values, those of a loop on copies of them.

    Args:
      loop: it is.
      trips: its steps.
      stretch: steps of a stretch; 1 where there are none.
      step: what one of its steps does.
    """
    if stretch == 1:
        return step._replace(kept=trips * step.kept)
    others = stretch - loop.is_unrolled(stretch)  # such a step's peak has what it keeps, that of a loop's step has not
    sliced = stretch if stretch < trips else 0
    joined = trips if trips % stretch else 0
    return LoopCost(
        -(-trips // stretch) * loop.begin_bytes + joined * loop.taken_bytes,
        step.forward + sliced * (loop.taken_bytes + loop.given_bytes) + joined * loop.given_bytes,
        max(step.forward, step.backward)
        + others * step.kept
        + sliced * (loop.taken_bytes + loop.pulled_bytes)
        + joined * loop.pulled_bytes
        + (loop.sum_bytes if sliced else 0.0),
    )


def stretches_of(trips: int) -> tuple[int, ...]:
    """How many steps a stretch may have: about the root of all, and that doubled and halved, up to all.

    Divisors, but where none is near: what the last stretch lacks costs copies.
    """
    root = trips**0.5
    small = [k for k in range(1, math.isqrt(trips) + 1) if trips % k == 0]
    divisors = [*small, *(trips // k for k in small)]
    found = {1, max(trips, 1)}
    for power in range(-(trips.bit_length() // 2), trips.bit_length() // 2 + 1):
        wanted = root * 2.0**power
        if 1 < wanted < trips:
            nearest = min(divisors, key=lambda k: abs(math.log(k / wanted)))
            found.add(nearest if abs(math.log(nearest / wanted)) < math.log(NEAR) else round(wanted))
    return tuple(sorted(found))
