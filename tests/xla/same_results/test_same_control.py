"""Control flow and transformations: loops, branches, calls, own derivatives, `jax.checkpoint`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jit_cases import Compiler, branches, matrix, same, vector, wide
from xla_programs import plans

__all__ = ["plans"]


@same
def test_loops_in_loops(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        def outer(x: jax.Array, _: None) -> Any:
            inner = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(wide(s[1]))), (0, x))
            return lax.fori_loop(0, 2, lambda k, x: jnp.tanh(wide(x)) + k.astype(jnp.float32), inner[1]), x.sum()

        return lax.scan(outer, x, None, length=3), wide(x)

    return by.jit(program)(vector())


@same
def test_branches_in_branches(by: Compiler) -> Any:
    def program(x: jax.Array, which: jax.Array) -> Any:
        def inner(x: jax.Array) -> jax.Array:
            return lax.cond(x.sum() > 0, wide, lambda x: wide(x * 2) - 1, x)

        return lax.switch(which, [inner, lambda x: inner(-x), lambda x: x, lambda x: wide(x) * inner(x)], x)

    step = by.jit(program)
    return [step(vector(k), jnp.int32(k - 1)) for k in range(6)]  # indices outside are clamped


@same
def test_scans_backwards_and_unrolled(by: Compiler) -> Any:
    def program(x: jax.Array, xs: jax.Array) -> Any:
        def body(x: jax.Array, y: jax.Array) -> Any:
            return jnp.tanh(wide(x) + y), {"carry": x, "sum": (x + y).sum()}

        both = [lax.scan(body, x, xs, reverse=reverse, unroll=unroll) for reverse, unroll in ((True, 1), (False, 2))]
        return both, lax.scan(body, x, xs[:0]), lax.associative_scan(jnp.add, xs, axis=0)

    return by.jit(program)(vector(), matrix()[:5])


@same
def test_checkpoints(by: Compiler) -> Any:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(wide(x) @ w) + wide(x * 0.5)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        for policy, w in zip((None, jax.checkpoint_policies.dots_saveable), weights[:2], strict=True):
            x = jax.checkpoint(layer, policy=policy)(x, w)
        return lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, weights[2:])[0].sum()

    return by.jit(jax.value_and_grad(loss))(jnp.stack([matrix(k) for k in range(5)]), vector())


@same
def test_its_own_functions_under_transformations(by: Compiler) -> Any:
    planned = by.jit(lambda x: jnp.tanh(wide(x)))
    x = vector()
    outputs, pull = jax.vjp(planned, x)
    linear = jax.linearize(planned, x)[1]
    outer = by.jit(lambda x: jax.grad(lambda y: planned(planned(y)).sum())(x) + planned(x))
    return planned(x), outputs, pull(x), linear(x), jax.vmap(planned)(jnp.stack([x, x])), outer(x), jax.jit(planned)(x)


@same
def test_barriers(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        parts = branches(x)
        parts = lax.optimization_barrier([*parts, parts[0] * 2])
        return sum(parts, jnp.zeros_like(x)), lax.optimization_barrier((x, parts[1]))

    return by.jit(program)(vector())
