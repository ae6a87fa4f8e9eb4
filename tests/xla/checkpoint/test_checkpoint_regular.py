"""Regular plans: all layers alike, as a rule around each of them has it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphrl
from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.program import program_of
from graphrl.xla.checkpoint.seconds import gradient_seconds
from graphrl.xla.checkpoint.solvers.choice import AGAIN, INSIDE, PLAIN
from graphrl.xla.checkpoint.solvers.starts import cuts

LAYERS, WIDTH = 10, 64
WEIGHTS = jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, 5 * WIDTH)) / 8
X = jax.random.normal(jax.random.key(1), (8192, WIDTH))


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    y = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
    return x + jnp.tanh(jnp.sin(y @ w) * 2) @ w.T


def loss(wrapped: Any) -> Any:
    def whole(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = wrapped(w, x)
        return jnp.square(jnp.tanh(x)).mean()

    return whole


def test_layers_are_cut_where_they_begin_also_where_nothing_comes_before_them() -> None:
    program = program_of(jax.make_jaxpr(loss(layer))(list(WEIGHTS), X))
    length = len(jax.make_jaxpr(layer)(WEIGHTS[0], X).eqns)
    gradient = gradient_of(program, [True] * LAYERS + [False], find_chip("h200")).gradient
    begins = np.full(len(gradient.levels[0].apart), INSIDE)
    begins[length * np.arange(LAYERS)] = AGAIN
    begins[length * LAYERS] = PLAIN
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
