"""Effects: callbacks of all kinds run once each, in order where this is requested; random numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, io_callback
from jit_cases import Compiler, N, branches, fates, raised, same, vector, wide
from xla_programs import plans

__all__ = ["plans"]

_VECTOR = jax.ShapeDtypeStruct((N,), jnp.float32)


@same
def test_ordered_debug_callbacks(by: Compiler) -> Any:
    log: list[Any] = []

    def program(x: jax.Array) -> jax.Array:
        parts = branches(x)
        for part in parts:
            jax.debug.callback(lambda value: log.append(np.array(value)), part, ordered=True)
        return sum(parts, jnp.zeros_like(x))

    step = by.jit(program)
    return step(vector()), step(vector(1)), jax.effects_barrier(), log


@same
def test_pure_callbacks_with_pytrees(by: Compiler) -> Any:
    def host(tree: Any) -> Any:
        return {"double": tree["a"] * np.float32(2), "shape": np.int32(tree["b"].size)}

    shape = {"double": _VECTOR, "shape": jax.ShapeDtypeStruct((), jnp.int32)}

    def program(x: jax.Array) -> Any:
        first = jax.pure_callback(host, shape, {"a": wide(x), "b": jnp.outer(x, x)})
        return first, jax.pure_callback(host, shape, {"a": wide(first["double"]), "b": x})

    return by.jit(program)(vector())


@same
def test_ordered_io_callbacks_in_a_scan(by: Compiler) -> Any:
    log: list[Any] = []

    def note(value: Any) -> np.ndarray:
        log.append(float(value))
        return np.array(len(log), np.float32)

    def program(x: jax.Array) -> Any:
        def body(x: jax.Array, _: None) -> Any:
            places = [io_callback(note, jax.ShapeDtypeStruct((), jnp.float32), p.sum(), ordered=True)
                      for p in branches(x)]  # fmt: skip
            return jnp.tanh(wide(x)), jnp.stack(places)

        return jax.lax.scan(body, x, None, length=3)

    return by.jit(program)(vector()), log


@same
def test_callbacks_in_the_condition_of_a_loop(by: Compiler) -> Any:
    log: list[float] = []

    def program(x: jax.Array) -> jax.Array:
        def continues(state: Any) -> jax.Array:
            jax.debug.callback(lambda k: log.append(float(k)), state[0])
            return state[0] < 4

        return jax.lax.while_loop(continues, lambda s: (s[0] + 1, jnp.tanh(wide(s[1]))), (0, x))[1]

    results = by.jit(program)(vector())
    jax.effects_barrier()
    return results, sorted(log)


@same
def test_ordered_callbacks_in_branches(by: Compiler) -> Any:
    log: list[Any] = []

    def program(x: jax.Array, which: jax.Array) -> jax.Array:
        def branch(k: int) -> Any:
            def run(x: jax.Array) -> jax.Array:
                jax.debug.callback(lambda v: log.append((k, float(v))), x.sum(), ordered=True)
                return wide(x) * (k + 1.0)

            return run

        y = jax.lax.switch(which, [branch(k) for k in range(3)], x)
        return jax.lax.cond(y[0] > 0, branch(7), branch(8), y)

    step = by.jit(program)
    results = [step(vector(k), jnp.int32(k)) for k in range(3)]
    jax.effects_barrier()
    return results, log


@same
def test_callbacks_that_raise(by: Compiler) -> Any:
    log: list[float] = []

    def note(value: Any) -> np.ndarray:
        log.append(float(np.sum(value)))
        if len(log) == 2:
            raise LookupError("the user's own")
        return np.asarray(value)

    step = by.jit(lambda x: jax.pure_callback(note, _VECTOR, wide(x)))
    return step(vector()), raised(lambda: step(vector())) == "nothing", step(vector(1)), log


@same
def test_effects_of_two_functions_in_turns(by: Compiler) -> Any:
    log: list[Any] = []

    def make(name: str) -> Any:
        def program(x: jax.Array) -> jax.Array:
            jax.debug.callback(lambda v: log.append((name, float(v))), wide(x).sum(), ordered=True)
            return jnp.tanh(wide(x))

        return by.jit(program)

    first, second = make("first"), make("second")
    x = vector()
    for _ in range(3):
        x = second(first(x))
    jax.effects_barrier()
    return x, log


@same
def test_effects_with_donated_arguments(by: Compiler) -> Any:
    log: list[float] = []

    def program(state: jax.Array, x: jax.Array) -> jax.Array:
        for part in branches(x):
            jax.debug.callback(lambda v: log.append(float(v)), (part + state[0]).sum(), ordered=True)
        more = io_callback(lambda v: np.asarray(v) * np.float32(3), _VECTOR, wide(x), ordered=True)
        return state * 0.5 + more[None]

    step = by.jit(program, donate_argnums=0)
    states = [jnp.ones((N, N))]
    for _ in range(3):
        states.append(step(states[-1], vector()))
    jax.effects_barrier()
    return states[-1], fates(states), log


@same
def test_checked_errors(by: Compiler) -> Any:
    def program(x: jax.Array) -> jax.Array:
        y = wide(x)
        checkify.check(y[0] > 1e6, "too small: {y}", y=y[0])
        return jnp.log(y)

    error, results = by.jit(checkify.checkify(program, errors=checkify.float_checks | checkify.user_checks))(vector())
    return results, error.get()


@same
def test_keys_in_and_out(by: Compiler) -> Any:
    def program(key: jax.Array, keys: jax.Array, x: jax.Array) -> Any:
        key, draw = jax.random.split(key)
        noise = jax.vmap(lambda k: jax.random.normal(k, (N,)))(keys)
        return key, keys[::-1], wide(x + jax.random.normal(draw, (N,))) + noise.sum(0)

    step = by.jit(program)
    key, keys, x = jax.random.key(7), jax.random.split(jax.random.key(8), 6), vector()
    for _ in range(2):
        key, keys, x = step(key, keys, x)
    return key, keys, x
