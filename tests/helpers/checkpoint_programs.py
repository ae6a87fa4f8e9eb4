"""Small functions of many kinds for the tests of `graphrl.checkpoint`, and comparisons of their results."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.ad_checkpoint import saved_residuals

N, WIDTH, LAYERS = 16, 8, 4
KEY = jax.random.key(0)
WEIGHTS = jax.random.normal(KEY, (LAYERS, WIDTH, WIDTH)) / 3.0
X = jax.random.normal(jax.random.key(1), (N, WIDTH))
TOKENS = jax.random.randint(jax.random.key(2), (N,), 0, WIDTH)
MASK = jax.random.bernoulli(jax.random.key(3), 0.7, (N,))


def mlp(weights: Any, x: jax.Array) -> jax.Array:
    """A multilayer perceptron; weights `[LAYERS, WIDTH, WIDTH]`, x `[N, WIDTH]` -> []."""
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.square(x).mean()


def scanned(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Residual layers as a loop."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return h + jnp.tanh(jax.nn.gelu(h @ w) @ w.T), None

    return jnp.square(lax.scan(layer, x, weights)[0]).mean()


def reversed_scan(weights: jax.Array, x: jax.Array) -> jax.Array:
    """A reverse loop, unrolled by two, with results of each step and gradients of its constants."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.sin(h @ w) * weights[0, 0, 0]
        return h, h.max(axis=0)

    h, maxima = lax.scan(layer, x, weights, reverse=True, unroll=2)
    return h.mean() + jnp.square(maxima).sum()


def nested(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Loops in a loop, one after the other."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        def inner(g: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return jnp.sin(g @ w), g.sum()

        g, sums = lax.scan(inner, h, None, length=3)
        g, _ = lax.scan(inner, g, None, length=2)
        return h + g, sums.sum()

    h, sums = lax.scan(layer, x, weights)
    return jnp.square(h).mean() + sums.sum()


@jax.custom_jvp
def soft(x: jax.Array) -> jax.Array:
    """Softplus with a custom derivative."""
    return jnp.log1p(jnp.exp(x))


@soft.defjvp
def _soft_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return soft(primals[0]), 0.5 * jax.nn.sigmoid(primals[0]) * tangents[0]  # half the true one, so that they differ


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    """The identity with a clipped gradient."""
    return x * 1.0


clipped.defvjp(lambda x: (clipped(x), jnp.sin(x)), lambda sines, g: (jnp.clip(g, -0.01, 0.01) * sines,))


def custom(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Custom derivatives, in the function and in the body of a loop."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return clipped(soft(h @ w)), None

    return soft(clipped(lax.scan(layer, x @ weights[0], weights)[0])).sum()


def checkpointed(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The user's own checkpoints: with a policy, and in a loop."""

    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(h: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sin(jnp.sin(h @ w))

    for w in weights:
        x = layer(x, w)
    return mlp((), lax.scan(lambda h, w: (jax.checkpoint(layer)(h, w), None), x, weights)[0])


def dropout(weights: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
    """Random numbers in layers, and in a loop that carries their state."""
    for w, own in zip(weights, jax.random.split(key, LAYERS), strict=True):
        x = jnp.where(jax.random.bernoulli(own, 0.8, x.shape), jnp.tanh(x @ w), 0.0)

    def layer(carry: tuple[jax.Array, jax.Array], w: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        h, key = carry
        key, own = jax.random.split(key)
        return (jnp.sin(h @ w) * jax.random.uniform(own, h.shape), key), None

    return jnp.square(lax.scan(layer, (x, key), weights)[0][0]).sum()


def tokens(table: jax.Array, tokens: jax.Array, mask: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Integer and boolean arguments, and integer and boolean results in addition to the loss."""
    h = jnp.tanh(table[0][tokens]) @ table[1]
    h = jnp.where(mask[:, None], h, 0.0)
    order = jnp.argsort(h[:, 0])
    return jax.nn.logsumexp(h[order] @ table[2], axis=1).sum(), {"best": h.argmax(1), "any": mask.any(), "h": h}


def options(weights: jax.Array, x: jax.Array, *, scale: Any, bias: Mapping[str, jax.Array]) -> jax.Array:
    """Arguments by name, one of them a Python number."""
    return jnp.square(mlp(weights, x * scale + bias["b"][None]) - 1.0)


def several(weights: jax.Array, x: jax.Array) -> dict[str, Any]:
    """Results of several types, one of them an argument, one a constant."""
    h = jnp.sin(x @ weights[0])
    return {"h": h, "pair": (h.sum(0), x), "count": jnp.arange(3), "mean": jnp.tanh(h @ weights[1]).mean()}


def branching(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Branches, a loop of unknown length over values without gradient, and one of fixed length."""
    steps = lax.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
    h = lax.cond(steps > 2, lambda h: jnp.sin(h @ weights[0]), lambda h: jnp.cos(h), x)
    h = lax.switch(steps - 2, [jnp.sin, lambda h: jnp.tanh(h @ weights[1]), jnp.cos], h)
    return lax.fori_loop(0, 3, lambda k, h: jnp.sin(h @ weights[k]), h).sum()


def calls(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Nested calls, and functions that compute nothing."""

    @jax.jit
    def inner(h: jax.Array, w: jax.Array) -> jax.Array:
        return jax.jit(jnp.sin)(h @ w) + lax.stop_gradient(h)

    unused = jnp.exp(x @ weights[1])
    del unused
    return jax.jit(lambda h: inner(inner(h, weights[0]), weights[1]).sum())(x).astype(jnp.bfloat16).astype(jnp.float32)


def pulled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function's results and the gradient by its first argument, with a cotangent for each result that has one."""

    def run(first: Any, *others: Any) -> Any:
        results, pull = jax.vjp(lambda first: fn(first, *others), first)
        return results, pull(jax.tree.map(_cotangent, results))

    return run


def _cotangent(result: jax.Array) -> Any:
    if jnp.issubdtype(result.dtype, jnp.floating):
        return jnp.cos(result)
    return np.zeros(result.shape, jax.dtypes.float0)


def kept_bytes(fn: Callable[..., Any], *args: Any) -> int:
    """Bytes that jax keeps between the passes in addition to arguments."""
    residuals: Any = saved_residuals(fn, *args)
    return sum(aval.size * aval.dtype.itemsize for aval, why in residuals if not why.startswith("from the argument"))


def assert_same(ours: Any, theirs: Any, *, bits: bool = False) -> None:
    """Checks that trees have equal types, and equal bits or numbers within 1e-6 of the largest in their array."""
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for own, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(own) == jax.typeof(other)
        if bits or not jnp.issubdtype(other.dtype, jnp.inexact):
            np.testing.assert_array_equal(own, other)
        else:
            np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-6 * float(np.abs(other).max(initial=0.0)))
