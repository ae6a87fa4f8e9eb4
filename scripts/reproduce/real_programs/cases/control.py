"""Cases with control flow and transformations: loops, branches, calls, own derivatives, `jax.checkpoint`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.real_programs.cases.compiler import Compiler, N, branches, matrix, named, vector, wide


def loops_in_loops(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        def outer(x: jax.Array, _: None) -> Any:
            inner = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(wide(s[1]))), (0, x))
            return lax.fori_loop(0, 2, lambda k, x: jnp.tanh(wide(x)) + k.astype(jnp.float32), inner[1]), x.sum()

        return lax.scan(outer, x, None, length=3), wide(x)

    return by.jit(program)(vector())


def loops_as_long_as_their_data_say(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        def body(state: Any) -> Any:
            k, x = state
            return k + 1, x * 0.7 + 0.01 * jnp.tanh(wide(x))

        return lax.while_loop(lambda s: jnp.abs(s[1]).max() > 0.5, body, (0, x))

    step = by.jit(program)
    return [step(vector(k)) for k in range(3)]


def branches_in_branches(by: Compiler) -> Any:
    def program(x: jax.Array, which: jax.Array) -> Any:
        def inner(x: jax.Array) -> jax.Array:
            return lax.cond(x.sum() > 0, wide, lambda x: wide(x * 2) - 1, x)

        return lax.switch(which, [inner, lambda x: inner(-x), lambda x: x, lambda x: wide(x) * inner(x)], x)

    step = by.jit(program)
    return [step(vector(k), jnp.int32(k - 1)) for k in range(6)]  # indices outside are clamped


def branches_under_vmap(by: Compiler) -> Any:
    def program(xs: jax.Array, which: jax.Array) -> Any:
        return jax.vmap(lambda x, k: lax.switch(k, [wide, jnp.sin, lambda x: x * 2], x))(xs, which)

    return by.jit(program)(jnp.stack([vector(k) for k in range(3)]), jnp.arange(3))


def scans_backwards_and_unrolled(by: Compiler) -> Any:
    def program(x: jax.Array, xs: jax.Array) -> Any:
        def body(x: jax.Array, y: jax.Array) -> Any:
            return jnp.tanh(wide(x) + y), {"carry": x, "sum": (x + y).sum()}

        both = [lax.scan(body, x, xs, reverse=reverse, unroll=unroll) for reverse, unroll in ((True, 1), (False, 2))]
        return both, lax.scan(body, x, xs[:0]), lax.associative_scan(jnp.add, xs, axis=0)

    return by.jit(program)(vector(), matrix()[:5])


def gradients_of_scans(by: Compiler) -> Any:
    def loss(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (jnp.tanh(wide(x)), x.sum()), x, None, length=4)[1].sum()

    return by.jit(jax.value_and_grad(loss))(vector())


def own_derivatives_backwards(by: Compiler) -> Any:
    @jax.custom_vjp
    def clipped(x: jax.Array) -> jax.Array:
        return wide(x)

    clipped.defvjp(lambda x: (wide(x), x), lambda x, slope: (jnp.clip(slope * wide(x), -1.0, 1.0),))
    return by.jit(jax.value_and_grad(lambda x: sum((clipped(p).sum() for p in branches(x)), jnp.zeros(()))))(vector())


def own_derivatives_forwards(by: Compiler) -> Any:
    @jax.custom_jvp
    def smooth(x: jax.Array) -> jax.Array:
        return wide(x)

    @smooth.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return smooth(*primals), wide(primals[0]) * tangents[0] * 0.5

    def program(x: jax.Array) -> Any:
        return jax.jvp(smooth, (x,), (jnp.ones_like(x),)), jax.grad(lambda x: smooth(x).sum())(x)

    return by.jit(program)(vector())


def checkpoints(by: Compiler) -> Any:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(wide(x) @ w) + wide(x * 0.5)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        for policy, w in zip((None, jax.checkpoint_policies.dots_saveable), weights[:2], strict=True):
            x = jax.checkpoint(layer, policy=policy)(x, w)
        return lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, weights[2:])[0].sum()

    return by.jit(jax.value_and_grad(loss))(jnp.stack([matrix(k) for k in range(5)]), vector())


def calls_of_jitted_functions(by: Compiler) -> Any:
    inner = jax.jit(lambda x, k: jnp.tanh(wide(x)) * k, static_argnums=1)

    @functools.partial(jax.jit, inline=True)
    def inlined(x: jax.Array) -> jax.Array:
        return inner(x, 3) + inner(x, 2)

    return by.jit(lambda x: inlined(inner(x, 2)) + jax.vmap(lambda y: inner(y, 5))(jnp.stack([x, x])).sum(0))(vector())


def its_own_functions_under_transformations(by: Compiler) -> Any:
    planned = by.jit(lambda x: jnp.tanh(wide(x)))
    x = vector()
    outputs, pull = jax.vjp(planned, x)
    linear = jax.linearize(planned, x)[1]
    outer = by.jit(lambda x: jax.grad(lambda y: planned(planned(y)).sum())(x) + planned(x))
    return planned(x), outputs, pull(x), linear(x), jax.vmap(planned)(jnp.stack([x, x])), outer(x), jax.jit(planned)(x)


def second_derivatives(by: Compiler) -> Any:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.square(wide(x)).sum()

    def program(x: jax.Array) -> Any:
        tiled = jax.hessian(lambda y: loss(jnp.tile(y, N // 4)))(x[:4])
        return jax.jvp(jax.grad(loss), (x,), (jnp.ones_like(x),)), tiled

    return by.jit(program)(vector())


def maps_in_batches(by: Compiler) -> Any:
    return by.jit(lambda xs: lax.map(lambda x: jnp.tanh(wide(x)), xs, batch_size=2))(matrix()[:7])


def functions_that_are_returned(by: Compiler) -> Any:
    """A pull-back is a pytree whose leaves are what the backward pass needs."""
    forward = by.jit(lambda x: jax.vjp(lambda y: jnp.tanh(wide(y)), x))
    outputs, pull = forward(vector())
    return outputs, by.jit(lambda pull, slope: pull(slope))(pull, vector(1))


def barriers(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        parts = branches(x)
        parts = lax.optimization_barrier([*parts, parts[0] * 2])
        return sum(parts, jnp.zeros_like(x)), lax.optimization_barrier((x, parts[1]))

    return by.jit(program)(vector())


CASES = named(
    loops_in_loops, loops_as_long_as_their_data_say, branches_in_branches, branches_under_vmap,
    scans_backwards_and_unrolled, gradients_of_scans, own_derivatives_backwards, own_derivatives_forwards, checkpoints,
    calls_of_jitted_functions, its_own_functions_under_transformations, second_derivatives, maps_in_batches,
    functions_that_are_returned, barriers,
)  # fmt: skip
