"""Layers that are alike, and moves of annealing from one to another."""

import copy

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.solvers.budgets.anneal import _Search
from graphrl.solvers.budgets.choice import Pricing
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.level import Gradient
from graphrl.solvers.budgets.repeats import repeated
from graphrl.solvers.budgets.starts import starts
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.settings import Settings

LAYERS = 12


def network(weights: jax.Array, x: jax.Array) -> jax.Array:
    x = jnp.sin(x)
    for k in range(LAYERS):
        x = x + jnp.tanh(x @ weights[k]) @ weights[k].T
    return x.sum()


def gradient() -> Gradient:
    closed = jax.make_jaxpr(network)(jnp.ones((LAYERS, 8, 8)), jnp.ones((16, 8)))
    return gradient_of(program_of(closed), [True, False], Settings(budget=0.5).figures).gradient


def test_layers_are_found() -> None:
    level = gradient().levels[0]
    kinds = repeated(level)
    assert max(len(kind.begins) for kind in kinds) >= LAYERS // 2
    for kind in kinds:
        assert (np.diff(kind.begins) >= kind.length).all()
        for number in range(1, len(kind.begins)):
            one, other = kind.values(level, 0), kind.values(level, number)
            np.testing.assert_array_equal(level.bytes[one], level.bytes[other])
            np.testing.assert_array_equal(level.solid[one], level.solid[other])


def test_all_moves_can_be_taken_back_and_what_is_begun_apart_stays_so() -> None:
    own = gradient()
    search = _Search(Pricing(own), Goal(slowdown=0.2, moves=True), np.random.default_rng(0))
    for state in list(starts(own))[:6]:
        for _ in range(200):
            before = copy.deepcopy((state.keep, state.starts, state.stretches))
            energy = search.energy(state)
            undo = search.move(state)
            assert state.starts[0][0] != 0
            undo()
            for one, other in zip(before[0] + before[1], state.keep + state.starts, strict=True):
                np.testing.assert_array_equal(one, other)
            assert state.stretches == before[2]
            assert search.energy(state) == energy
            search.move(state)


def test_what_one_layer_does_another_may_do() -> None:
    own = gradient()
    search, state = _Search(Pricing(own), Goal(slowdown=0.2), np.random.default_rng(0)), next(iter(starts(own)))
    kind = max(repeated(own.levels[0]), key=lambda kind: len(kind.begins))
    source = kind.values(own.levels[0], 0)
    state.keep[0][source] = 1
    search._repeated = [kind]
    for _ in range(50):
        search._repeat(state)
    layers = [tuple(state.keep[0][kind.values(own.levels[0], k)]) for k in range(len(kind.begins))]
    assert len(set(layers)) == 1  # in the end one of the layers is everywhere
