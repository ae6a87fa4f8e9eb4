"""Arrays of all kinds, results that are no computation's, and jax's settings."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jit_cases import Compiler, N, matrix, raised, same, vector, wide
from xla_programs import plans

__all__ = ["plans"]


@same
def test_types_with_x64_on_and_off(by: Compiler) -> Any:
    def program(x: Any, k: Any) -> Any:
        return jnp.cumsum(wide(jnp.asarray(x)))[: N // 2], jnp.arange(5), jnp.asarray(k) + 1, jnp.ones(3).sum()

    step, numbers = by.jit(program), np.linspace(0, 1, N)
    off = step(numbers, 2**31 - 2)
    with jax.enable_x64(True):
        on = step(numbers, 2**31 - 2)
    return off, on, step(numbers, 3)


@same
def test_complex64(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.exp(1j * jnp.outer(x, x) * k).astype(jnp.complex64) for k in range(1, 5)]
        return [(w @ w.conj().T, w.real.sum(), jnp.abs(w).max(0), jnp.angle(w[0])) for w in waves]

    with jax.numpy_dtype_promotion("standard"):
        return by.jit(program)(vector())


@same
def test_small_types(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        eighths = [w.astype(jnp.float8_e4m3fn).astype(jnp.float32) @ w for w in waves]
        return eighths, [(w * 7).astype(jnp.int4) for w in waves], [w.astype(jnp.float8_e5m2) for w in waves]

    return by.jit(program)(vector())


@same
def test_numbers_that_are_none(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        y = wide(x)
        odd = jnp.where(x > 0, jnp.nan, jnp.where(x < -1, jnp.inf, -0.0))
        return y / 0.0, odd * y, jnp.sqrt(-y), jnp.maximum(odd, y), (x * 1e-38) * (y * 1e-3), jnp.signbit(odd)

    return by.jit(program)(vector())


@same
def test_empty_arrays(by: Compiler) -> Any:
    def program(x: jax.Array, none: jax.Array, flat: jax.Array) -> Any:
        y = wide(x)
        return y, none, none @ flat, flat.sum(0), jnp.concatenate([none.T, flat], 1), y[:0], none.sum(), flat.T @ none.T

    return by.jit(program)(vector(), jnp.zeros((3, 0)), jnp.zeros((0, 5)))


@same
def test_sizes_of_zero_in_loops(by: Compiler) -> Any:
    def program(x: jax.Array, none: jax.Array) -> Any:
        def body(state: Any, row: jax.Array) -> Any:
            return (jnp.tanh(wide(state[0])), state[1] * 2), row

        return jax.lax.scan(body, (x, none), jnp.zeros((3, 0, 2))), jax.vmap(wide)(jnp.zeros((0, N)))

    return by.jit(program)(vector(), jnp.zeros((0, 4)))


@same
def test_literal_results(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        return 3, 2.5, True, None, jnp.zeros(4), np.arange(3), wide(x), (), {"k": jnp.int8(1)}, 1j

    return by.jit(program)(vector())


@same
def test_arguments_that_come_back(by: Compiler) -> Any:
    def program(x: jax.Array, y: jax.Array, tree: Any) -> Any:
        return x, wide(x), y, {"again": x, "tree": tree}, tree["b"]

    x, y, tree = vector(), jnp.arange(5), {"a": matrix(), "b": jnp.float32(2)}
    results = by.jit(program)(x, y, tree)
    same = [a.unsafe_buffer_pointer() == b.unsafe_buffer_pointer() for a, b in ((results[0], x), (results[2], y))]
    return results, same, by.compile(by.jit(program), x, y, tree)(x, y, tree)


@same
def test_hundreds_of_arguments(by: Compiler) -> Any:
    def program(xs: list[jax.Array], x: jax.Array) -> Any:
        y = wide(x)
        return [a + y[k] for k, a in enumerate(xs)]

    xs = [jnp.full(k % 7 + 1, k, jnp.float32) for k in range(100)]
    step = by.jit(program, donate_argnums=0)
    for _ in range(2):
        xs = step(xs, vector())
    return xs


@same
def test_caches_that_are_cleared(by: Compiler) -> Any:
    step = by.jit(wide)
    first = step(vector())
    step.clear_cache()
    second = step(vector())
    jax.clear_caches()
    return first, second, step(vector())


@same
def test_jit_that_is_off(by: Compiler) -> Any:
    log: list[str] = []

    def program(x: jax.Array) -> jax.Array:
        log.append(type(x).__name__)
        return jnp.tanh(x) if log else x

    step = by.jit(program)
    with jax.disable_jit():
        results = [step(vector()) for _ in range(2)]
    return results, step(vector()), len(log)


@same
def test_numbers_that_jax_looks_at(by: Compiler) -> Any:
    step = by.jit(lambda x: jnp.log(wide(x) * 0 + x))
    with jax.debug_nans(True):
        return step(jnp.abs(vector()) + 1), raised(lambda: step(-jnp.abs(vector())))
