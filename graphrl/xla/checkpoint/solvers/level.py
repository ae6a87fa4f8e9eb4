"""The decision problem as arrays, and its repeated parts.

- `Level`: a function, or one step of a loop's body. Its values are those of the forward pass, including the factors of
  derivatives; its kernels are the ops of the backward pass that write to memory. A value that is not `materialized` is
  not stored in memory unless it is kept: its readers compute it on the fly from materialized ones. `Gradient` has all
  levels of a function.
- `alike_values`, `alike_places`: networks repeat their layers, and a choice that is good for one layer is good for all.
  So values and places are grouped by colour refinement (Weisfeiler and Leman 1968) on the graph of reads. Two values
  are alike if their neighbourhoods agree to a distance of `ROUNDS` reads.
- `repeated`: stretches of a level that are alike, such as layers. Moves of alike values change all layers together,
  moves of one value change a single layer. Neither turns a choice that treats all layers alike into one that treats
  some of them as another choice does. Copying a choice from one stretch to the next does.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

ARGUMENT = -1  # the place of a loop's carried values: its backward pass has them only if they are kept
RECOMPUTED, KEPT, MOVED = 0, 1, 2  # fate of a value between the passes
ROUNDS = 4  # of colour refinement
READ, READER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x3C6EF372FE94F82B)  # distinguish reads from readers
KINDS = 32  # of stretches, at most


class Level(NamedTuple):
    """A level of n values, b backward kernels and p places (equations of the function); m reads of values by values, r
    by kernels. Values and kernels are in the order in which they run.

    Attributes:
      bytes: bytes of each value.
      place: the equation that each value comes from, or ARGUMENT; nondecreasing, except that arguments come first.
      materialized: whether each value is stored in memory where it is computed.
      free: whether each value follows from arguments without any kernel, so that each reader may compute it again.
      needed: whether results need each value.
      named: whether each value can be kept by name.
      heavy: whether a separate kernel computes each value: a product, a convolution, a loop, a sort.
      seconds: seconds to compute each value from materialized ones, counted once for the values of one op.
      keep_seconds: seconds to keep each value, in addition to computing it. They write a value that is not stored
        otherwise, or is written only because the backward pass reads it. In a loop they also copy between kernels and
        the loop's own array.
      write_seconds: `keep_seconds` outside of loops.
      op: the op that computes each value.
      following: for each value that a loop carries and its backward pass needs, the value that takes its place in the
        next step; -1 for all others.
      workspace: bytes that each value's op needs in addition to its operands and results.
      last_read: the last value of the forward pass whose kernel reads each value.
      reads_from, reads: values that each value reads, value v's in `reads[reads_from[v] : reads_from[v + 1]]`.
      kernel_place: the equation that each kernel is the derivative of; nonincreasing.
      kernel_bytes: at each kernel, bytes that the backward pass has computed and still needs, and its workspace.
      kernel_seconds: seconds of each kernel.
      kernel_from, kernel_reads: values that each kernel reads, in rows as `reads_from` and `reads`.
      kernel_copies: for each read in `kernel_reads`, bytes of the copy that the kernel needs of the value, in another
        order of dimensions. No copy is needed if the kernel's own segment computes the value again: then it is written
        in that order.
      cotangent_place, cotangent_seconds: for each gradient that is written to memory only where it is passed on to a
        segment that is computed again: the equation that it comes from, and the seconds to write it there.
      cotangent_from, cotangent_to, cotangent_home: for each of these gradients, the row of its readers, in
        `cotangent_from`; for each reader, its equation, earlier than the gradient's, and the equation that computed the
        value whose gradient it is. The gradient is passed on where both are in one segment.
      first: for each place and the end, the first value from there on.
      free_values: the free values, in order.
      separate: whether each place is a separate segment, where jax keeps what it keeps without a plan: equations with
        effects, and loops of a function, whose bodies are levels themselves.
      resident: bytes that are in memory all the time.
      link: bytes per second to the memory of the host, each way.
      trips: steps of the loop whose body the level is; 0 for a function.
      forward_seconds, backward_seconds: seconds of one run of each pass, without recomputation and without the seconds
        of keeping values.
    """

    bytes: np.ndarray  # [n] float64
    place: np.ndarray  # [n] int64
    materialized: np.ndarray  # [n] bool
    free: np.ndarray  # [n] bool
    needed: np.ndarray  # [n] bool
    named: np.ndarray  # [n] bool
    heavy: np.ndarray  # [n] bool
    seconds: np.ndarray  # [n] float64
    keep_seconds: np.ndarray  # [n] float64
    write_seconds: np.ndarray  # [n] float64
    op: np.ndarray  # [n] int64
    following: np.ndarray  # [n] int64
    workspace: np.ndarray  # [n] float64
    last_read: np.ndarray  # [n] int64
    reads_from: np.ndarray  # [n + 1] int64
    reads: np.ndarray  # [m] int64
    kernel_place: np.ndarray  # [b] int64
    kernel_bytes: np.ndarray  # [b] float64
    kernel_seconds: np.ndarray  # [b] float64
    kernel_from: np.ndarray  # [b + 1] int64
    kernel_reads: np.ndarray  # [r] int64
    kernel_copies: np.ndarray  # [r] float64
    cotangent_place: np.ndarray  # [h] int64
    cotangent_seconds: np.ndarray  # [h] float64
    cotangent_from: np.ndarray  # [h + 1] int64
    cotangent_to: np.ndarray  # [t] int64
    cotangent_home: np.ndarray  # [t] int64
    first: np.ndarray  # [p + 1] int64
    free_values: np.ndarray  # [f] int64
    separate: np.ndarray  # [p] bool
    resident: float
    link: float
    trips: int
    forward_seconds: float
    backward_seconds: float


class Loop(NamedTuple):
    """Position of a loop in the level around it, and the cost of running its steps in stretches: see `choice`.

    Attributes:
      place: place of its equation.
      outputs: values that its forward op computes; the first one's entry has the op's workspace.
      kept: values that represent what it keeps for its backward loop; the first one's entry has the bytes of all.
      kernel: kernel of its backward loop.
      taken_bytes, given_bytes, pulled_bytes: bytes of a step's slices of arrays: those that it reads, those that it
        writes, and those that its backward step reads and writes in addition to kept values.
      sum_bytes: bytes of the gradients that are summed over the steps.
      begin_bytes: bytes that a stretch needs from the one before.
      stretches: the possible numbers of steps of a stretch, ascending from 1.
      unrolled: the most steps of a stretch that is unrolled instead of run as a loop.
    """

    place: int
    outputs: tuple[int, ...]
    kept: tuple[int, ...]
    kernel: int
    taken_bytes: float
    given_bytes: float
    pulled_bytes: float
    sum_bytes: float
    begin_bytes: float = 0.0
    stretches: tuple[int, ...] = (1,)
    unrolled: int = 1

    def is_unrolled(self, stretch: int) -> bool:
        """True if the steps of a stretch are unrolled."""
        return 1 < stretch <= self.unrolled


class Gradient(NamedTuple):
    """A function's gradient.

    Attributes:
      levels: the function's first, then bodies of loops, each after the level around it.
      loops: for each level, the loops in it, by the numbers of their bodies' levels.
      argument_bytes, result_bytes: bytes of the function's arguments, and of its results and gradients.
    """

    levels: tuple[Level, ...]
    loops: tuple[Mapping[int, Loop], ...]
    argument_bytes: int
    result_bytes: int

    def loop(self, number: int) -> Loop | None:
        """The loop whose body the level `number` is; None for the function."""
        return next((loops[number] for loops in self.loops if number in loops), None)

    def is_unrolled(self, number: int, stretch: int) -> bool:
        """True if the loop whose body the level `number` is has unrolled steps in stretches of this length."""
        loop = self.loop(number)
        return loop is not None and loop.is_unrolled(stretch)

    def stretchable(self) -> dict[int, Loop]:
        """Loops that may run in stretches, by the numbers of their bodies' levels."""
        loops = {number: self.loop(number) for number in range(len(self.levels))}
        return {number: loop for number, loop in loops.items() if loop is not None and len(loop.stretches) > 1}

    def trips(self, number: int) -> int:
        """Number of times that one run of the function executes a level, at least 1."""
        around = [outer for outer, loops in enumerate(self.loops) if number in loops]
        return max(1, self.levels[number].trips) * (self.trips(around[0]) if around else 1)


def alike_values(level: Level) -> list[np.ndarray]:
    """Groups of named values that are alike, each sorted. Each value that can be kept is in one, except free values and
    arguments.
    """
    colours = _colours(level)
    groups = defaultdict(list)
    for value in np.flatnonzero(level.named & ~level.free & (level.place != ARGUMENT)).tolist():
        groups[colours[value]].append(value)
    return [np.array(group) for group in groups.values()]


def alike_places(level: Level) -> list[np.ndarray]:
    """Groups of alike places at which a level might be cut, each sorted; ordered by the bytes across, fewest first."""
    colours, across = _colours(level), crossing(level)
    groups = defaultdict(list)
    for place in range(1, len(level.first) - 1):
        last, value = level.first[place] - 1, level.first[place]
        if last >= 0 and value < level.first[place + 1] and level.place[last] == place - 1:
            groups[colours[last], colours[value], across[place]].append(place)
    ranked = sorted(groups.items(), key=lambda group: (group[0][2], -len(group[1]), group[1]))
    return [np.array(group) for _, group in ranked]


def crossing(level: Level) -> np.ndarray:
    """`[p + 1]` float64: at each place, bytes of the earlier values that it or a later place reads, without free
    values and arguments.
    """
    places = len(level.first) - 1
    last = level.place.copy()
    readers = np.repeat(level.place, np.diff(level.reads_from))
    np.maximum.at(last, level.reads, readers)
    changes = np.zeros(places + 2)
    counted = (~level.free) & (level.place != ARGUMENT)
    np.add.at(changes, level.place[counted] + 1, level.bytes[counted])
    np.add.at(changes, last[counted] + 1, -level.bytes[counted])
    return np.cumsum(changes)[: places + 1]


def _colours(level: Level) -> list[int]:
    """A number for each value, equal for values that are alike."""
    readers = np.repeat(np.arange(len(level.bytes)), np.diff(level.reads_from))
    colours = np.zeros(len(level.bytes), np.uint64)
    for trait in (level.bytes, level.materialized, level.free, level.seconds, level.named):
        colours = _mixed(colours + trait.astype(np.float64).view(np.uint64))
    for _ in range(ROUNDS):
        mixed = _mixed(colours)
        # sums, since neither reads nor readers have an order
        np.add.at(mixed, readers, _mixed(colours + READ)[level.reads])
        np.add.at(mixed, level.reads, _mixed(colours + READER)[readers])
        colours = mixed
    return colours.tolist()


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """`[n]` uint64, each a hash of one of `[n]` uint64, such that sums of hashes hardly ever collide (the finalizer of
    SplitMix64, Steele et al. 2014).
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class Repeated(NamedTuple):
    """Stretches of a level that are alike, place by place.

    Attributes:
      begins: the first place of each stretch.
      length: length of each, in places.
    """

    begins: np.ndarray
    length: int


def repeated(level: Level) -> list[Repeated]:
    """Stretches between alike places, the narrowest first."""
    groups = []
    for places in alike_places(level):
        groups += [kind for kind in _between(level, places) if len(kind.begins) > 1]
        if len(groups) >= KINDS:
            break
    return groups[:KINDS]


def _between(level: Level, places: np.ndarray) -> Iterator[Repeated]:
    """Alike stretches that start at some of the places, all as long as the most frequent distance between them."""
    if len(places) < 2:
        return
    lengths, counts = np.unique(np.diff(places), return_counts=True)
    length = int(lengths[counts.argmax()])
    alike: dict[bytes, list[int]] = {}
    for begin in places[places + length < len(level.first)].tolist():
        first = level.first[begin : begin + length + 1]
        values = slice(first[0], first[-1])
        traits = np.diff(first), level.separate[begin : begin + length], level.bytes[values], level.materialized[values]
        key = b"".join(trait.tobytes() for trait in traits)
        alike.setdefault(key, []).append(begin)
    for begins in alike.values():
        yield Repeated(np.array(begins), length)
