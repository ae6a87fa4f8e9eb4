"""Gradients that wait for one another and for results: the same numbers, in another order."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphrl
from graphrl.xla.checkpoint.primitives import NAME, finished, together

X, W = jnp.linspace(0.1, 1.0, 6).reshape(2, 3), jnp.linspace(-1.0, 1.0, 9).reshape(3, 3)


def plain(w: jax.Array, x: jax.Array, power: int) -> jax.Array:
    return (jnp.sin(x @ w) ** power).sum()


def tied(w: jax.Array, x: jax.Array, power: int) -> jax.Array:
    w, x, power = together([w, x, power])
    value, _ = finished([(jnp.sin(x @ w) ** power).sum(), power])
    return value


def ties(function: Any, *args: Any) -> list[Any]:
    """The equations that tie, in order."""
    return [eqn for eqn in jax.make_jaxpr(function)(*args).jaxpr.eqns if eqn.primitive.name == NAME]


def test_gradients_are_handed_on_together_once_the_result_is_there() -> None:
    (begin, end) = ties(jax.value_and_grad(tied, (0, 1)), W, X, 2)
    assert [begin.params["barrier"], end.params["barrier"]] == [True, True]
    assert len(begin.outvars) == 1  # the loss's cotangent
    assert begin.invars[1].aval.shape == ()  # waits for the loss
    assert [var.aval.shape for var in end.outvars] == [(3, 3), (2, 3)]


def test_what_no_gradient_is_taken_by_is_not_waited_for() -> None:
    def scaled(w: jax.Array, x: jax.Array, gain: jax.Array) -> jax.Array:
        w, x, gain = together([w, x, gain])
        return (x @ w * gain).sum()

    (end,) = ties(jax.grad(scaled, (0, 2)), W, X, jnp.ones(3)[None])
    assert [var.aval.shape for var in end.outvars] == [(3, 3), (1, 3)]
    assert together([]) == finished([]) == []


def test_a_gradient_alone_waits_for_nothing() -> None:
    (begin,) = ties(jax.value_and_grad(tied), W, X, 2)
    assert begin.outvars[0].aval.shape == ()  # the loss's cotangent, for the loss


@pytest.mark.parametrize(
    "transformed",
    [
        jax.grad,
        jax.hessian,
        lambda f: jax.jit(jax.grad(f, 1), static_argnums=2),
        lambda f: jax.grad(jax.checkpoint(f, static_argnums=2)),
        lambda f: lambda w, x, p: jax.jvp(lambda w: f(w, x, p), (w,), (w,))[1],
        lambda f: lambda w, x, p: jax.grad(lambda w: jax.jvp(lambda w: f(w, x, p), (w,), (w,))[1])(w),
        lambda f: lambda w, x, p: jax.vmap(lambda row: jax.grad(f)(w, row[None], p))(x),
    ],
)  # fmt: skip
def test_derivatives_are_the_same(transformed: Any) -> None:
    np.testing.assert_allclose(transformed(tied)(W, X, 2), transformed(plain)(W, X, 2), rtol=1e-6)


def test_segments_of_a_plan_are_tied_and_a_function_without_any_is_not() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.tanh(jnp.sin(x @ w))
        return x.sum()

    kept = graphrl.checkpoint(loss, budget=1.0, seconds=0.1, cache=False)
    less = graphrl.checkpoint(loss, budget=0.4, seconds=0.5, cache=False)
    x = jnp.ones((3, 3))
    assert NAME not in str(jax.make_jaxpr(jax.value_and_grad(kept))(W, x))
    assert NAME in str(jax.make_jaxpr(jax.value_and_grad(less))(W, x))
