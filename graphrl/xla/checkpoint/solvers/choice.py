"""Choices and their prices: which values of a gradient are kept, recomputed or moved to the host, and at what cost.

A `Choice` has one `Cut` per level (the function, and each loop body): the fate of each value, and the segments into
which the level's equations are split. `Pricing` computes the memory and time of choices, from the innermost loops
outwards. `State` is a choice that a search changes in place.

Loops may run in stretches: of n steps, k at a time are computed again by one more forward pass before they run
backward. Without stretches a loop keeps its carried values at every step. In stretches of k it keeps those of each
k-th step only, and while a stretch runs backward also the values that its k steps keep: about 2 sqrt(n) instead of n
(Chen et al. 2016, section 4.3).
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
INSIDE, PLAIN, RECOMPUTE = 0, 1, 2  # an equation continues a segment, starts a plain one, or starts a recomputed one


class Cut(NamedTuple):
    """Decisions about a level of n values, whose p equations are split into s segments of consecutive equations.

    Attributes:
      keep: `[n]` int64: RECOMPUTED, KEPT or MOVED; no effect on values that are recomputed in any case.
      segment: `[p]` int64: the segment of each equation, from 0 to s - 1; nondecreasing.
      recomputed: `[s]` bool: whether each segment is computed again; in the others jax keeps its default values.
      stretch: for a loop, number of steps that run forward once more together before they run backward; 1 without
        stretches. If they are unrolled (see `Loop`), no segment is computed again.
    """

    keep: np.ndarray
    segment: np.ndarray
    recomputed: np.ndarray
    stretch: int = 1


Choice = tuple[Cut, ...]  # one per level


@dataclasses.dataclass(frozen=True)
class Price:
    """Memory and time of a choice.

    Attributes:
      kept: bytes kept in device memory for the backward pass.
      moved: bytes kept for it in host memory.
      peak: most bytes in use at one time, without arguments, results and gradients.
      seconds: seconds that the choice adds: recomputation, writing kept values and gradients that would not be written
        otherwise, and waiting for copies to and from the host.
    """

    kept: float
    moved: float
    peak: float
    seconds: float


class LoopCost(NamedTuple):
    """Bytes that a loop, or one step of it, adds to the level around it.

    Attributes:
      kept: bytes kept for the backward pass.
      forward, backward: peak bytes of the two passes.
    """

    kept: float
    forward: float
    backward: float


class Pricing:
    """Computes the memory and time of choices for one gradient. Not thread-safe.

    Attributes:
      gradient: the gradient whose choices are priced.
      plain: the price of jax's default.
      step_seconds: seconds of both passes by jax's default, estimated from the function's level until a caller sets a
        better value.
      starts: states from which `auto` starts annealing: those of its first call, and the result of each call.
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
        # levels of unrolled loop bodies, which share those arrays
        self._unrolled = [level._replace(trips=0, keep_seconds=level.write_seconds) for level in self._levels]
        with announced(price, "memory budgets"):
            self.plain = self(default_choice(gradient))
        outer = gradient.levels[0]
        self.step_seconds = outer.forward_seconds + outer.backward_seconds + self.plain.seconds

    def __call__(self, choice: Choice) -> Price:
        """Returns the price of a choice, which is then the choice that was "priced last" for the methods below."""
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
        """Seconds of both passes, without the seconds that any choice adds, jax's default included."""
        return self.step_seconds - self.plain.seconds

    def outer(self, choice: Choice) -> tuple[Level, Work, float]:
        """Prices a choice and returns the inputs of a search that changes the function's level alone: that level with
        the bytes of its loops, its working arrays for `price`, and the seconds that the choices for its loops add.
        """
        seconds = self(choice).seconds
        work = self._work[0]
        return self._levels[0], work, seconds - float(work.prices[4] + work.prices[6])

    def loop_costs(self, choice: Choice, number: int) -> dict[int, LoopCost]:
        """Returns the cost of the loop whose body is level `number`, for each of its allowed stretch lengths."""
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
        """Returns the cost of one loop step by the choice priced last; unrolled steps count shared values once."""
        kept, _, forward, backward, *_, twice = self._work[number].prices.tolist()
        return LoopCost(kept - twice * is_unrolled, forward, backward)

    def stored(self, level: int) -> np.ndarray:
        """Returns `[n]`: RECOMPUTED, KEPT or MOVED for each value of a level, by the choice priced last."""
        return self._work[level].stored.copy()

    def sent(self, level: int) -> np.ndarray:
        """Returns `[n]`: for each value that the choice priced last moves, the later value that waits for its copy."""
        return self._work[level].sent.copy()

    def recomputed_values(self, level: int) -> np.ndarray:
        """Returns `[n]` bool: whether the choice priced last computes each value of a level again."""
        work = self._work[level]
        recomputed = (work.mark >= 0) & (work.last_run[self.gradient.levels[level].op] >= 0)
        return (recomputed | work.rerun) & (work.stored == RECOMPUTED)

    def timeline(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the bytes in use at each step of both passes of the function, by the choice priced last."""
        work, level = self._work[0], self._levels[0]
        steps = int(work.prices[5])
        forward = np.cumsum(work.forward)[: len(level.bytes)] + level.workspace * level.needed
        backward = np.cumsum(work.backward[:steps]) + work.extra[:steps]
        return level.resident + forward, level.resident + backward


def default_choice(gradient: Gradient) -> Choice:
    """Returns the choice that leaves everything to jax."""
    return tuple(
        Cut(np.zeros(len(level.bytes), np.int64), np.zeros(len(level.first) - 1, np.int64), np.zeros(1, bool))
        for level in gradient.levels
    )


def is_default(choice: Choice) -> bool:
    """True if a choice leaves everything to jax."""
    return not any(cut.recomputed.any() or cut.stretch > 1 for cut in choice)


class State:
    """A choice that a search changes in place.

    Attributes:
      keep: for each level, `[n]` int64, as in `Cut`.
      starts: for each level, `[p]` int64: RECOMPUTE or PLAIN at the first equation of a segment that is or is not
        computed again; else INSIDE. Never INSIDE at 0.
      stretches: for each level, the stretch length in steps, as in `Cut`.
    """

    def __init__(self, keep: list[np.ndarray], starts: list[np.ndarray], stretches: Sequence[int] = ()) -> None:
        self.keep, self.starts, self.stretches = keep, starts, list(stretches) or [1] * len(keep)
        self._cuts = [self._cut(level) for level in range(len(keep))]

    @classmethod
    def plain(cls, gradient: Gradient) -> "State":
        """Creates the state that leaves everything to jax; each `separate` place is a segment."""
        keep = [np.zeros(len(level.bytes), np.int64) for level in gradient.levels]
        return cls(keep, [plain_starts(level) for level in gradient.levels])

    @classmethod
    def of(cls, choice: Choice) -> "State":
        """Creates the state of a choice, with its own arrays."""
        begins = [np.diff(cut.segment, prepend=-1) > 0 for cut in choice]
        kinds = [np.where(cut.recomputed[cut.segment], RECOMPUTE, PLAIN) for cut in choice]
        starts = [np.where(first, kind, INSIDE) for first, kind in zip(begins, kinds, strict=True)]
        return cls([cut.keep.copy() for cut in choice], starts, [cut.stretch for cut in choice])

    def changed(self, level: int) -> None:
        """Updates the choice; call it when a level's starts or stretches have changed."""
        self._cuts[level] = self._cut(level)

    def choice(self) -> Choice:
        """Returns the current choice; it shares the arrays of the state and changes with them."""
        return tuple(self._cuts)

    def copy(self) -> "State":
        """Returns a copy with its own arrays."""
        return State([array.copy() for array in self.keep], [array.copy() for array in self.starts], self.stretches)

    def _cut(self, level: int) -> Cut:
        starts = self.starts[level]
        begins = starts != INSIDE
        return Cut(self.keep[level], np.cumsum(begins) - 1, starts[begins] == RECOMPUTE, self.stretches[level])


def plain_starts(level: Level) -> np.ndarray:
    """Returns `[p]` int64: the `State.starts` of a level that is left to jax, cut around `separate` places."""
    return np.where(level.separate | np.concatenate([[True], level.separate[:-1]]), PLAIN, INSIDE)


def loop_cost(loop: Loop, trips: int, stretch: int, step: LoopCost) -> LoopCost:
    """Returns the cost of a loop, given the cost of one of its steps.

    A stretch that is not the whole loop needs each step's slices of the arrays that the loop reads and writes, and sums
    gradients separately. If the last stretch is shorter, the slices of all steps are cut and concatenated. Unrolled
    steps read the kept values themselves, steps of a loop read copies of them.

    Args:
      loop: the loop to price.
      trips: its number of steps.
      stretch: number of steps in a stretch; 1 without stretches.
      step: cost of one step.
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
    """Returns candidate stretch lengths for a loop of `trips` steps: about sqrt(trips), doubled and halved repeatedly.

    They include 1 and `trips`. The others are divisors of `trips` unless the nearest divisor is far, since a shorter
    last stretch costs copies.
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
