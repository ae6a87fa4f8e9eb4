"""States of a beam, candidates, and the keys by which candidates are ranked (letters in `model.py`).

A state is a set of ops that have run, stored as counters of what the remaining ops wait for. A candidate is a state and
an op that is ready in it. Its rank is a primary and a secondary key, the smaller first.

Rank "peak" sorts by the peak so far (Topoformer, appendix C.3), rank "live" by live memory after the op. Rule "random"
breaks ties at random, by a hash of the set of ops, so that equal sets have equal keys whatever state they come from.
Rule "live", with rank "peak", prefers less live memory, in 2^20 steps, and then breaks ties at random.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import take
from graphrl.solvers.orders.approximate_dp.model import LIVE_BITS, WORD, Tables


class States(NamedTuple):
    """The k states of a beam; those beyond the first `size` are copies, which go no further."""

    waits: jax.Array  # [w, p, k] uint32, planes: predecessors that have not run; 1 in plane 0 for an op that has
    users: jax.Array  # [x, q, k] uint32, planes: users of each buffer that have not run
    live: jax.Array  # [k] int32, units after the last op
    peak: jax.Array  # [k] int32, units, the least of all orders of the set that were kept
    hashes: jax.Array  # [2, k] uint32, of the set
    size: jax.Array  # [] int32


class Choice(NamedTuple):
    """States to go to: op `op[i]` runs in state `parent[i]`. Those beyond the first `size` repeat the first."""

    parent: jax.Array  # [k] int32
    op: jax.Array  # [k] int32
    peak: jax.Array  # [k] int32
    size: jax.Array  # [] int32, how many of them are real


def initial(tables: Tables, width: int) -> States:
    """The beam that has only the empty set."""

    def spread(planes: jax.Array) -> jax.Array:
        return jnp.broadcast_to(planes[..., None], (*planes.shape, width))

    zero = jnp.zeros(width, jnp.int32)
    waits, users = spread(tables.waits), spread(tables.users)
    return States(waits, users, zero, zero, jnp.zeros((2, width), jnp.uint32), jnp.int32(1))


def ready(states: States) -> jax.Array:
    """The ops that can run next: sets `[w, k]` uint32."""
    real = jnp.arange(len(states.live)) < states.size
    return jnp.where(real[None], ~_or(states.waits), jnp.uint32(0))


def alone(states: States) -> jax.Array:
    """The buffers with exactly one user left, which frees them: sets `[x, k]` uint32."""
    return states.users[:, 0] & ~_or(states.users[:, 1:])


def sum_of_alone(
    alone: jax.Array, state: jax.Array, op: jax.Array, buffer: jax.Array, size: jax.Array, count: jax.Array
) -> jax.Array:
    """Of each candidate, the bytes of its op's listed buffers that have one user left: `[m]` int32.

    Args:
      alone: `[x, k]` uint32.
      state, op: `[m]` int32, the candidates.
      buffer, size, count: `[r, n]`, `[r, n]` and `[n]` int32, the lists of all ops, and their lengths.
    """

    def add(slot: jax.Array, total: jax.Array) -> jax.Array:
        index = take(take(buffer, slot), op)
        bits = take(alone.reshape(-1), (index // WORD) * alone.shape[1] + state)
        return total + _bit(bits, index) * take(take(size, slot), op)

    return lax.fori_loop(0, jnp.max(take(count, op)), add, jnp.zeros_like(state))


def rows_of_alone(alone: jax.Array, buffer: jax.Array, size: jax.Array, slots: jax.Array) -> jax.Array:
    """As `sum_of_alone`, for m ops in all of k states: `[m, k]` int32, of lists `[r, m]`."""

    def add(slot: jax.Array, total: jax.Array) -> jax.Array:
        index = buffer[slot]
        return total + _bit(take(alone, index // WORD), index[:, None]) * size[slot][:, None]

    return lax.fori_loop(0, slots, add, jnp.zeros((buffer.shape[1], alone.shape[1]), jnp.int32))


def expand(tables: Tables, states: States, alone: jax.Array, choice: Choice, step: jax.Array) -> States:
    """The chosen states, in the order of the choice; `step` ops have run in those before.

    What is beyond the size of the choice must be chosen like the rest: rows that `_less_one` leaves out stay where they
    are, and must be the same in all states.
    """
    parent, op = choice.parent, choice.op
    lists = tables.freed_buffer, tables.freed_bytes, tables.freed_count
    waits = _less_one(states.waits, parent, tables.successors, op, take(tables.op_words, step))
    # what runs here waited for nothing: its counter is 0, and becomes 1 for good
    waits = waits.at[op // WORD, 0, jnp.arange(len(op))].add(jnp.uint32(1) << (op % WORD).astype(jnp.uint32))
    return States(
        waits=waits,
        users=_less_one(states.users, parent, tables.reads, op, take(tables.buffer_words, step)),
        live=take(states.live, parent) + take(tables.held, op) - sum_of_alone(alone, parent, op, *lists),
        peak=choice.peak,
        hashes=jnp.stack([take(a, parent) ^ take(b, op) for a, b in zip(states.hashes, tables.hashes, strict=True)]),
        size=choice.size,
    )


def _less_one(planes: jax.Array, parent: jax.Array, sets: jax.Array, op: jax.Array, words: jax.Array) -> jax.Array:
    """The counters of the parents, one less for the members of their ops' sets.

    Row by row, in place, and only the rows of some words: all others are the same in all states.

    Args:
      planes: `[w, p, k]` uint32.
      sets: `[w, n]` uint32.
      words: `[w + 1]` int32, how many words, and which.
    """
    count, rows = planes.shape[1], planes.reshape(-1, planes.shape[-1])

    def row(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        rows, borrow = state
        word = take(words, 1 + i // count)
        borrow = jnp.where(i % count == 0, take(take(sets, word), op), borrow)
        old = take(take(rows, word * count + i % count), parent)
        return lax.dynamic_update_index_in_dim(rows, old ^ borrow, word * count + i % count, 0), borrow & ~old

    return lax.fori_loop(0, words[0] * count, row, (rows, jnp.zeros_like(planes[0, 0])))[0].reshape(planes.shape)


def _or(planes: jax.Array) -> jax.Array:
    """Which counters `[w, p, k]` are not 0: `[w, k]`."""
    result = planes[:, 0]
    for plane in range(1, planes.shape[1]):
        result = result | planes[:, plane]
    return result


def _bit(words: jax.Array, index: jax.Array) -> jax.Array:
    return ((words >> (index % WORD).astype(jnp.uint32)) & jnp.uint32(1)).astype(jnp.int32)


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
