"""`graphrl.checkpoint` with loops of no steps and arrays of no elements: values and gradients stay the same."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checkpoint_programs import WEIGHTS, X, assert_same, nested, scanned
from jax import lax

import graphrl
from graphrl.xla.checkpoint.solvers.auto import SOLVERS

quick = functools.partial(graphrl.checkpoint, seconds=0.1, cache=False)
Loss = Callable[[jax.Array, jax.Array], jax.Array]
NONE = WEIGHTS[:0]


def counted(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A loop by its length alone, whose body closes over arrays; another one over numbers."""
    h, ys = lax.scan(lambda h, _: (jnp.tanh(h @ WEIGHTS[0] * x.sum()), h.sum()), jnp.sin(x), None, length=len(weights))
    return lax.fori_loop(0, len(weights), lambda k, h: jnp.sin(h @ WEIGHTS[k]), h).sum() + ys.sum()


def mapped(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A loop that carries nothing, and a scan by halves."""
    products = lax.associative_scan(jnp.matmul, weights)
    return lax.map(lambda w: jnp.sin(x @ w), weights).sum() + products.sum() + jnp.sin(jnp.sin(x)).sum()


def reversed_pairs(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A reverse loop, unrolled by two, with results of each step."""
    h, maxima = lax.scan(lambda h, w: (jnp.sin(h @ w), h.max(axis=0)), x, weights, reverse=True, unroll=2)
    return jnp.cos(h).mean() + jnp.square(maxima).sum()


def within(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Empty loops and arrays inside a loop that has steps, in a branch and in the user's checkpoint."""
    h, ys = lax.scan(lambda h, w: (jnp.sin(h @ w) * scanned(weights, h), reversed_pairs(weights, h)), x, WEIGHTS)
    h = lax.cond(h.sum() > 0, lambda h: h * nested(weights, h), jnp.sin, h)
    return jax.checkpoint(scanned)(weights, h) + ys.sum()


def keyed(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A loop that carries keys and integers, and returns keys."""

    def step(carry: tuple[Any, ...], _: jax.Array) -> tuple[tuple[Any, ...], Any]:
        h, key, n = carry
        return (h * jax.random.normal(key, h.shape), jax.random.split(key)[0], n + 1), key

    (h, key, n), _ = lax.scan(step, (jnp.sin(x), jax.random.key(0), jnp.int32(2)), weights)
    return (h * jax.random.normal(key, h.shape)).sum() * n.astype(jnp.float32)


def batches(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Layers of a batch of 0, rows gathered by 0 indices, and a product over 0 elements."""
    h = jnp.tanh(jnp.sin(x[:0] @ WEIGHTS[0]) @ WEIGHTS[1])
    rows = jnp.tanh(x[jnp.zeros((0,), jnp.int32)])
    return h.sum() + rows.sum() + jnp.sin(x[:, :0] @ WEIGHTS[0][:0]).sum() + jnp.cos(weights).sum()


LOSSES: dict[str, Loss] = {
    "by length": counted,
    "mapped": mapped,
    "within others": within,
    "keys": keyed,
    "batches of nothing": batches,
}


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_the_same(name: str) -> None:
    loss = LOSSES[name]
    limit: dict[str, Any] = {"slowdown": 0.2, "offload": True} if loss is within else {"budget": 0.6}
    fn = quick(loss, **limit)
    ours, theirs = (jax.jit(jax.value_and_grad(each, (0, 1)))(NONE, X) for each in (fn, loss))
    assert_same(ours, theirs)
    assert fn.report().slowdown < 1.0
    assert str(fn.report())


def test_all_methods_compiled_figures_and_curves(tmp_path: Path) -> None:
    for method in SOLVERS:
        report = quick(scanned, budget=1.0, method=method).report(NONE, X)
        assert report.planned.kept_bytes <= report.plain.kept_bytes
    assert quick(scanned, slowdown=0.1, verify=True).report(NONE, X).compiled_bytes is not None
    curve = graphrl.checkpoint_curve(scanned, NONE, X, slowdowns=(0.1,), seconds=0.1, cache=False)
    curve.plot(tmp_path / "curve.png")
    assert len(curve.points) == 1


def test_under_transformations() -> None:
    taken: dict[str, Callable[[Loss], Callable[..., Any]]] = {
        "second derivatives": lambda fn: jax.grad(lambda w, x: jnp.square(jax.grad(fn, 1)(w, x)).sum(), 1),
        "rows": lambda fn: jax.vmap(jax.value_and_grad(lambda w, row: fn(w, row[None]), 1), (None, 0)),
        "in a loop of no steps": lambda fn: (
            lambda w, x: lax.scan(lambda c, _: (c * fn(w, x), c), jnp.ones(()), None, 0)[0]
        ),
    }
    for take in taken.values():
        assert_same(take(quick(scanned, budget=0.5))(NONE, X), take(scanned)(NONE, X))
