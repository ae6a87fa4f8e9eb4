"""Which candidates come first: thresholds of keys, by counting, and members of sets of bits (letters: tables.py)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import put, take
from graphrl.solvers.orders.approximate_dp.keys import LAST, LAST_TIE, Keys, Rule, Step, at_most, keys_of, keys_of_word
from graphrl.solvers.orders.approximate_dp.tables import WORD

_SAMPLE = 2**13  # candidates to find a threshold from: it may be wrong by some percent


class Threshold(NamedTuple):
    """A place in the sorted sequence of all candidates: after all keys of at most (first, second)."""

    first: jax.Array  # [] int32
    second: jax.Array  # [] uint32


def start() -> Threshold:
    """The place before all candidates: no key is negative."""
    return Threshold(jnp.int32(-1), jnp.uint32(LAST_TIE))


def end() -> Threshold:
    """The place after all candidates."""
    return Threshold(jnp.int32(LAST - 1), jnp.uint32(LAST_TIE))


def threshold_after(keys: Keys, goal: jax.Array) -> Threshold:
    """The earliest threshold with at least `goal` of the keys before it; `end()` if there are not that many."""
    real = keys.first < LAST
    low = jnp.min(keys.first)
    high = jnp.where(jnp.sum(real, dtype=jnp.int32) >= goal, jnp.max(jnp.where(real, keys.first, -1)), low)
    first = _bisect(lambda value: jnp.sum(keys.first <= value, dtype=jnp.int32) >= goal, low, high)
    before = jnp.sum(keys.first < first, dtype=jnp.int32)
    tied = keys.first == first
    second = _bisect(
        lambda value: before + jnp.sum(tied & (keys.second <= value), dtype=jnp.int32) >= goal,
        jnp.min(jnp.where(tied, keys.second, jnp.uint32(LAST_TIE))),
        jnp.max(jnp.where(tied, keys.second, jnp.uint32(0))),
    )
    enough = jnp.sum(real, dtype=jnp.int32) >= goal
    return jax.tree.map(lambda reached, last: jnp.where(enough, reached, last), Threshold(first, second), end())


def _bisect(holds: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array) -> jax.Array:
    """The least value from low to high for which `holds`, which is monotone; high if none before it does."""

    def narrow(bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = holds(middle)
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    return lax.while_loop(lambda bounds: bounds[0] < bounds[1], narrow, (low, high))[1]


def sample(step: Step, rule: Rule) -> tuple[Keys, jax.Array]:
    """Keys of the candidates of some states, spread evenly: `[l]`; and how many there are, whatever the cap.

    All candidates, if that many fit.
    """
    width = step.ready.shape[1]
    room = min(_SAMPLE, 8 * width)
    states = step.states.size.astype(jnp.float32)
    total = jnp.sum(lax.population_count(step.ready), dtype=jnp.uint32).astype(jnp.float32)
    size = jnp.clip(states * room / total, 1, states)
    index = jnp.arange(min(width, room), dtype=jnp.int32)
    chosen = jnp.minimum((index.astype(jnp.float32) * (states / size)).astype(jnp.int32), width - 1)
    sets = jnp.where((index.astype(jnp.float32) < size)[None], step.ready[:, chosen], jnp.uint32(0))
    state, op, count = members(sets, room)
    count = jnp.minimum(count, room)
    return keys_of(step, take(chosen, state), op, jnp.arange(room) < count, rule), count


def between(step: Step, after: Threshold, until: Threshold, rule: Rule) -> jax.Array:
    """The candidates after one threshold and not after another: sets `[w, k]` uint32."""
    shifts = jnp.arange(WORD, dtype=jnp.uint32)[:, None]

    def of_word(word: jax.Array, sets: jax.Array) -> jax.Array:
        keys = keys_of_word(step, word, rule)
        inside = at_most(keys, *until) & ~at_most(keys, *after)
        bits = jnp.where(inside, jnp.uint32(1) << shifts, jnp.uint32(0))
        return lax.dynamic_update_index_in_dim(sets, jnp.sum(bits, 0, dtype=jnp.uint32), word, 0)

    used = jnp.any(step.ready > 0, axis=1)
    place = jnp.cumsum(used.astype(jnp.int32))
    order = jnp.searchsorted(place, jnp.arange(1, len(used) + 1, dtype=jnp.int32)).astype(jnp.int32)
    return lax.fori_loop(0, place[-1], lambda i, sets: of_word(order[i], sets), jnp.zeros_like(step.ready))


def members(sets: jax.Array, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first `size` members of sets `[w, k]`, state by state.

    Returns:
      state, op: `[size]` int32.
      count: [] int32, how many there are in all; what is beyond is not real.
    """
    words, width = sets.shape
    here = lax.population_count(sets).astype(jnp.int32)
    _, upto = lax.scan(lambda total, row: (total + row, total + row), jnp.zeros(width, jnp.int32), here)
    ends = jnp.cumsum(upto[-1])
    index = jnp.arange(size, dtype=jnp.int32)
    state = jnp.minimum(jnp.searchsorted(ends, index, side="right", method="scan").astype(jnp.int32), width - 1)
    rank = index - (take(ends, state) - take(upto[-1], state))
    word = jnp.zeros_like(index)
    for half in _halves(words):
        middle = jnp.minimum(word + half, words) - 1
        passed = (word + half < words) & (take(upto.reshape(-1), middle * width + state) <= rank)
        word = jnp.where(passed, word + half, word)
    flat = word * width + state
    rank = rank - (take(upto.reshape(-1), flat) - take(here.reshape(-1), flat))
    op = word * WORD + _place_of_bit(take(sets.reshape(-1), flat), rank)
    return state, op, ends[-1]


def first_true(mask: jax.Array, size: int) -> jax.Array:
    """Indices of the first `size` true elements: `[size]` int32, 0 for what is beyond."""
    place = jnp.cumsum(mask.astype(jnp.int32)) - 1
    index = jnp.arange(len(mask), dtype=jnp.int32)
    return put(jnp.zeros(size + 1, jnp.int32), jnp.where(mask, jnp.minimum(place, size), size), index)[:size]


def _halves(count: int) -> list[int]:
    """Powers of two below `count`, the largest first: the steps of a binary search."""
    return [1 << i for i in reversed(range((count - 1).bit_length()))]


def _place_of_bit(word: jax.Array, rank: jax.Array) -> jax.Array:
    """The place of the bit of a word that has `rank` others below it."""
    place = jnp.zeros_like(rank)
    for width in (16, 8, 4, 2, 1):
        low = lax.population_count(word & jnp.uint32((1 << width) - 1)).astype(jnp.int32)
        above = rank >= low
        rank = jnp.where(above, rank - low, rank)
        word = jnp.where(above, word >> jnp.uint32(width), word)
        place = jnp.where(above, place + width, place)
    return place
