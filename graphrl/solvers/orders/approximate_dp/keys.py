"""What candidates are ranked by: a primary and a secondary key, the smaller first (letters in tables.py).

A candidate is a state and an op that is ready in it. Rank "peak" sorts by the peak so far (Topoformer, appendix C.3),
rank "live" by live memory after the op. Ties go at random (rule "random"), by a hash of the set of ops, so that equal
sets have equal keys wherever they come from; or (rule "live", with rank "peak") to less live memory, in 2^20 steps,
then at random.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import take
from graphrl.solvers.orders.approximate_dp.model import LIVE_BITS
from graphrl.solvers.orders.approximate_dp.states import States, rows_of_alone, sum_of_alone
from graphrl.solvers.orders.approximate_dp.tables import WORD, Tables

LAST = 2**31 - 1  # primary key of no candidate
LAST_TIE = 2**32 - 1
_TIE_BITS = WORD - LIVE_BITS  # of the secondary key that stay random with the rule "live"


class Rule(NamedTuple):
    """How candidates are ranked; static."""

    rank: str  # "peak" or "live"
    tie: str  # "random" or "live"

    @property
    def needs_live(self) -> bool:
        return "live" in (self.rank, self.tie)


class Keys(NamedTuple):
    """Keys of candidates, of any common shape."""

    first: jax.Array  # int32, LAST where there is no candidate
    second: jax.Array  # uint32
    peak: jax.Array  # int32, units


class Step(NamedTuple):
    """What all candidates of a step share."""

    tables: Tables
    states: States
    ready: jax.Array  # [w, k] uint32
    alone: jax.Array  # [x, k] uint32
    cap: jax.Array  # [] int32, candidates of a larger peak are none
    salt: jax.Array  # [] uint32, of the ties of this step


def at_most(keys: Keys, first: jax.Array, second: jax.Array) -> jax.Array:
    """Which keys are at or before (first, second)."""
    return (keys.first < first) | ((keys.first == first) & (keys.second <= second))


def keys_of_word(step: Step, word: jax.Array, rule: Rule) -> Keys:
    """Keys of the 32 ops of a word in all states: `[32, k]`."""
    tables, states = step.tables, step.states

    def part(table: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(table, word * WORD, WORD, axis=-1)

    def sums(buffer: jax.Array, size: jax.Array, count: jax.Array) -> jax.Array:
        return rows_of_alone(step.alone, part(buffer), part(size), jnp.max(part(count)))

    bits = take(step.ready, word)[None] >> jnp.arange(WORD, dtype=jnp.uint32)[:, None]
    of_ops = tuple(part(column)[:, None] for column in (tables.allocated, tables.held, tables.hashes[0]))
    of_states = states.live[None], states.peak[None], states.hashes[:1]
    return _keys(step, rule, (bits & jnp.uint32(1)) > 0, of_states, of_ops, sums)


def keys_of(step: Step, state: jax.Array, op: jax.Array, real: jax.Array, rule: Rule) -> Keys:
    """Keys of listed candidates: `[m]` of `[m]` int32 indices; `real` says which are candidates."""
    tables, states = step.tables, step.states

    def sums(buffer: jax.Array, size: jax.Array, count: jax.Array) -> jax.Array:
        return sum_of_alone(step.alone, state, op, buffer, size, count)

    of_ops = tuple(take(column, op) for column in (tables.allocated, tables.held, tables.hashes[0]))
    of_states = tuple(take(values, state) for values in (states.live, states.peak, states.hashes[0]))
    return _keys(step, rule, real, of_states, of_ops, sums)


def _keys(
    step: Step,
    rule: Rule,
    real: jax.Array,
    of_states: tuple[jax.Array, ...],
    of_ops: tuple[jax.Array, ...],
    sums: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
) -> Keys:
    tables, (live, so_far, of_set), (allocated, held, of_op) = step.tables, of_states, of_ops
    compared = live + allocated
    if len(tables.taken_buffer):
        compared = compared - sums(tables.taken_buffer, tables.taken_bytes, tables.taken_count)
    peak = jnp.maximum(so_far, compared)
    first = peak
    second = _mixed(of_set ^ of_op, step.salt)
    if rule.needs_live:
        after = live + held - sums(tables.freed_buffer, tables.freed_bytes, tables.freed_count)
        if rule.rank == "live":
            first = after
        else:
            coarse = after.astype(jnp.uint32) >> tables.live_shift
            second = (coarse << _TIE_BITS) | (second >> (WORD - _TIE_BITS))
    return Keys(jnp.where(real & (peak <= step.cap), first, LAST), second, peak)


def _mixed(value: jax.Array, salt: jax.Array) -> jax.Array:
    """A hash of a hash; salts of different steps give independent ones."""
    value = (value ^ salt) * jnp.uint32(0x9E3779B1)
    return (value ^ (value >> 16)) * jnp.uint32(0x85EBCA6B)
