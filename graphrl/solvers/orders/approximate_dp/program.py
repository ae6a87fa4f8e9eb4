"""The beam as a jitted program: steps from all sets of t ops to the best sets of t + 1 (letters in `model.py`).

A step must find the k best of all candidates, with equal sets counted once. There are k times the ready ops, too many
to process each candidate often. The step works in rounds. A round takes the next candidates in the order of the keys,
at most `_ROUND` * k of them, joins them with those of earlier rounds, collapses equal sets and keeps the k best. The
threshold of a round is found by counting keys of a sample and need not be precise. The rounds end once k different sets
are found (later candidates are not better) or no candidates are left. Usually one round is enough.

Candidates of equal sets collapse into the one of least peak (state collapsing, Topoformer, appendix C.3). Sets are
compared by 64 bits of random hashes (Zobrist): two of a million different sets are taken for equal with a probability
of about 3e-8 a step.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import put, put_max, take
from graphrl.solvers.orders.approximate_dp.model import (
    LAST,
    LAST_TIE,
    WORD,
    Choice,
    Keys,
    Rule,
    States,
    Step,
    Tables,
    at_most,
    expand,
    initial,
    keys_of,
    keys_of_word,
    last_uses,
    ready,
)

_SLOTS = 4  # minimum number of slots of the hash table per candidate
_SAMPLE = 2**13  # number of candidates to find a threshold from: it may be wrong by some percent
_ROUND = 2  # maximum number of candidates in a round, in multiples of k
_AIM = 0.8  # part of that number to aim at: the threshold is an estimate


class Beam(NamedTuple):
    """State of a running search of width k."""

    states: States
    parents: jax.Array  # [n, k] int32, the state of step t that each state of step t + 1 comes from
    ops: jax.Array  # [n, k] int32, and the op that ran
    step: jax.Array  # [] int32, number of steps so far
    least_cut: jax.Array  # [] int32, units: every order that was cut off has at least this peak; LAST if none was
    candidates: jax.Array  # [] float32, number of candidates in all steps


@functools.partial(jax.jit, static_argnames=("width",))
def begin(tables: Tables, width: int) -> Beam:
    """Returns the beam before its first step."""
    n = tables.allocated.shape[0]
    history = jnp.zeros((n, width), jnp.int32)
    states = initial(tables, width)
    return Beam(states, history, jnp.zeros_like(history), jnp.int32(0), jnp.int32(LAST), jnp.float32(0))


@functools.partial(jax.jit, static_argnames=("rule",), donate_argnames=("beam",))
def advance(beam: Beam, tables: Tables, cap: jax.Array, seed: jax.Array, steps: int, *, rule: Rule) -> Beam:
    """Makes `steps` steps, fewer if the last op has run or no state is left.

    Args:
      cap: [] int32, units: states of a larger peak are dropped.
      seed: [] uint32, for random ties.
    """

    def more(state: tuple[Beam, jax.Array]) -> jax.Array:
        beam, left = state
        return (left > 0) & (beam.step < tables.num_ops) & (beam.states.size > 0)

    def step(state: tuple[Beam, jax.Array]) -> tuple[Beam, jax.Array]:
        beam, left = state
        return _step(beam, tables, cap, seed, rule), left - 1

    return lax.while_loop(more, step, (beam, jnp.asarray(steps, jnp.int32)))[0]


@jax.jit
def best_order(beam: Beam) -> tuple[jax.Array, jax.Array]:
    """Returns the best state's ops in the order they ran, `[n]` int32 (`beam.step` of them real), and its peak in
    units.

    The best state has the least peak and, of equal ones, the least live memory.
    """
    states = beam.states
    real = jnp.arange(len(states.peak)) < states.size
    peak = jnp.min(jnp.where(real, states.peak, LAST))
    best = jnp.argmin(jnp.where(real & (states.peak == peak), states.live, LAST)).astype(jnp.int32)

    def back(t: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        order, state = carry
        at = beam.step - 1 - t
        return order.at[at].set(beam.ops[at, state]), beam.parents[at, state]

    order = jnp.zeros(len(beam.ops), jnp.int32)
    return lax.fori_loop(0, beam.step, back, (order, best))[0], peak


def _step(beam: Beam, tables: Tables, cap: jax.Array, seed: jax.Array, rule: Rule) -> Beam:
    salt = (seed + beam.step.astype(jnp.uint32)) * jnp.uint32(0xC2B2AE35)
    step = Step(tables, beam.states, ready(beam.states), last_uses(beam.states), cap, salt ^ (salt >> 15))
    total = jnp.sum(lax.population_count(step.ready), dtype=jnp.uint32).astype(jnp.float32)
    choice, least_cut = _choose(step, total, rule)
    return Beam(
        states=expand(tables, beam.states, step.last_uses, choice, beam.step),
        parents=lax.dynamic_update_index_in_dim(beam.parents, choice.parent, beam.step, 0),
        ops=lax.dynamic_update_index_in_dim(beam.ops, choice.op, beam.step, 0),
        step=beam.step + 1,
        least_cut=jnp.minimum(beam.least_cut, least_cut),
        candidates=beam.candidates + total,
    )


def _choose(step: Step, total: jax.Array, rule: Rule) -> tuple[Choice, jax.Array]:
    """Returns the k best candidates of different sets, and a bound of the peaks of all others (LAST without others)."""
    width = len(step.states.live)
    sampled, in_sample = sample(step, rule)
    nothing = jnp.zeros(width, jnp.int32)
    keys = Keys(nothing + LAST, nothing.astype(jnp.uint32), nothing)
    best = _Candidates(keys, jnp.zeros((2, width), jnp.uint32), nothing, nothing, nothing > 0)
    stride = jnp.float32(_AIM * _ROUND * width)
    rounds = _Rounds(best, start(), jnp.float32(0), stride, jnp.int32(LAST))

    def unfinished(rounds: _Rounds) -> jax.Array:
        return (jnp.sum(rounds.best.real, dtype=jnp.int32) < width) & (rounds.threshold.first < LAST - 1)

    def more(rounds: _Rounds) -> _Rounds:
        target = rounds.taken + rounds.stride
        share = target / total
        sample_target = jnp.where(target >= total, 2.0**31 - 128, jnp.ceil(share * in_sample.astype(jnp.float32)))
        until = threshold_after(sampled, sample_target.astype(jnp.int32))
        return _round(step, rounds, until, target, rule)

    rounds = lax.while_loop(unfinished, more, rounds)
    best = rounds.best
    rest = jnp.where(rounds.threshold.first < LAST - 1, _peak_after(rounds.threshold, rule), LAST)
    count = jnp.sum(best.real, dtype=jnp.int32)
    return Choice(best.state, best.op, best.keys.peak, count), jnp.minimum(rounds.least_cut, rest)


def sample(step: Step, rule: Rule) -> tuple[Keys, jax.Array]:
    """Computes the keys of the candidates of some states, spread evenly: `[l]`; and their number, whatever the cap.

    The sample has all candidates if they fit in it.
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


class _Candidates(NamedTuple):
    """The best candidates of a step so far, k or more."""

    keys: Keys  # [m]
    hashes: jax.Array  # [2, m] uint32
    state: jax.Array  # [m] int32
    op: jax.Array  # [m] int32
    real: jax.Array  # [m] bool


class Threshold(NamedTuple):
    """A position in the sorted sequence of all candidates: after all keys of at most (first, second)."""

    first: jax.Array  # [] int32
    second: jax.Array  # [] uint32


class _Rounds(NamedTuple):
    best: _Candidates  # k
    threshold: Threshold  # candidates before it have been taken
    taken: jax.Array  # [] float32, approximate number of these
    stride: jax.Array  # [] float32, number of candidates to take next
    least_cut: jax.Array


def start() -> Threshold:
    """Returns the threshold before all candidates: no key is negative."""
    return Threshold(jnp.int32(-1), jnp.uint32(LAST_TIE))


def threshold_after(keys: Keys, target: jax.Array) -> Threshold:
    """Returns the earliest threshold with at least `target` of the keys before it; `end()` if there are fewer keys."""
    real = keys.first < LAST
    low = jnp.min(keys.first)
    high = jnp.where(jnp.sum(real, dtype=jnp.int32) >= target, jnp.max(jnp.where(real, keys.first, -1)), low)
    first = _bisect(lambda value: jnp.sum(keys.first <= value, dtype=jnp.int32) >= target, low, high)
    before = jnp.sum(keys.first < first, dtype=jnp.int32)
    tied = keys.first == first
    second = _bisect(
        lambda value: before + jnp.sum(tied & (keys.second <= value), dtype=jnp.int32) >= target,
        jnp.min(jnp.where(tied, keys.second, jnp.uint32(LAST_TIE))),
        jnp.max(jnp.where(tied, keys.second, jnp.uint32(0))),
    )
    enough = jnp.sum(real, dtype=jnp.int32) >= target
    return jax.tree.map(lambda reached, last: jnp.where(enough, reached, last), Threshold(first, second), end())


def _round(step: Step, rounds: _Rounds, until: Threshold, target: jax.Array, rule: Rule) -> _Rounds:
    """Runs one round: takes the candidates up to `until`; if they are too many, it only reduces the stride."""
    width = len(step.states.live)
    room = _ROUND * width
    sets = between(step, rounds.threshold, until, rule)
    state, op, count = members(sets, room)
    # such a small stride cannot shrink further: candidates without a place are cut
    fits = (count <= room) | (rounds.stride < room / 64)
    keys = keys_of(step, state, op, fits & (jnp.arange(room) < count), rule)
    hashes = step.states.hashes[:, state] ^ step.tables.hashes[:, op]
    new = _Candidates(keys, hashes, state, op, keys.first < LAST)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-1), rounds.best, new)
    best, cut = _best(both, width, rule)
    cut = jnp.minimum(cut, jnp.where(fits & (count > room), 0, LAST))
    return _Rounds(
        best=best,
        threshold=jax.tree.map(lambda a, b: jnp.where(fits, a, b), until, rounds.threshold),
        taken=jnp.where(fits, target, rounds.taken),
        stride=jnp.where(fits, rounds.stride, rounds.stride / 2),
        least_cut=jnp.minimum(rounds.least_cut, cut),
    )


def _peak_after(threshold: Threshold, rule: Rule) -> jax.Array:
    """Returns a bound of the peaks of the candidates after a threshold; 0 unless the rank, and so the key, is peak."""
    return threshold.first if rule.rank == "peak" else jnp.int32(0)


def members(sets: jax.Array, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the first `size` members of sets `[w, k]`, state by state.

    Returns:
      state, op: `[size]` int32.
      count: [] int32, the number of members in all; later entries are not real.
    """
    words, width = sets.shape
    here = lax.population_count(sets).astype(jnp.int32)
    _, counts = lax.scan(lambda total, row: (total + row, total + row), jnp.zeros(width, jnp.int32), here)
    ends = jnp.cumsum(counts[-1])
    index = jnp.arange(size, dtype=jnp.int32)
    state = jnp.minimum(jnp.searchsorted(ends, index, side="right", method="scan").astype(jnp.int32), width - 1)
    rank = index - (take(ends, state) - take(counts[-1], state))
    word = jnp.zeros_like(index)
    for half in _halves(words):
        middle = jnp.minimum(word + half, words) - 1
        passed = (word + half < words) & (take(counts.reshape(-1), middle * width + state) <= rank)
        word = jnp.where(passed, word + half, word)
    flat = word * width + state
    rank = rank - (take(counts.reshape(-1), flat) - take(here.reshape(-1), flat))
    op = word * WORD + _place_of_bit(take(sets.reshape(-1), flat), rank)
    return state, op, ends[-1]


def _bisect(holds: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array) -> jax.Array:
    """Returns the least value from low to high for which the monotone `holds` is true; high if none is below it."""

    def narrow(bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = holds(middle)
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    return lax.while_loop(lambda bounds: bounds[0] < bounds[1], narrow, (low, high))[1]


def end() -> Threshold:
    """Returns the threshold after all candidates."""
    return Threshold(jnp.int32(LAST - 1), jnp.uint32(LAST_TIE))


def between(step: Step, after: Threshold, until: Threshold, rule: Rule) -> jax.Array:
    """Returns the candidates after one threshold and not after another: sets `[w, k]` uint32."""
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


def _best(candidates: _Candidates, width: int, rule: Rule) -> tuple[_Candidates, jax.Array]:
    """Returns the best `width` of different sets, and a bound of the peaks of the other sets (LAST without others)."""
    different = least_of_equals(candidates.hashes, candidates.keys.peak, candidates.real)
    keys = candidates.keys._replace(first=jnp.where(different, candidates.keys.first, LAST))
    threshold = threshold_after(keys, jnp.int32(width))
    kept = different & at_most(keys, *threshold)
    index = first_true(kept, width)
    index = jnp.where(jnp.arange(width) < jnp.sum(kept, dtype=jnp.int32), index, index[0])
    best = jax.tree.map(lambda values: values.at[..., index].get(mode="promise_in_bounds"), candidates)
    real = jnp.arange(width) < jnp.sum(kept, dtype=jnp.int32)
    best = best._replace(real=real, keys=best.keys._replace(first=jnp.where(real, best.keys.first, LAST)))
    are_cut = jnp.sum(different, dtype=jnp.int32) > width
    return best, jnp.where(are_cut, _peak_after(threshold, rule), LAST)


def _halves(count: int) -> list[int]:
    """Returns the powers of two below `count`, the largest first: the steps of a binary search."""
    return [1 << i for i in reversed(range((count - 1).bit_length()))]


def _place_of_bit(word: jax.Array, rank: jax.Array) -> jax.Array:
    """Returns the index of the set bit of a word that has `rank` other set bits below it."""
    place = jnp.zeros_like(rank)
    for width in (16, 8, 4, 2, 1):
        low = lax.population_count(word & jnp.uint32((1 << width) - 1)).astype(jnp.int32)
        above = rank >= low
        rank = jnp.where(above, rank - low, rank)
        word = jnp.where(above, word >> jnp.uint32(width), word)
        place = jnp.where(above, place + width, place)
    return place


def least_of_equals(hashes: jax.Array, peak: jax.Array, real: jax.Array) -> jax.Array:
    """Returns a mask of the real candidates with the least peak of their set, one for each set (the first): `[m]` bool.

    Args:
      hashes: `[2, m]` uint32, of the sets.
      peak: `[m]` int32.
      real: `[m]` bool.
    """
    first = _first_of_equals(hashes, real)
    m = len(real)
    index = jnp.arange(m, dtype=jnp.int32)
    least = _least(first, peak, m, real)
    real = real & (peak == take(least, first))
    return real & (take(_least(first, index, m, real), first) == index)


def first_true(mask: jax.Array, size: int) -> jax.Array:
    """Returns the indices of the first `size` true elements: `[size]` int32, 0 where there are fewer."""
    place = jnp.cumsum(mask.astype(jnp.int32)) - 1
    index = jnp.arange(len(mask), dtype=jnp.int32)
    return put(jnp.zeros(size + 1, jnp.int32), jnp.where(mask, jnp.minimum(place, size), size), index)[:size]


def _first_of_equals(hashes: jax.Array, real: jax.Array) -> jax.Array:
    """Returns the index of the candidate that represents all candidates of the same set, `[m]` int32.

    A round puts all candidates without a representative into a hash table, where the first of each slot stays. It
    represents the others of its set. Candidates of other sets try again with another hash.
    """
    m = len(real)
    bits = (_SLOTS * m - 1).bit_length()
    index = jnp.arange(m, dtype=jnp.int32)

    def search(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        first, searching, round_ = state
        mixed = (hashes[1] + round_ * hashes[0]) * jnp.uint32(0x9E3779B1)
        slot = jnp.where(searching, (mixed >> jnp.uint32(32 - bits)).astype(jnp.int32), 1 << bits)
        stays = take(_least(slot, index, (1 << bits) + 1, searching), slot)
        stays = jnp.where(searching, stays, 0)
        equal = searching & (take(hashes[0], stays) == hashes[0]) & (take(hashes[1], stays) == hashes[1])
        return jnp.where(equal, stays, first), searching & ~equal, round_ + jnp.uint32(1)

    return lax.while_loop(lambda state: jnp.any(state[1]), search, (index, real, jnp.uint32(0)))[0]


def _least(group: jax.Array, value: jax.Array, groups: int, real: jax.Array) -> jax.Array:
    """Returns the least value of the real members of each group: `[groups]` int32, undefined for empty groups."""
    return -put_max(jnp.full(groups, -(2**31 - 1), jnp.int32), group, jnp.where(real, -value, -(2**31 - 1)))
