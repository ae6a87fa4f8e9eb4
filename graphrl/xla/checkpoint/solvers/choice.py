"""Choices and their prices: the fate of every value of a gradient, with loops within loops.

A `Choice` is one `Cut` per level: which values are kept, computed again or moved, and where the level is cut into
segments. `Pricing` prices choices of one gradient, from the innermost loops outwards. `State` is a choice that a search
changes in place.

Loops may run in stretches: of n steps, k at a time are computed again by one more forward pass before they run
backward. A loop of n steps keeps its carried values at every step. In stretches of k it keeps those of each k-th step
only, and while a stretch runs backward also the values that its k steps keep: about 2 sqrt(n) instead of n (Chen et al.
2016, section 4.3).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced
from graphrl.xla.checkpoint.solvers.level import RECOMPUTED, Gradient, Level, Loop
from graphrl.xla.checkpoint.solvers.price import Work, price, work

NEAR = 1.5  # factor by which a divisor may differ from the wanted number of steps
INSIDE, PLAIN, RECOMPUTE = 0, 1, 2  # a place: in the segment of the one before, or the first of one


class Cut(NamedTuple):
    """Decisions about a level of n values, whose p places are cut into s segments.

    Attributes:
      keep: `[n]` int64: COMPUTED, KEPT or MOVED; without effect where the value is computed again in any case.
      segment: `[p]` int64: the segment of each place, from 0 to s - 1; nondecreasing.
      recomputed: `[s]` bool: whether each segment is computed again; in the others jax keeps the values that it always
        keeps.
      stretch: for a loop, steps that run forward once more together before they run backward; 1 without stretches. If
        they are unrolled, see `Loop`, no segment is computed again.
    """

    keep: np.ndarray
    segment: np.ndarray
    recomputed: np.ndarray
    stretch: int = 1


Choice = tuple[Cut, ...]  # one per level


@dataclasses.dataclass(frozen=True)
class Price:
    """Cost of a choice.

    Attributes:
      kept: bytes kept in memory for the backward pass.
      moved: bytes kept for it in the memory of the host.
      peak: most bytes in use at one time, without arguments, results and gradients.
      seconds: seconds of recomputation; of writing values that are only kept, and gradients that segments wait for; and
        of waiting for values that are moved.
    """

    kept: float
    moved: float
    peak: float
    seconds: float


class LoopCost(NamedTuple):
    """Bytes that a loop, or a step of it, adds to the level around it.

    Attributes:
      kept: bytes kept for the backward pass.
      forward, backward: bytes at the peaks of the two passes.
    """

    kept: float
    forward: float
    backward: float


class Pricing:
    """Prices choices for one gradient. Not thread-safe.

    Attributes:
      gradient: the gradient whose choices are priced.
      plain: the price of jax's default.
      step_seconds: seconds of both passes by jax's default; those of the gradient's outermost level, until a caller
        sets a better value.
      starts: states that `auto` anneals from: those that its first call started from, and those that each call found.
    """

    def __init__(self, gradient: Gradient) -> None:
        self.gradient = gradient
        self.starts: list[State] = []
        self._work: list[Work] = [work(level) for level in gradient.levels]
        self._levels: list[Level] = [
            level._replace(
                bytes=level.bytes.copy(), workspace=level.workspace.copy(), kernel_bytes=level.kernel_bytes.copy()
            )
            for level in gradient.levels  # the costs of loops in them are written into these
        ]
        # of unrolled bodies of loops, which share those arrays
        self._unrolled = [level._replace(trips=0, keep_seconds=level.write_seconds) for level in self._levels]
        with announced(price, "memory budgets"):
            self.plain = self(default_choice(gradient))
        outer = gradient.levels[0]
        self.step_seconds = outer.forward_seconds + outer.backward_seconds + self.plain.seconds

    def __call__(self, choice: Choice) -> Price:
        """The price of a choice."""
        count = len(self._levels)
        moved, seconds = np.zeros(count), np.zeros(count)
        for number in range(count - 1, -1, -1):
            level, original = self._levels[number], self.gradient.levels[number]
            for inner, loop in self.gradient.loops[number].items():
                trips = self._levels[inner].trips
                stretch = choice[inner].stretch
                cost = loop_cost(loop, trips, stretch, self._step(inner, loop.is_unrolled(stretch)))
                level.bytes[loop.kept[0]] = cost.kept
                level.workspace[loop.outputs[0]] = cost.forward
                level.kernel_bytes[loop.kernel] = original.kernel_bytes[loop.kernel] + cost.backward
                moved[number] += trips * moved[inner]
                seconds[number] += trips * seconds[inner]
            cut = choice[number]
            if self.gradient.is_unrolled(number, cut.stretch):
                level, cut = self._unrolled[number], cut._replace(recomputed=np.zeros_like(cut.recomputed))
            price(level, *cut, self._work[number])
            moved[number] += self._work[number].prices[1]
            seconds[number] += self._work[number].prices[4] + self._work[number].prices[6]
        kept, _, forward, backward = self._work[0].prices[:4]
        return Price(float(kept), float(moved[0]), float(max(forward, backward)), float(seconds[0]))

    @property
    def pass_seconds(self) -> float:
        """Seconds of both passes, without those that choices add."""
        return self.step_seconds - self.plain.seconds

    def outer(self, choice: Choice) -> tuple[Level, Work, float]:
        """The function's level with the bytes of its loops by a choice, the working arrays of `price` there, and the
        seconds of its loops' choices: the inputs of a search that changes this level alone.
        """
        seconds = self(choice).seconds
        work = self._work[0]
        return self._levels[0], work, seconds - float(work.prices[4] + work.prices[6])

    def loop_costs(self, choice: Choice, number: int) -> dict[int, LoopCost]:
        """Cost of the loop whose body the level `number` is, for each of its numbers of steps of a stretch."""
        loop, trips = self.gradient.loop(number), self.gradient.levels[number].trips
        assert loop is not None
        costs: dict[int, LoopCost] = {}
        for is_unrolled in (False, True):
            stretches = [stretch for stretch in loop.stretches if loop.is_unrolled(stretch) == is_unrolled]
            if stretches:  # a step is the same in all of them
                cut = choice[number]._replace(stretch=stretches[0])
                self((*choice[:number], cut, *choice[number + 1 :]))
                step = self._step(number, is_unrolled)
                costs |= {stretch: loop_cost(loop, trips, stretch, step) for stretch in stretches}
        return costs

    def _step(self, number: int, is_unrolled: bool) -> LoopCost:
        """Cost of one step of a loop by the choice that was priced last; unrolled steps count shared values once."""
        kept, _, forward, backward, *_, twice = self._work[number].prices.tolist()
        return LoopCost(kept - twice * is_unrolled, forward, backward)

    def stored(self, level: int) -> np.ndarray:
        """`[n]`: fate of each value of a level by the choice that was priced last: COMPUTED, KEPT or MOVED."""
        return self._work[level].stored.copy()

    def sent(self, level: int) -> np.ndarray:
        """`[n]`: for each value that a level moves, the value that waits for its copy, by the choice priced last."""
        return self._work[level].sent.copy()

    def recomputed_values(self, level: int) -> np.ndarray:
        """`[n]` bool: whether the choice that was priced last computes each value of a level again."""
        work = self._work[level]
        recomputed = (work.mark >= 0) & (work.last_run[self.gradient.levels[level].op] >= 0)
        return (recomputed | work.rerun) & (work.stored == RECOMPUTED)

    def timeline(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of the function over its forward and its backward pass, by the choice that was priced last."""
        work, level = self._work[0], self._levels[0]
        steps = int(work.prices[5])
        forward = np.cumsum(work.forward)[: len(level.bytes)] + level.workspace * level.needed
        backward = np.cumsum(work.backward[:steps]) + work.extra[:steps]
        return level.resident + forward, level.resident + backward


def default_choice(gradient: Gradient) -> Choice:
    """The choice that leaves everything to jax."""
    return tuple(
        Cut(np.zeros(len(level.bytes), np.int64), np.zeros(len(level.first) - 1, np.int64), np.zeros(1, bool))
        for level in gradient.levels
    )


def is_default(choice: Choice) -> bool:
    """True if a choice leaves everything to jax."""
    return not any(cut.recomputed.any() or cut.stretch > 1 for cut in choice)


class State:
    """A choice as arrays that moves write.

    Attributes:
      keep: for each level, `[n]` int64.
      starts: for each level, `[p]` int64: INSIDE where no segment starts, else AGAIN or PLAIN, by whether the segment
        is computed again; never INSIDE at 0.
      stretches: for each level, the steps of a stretch.
    """

    def __init__(self, keep: list[np.ndarray], starts: list[np.ndarray], stretches: Sequence[int] = ()) -> None:
        self.keep, self.starts, self.stretches = keep, starts, list(stretches) or [1] * len(keep)
        self._cuts = [self._cut(level) for level in range(len(keep))]

    @classmethod
    def plain(cls, gradient: Gradient) -> "State":
        """The state that leaves everything to jax, cut around places that are `separate`."""
        keep = [np.zeros(len(level.bytes), np.int64) for level in gradient.levels]
        return cls(keep, [plain_starts(level) for level in gradient.levels])

    @classmethod
    def of(cls, choice: Choice) -> "State":
        """The state of a choice, with its own arrays."""
        begins = [np.diff(cut.segment, prepend=-1) > 0 for cut in choice]
        kinds = [np.where(cut.recomputed[cut.segment], RECOMPUTE, PLAIN) for cut in choice]
        starts = [np.where(first, kind, INSIDE) for first, kind in zip(begins, kinds, strict=True)]
        return cls([cut.keep.copy() for cut in choice], starts, [cut.stretch for cut in choice])

    def changed(self, level: int) -> None:
        """Updates the choice; call it when a level's starts or stretches have changed."""
        self._cuts[level] = self._cut(level)

    def choice(self) -> Choice:
        """The current choice; it shares the arrays of the state and changes with them."""
        return tuple(self._cuts)

    def copy(self) -> "State":
        """A copy with its own arrays."""
        return State([array.copy() for array in self.keep], [array.copy() for array in self.starts], self.stretches)

    def _cut(self, level: int) -> Cut:
        starts = self.starts[level]
        begins = starts != INSIDE
        return Cut(self.keep[level], np.cumsum(begins) - 1, starts[begins] == RECOMPUTE, self.stretches[level])


def plain_starts(level: Level) -> np.ndarray:
    """`[p]` int64: the starts of a level that is left to jax, cut around places that are `separate`."""
    return np.where(level.separate | np.concatenate([[True], level.separate[:-1]]), PLAIN, INSIDE)


def loop_cost(loop: Loop, trips: int, stretch: int, step: LoopCost) -> LoopCost:
    """Cost of a loop.

    A stretch that is not the whole loop needs each step's slices of the arrays that the loop reads and writes, and sums
    gradients separately. If the last stretch is shorter, all steps' slices are cut and joined. Unrolled steps work on
    values, those of a loop on copies of them.

    Args:
      loop: the loop to price.
      trips: the number of its steps.
      stretch: steps of a stretch; 1 without stretches.
      step: cost of one of its steps.
    """
    if stretch == 1:
        return step._replace(kept=trips * step.kept)
    others = stretch - loop.is_unrolled(stretch)  # an unrolled step's peak includes its kept bytes, a loop's does not
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
    """Candidate numbers of steps of a stretch: about the square root of all, doubled and halved repeatedly, up to all.

    They are divisors, unless the nearest divisor is far, since a shorter last stretch costs copies.
    """
    root = trips**0.5
    small = [k for k in range(1, math.isqrt(trips) + 1) if trips % k == 0]
    divisors = [*small, *(trips // k for k in small)]
    lengths = {1, max(trips, 1)}
    for power in range(-(trips.bit_length() // 2), trips.bit_length() // 2 + 1):
        wanted = root * 2.0**power
        if 1 < wanted < trips:
            nearest = min(divisors, key=lambda k: abs(math.log(k / wanted)))
            lengths.add(nearest if abs(math.log(nearest / wanted)) < math.log(NEAR) else round(wanted))
    return tuple(sorted(lengths))
