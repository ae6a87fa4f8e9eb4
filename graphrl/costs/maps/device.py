"""What the compiler makes of maps and what that costs, in pure JAX: many maps of one problem at once, maps minor.

`jax.vmap` over a leading axis takes batches of problems. The compiler is a scan over rows (`padding.py`) that keeps two
numbers for each memory and map, the room that it has now and that at the fullest step so far, and adds up what each
later step frees: nothing that grows with a live range (see `graphrl.costs.maps`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import add, take
from graphrl.costs.maps.chip import MAX_MEMORIES
from graphrl.costs.maps.padding import READS, PaddedMapProblem

_BITS = (
    MAX_MEMORIES - 1
).bit_length()  # of a memory's number: two make one, as each array that a scan writes costs time


class DeviceMapCosts(NamedTuple):
    """Valid maps, and what they cost."""

    weights: jax.Array  # [N, p] int32, the memory of each step's weights, as the compiler gives it
    outputs: jax.Array  # [N, p] int32, of its outputs
    latency: jax.Array  # [p] float32, seconds
    valid: jax.Array  # [p] bool, whether the compiler left everything where it was asked to
    error: jax.Array  # [p] float32, moved bytes over all bytes


def evaluate(problem: PaddedMapProblem, weights: jax.Array, outputs: jax.Array) -> DeviceMapCosts:
    """What the compiler makes of maps, and its costs.

    Args:
      problem: one problem.
      weights, outputs: `[N, p]` int32, the memories that are asked for, 0 to M - 1; anything in it for padding.
    """
    real = (jnp.arange(weights.shape[0], dtype=jnp.int32) < problem.num_steps)[:, None]
    weights, outputs = jnp.where(real, weights, 0), jnp.where(real, outputs, 0)
    given_weights, given_outputs = (jnp.where(real, given, 0) for given in place(problem, weights, outputs))
    moved_weights, moved_outputs = given_weights != weights, given_outputs != outputs
    shares = jnp.where(moved_weights, problem.weight_share[:, None], 0.0)
    shares += jnp.where(moved_outputs, problem.output_share[:, None], 0.0)
    return DeviceMapCosts(
        weights=given_weights,
        outputs=given_outputs,
        latency=latency(problem, given_weights, given_outputs),
        valid=~(moved_weights | moved_outputs).any(0),
        error=_total(shares),
    )


def reward(problem: PaddedMapProblem, costs: DeviceMapCosts, *, squared: bool = True) -> jax.Array:
    """As `MapCosts.reward`: `[p]` float32."""
    speedup = jnp.where(costs.latency > 0, problem.compiler_latency / costs.latency, 1.0)
    return jnp.where(costs.valid, speedup**2 if squared else speedup, -costs.error)


def place(problem: PaddedMapProblem, weights: jax.Array, outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The compiler: the memories `[N, p]` int32 that weights and outputs get."""
    n, p = weights.shape
    small = problem.memories - 1
    level = jnp.arange(1, small + 1, dtype=jnp.int32)[:, None]  # memories whose room counts

    def highest(asked: jax.Array, pages: jax.Array, room: jax.Array) -> jax.Array:
        """The fastest memory, from the asked one on down, that has room for so many pages."""
        return jnp.where((level <= asked[None]) & (pages <= room), level, 0).max(0, initial=0)

    def step(carry: tuple, row: tuple) -> tuple[tuple, jax.Array]:
        least_room, room, freed, chosen = carry  # pages at the fullest step so far, and now
        first, now, frees, weight, all_pages, pages, asked_weights, asked_outputs = row
        in_weights = highest(asked_weights, weight, least_room)
        taken = jnp.where(level == in_weights[None], weight, 0)
        room = room + take(freed, now) - taken
        chosen = jnp.where(first, highest(asked_outputs, all_pages, room), chosen)
        own = jnp.where(level == chosen[None], pages, 0)
        room = room - own
        # not `add`: a scatter takes the host three kernels more
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
    """The latency of valid maps: `[p]` float32, seconds."""
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
    """Sums over the first axis, by pairs: the error grows with the logarithm of the count, and zeros at the end, which
    padding has, change no bit.
    """
    n = values.shape[0]
    # written into zeros: padded by another op, XLA:CPU would compute the values inside the sum, one by one
    values = jnp.zeros((1 << (n - 1).bit_length(), *values.shape[1:]), values.dtype).at[:n].set(values)
    while values.shape[0] > 1:
        values = values[0::2] + values[1::2]
    return values[0]
