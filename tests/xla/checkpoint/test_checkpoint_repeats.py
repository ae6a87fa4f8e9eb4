"""Layers that are alike, and moves of annealing from one to another."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_gradients import gradients as random_gradients

from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.settings import Settings
from graphrl.xla.checkpoint.solvers.anneal import Search, move, moves
from graphrl.xla.checkpoint.solvers.choice import INSIDE, PLAIN, Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.solvers.level import Gradient, Level, Repeated, repeated
from graphrl.xla.checkpoint.solvers.starts import starts

LAYERS = 12


def network(weights: jax.Array, x: jax.Array) -> jax.Array:
    x = jnp.sin(x)
    for k in range(LAYERS):
        x = x + jnp.tanh(x @ weights[k]) @ weights[k].T
    return x.sum()


def gradient() -> Gradient:
    closed = jax.make_jaxpr(network)(jnp.ones((LAYERS, 8, 8)), jnp.ones((16, 8)))
    return gradient_of(program_of(closed), [True, False], Settings(budget=0.5).figures).gradient


def values(level: Level, kind: Repeated, number: int) -> slice:
    """Of one of some stretches that are alike."""
    begin = kind.begins[number]
    return slice(level.first[begin], level.first[begin + kind.length])


def test_layers_are_found() -> None:
    level = gradient().levels[0]
    kinds = repeated(level)
    assert max(len(kind.begins) for kind in kinds) >= LAYERS // 2
    for kind in kinds:
        assert (np.diff(kind.begins) >= kind.length).all()
        for number in range(1, len(kind.begins)):
            one, other = values(level, kind, 0), values(level, kind, number)
            np.testing.assert_array_equal(level.bytes[one], level.bytes[other])
            np.testing.assert_array_equal(level.solid[one], level.solid[other])


def test_all_moves_can_be_taken_back_and_what_is_begun_apart_stays_so() -> None:
    own = gradient()
    for begun in list(starts(own))[:6]:
        search = Search(Pricing(own), Goal(slowdown=0.2, moves=True), [begun], seed=0)
        search.start(begun)
        state = search.state
        for _ in range(200):
            before = copy.deepcopy((state.keep, state.starts, state.stretches))
            energy = search.energy(state)
            undo = search._move(0)
            check(state, own)
            undo()
            for one, other in zip(before[0] + before[1], state.keep + state.starts, strict=True):
                np.testing.assert_array_equal(one, other)
            assert state.stretches == before[2]
            assert search.energy(state) == energy
            search._move(0)


def check(state: State, own: Gradient) -> None:
    """Cut where it must be, and what is apart left to jax."""
    for begun, level, plain in zip(state.starts, own.levels, State.plain(own).starts, strict=True):
        assert (begun[plain != INSIDE] != INSIDE).all()
        assert (begun[level.apart] == PLAIN).all()


@given(random_gradients(), st.sampled_from([Goal(slowdown=0.2), Goal(peak=5e3), Goal(kept=2e3, moves=True)]))
@settings(max_examples=25)
def test_compiled_steps_come_to_what_python_says_of_them(own: Gradient, goal: Goal) -> None:
    search = Search(Pricing(own), goal, [State.plain(own)], seed=0)
    search.start(search.best)
    for heat in (1e-1, 1e-2, 1e-4):
        for _ in range(4):
            search.round(heat, 64)
            check(search.state, own)
            now, least = search._energy, search._least
            np.testing.assert_allclose([search.energy(search.state), search.rank(search.best)], [now, least], rtol=1e-9)
            assert least <= search.rank(search.state) + 1e-9


def test_what_one_layer_does_another_may_do() -> None:
    own = gradient()
    level = own.levels[0]
    kind = max(repeated(level), key=lambda kind: len(kind.begins))
    state, rng = next(iter(starts(own))), np.array([1], np.uint64)
    state.keep[0][values(level, kind, 0)] = 1
    # no other moves: neither alike values nor places, and nothing that can be switched
    none, rows = np.zeros(0, np.int64), np.zeros(1, np.int64)
    ends, length = np.array([0, len(kind.begins)]), np.array([kind.length])
    own_moves = moves(level)._replace(values_from=rows, values=none, places_from=rows, places=none)
    own_moves = own_moves._replace(begins_from=ends, begins=kind.begins, length=length, apart=np.ones_like(level.apart))
    for _ in range(400):
        move(own_moves, state.keep[0], state.starts[0], rng, False)
    layers = [tuple(state.keep[0][values(level, kind, k)]) for k in range(len(kind.begins))]
    assert len(set(layers)) == 1  # in the end one of the layers is everywhere
