"""Calls into libraries: LAPACK by XLA's FFI, transforms, sorts, convolutions, scatters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jit_cases import Compiler, branches, matrix, same, vector
from xla_programs import plans

__all__ = ["plans"]


def _spread(x: jax.Array) -> list[jax.Array]:
    """Four matrices of `[64, 64]`, of which the values are near 1."""
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
    """LAPACK's Cholesky by its registered name, with its operand's buffer as that of its result."""
    jnp.linalg.cholesky(jnp.eye(2)).block_until_ready()  # registers it
    shapes = (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    call = jax.ffi.ffi_call("lapack_spotrf_ffi", shapes, input_layouts=[(0, 1)], output_layouts=[(0, 1), ()],
                            input_output_aliases={0: 0})  # fmt: skip

    def program(x: jax.Array) -> Any:
        return [call(m @ m.T + 2 * jnp.eye(64), uplo=np.uint8(ord("L"))) for m in _spread(x)]

    return by.jit(program)(vector())


@same
def test_fourier_transforms(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        return [(jnp.fft.fft(w[0]), jnp.fft.rfft2(w), jnp.fft.irfft(jnp.fft.rfft(w)), jnp.fft.ifftn(w)) for w in waves]

    return by.jit(program)(vector())


@same
def test_sorts(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.round(jnp.sin(jnp.outer(x, x) * k) * 8) for k in range(1, 5)]
        both = [lax.sort((w, jnp.cos(w), lax.broadcasted_iota(jnp.int32, w.shape, 1)), num_keys=2) for w in waves]
        return both, [(jnp.sort(w, axis=0, descending=True), jnp.argsort(w, stable=True)) for w in waves]

    return by.jit(program)(vector())


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


@same
def test_scatters_and_gathers(by: Compiler) -> Any:
    def program(x: jax.Array, places: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        return [
            (w.at[places].add(1.0, mode="drop"), w.at[:, places].max(0.5, mode="clip"), w.at[places].get(mode="fill"),
             jax.ops.segment_sum(w, places, 16), jnp.where(w > 0, w, 0.0).at[places, places].mul(2.0))
            for w in waves
        ]  # fmt: skip

    return by.jit(program)(vector(), jnp.arange(256, dtype=jnp.int32) * 7 % 300 - 20)
