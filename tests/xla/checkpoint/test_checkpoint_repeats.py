"""Repeated layers: annealing moves that copy choices between them, and regular plans, as of one rule for each layer."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_gradients import gradients as random_gradients

import graphrl
from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.settings import Settings
from graphrl.xla.checkpoint.solvers.anneal import Search
from graphrl.xla.checkpoint.solvers.choice import INSIDE, PLAIN, RECOMPUTE, Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Goal
from graphrl.xla.checkpoint.solvers.level import Gradient, Level, Repeated, repeated
from graphrl.xla.checkpoint.solvers.starts import cuts, starts

LAYERS, WIDTH = 10, 64
WEIGHTS = jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, 5 * WIDTH)) / 8
X = jax.random.normal(jax.random.key(1), (8192, WIDTH))


def network(weights: jax.Array, x: jax.Array) -> jax.Array:
    x = jnp.sin(x)
    for k in range(LAYERS):
        x = x + jnp.tanh(x @ weights[k]) @ weights[k].T
    return x.sum()


def gradient() -> Gradient:
    closed = jax.make_jaxpr(network)(jnp.ones((LAYERS, 8, 8)), jnp.ones((16, 8)))
    return gradient_of(program_of(closed), [True, False], Settings(budget=0.5).resolved_chip).gradient


def values(level: Level, kind: Repeated, number: int) -> slice:
    """Values of one of the repeated stretches."""
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
            np.testing.assert_array_equal(level.materialized[one], level.materialized[other])


def test_all_moves_can_be_undone_and_separate_places_stay_separate() -> None:
    own = gradient()
    for start in list(starts(own))[:6]:
        search = Search(Pricing(own), Goal(slowdown=0.2, moves=True), [start], seed=0)
        search.start(start)
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
    """Checks that required cuts are there, and that jax decides for places set apart."""
    for start, level, plain in zip(state.starts, own.levels, State.plain(own).starts, strict=True):
        assert (start[plain != INSIDE] != INSIDE).all()
        assert (start[level.separate] == PLAIN).all()


@given(random_gradients(), st.sampled_from([Goal(slowdown=0.2), Goal(peak=5e3), Goal(kept=2e3, moves=True)]))
@settings(max_examples=25)
def test_compiled_steps_have_the_prices_of_python(own: Gradient, goal: Goal) -> None:
    search = Search(Pricing(own), goal, [State.plain(own)], seed=0)
    search.start(search.best)
    for heat in (1e-1, 1e-2, 1e-4):
        for _ in range(4):
            search.round(heat, 64)
            check(search.state, own)
            energy, rank = search._energy, search._least
            np.testing.assert_allclose((search.energy(search.state), search.rank(search.best)), (energy, rank), 1e-9)
            assert rank <= search.rank(search.state) + 1e-9


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    y = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
    return x + jnp.tanh(jnp.sin(y @ w) * 2) @ w.T


def loss(wrapped: Any) -> Any:
    def whole(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = wrapped(w, x)
        return jnp.square(jnp.tanh(x)).mean()

    return whole


def test_layers_are_cut_at_their_start_even_at_the_program_s_start() -> None:
    program = program_of(jax.make_jaxpr(loss(layer))(list(WEIGHTS), X))
    length = len(jax.make_jaxpr(layer)(WEIGHTS[0], X).eqns)
    gradient = gradient_of(program, [True] * LAYERS + [False], find_chip("h200")).gradient
    begins = np.full(len(gradient.levels[0].separate), INSIDE)
    begins[length * np.arange(LAYERS)] = RECOMPUTE
    begins[length * LAYERS] = PLAIN
    assert any((begins == own).all() for own in cuts(gradient.levels[0]))


def test_layers_are_cut_after_an_embedding() -> None:
    def embedded(weights: list[jax.Array], table: jax.Array, words: jax.Array) -> jax.Array:
        return loss(layer)(weights, table[words])

    closed = jax.make_jaxpr(embedded)(list(WEIGHTS), jnp.zeros((1000, X.shape[1])), jnp.zeros(len(X), int))
    program = program_of(closed)
    first = next(k for k, eqn in enumerate(program.equations) if eqn.primitive.name == "gather") + 1
    length = len(jax.make_jaxpr(layer)(WEIGHTS[0], X).eqns)
    gradient = gradient_of(program, [True] * (LAYERS + 1) + [False], find_chip("h200")).gradient
    begins = np.full(len(gradient.levels[0].separate), INSIDE)
    begins[first + length * np.arange(LAYERS)] = RECOMPUTE
    begins[[0, first + length * LAYERS]] = PLAIN
    assert any((begins == own).all() for own in cuts(gradient.levels[0]))


def test_regular_plans_are_within_the_time_of_a_rule_for_each_layer() -> None:
    def seconds(fn: Any) -> float:
        return gradient_seconds(jax.make_jaxpr(jax.value_and_grad(fn))(list(WEIGHTS), X), "h200")

    rule, plain = seconds(loss(jax.checkpoint(layer))), seconds(loss(layer))
    fn = graphrl.checkpoint(
        loss(layer), slowdown=rule / plain - 1, chip="h200", method="regular", seconds=1.0, cache=False
    )
    report = fn.report(list(WEIGHTS), X)
    assert report.segments >= LAYERS - 1
    assert 0.5 * (rule / plain - 1) < report.slowdown <= rule / plain - 1 + 1e-9
    assert report.planned.peak_bytes < 0.5 * report.plain.peak_bytes
