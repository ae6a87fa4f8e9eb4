"""What the compiler makes of maps and what that costs, in pure JAX: many maps of one problem at once, maps minor.

`jax.vmap` over a leading axis takes batches of problems. The compiler is a scan over rows (`padding.py`) that keeps two
numbers for each memory and map, the weights so far and what is live, and adds up what each later step frees: nothing
that grows with a live range (see `graphrl.costs.maps`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import add, take
from graphrl.costs.maps.padding import READS, PaddedMapProblem


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
    small = problem.memories - 1  # memories whose room counts
    capacity, level = problem.capacity[1:, None], jnp.arange(1, small + 1, dtype=jnp.int32)[:, None]

    def highest(asked: jax.Array, needed: jax.Array) -> jax.Array:
        """The fastest memory, from the asked one on down, that has room."""
        return jnp.where((level <= asked[None]) & (needed <= capacity), level, 0).max(0, initial=0)

    def step(carry: tuple, row: tuple) -> tuple[tuple, tuple[jax.Array, jax.Array]]:
        resident, live, fullest, freed, chosen = carry
        first, now, frees, weight, all_pages, pages, asked_weights, asked_outputs = row
        live = live - take(freed, now)
        in_weights = highest(asked_weights, resident + fullest + weight)
        resident = resident + jnp.where(level == in_weights[None], weight, 0)
        chosen = jnp.where(first, highest(asked_outputs, resident + live + all_pages), chosen)
        own = jnp.where(level == chosen[None], pages, 0)
        live = live + own
        carry = resident, live, jnp.maximum(fullest, live), add(freed, frees, own), chosen
        return carry, (in_weights, chosen)

    none = jnp.zeros((small, p), jnp.int32)
    start = none, none, none, jnp.zeros((n + 2, small, p), jnp.int32), jnp.zeros(p, jnp.int32)
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
    _, (in_weights, in_outputs) = lax.scan(step, start, rows, unroll=4)
    return take(in_weights, problem.step_row), take(in_outputs, problem.step_row)


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
    while values.shape[0] > 1:
        if values.shape[0] % 2:
            values = jnp.concatenate([values, jnp.zeros_like(values[:1])])
        values = values[0::2] + values[1::2]
    return values[0]
