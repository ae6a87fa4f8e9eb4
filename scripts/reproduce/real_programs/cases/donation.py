"""Cases with donated arguments: what becomes of them, and of whoever else holds their buffers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from reproduce.real_programs.cases.compiler import (
    ELSEWHERE,
    IN_PLACE,
    Compiler,
    N,
    branches,
    fates,
    matrix,
    named,
    raised,
    vector,
    wide,
)


def _trained(by: Compiler, step: Any, state: Any, steps: int = 3) -> Any:
    """The last state of some steps; what became of the arrays, and whether the buffers are those of the first."""
    step, states = by.jit(step, donate_argnums=0), [state]
    places = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)}
    for _ in range(steps):
        states.append(step(states[-1], vector()))
    stay = places == {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(states[-1])}
    return states[-1], fates(states), IN_PLACE if stay else ELSEWHERE


def states_of_training(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        slope = jax.grad(lambda w: jnp.tanh(wide(x) @ w).sum() + jnp.square(w).mean())(state["w"])
        momentum = 0.9 * state["m"] + slope
        return {"w": state["w"] - 0.1 * momentum, "m": momentum, "k": state["k"] + 1}

    return _trained(by, step, {"w": matrix(), "m": jnp.zeros((N, N)), "k": jnp.int32(0)})


def states_in_loops(by: Compiler) -> Any:
    def step(state: jax.Array, x: jax.Array) -> jax.Array:
        y = wide(x)
        return jax.lax.fori_loop(0, 4, lambda k, s: s.at[k].add(jnp.tanh(wide(s[k])) + y), state)

    return _trained(by, step, matrix())


def states_and_constants(by: Compiler) -> Any:
    held = [np.asarray(matrix(k)) for k in range(4)]

    def step(state: jax.Array, x: jax.Array) -> jax.Array:
        waves = [jnp.sin(jnp.outer(x, x) * (k + 1.0)) @ w for k, w in enumerate(held)]
        return state * 0.5 + sum((wave.sum(0) for wave in waves), jnp.zeros(N))[None]

    return _trained(by, step, matrix())


def states_and_libraries(by: Compiler) -> Any:
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


def states_in_branches(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        k, w = state
        w = jax.lax.cond(k % 2 == 0, lambda w: w.at[0].set(wide(x)), lambda w: jnp.tanh(w) + wide(w[1])[None], w)
        return k + 1, jax.lax.switch(k, [lambda w: w, lambda w: w * 2 + wide(x)[None], jnp.sin], w)

    return _trained(by, step, (jnp.int32(0), matrix()))


def states_that_are_sorted(by: Compiler) -> Any:
    return _trained(by, lambda state, x: jnp.sort(state, axis=0) + wide(x)[None], matrix())


def states_that_change_places(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        a, b, c = state
        return b, c + wide(x)[None], a

    return _trained(by, step, tuple(matrix(k) for k in range(3)), steps=4)


def states_that_come_back(by: Compiler) -> Any:
    return _trained(by, lambda state, x: (state[0], state[1] + wide(x)), (matrix(), vector(2)))


def states_of_other_sizes(by: Compiler) -> Any:
    """XLA cannot use them, and jax says so."""
    step, state = by.jit(lambda state, x: state[:7].sum(0) + wide(x), donate_argnums=0), matrix()
    return step(state, vector()), fates(state)


def names_of_donated_arguments(by: Compiler) -> Any:
    step = by.jit(lambda x, *, state, other: (state * 2 + wide(x)[None], other + 1), donate_argnames=("state",))
    state, other = matrix(), jnp.ones(3)
    return step(vector(), state=state, other=other), fates((state, other))


def donated_twice_in_one_call(by: Compiler) -> Any:
    step = by.jit(lambda a, b, x: (a + wide(x)[None], b * 2), donate_argnums=(0, 1))
    first = step(matrix(), matrix(1), vector())
    same = matrix(2)
    return first, raised(lambda: step(same, same, vector())), step(matrix(), matrix(1), vector())


def donated_and_kept_in_one_call(by: Compiler) -> Any:
    """The same buffer is donated, and read as another argument."""

    def step(a: jax.Array, b: jax.Array, x: jax.Array) -> Any:
        loop = jax.lax.fori_loop(0, 3, lambda k, s: s.at[k].set(wide(x)), a)
        return loop, (jnp.tanh(b) @ b).sum(0)

    step, same = by.jit(step, donate_argnums=0), matrix(2)
    return step(matrix(), matrix(1), vector()), raised(lambda: step(same, same, vector()))


def used_after_it_was_donated(by: Compiler) -> Any:
    step, state = by.jit(lambda state, x: state + wide(x)[None], donate_argnums=0), matrix()
    result = step(state, vector())
    values = np.array(result)
    return values, raised(lambda: state + 1), raised(lambda: step(state, vector())), step(result, vector())


def buffers_that_are_numpy_s(by: Compiler) -> Any:
    kept = np.full((N, N), 0.25, np.float32)
    step = by.jit(lambda state, x: state * 2 + wide(x)[None], donate_argnums=0)
    return step(jnp.asarray(kept), vector()), step(kept, vector()), kept


def buffers_that_numpy_looks_at(by: Compiler) -> Any:
    state = jnp.tanh(matrix())
    view = np.asarray(state)
    before = view.copy()
    step = by.jit(lambda state, x: state * 2 + wide(x)[None], donate_argnums=0)
    result = step(state, vector())
    return result, fates(state), bool(np.array_equal(view, before))


def executables_that_donate(by: Compiler) -> Any:
    def step(state: Any, x: jax.Array) -> Any:
        return {"w": state["w"] * 0.9 + wide(x)[None], "k": state["k"] + 1}, x.sum()

    jitted, state = by.jit(step, donate_argnums=0), {"w": matrix(), "k": jnp.int32(0)}
    executable = by.compile(jitted, state, vector())
    states = [state]
    for _ in range(3):
        states.append(executable(states[-1], vector())[0])
    return states[-1], fates(states)


def donated_keys(by: Compiler) -> Any:
    def step(key: jax.Array, x: jax.Array) -> Any:
        key, draw = jax.random.split(key)
        return key, wide(x + jax.random.normal(draw, (N,)))

    step, keys = by.jit(step, donate_argnums=0), [jax.random.key(0)]
    results = []
    for _ in range(3):
        key, result = step(keys[-1], vector())
        keys.append(key)
        results.append(result)
    return keys[-1], results, fates(keys)


CASES = named(
    states_of_training, states_in_loops, states_and_constants, states_and_libraries, states_in_branches,
    states_that_are_sorted, states_that_change_places, states_that_come_back,
    states_of_other_sizes, names_of_donated_arguments, donated_twice_in_one_call, donated_and_kept_in_one_call,
    used_after_it_was_donated, buffers_that_are_numpy_s, buffers_that_numpy_looks_at, executables_that_donate,
    donated_keys,
)  # fmt: skip
