"""Values of all kinds, returned arguments, calls into libraries, jax's settings; and sensitivity of the comparison."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jit_cases import Compiler, N, branches, graphrl_s, jax_s, matrix, observed, raised, same, vector, wide
from xla_programs import plans

from graphrl.xla.hook import why_unavailable

__all__ = ["plans"]

# Values


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
def test_complex_and_small_types(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        reals = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        waves = [jnp.exp(1j * wave).astype(jnp.complex64) for wave in reals]
        eighths = [w.astype(jnp.float8_e4m3fn).astype(jnp.float32) @ w for w in reals]
        small = [((w * 7).astype(jnp.int4), w.astype(jnp.float8_e5m2)) for w in reals]
        return [(w @ w.conj().T, jnp.abs(w).max(0), jnp.angle(w[0])) for w in waves], eighths, small

    with jax.numpy_dtype_promotion("standard"):
        return by.jit(program)(vector())


@same
def test_empty_arrays(by: Compiler) -> Any:
    def program(x: jax.Array, none: jax.Array, flat: jax.Array) -> Any:
        def body(state: Any, row: jax.Array) -> Any:
            return (jnp.tanh(wide(state[0])), state[1] * 2), row

        results = none, none @ flat, flat.sum(0), jnp.concatenate([none.T, flat], 1), wide(x)[:0], flat.T @ none.T
        return results, lax.scan(body, (x, none), jnp.zeros((3, 0, 2))), jax.vmap(wide)(jnp.zeros((0, N)))

    return by.jit(program)(vector(), jnp.zeros((3, 0)), jnp.zeros((0, 5)))


@same
def test_literal_results(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        return 3, 2.5, True, None, jnp.zeros(4), np.arange(3), wide(x), (), {"k": jnp.int8(1)}, 1j

    return by.jit(program)(vector())


@same
def test_results_that_are_arguments(by: Compiler) -> Any:
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


# jax's settings


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


# Calls into libraries: LAPACK by XLA's FFI, transforms, sorts, convolutions, scatters


def _spread(x: jax.Array) -> list[jax.Array]:
    """Four matrices of `[64, 64]` with values near 1."""
    return [jnp.eye(64) + 0.1 * jnp.outer(part[:64], part[64:128]) / 64 for part in branches(jnp.tanh(x))]


@same
def test_cholesky(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        factors = [jnp.linalg.cholesky(m @ m.T + 2 * jnp.eye(64)) for m in _spread(x)]
        return [lax.linalg.triangular_solve(f, jnp.eye(64), lower=True, left_side=True) for f in factors]

    return by.jit(program)(vector())


@same
def test_eigenvalues_and_schur_forms(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        return [(jnp.linalg.eig(m), lax.linalg.schur(m), lax.linalg.hessenberg(m)) for m in _spread(x)]

    return by.jit(program)(vector())


@same
def test_foreign_function(by: Compiler) -> Any:
    """LAPACK's Cholesky by its registered name, with its operand's buffer as its result's."""
    jnp.linalg.cholesky(jnp.eye(2)).block_until_ready()  # registers it
    shapes = (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    call = jax.ffi.ffi_call("lapack_spotrf_ffi", shapes, input_layouts=[(0, 1)], output_layouts=[(0, 1), ()],
                            input_output_aliases={0: 0})  # fmt: skip

    def program(x: jax.Array) -> Any:
        return [call(m @ m.T + 2 * jnp.eye(64), uplo=np.uint8(ord("L"))) for m in _spread(x)]

    return by.jit(program)(vector())


@same
def test_transforms_sorts_and_scatters(by: Compiler) -> Any:
    def program(x: jax.Array, places: jax.Array) -> Any:
        waves = [jnp.round(jnp.sin(jnp.outer(x, x) * k) * 8) for k in range(1, 5)]
        return [
            (jnp.fft.fft(w[0]), jnp.fft.irfft(jnp.fft.rfft(w)), jnp.argsort(w, stable=True),
             lax.sort((w, jnp.cos(w), lax.broadcasted_iota(jnp.int32, w.shape, 1)), num_keys=2),
             w.at[places].add(1.0, mode="drop"), w.at[:, places].max(0.5, mode="clip"), w.at[places].get(mode="fill"),
             jax.ops.segment_sum(w, places, 16))
            for w in waves
        ]  # fmt: skip

    return by.jit(program)(vector(), jnp.arange(256, dtype=jnp.int32) * 7 % 300 - 20)


@same
def test_convolutions_and_pooling(by: Compiler) -> Any:
    def loss(kernels: jax.Array, images: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for kernel in kernels:
            y = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            total += jnp.square(y).mean()
        return total

    kernels = matrix(side=48).reshape(4, 3, 3, 8, 8)
    images = matrix(1).reshape(4, 64, 32, 8)
    return by.jit(jax.value_and_grad(loss, argnums=(0, 1)))(kernels, images)


# The comparison detects differences


def changed(results: Any) -> Compiler:
    """A compiler that returns functions with other results."""
    return dataclasses.replace(jax_s(), jit=lambda fn, **_: lambda *args: results)


@pytest.mark.parametrize("results", [jnp.zeros(N).at[3].set(-0.0), jnp.zeros(N, jnp.int32), [jnp.zeros(N)], None])
def test_differences_are_seen(results: Any) -> None:
    def case(by: Compiler) -> Any:
        return by.jit(jnp.zeros_like)(vector())

    assert observed(case, jax_s()) != observed(case, changed(results))


def test_effects_errors_and_weak_types_are_seen() -> None:
    def effects(by: Compiler) -> Any:
        log: list[int] = []
        by.jit(lambda: [jax.debug.callback(lambda v: log.append(int(v)), k, ordered=True) for k in range(2)])()
        jax.effects_barrier()
        return log

    assert observed(effects, jax_s()) == ["[0] 0", "[1] 1"] != observed(effects, changed(None))
    assert observed(lambda by: by.jit(lambda x: x + 1)(2), jax_s())[0].count(" weak ") == 1


@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
def test_programs_with_xla_s_hidden_random_state_are_left_alone(plans: Any) -> None:
    by = graphrl_s(seconds=0.2)
    by.jit(lambda x: wide(x) + lax.rng_uniform(0.0, 1.0, (N,)))(vector())
    assert [report.planned for report in by.reports()] == [False]
