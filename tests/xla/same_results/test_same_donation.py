"""Donated arguments: what becomes of them, and of whoever else holds their buffers."""

from typing import Any

import jax
import jax.numpy as jnp
from jit_cases import ELSEWHERE, IN_PLACE, Compiler, N, branches, fates, matrix, raised, same, vector, wide
from xla_programs import plans

__all__ = ["plans"]


def _trained(by: Compiler, step: Any, state: Any, steps: int = 3) -> Any:
    """The last state of some steps; what became of the arrays, and whether the buffers are those of the first."""
    step, states = by.jit(step, donate_argnums=0), [state]
    places = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)}
    for _ in range(steps):
        states.append(step(states[-1], vector()))
    stay = places == {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(states[-1])}
    return states[-1], fates(states), IN_PLACE if stay else ELSEWHERE


@same
def test_states_in_loops(by: Compiler) -> Any:
    def step(state: jax.Array, x: jax.Array) -> jax.Array:
        y = wide(x)
        return jax.lax.fori_loop(0, 4, lambda k, s: s.at[k].add(jnp.tanh(wide(s[k])) + y), state)

    return _trained(by, step, matrix())


@same
def test_states_and_libraries(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        parts = [jnp.eye(64) + 0.1 * jnp.outer(p[:64], p[64:128]) / 64 for p in branches(jnp.tanh(x))]
        made = [jnp.linalg.cholesky(m @ m.T + jnp.eye(64)) + jnp.linalg.svd(m)[2] for m in parts]
        waves = jnp.fft.irfft(jnp.fft.rfft(jnp.outer(x, x))) + jax.lax.reduce_window(
            jnp.outer(wide(x), x), -jnp.inf, jax.lax.max, (3, 3), (1, 1), "SAME"
        )
        key, bits = jax.lax.rng_bit_generator(state["key"], (N, N))
        noise = (bits >> 9).astype(jnp.float32) * 1e-7
        return {"key": key, "w": state["w"] * 0.5 + waves + noise, "m": state["m"] + sum(made, jnp.zeros((64, 64)))}

    return _trained(by, step, {"key": jnp.arange(4, dtype=jnp.uint32), "w": matrix(), "m": jnp.zeros((64, 64))})


@same
def test_states_that_change_places(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        a, b, c = state
        return b, c + wide(x)[None], a

    return _trained(by, step, tuple(matrix(k) for k in range(3)), steps=4)


@same
def test_donated_and_kept_in_one_call(by: Compiler) -> Any:
    """The same buffer is donated, and read as another argument."""

    def step(a: jax.Array, b: jax.Array, x: jax.Array) -> Any:
        loop = jax.lax.fori_loop(0, 3, lambda k, s: s.at[k].set(wide(x)), a)
        return loop, (jnp.tanh(b) @ b).sum(0)

    step, same = by.jit(step, donate_argnums=0), matrix(2)
    return step(matrix(), matrix(1), vector()), raised(lambda: step(same, same, vector()))
