"""Memory maps in pure JAX: problems as fixed-size arrays, the compiler of maps, and the costs of its maps.

Functions take many maps of one problem, along the last axis; use `jax.vmap` over a leading axis for several problems.

Letters used in shapes: N steps and R rows, padded; M memories; X groups of K = `READS` reads beyond the first K of each
step; p maps; g problems in a batch.

A **row** is a step with one date at which outputs of it die: a step has one row for each date of its outputs, at least
one, and its rows are consecutive. The compiler is a scan over rows. It keeps two numbers for each memory and map, the
room now and that at the fullest step so far, and adds up the pages that each later step frees. Nothing in it grows with
a live range (see `graphrl.costs.maps`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.indexing import add, filled, take
from graphrl.costs.maps.chip import MAX_MEMORIES
from graphrl.costs.maps.exact import compiler
from graphrl.costs.maps.problem import MapProblem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import bucket

READS = 3  # most steps read from at most this number of source steps
MAX_PAGES = 2**30  # limit of a memory's pages: sums of two stay inside int32
# Bits of a memory's number: two numbers are packed into one, since each array that a scan writes costs time.
_BITS = (MAX_MEMORIES - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class MapSizes:
    """Array sizes of a padded problem: problems of equal sizes and memories share one compiled program."""

    steps: int
    rows: int
    reads: int  # groups of K reads beyond the first K of each step

    @property
    def ops(self) -> int:
        """Number of ops, which equals the number of steps."""
        return self.steps

    def covers(self, other: "MapSizes") -> bool:
        """True if a problem of sizes `other` fits."""
        return self.steps >= other.steps and self.rows >= other.rows and self.reads >= other.reads


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedMapProblem:
    """One problem or, with a leading axis g on every field, a batch of problems, as arrays; NumPy before first use.

    Seconds are float32, pages int32 (those of tensors that fit only in memory 0 are clipped to a number that is still
    too large for the others). Padding steps and rows take no time and no room.
    """

    num_steps: jax.Array  # [] int32, real steps
    compiler_latency: jax.Array  # [] float32, seconds that the compiler's own map takes
    launch: jax.Array  # [N] float32, seconds; 0 for padding
    compute: jax.Array  # [N] float32, seconds
    input_seconds: jax.Array  # [N] float32, to read external inputs from memory 0
    weight_seconds: jax.Array  # [N, M] float32
    output_seconds: jax.Array  # [N, M] float32
    weight_share: jax.Array  # [N] float32, bytes of the step's weights over all bytes
    output_share: jax.Array  # [N] float32, bytes of the step's outputs over all bytes
    source: jax.Array  # [N + X, K] int32, steps whose outputs are read: the first K of each step, then the groups
    source_seconds: jax.Array  # [N + X, K, M] float32; 0 for padding
    more_reader: jax.Array  # [X] int32, the step of each group; 0 for padding
    capacity: jax.Array  # [M] int32, pages; that of memory 0 is meaningless
    step_row: jax.Array  # [N] int32, the first row of each step
    row_step: jax.Array  # [R] int32
    row_first: jax.Array  # [R] bool, True for the first row of a step
    row_freed: jax.Array  # [R] int32, the step whose frees it applies: its own if it is the first, else N + 1 for none
    row_weight: jax.Array  # [R] int32, pages of the step's weights; 0 where it is not the first
    row_outputs: jax.Array  # [R] int32, pages of all outputs of the step
    row_pages: jax.Array  # [R] int32, pages of the outputs that die at its date
    row_frees: jax.Array  # [R] int32, the step before which its pages are free again; N + 1 if it has none

    @property
    def sizes(self) -> MapSizes:
        """The padded sizes, the same for every problem of a batch."""
        return MapSizes(self.launch.shape[-1], self.row_step.shape[-1], self.more_reader.shape[-1])

    @property
    def memories(self) -> int:
        """Number M of memories."""
        return self.capacity.shape[-1]


def common_sizes(problems: Sequence[MapProblem]) -> MapSizes:
    """Returns the bucketed sizes that fit all problems."""
    each = [_sizes(problem) for problem in problems]
    return MapSizes(*(bucket(max(column)) for column in zip(*map(dataclasses.astuple, each), strict=True)))


def pad(problem: MapProblem, to: MapSizes | None = None) -> PaddedMapProblem:
    """Converts a problem to fixed-size arrays.

    Args:
      to: sizes to pad to; by default the problem's own bucket.

    Raises:
      ProblemError: `to` is too small, or a memory has more pages than int32 counts.
    """
    to, own = common_sizes([problem]) if to is None else to, _sizes(problem)
    if not to.covers(own):
        raise ProblemError(f"graph {problem.graph.name!r} has sizes {own}, more than the {to} it is padded to")
    _check_pages(problem)
    total = max(1, problem.total_bytes)
    fields: dict[str, Any] = {
        "num_steps": np.int32(problem.steps),
        "compiler_latency": np.float32(compiler(problem).latency),
        "launch": filled(np.full(problem.steps, problem.chip.launch), to.steps, np.float32),
        "weight_share": filled(problem.weight_bytes / total, to.steps, np.float32),
        "output_share": filled(problem.output_bytes / total, to.steps, np.float32),
        "capacity": np.minimum(problem.capacity, MAX_PAGES).astype(np.int32),
    }
    for name in ("compute", "input_seconds", "weight_seconds", "output_seconds"):
        fields[name] = filled(getattr(problem, name), to.steps, np.float32)
    return PaddedMapProblem(**(fields | _reads(problem, to) | _rows(problem, to)))


def pad_batch(problems: Sequence[MapProblem], to: MapSizes | None = None) -> PaddedMapProblem:
    """Pads problems with equally many memories to common sizes, and stacks them along a new leading axis g."""
    to = common_sizes(problems) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(pad(problem, to) for problem in problems))


def _sizes(problem: MapProblem) -> MapSizes:
    reads = np.bincount(problem.read_step, minlength=problem.steps)
    return MapSizes(problem.steps, len(_dates(problem)[0]), int(np.maximum(-(-reads // READS) - 1, 0).sum()))


def _check_pages(problem: MapProblem) -> None:
    chip = problem.chip
    for memory, pages in zip(chip.memories[1:], problem.capacity[1:].tolist(), strict=True):
        if pages >= MAX_PAGES:
            raise ProblemError(
                f"chip {chip.name!r}: memory {memory.name!r} has {pages} pages of {chip.page} B: below 2^30 can be "
                "counted, make the page larger"
            )


def _dates(problem: MapProblem) -> tuple[np.ndarray, np.ndarray]:
    """Returns the step and the date of every row (its own step for steps without outputs): two `[R]` int64."""
    n = problem.steps
    bare = np.flatnonzero(~problem.has_outputs)
    pairs = np.unique(np.concatenate([problem.writer, bare]) * n + np.concatenate([problem.last, bare]))
    return pairs // n, pairs % n


def _rows(problem: MapProblem, to: MapSizes) -> dict[str, np.ndarray]:
    never, n = to.steps + 1, problem.steps
    step, date = _dates(problem)
    first = np.append(True, step[1:] != step[:-1])
    too_large = int(problem.capacity[1:].max(initial=0)) + 1
    pages, outputs = np.zeros(len(step), np.int64), np.zeros(n, np.int64)
    row = np.searchsorted(step * n + date, problem.writer * n + problem.last)
    np.add.at(pages, row, problem.tensor_pages)
    np.add.at(outputs, problem.writer, problem.tensor_pages)
    return {
        "step_row": filled(np.flatnonzero(first), to.steps, np.int32),
        "row_step": filled(step, to.rows, np.int32),
        "row_first": filled(first, to.rows, np.bool_),
        "row_freed": filled(np.where(first, step, never), to.rows, np.int32, never),
        "row_weight": filled(np.where(first, problem.weight_pages[step], 0).clip(max=too_large), to.rows, np.int32),
        "row_outputs": filled(outputs[step].clip(max=too_large), to.rows, np.int32),
        "row_pages": filled(pages.clip(max=too_large), to.rows, np.int32),
        "row_frees": filled(np.where(problem.has_outputs[step], date + 1, never), to.rows, np.int32, never),
    }


def _reads(problem: MapProblem, to: MapSizes) -> dict[str, np.ndarray]:
    step = problem.read_step
    number = np.arange(len(step)) - np.searchsorted(step, step)  # of a read among its step's
    groups = np.maximum(-(-np.bincount(step, minlength=problem.steps) // READS) - 1, 0)
    first = to.steps + np.cumsum(groups) - groups  # row of a step's first further group
    row = np.where(number < READS, step, first[step] + number // READS - 1)
    source = np.zeros((to.steps + to.reads, READS), np.int32)
    seconds = np.zeros((to.steps + to.reads, READS, problem.memories), np.float32)
    source[row, number % READS] = problem.read_source
    seconds[row, number % READS] = problem.read_seconds
    reader = filled(np.repeat(np.arange(problem.steps), groups), to.reads, np.int32)
    return {"source": source, "source_seconds": seconds, "more_reader": reader}


class DeviceMapCosts(NamedTuple):
    """Valid maps and their costs, for p maps."""

    weights: jax.Array  # [N, p] int32, the memory that the compiler gives each step's weights
    outputs: jax.Array  # [N, p] int32, the memory that it gives each step's outputs
    latency: jax.Array  # [p] float32, seconds
    valid: jax.Array  # [p] bool, True if the compiler moved nothing
    error: jax.Array  # [p] float32, moved bytes over all bytes


def evaluate(problem: PaddedMapProblem, weights: jax.Array, outputs: jax.Array) -> DeviceMapCosts:
    """Compiles maps into valid ones and computes their costs.

    Args:
      problem: one problem.
      weights, outputs: `[N, p]` int32, the requested memories, 0 to M - 1; any such number for padding.
    """
    real = (jnp.arange(weights.shape[0], dtype=jnp.int32) < problem.num_steps)[:, None]
    weights, outputs = jnp.where(real, weights, 0), jnp.where(real, outputs, 0)
    assigned_weights, assigned_outputs = (jnp.where(real, assigned, 0) for assigned in place(problem, weights, outputs))
    moved_weights, moved_outputs = assigned_weights != weights, assigned_outputs != outputs
    shares = jnp.where(moved_weights, problem.weight_share[:, None], 0.0)
    shares += jnp.where(moved_outputs, problem.output_share[:, None], 0.0)
    return DeviceMapCosts(
        weights=assigned_weights,
        outputs=assigned_outputs,
        latency=latency(problem, assigned_weights, assigned_outputs),
        valid=~(moved_weights | moved_outputs).any(0),
        error=_total(shares),
    )


def reward(problem: PaddedMapProblem, costs: DeviceMapCosts, *, squared: bool = True) -> jax.Array:
    """Returns the reward of each map, as `MapCosts.reward` defines it: `[p]` float32."""
    speedup = jnp.where(costs.latency > 0, problem.compiler_latency / costs.latency, 1.0)
    return jnp.where(costs.valid, speedup**2 if squared else speedup, -costs.error)


def place(problem: PaddedMapProblem, weights: jax.Array, outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Runs the compiler: returns the memories `[N, p]` int32 that weights and outputs get."""
    n, p = weights.shape
    small = problem.memories - 1
    level = jnp.arange(1, small + 1, dtype=jnp.int32)[:, None]  # memories whose room counts

    def highest(requested: jax.Array, pages: jax.Array, room: jax.Array) -> jax.Array:
        """Returns the fastest memory, from the requested one down, that has room for the pages."""
        return jnp.where((level <= requested[None]) & (pages <= room), level, 0).max(0, initial=0)

    def step(carry: tuple, row: tuple) -> tuple[tuple, jax.Array]:
        least_room, room, freed, chosen = carry  # free pages at the fullest step so far, and now
        first, now, frees, weight, all_pages, pages, requested_weights, requested_outputs = row
        in_weights = highest(requested_weights, weight, least_room)
        taken = jnp.where(level == in_weights[None], weight, 0)
        room = room + take(freed, now) - taken
        chosen = jnp.where(first, highest(requested_outputs, all_pages, room), chosen)
        own = jnp.where(level == chosen[None], pages, 0)
        room = room - own
        # not `add`: a scatter takes three more kernels on the host
        freed = lax.dynamic_update_index_in_dim(freed, take(freed, frees) + own, frees, 0)
        return (jnp.minimum(least_room - taken, room), room, freed, chosen), (in_weights << _BITS) | chosen

    room = jnp.broadcast_to(problem.capacity[1:, None], (small, p))
    start = room, room, jnp.zeros((n + 2, small, p), jnp.int32), jnp.zeros(p, jnp.int32)
    rows = (
        problem.row_first,
        problem.row_freed,
        problem.row_frees,
        problem.row_weight,
        problem.row_outputs,
        problem.row_pages,
        take(weights, problem.row_step),
        take(outputs, problem.row_step),
    )
    _, pairs = lax.scan(step, start, rows, unroll=2)
    pairs = take(pairs, problem.step_row)
    return pairs >> _BITS, pairs & ((1 << _BITS) - 1)


def latency(problem: PaddedMapProblem, weights: jax.Array, outputs: jax.Array) -> jax.Array:
    """Computes the latency of valid maps: `[p]` float32, seconds."""
    n = len(problem.launch)
    sources = [take(outputs, problem.source[:, k]) for k in range(READS)]
    seconds = problem.compute[:, None]
    for memory in range(problem.memories):
        busy = jnp.where(weights == memory, problem.weight_seconds[:, memory, None], 0.0)
        busy += jnp.where(outputs == memory, problem.output_seconds[:, memory, None], 0.0)
        each = [
            jnp.where(source == memory, problem.source_seconds[:, k, memory, None], 0.0)
            for k, source in enumerate(sources)
        ]
        reads = sum(each[1:], each[0])
        busy += reads[:n]
        if reads.shape[0] > n:
            busy = add(busy, problem.more_reader, reads[n:])
        if memory == 0:
            busy += problem.input_seconds[:, None]
        seconds = jnp.maximum(seconds, busy)
    return _total(seconds + problem.launch[:, None])


def _total(values: jax.Array) -> jax.Array:
    """Sums over the first axis, pairwise.

    The error grows with the logarithm of the count, and zeros at the end, as in padding, change no bit.
    """
    n = values.shape[0]
    # written into zeros: with a pad op XLA:CPU would compute the values inside the sum, one by one
    values = jnp.zeros((1 << (n - 1).bit_length(), *values.shape[1:]), values.dtype).at[:n].set(values)
    while values.shape[0] > 1:
        values = values[0::2] + values[1::2]
    return values[0]
