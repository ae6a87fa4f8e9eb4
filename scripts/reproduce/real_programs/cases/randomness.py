"""Cases with random numbers: drawn from keys, and from XLA's own hidden state."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.real_programs.cases.compiler import Compiler, N, branches, named, vector, wide


def hidden_state(by: Compiler) -> Any:
    def program(x: jax.Array) -> jax.Array:
        return sum((lax.rng_uniform(0.0, 1.0, (N,)) * part for part in branches(x)), jnp.zeros_like(x))

    step = by.jit(program)
    return [step(vector()) for _ in range(3)]


def hidden_state_in_loops(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        def body(x: jax.Array, _: None) -> Any:
            return jnp.tanh(wide(x)) + lax.rng_uniform(0.0, 1.0, (N,)), lax.rng_uniform(-1.0, 1.0, (4,))

        drawn = lax.rng_uniform(0.0, 1.0, (N,))
        return lax.fori_loop(0, 3, lambda k, x: x * lax.rng_uniform(0.0, 1.0, ()), drawn), lax.scan(body, x, None, 3)

    step = by.jit(program)
    return [step(vector()) for _ in range(2)]


def hidden_state_of_several_programs(by: Compiler) -> Any:
    """A planned program is compiled between them."""
    first = by.jit(lambda x: wide(x) + lax.rng_uniform(0.0, 1.0, (N,)))
    second = by.jit(lambda x: x + lax.rng_uniform(0.0, 1.0, (N,)))
    results = [first(vector())]
    results += [by.jit(wide)(vector()), second(vector()), first(vector())]
    return results, by.compile(by.jit(lambda x: wide(x) * lax.rng_uniform(0.0, 1.0, (N,))), vector())(vector())


def hidden_state_and_donation(by: Compiler) -> Any:
    def program(state: jax.Array, x: jax.Array) -> jax.Array:
        return state + lax.rng_uniform(0.0, 1.0, state.shape) * wide(x)[None]

    step, state = by.jit(program, donate_argnums=0), jnp.ones((N, N))
    for _ in range(3):
        state = step(state, vector())
    return state


def keys_in_and_out(by: Compiler) -> Any:
    def program(key: jax.Array, keys: jax.Array, x: jax.Array) -> Any:
        key, draw = jax.random.split(key)
        noise = jax.vmap(lambda k: jax.random.normal(k, (N,)))(keys)
        return key, keys[::-1], wide(x + jax.random.normal(draw, (N,))) + noise.sum(0)

    step = by.jit(program)
    key, keys, x = jax.random.key(7), jax.random.split(jax.random.key(8), 6), vector()
    for _ in range(2):
        key, keys, x = step(key, keys, x)
    return key, keys, x


def _of_kind(by: Compiler, kind: str) -> Any:
    def program(key: jax.Array, x: jax.Array) -> Any:
        def body(key: jax.Array, _: None) -> Any:
            key, draw = jax.random.split(key)
            return key, wide(x * jax.random.uniform(draw, (N,)))

        return lax.scan(body, key, None, length=3)

    return by.jit(program)(jax.random.key(3, impl=kind), vector())


def keys_of_threefry_in_a_scan(by: Compiler) -> Any:
    return _of_kind(by, "threefry2x32")


def keys_of_rbg_in_a_scan(by: Compiler) -> Any:
    return _of_kind(by, "rbg")


def keys_of_unsafe_rbg_in_a_scan(by: Compiler) -> Any:
    return _of_kind(by, "unsafe_rbg")


def bits_of_a_generator(by: Compiler) -> Any:
    def program(state: jax.Array, x: jax.Array) -> Any:
        parts = []
        for part in branches(x):
            state, bits = lax.rng_bit_generator(state, (N,), dtype=jnp.uint32)
            parts.append(part * (bits >> 8).astype(jnp.float32))
        return state, sum(parts, jnp.zeros_like(x))

    return by.jit(program, donate_argnums=0)(jnp.arange(4, dtype=jnp.uint32), vector())


def distributions_with_loops(by: Compiler) -> Any:
    def program(key: jax.Array, x: jax.Array) -> Any:
        keys = jax.random.split(key, 6)
        shape = jnp.abs(wide(x)) + 0.5
        return (
            jax.random.gamma(keys[0], shape), jax.random.poisson(keys[1], shape), jax.random.permutation(keys[2], N),
            jax.random.categorical(keys[3], jnp.outer(x, x)), jax.random.truncated_normal(keys[4], -1.0, 1.0, (N,)),
            jax.random.choice(keys[5], x, (64,), replace=False),
        )  # fmt: skip

    return by.jit(program)(jax.random.key(0), vector())


CASES = named(
    hidden_state, hidden_state_in_loops, hidden_state_of_several_programs, hidden_state_and_donation, keys_in_and_out,
    keys_of_threefry_in_a_scan, keys_of_rbg_in_a_scan, keys_of_unsafe_rbg_in_a_scan, bits_of_a_generator,
    distributions_with_loops,
)  # fmt: skip
ALONE = named(hidden_state, hidden_state_in_loops, hidden_state_of_several_programs, hidden_state_and_donation)
