"""The beam as a jitted program: steps from all sets of t ops to the best sets of t + 1 (letters in tables.py).

A step must find the k best of all candidates, equal sets counted once, and may not look at each candidate often: there
are k times the ready ops. So it works in rounds. A round takes the candidates that come next in the order of the keys,
at most `_ROUND` * k of them (the threshold comes from a sample and need not be precise), joins them with those that are
known, collapses equal sets and keeps the k best. The last round is the one after which k different sets are known (what
comes later is not better) or no candidates are left. Usually it is the first.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.solvers.orders.approximate_dp import thresholds
from graphrl.solvers.orders.approximate_dp.collapse import least_of_equals
from graphrl.solvers.orders.approximate_dp.keys import LAST, Keys, Rule, Step, at_most, keys_of
from graphrl.solvers.orders.approximate_dp.states import Choice, States, alone, expand, initial, ready
from graphrl.solvers.orders.approximate_dp.tables import Tables
from graphrl.solvers.orders.approximate_dp.thresholds import Threshold

_ROUND = 2
_AIM = 0.8  # part of that room to aim at: the threshold is an estimate


class Beam(NamedTuple):
    """A search under way."""

    states: States
    parents: jax.Array  # [n, k] int32, the state of step t that each state of step t + 1 comes from
    ops: jax.Array  # [n, k] int32, and the op that ran
    step: jax.Array  # [] int32
    least_cut: jax.Array  # [] int32, units: every order that was cut off has at least this peak; LAST if none was
    candidates: jax.Array  # [] float32, looked at in all


class _Candidates(NamedTuple):
    """The best candidates so far of a step, k or more."""

    keys: Keys  # [m]
    hashes: jax.Array  # [2, m] uint32
    state: jax.Array  # [m] int32
    op: jax.Array  # [m] int32
    real: jax.Array  # [m] bool


class _Rounds(NamedTuple):
    best: _Candidates  # k
    upto: Threshold  # candidates before it were taken
    taken: jax.Array  # [] float32, about how many that is
    stride: jax.Array  # [] float32, how many more to take
    least_cut: jax.Array


@functools.partial(jax.jit, static_argnames=("width",))
def begin(tables: Tables, width: int) -> Beam:
    """The beam before its first step."""
    n = tables.allocated.shape[0]
    history = jnp.zeros((n, width), jnp.int32)
    states = initial(tables, width)
    return Beam(states, history, jnp.zeros_like(history), jnp.int32(0), jnp.int32(LAST), jnp.float32(0))


@functools.partial(jax.jit, static_argnames=("rule",), donate_argnames=("beam",))
def advance(beam: Beam, tables: Tables, cap: jax.Array, seed: jax.Array, steps: int, *, rule: Rule) -> Beam:
    """`steps` steps, fewer if the last op has run or no state is left.

    Args:
      cap: [] int32, units: states of a larger peak are dropped.
      seed: [] uint32, of the ties.
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
    """The ops of the best state in the order they ran, `[n]` int32 (`beam.step` of them real), and its peak, units.

    The best has the least peak and, of equal ones, the least live memory.
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
    step = Step(tables, beam.states, ready(beam.states), alone(beam.states), cap, salt ^ (salt >> 15))
    total = jnp.sum(lax.population_count(step.ready), dtype=jnp.uint32).astype(jnp.float32)
    choice, least_cut = _choose(step, total, rule)
    return Beam(
        states=expand(tables, beam.states, step.alone, choice, beam.step),
        parents=lax.dynamic_update_index_in_dim(beam.parents, choice.parent, beam.step, 0),
        ops=lax.dynamic_update_index_in_dim(beam.ops, choice.op, beam.step, 0),
        step=beam.step + 1,
        least_cut=jnp.minimum(beam.least_cut, least_cut),
        candidates=beam.candidates + total,
    )


def _choose(step: Step, total: jax.Array, rule: Rule) -> tuple[Choice, jax.Array]:
    """The k best candidates of different sets, and a bound of the peaks of all others (LAST if there are none)."""
    width = len(step.states.live)
    sample, in_sample = thresholds.sample(step, rule)
    nothing = jnp.zeros(width, jnp.int32)
    keys = Keys(nothing + LAST, nothing.astype(jnp.uint32), nothing)
    best = _Candidates(keys, jnp.zeros((2, width), jnp.uint32), nothing, nothing, nothing > 0)
    stride = jnp.float32(_AIM * _ROUND * width)
    rounds = _Rounds(best, thresholds.start(), jnp.float32(0), stride, jnp.int32(LAST))

    def unfinished(rounds: _Rounds) -> jax.Array:
        return (jnp.sum(rounds.best.real, dtype=jnp.int32) < width) & (rounds.upto.first < LAST - 1)

    def more(rounds: _Rounds) -> _Rounds:
        goal = rounds.taken + rounds.stride
        goal_in_sample = jnp.where(goal >= total, 2.0**31 - 128, jnp.ceil(goal / total * in_sample.astype(jnp.float32)))
        until = thresholds.threshold_after(sample, goal_in_sample.astype(jnp.int32))
        return _round(step, rounds, until, goal, rule)

    rounds = lax.while_loop(unfinished, more, rounds)
    best = rounds.best
    rest = jnp.where(rounds.upto.first < LAST - 1, _peak_after(rounds.upto, rule), LAST)
    count = jnp.sum(best.real, dtype=jnp.int32)
    return Choice(best.state, best.op, best.keys.peak, count), jnp.minimum(rounds.least_cut, rest)


def _round(step: Step, rounds: _Rounds, until: Threshold, goal: jax.Array, rule: Rule) -> _Rounds:
    """One round, which takes the candidates up to `until`; or, if they are too many, only aims lower."""
    width = len(step.states.live)
    room = _ROUND * width
    sets = thresholds.between(step, rounds.upto, until, rule)
    state, op, count = thresholds.members(sets, room)
    # a stride this small cannot become smaller: what has no place is cut
    fits = (count <= room) | (rounds.stride < room / 64)
    keys = keys_of(step, state, op, fits & (jnp.arange(room) < count), rule)
    hashes = step.states.hashes[:, state] ^ step.tables.hashes[:, op]
    new = _Candidates(keys, hashes, state, op, keys.first < LAST)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=-1), rounds.best, new)
    best, cut = _best(both, width, rule)
    cut = jnp.minimum(cut, jnp.where(fits & (count > room), 0, LAST))
    return _Rounds(
        best=best,
        upto=jax.tree.map(lambda a, b: jnp.where(fits, a, b), until, rounds.upto),
        taken=jnp.where(fits, goal, rounds.taken),
        stride=jnp.where(fits, rounds.stride, rounds.stride / 2),
        least_cut=jnp.minimum(rounds.least_cut, cut),
    )


def _best(candidates: _Candidates, width: int, rule: Rule) -> tuple[_Candidates, jax.Array]:
    """The best `width` of different sets, and a bound of the peaks of the other sets (LAST if there are none)."""
    different = least_of_equals(candidates.hashes, candidates.keys.peak, candidates.real)
    keys = candidates.keys._replace(first=jnp.where(different, candidates.keys.first, LAST))
    threshold = thresholds.threshold_after(keys, jnp.int32(width))
    kept = different & at_most(keys, *threshold)
    index = thresholds.first_true(kept, width)
    index = jnp.where(jnp.arange(width) < jnp.sum(kept, dtype=jnp.int32), index, index[0])
    best = jax.tree.map(lambda values: values.at[..., index].get(mode="promise_in_bounds"), candidates)
    real = jnp.arange(width) < jnp.sum(kept, dtype=jnp.int32)
    best = best._replace(real=real, keys=best.keys._replace(first=jnp.where(real, best.keys.first, LAST)))
    lost = jnp.sum(different, dtype=jnp.int32) > width
    return best, jnp.where(lost, _peak_after(threshold, rule), LAST)


def _peak_after(threshold: Threshold, rule: Rule) -> jax.Array:
    """A bound of the peaks of the candidates after a threshold: keys tell only with the rank "peak"."""
    return threshold.first if rule.rank == "peak" else jnp.int32(0)
