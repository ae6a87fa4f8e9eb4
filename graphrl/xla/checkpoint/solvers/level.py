"""The decision problem as arrays, and its repeated parts.

- `Level`: a function without the bodies of its loops, or one step of a loop body. Its values are those of the forward
  pass, including the factors of derivatives; its kernels are the ops of the backward pass that write to memory. A value
  that is not `materialized` is stored in memory only if it is kept: otherwise its readers compute it on the fly.
  `Gradient` has the level of a function and one for each loop body in it. A "place" is the index of an equation.
- `alike_values`, `alike_places`: networks repeat their layers, and a choice that is good for one layer is good for all.
  So values and places are grouped by colour refinement (Weisfeiler and Leman 1968) on the graph of reads. Two values
  are alike if their neighbourhoods agree to a distance of `ROUNDS` reads.
- `repeated`: ranges of places that are alike, such as layers. Search moves of alike values change all layers together,
  moves of one value change a single layer. Neither leads from a choice that treats all layers alike to one that treats
  some of them in another way. Copying the choice for one range to another does.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

ARGUMENT = -1  # the place of the values that a loop carries: its backward pass has them only if they are kept
RECOMPUTED, KEPT, MOVED = 0, 1, 2  # fate of a value between the passes
ROUNDS = 4  # rounds of colour refinement
READ, READER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x3C6EF372FE94F82B)  # distinguish reads from readers
KINDS = 32  # most groups of alike ranges


class Level(NamedTuple):
    """A function or loop body of p equations. Its n values in the forward pass and b kernels in the backward pass are
    numbered from 0 in execution order. Places are indices of equations.

    Attributes:
      bytes: size of each value in bytes.
      place: place of the equation that computes each value, or ARGUMENT; nondecreasing, arguments first.
      materialized: whether each value is stored in memory where it is computed.
      free: whether each value can be computed from arguments without any kernel, so that each reader may compute it.
      needed: whether the results depend on each value.
      named: whether each value can be kept by name, as the policies of `jax.checkpoint` do.
      heavy: whether a separate kernel computes each value: a product, a convolution, a loop, a sort.
      seconds: seconds to compute each value from materialized ones, counted once for all values of one op.
      keep_seconds: seconds to keep each value, in addition to computing it: writing a value that is not stored
        otherwise, or is written only because the backward pass reads it; in a loop, also copying between kernels and
        the array in which the loop keeps it.
      write_seconds: `keep_seconds` if the level were not in a loop.
      op: number of the op that computes each value.
      following: for each value that a loop carries and its backward pass needs, the value that replaces it in the next
        step; -1 for all others.
      workspace: bytes that each value's op needs in addition to its operands and results.
      last_read: the last value of the forward pass whose kernel reads each value.
      reads_from, reads: operands in compressed rows: value v reads `reads[reads_from[v] : reads_from[v + 1]]`.
      kernel_place: place of the equation that each kernel is the derivative of; nonincreasing.
      kernel_bytes: bytes in use at each kernel: results of the backward pass that are still needed, and workspace.
      kernel_seconds: run time of each kernel in seconds.
      kernel_from, kernel_reads: the values that each kernel reads, in compressed rows.
      kernel_copies: for each read in `kernel_reads`, size of the transposed copy of the value that the kernel needs, in
        bytes. No copy is needed if the kernel's own segment computes the value again, in the required layout.
      result_bytes, result_kernel: size of each gradient that is a result of the function, ascending, and the first
        kernel that writes it; none in a loop.
      fitting: values no larger than a result, largest first: while they are kept, they may use its memory.
      cotangent_place, cotangent_seconds: for each gradient that is written to memory only if a recomputed segment needs
        it: place of the equation whose derivative computes it, and the seconds to write it.
      cotangent_from, cotangent_to, cotangent_home: the readers of these gradients, in compressed rows; for each reader,
        the place of its equation, earlier than the gradient's, and the place of the equation that computed the value
        whose gradient it is. The gradient is written if both are in one recomputed segment before its own.
      first: for each place and the end, the first value from there on.
      free_values: the free values, in order.
      separate: whether each place is a separate segment, in which jax keeps its default values: equations with
        effects, and loops of a function, whose bodies are further levels.
      resident: bytes that are in memory all the time.
      link: bandwidth to host memory in bytes per second, each way.
      trips: number of steps of the loop whose body the level is; 0 for a function.
      forward_seconds, backward_seconds: seconds of one run of each pass, without recomputing or keeping any values.
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
    result_bytes: np.ndarray  # [g] float64
    result_kernel: np.ndarray  # [g] int64
    fitting: np.ndarray  # [i] int64
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
    """Position of a loop in the level around it, and data for running it in stretches (blocks of steps, see `choice`).

    Attributes:
      place: index of its equation in that level.
      outputs: values that its forward op computes; the op's workspace is stored at the first one.
      kept: values that represent everything it keeps for its backward loop; all bytes are stored at the first one.
      kernel: number of the kernel that is its backward loop.
      taken_bytes, given_bytes, pulled_bytes: bytes of the array slices that one step reads, that it writes, and that
        its backward step reads and writes in addition to kept values.
      sum_bytes: bytes of the gradients that are summed over the steps.
      begin_bytes: bytes that must be kept to recompute one stretch.
      stretches: allowed stretch lengths in steps, ascending from 1.
      unrolled: longest stretch, in steps, that is unrolled instead of run as a loop.
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
    """The decision problem of a function's gradient: one level for the function and one for each loop body.

    Attributes:
      levels: the function's level first, then those of loop bodies, each after the level around it.
      loops: for each level, the loops in it; keys are indices of their bodies in `levels`.
      argument_bytes, result_bytes: bytes of the function's arguments, and of its results and gradients.
    """

    levels: tuple[Level, ...]
    loops: tuple[Mapping[int, Loop], ...]
    argument_bytes: int
    result_bytes: int

    def loop(self, number: int) -> Loop | None:
        """Returns the loop whose body is `levels[number]`; None for the function."""
        return next((loops[number] for loops in self.loops if number in loops), None)

    def is_unrolled(self, number: int, stretch: int) -> bool:
        """True if the loop whose body is `levels[number]` unrolls stretches of this length (in steps)."""
        loop = self.loop(number)
        return loop is not None and loop.is_unrolled(stretch)

    def stretchable(self) -> dict[int, Loop]:
        """Returns the loops that may run in stretches; keys are indices of their bodies in `levels`."""
        loops = {number: self.loop(number) for number in range(len(self.levels))}
        return {number: loop for number, loop in loops.items() if loop is not None and len(loop.stretches) > 1}

    def trips(self, number: int) -> int:
        """Returns how often one run of the function executes `levels[number]`, at least 1."""
        around = [outer for outer, loops in enumerate(self.loops) if number in loops]
        return max(1, self.levels[number].trips) * (self.trips(around[0]) if around else 1)


def alike_values(level: Level) -> list[np.ndarray]:
    """Groups the values that can be kept by name, except free values and arguments; values of a group are alike, in
    ascending order.
    """
    colours = _colours(level)
    groups = defaultdict(list)
    for value in np.flatnonzero(level.named & ~level.free & (level.place != ARGUMENT)).tolist():
        groups[colours[value]].append(value)
    return [np.array(group) for group in groups.values()]


def alike_places(level: Level) -> list[np.ndarray]:
    """Groups alike places at which a level might be cut into segments, fewest bytes across (`crossing`) first."""
    colours, across = _colours(level), crossing(level)
    groups = defaultdict(list)
    for place in range(1, len(level.first) - 1):
        last, value = level.first[place] - 1, level.first[place]
        if last >= 0 and value < level.first[place + 1] and level.place[last] == place - 1:
            groups[colours[last], colours[value], across[place]].append(place)
    ranked = sorted(groups.items(), key=lambda group: (group[0][2], -len(group[1]), group[1]))
    return [np.array(group) for _, group in ranked]


def crossing(level: Level) -> np.ndarray:
    """Computes `[p + 1]` float64: for a cut before each place, bytes of the earlier values that it or a later place
    reads, without free values and arguments.
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
    """Returns a number for each value, equal for values that are alike."""
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
    """Hashes `[n]` uint64 to `[n]` uint64, elementwise, such that sums of hashes hardly ever collide (the finalizer of
    SplitMix64, Steele et al. 2014).
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class Repeated(NamedTuple):
    """Ranges of a level's equations that are alike, equation by equation, such as layers.

    Attributes:
      begins: the first place of each range.
      length: number of equations in each range.
    """

    begins: np.ndarray
    length: int


def repeated(level: Level) -> list[Repeated]:
    """Finds ranges that are alike, at most `KINDS` groups of them; those with the fewest bytes at their start first."""
    groups = []
    for places in alike_places(level):
        groups += [kind for kind in _between(level, places) if len(kind.begins) > 1]
        if len(groups) >= KINDS:
            break
    return groups[:KINDS]


def _between(level: Level, places: np.ndarray) -> Iterator[Repeated]:
    """Yields alike ranges that start at some of the places, all as long as the most frequent distance between these."""
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
