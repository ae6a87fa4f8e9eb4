"""Cases with calls into libraries: LAPACK by XLA's FFI, transforms, sorts, convolutions, scatters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from reproduce.real_programs.cases.compiler import Compiler, branches, matrix, named, vector, wide


def _spread(x: jax.Array) -> list[jax.Array]:
    """Four matrices of `[64, 64]`, of which the values are near 1."""
    return [jnp.eye(64) + 0.1 * jnp.outer(part[:64], part[64:128]) / 64 for part in branches(jnp.tanh(x))]


def cholesky(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        factors = [jnp.linalg.cholesky(m @ m.T + 2 * jnp.eye(64)) for m in _spread(x)]
        return [lax.linalg.triangular_solve(f, jnp.eye(64), lower=True, left_side=True) for f in factors]

    return by.jit(program)(vector())


def singular_values(by: Compiler) -> Any:
    return by.jit(lambda x: [jnp.linalg.svd(m, full_matrices=False) for m in _spread(x)])(vector())


def eigenvalues_of_symmetric_matrices(by: Compiler) -> Any:
    return by.jit(lambda x: [jnp.linalg.eigh(m + m.T) for m in _spread(x)])(vector())


def eigenvalues_and_schur_forms(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        return [(jnp.linalg.eig(m), lax.linalg.schur(m), lax.linalg.hessenberg(m)) for m in _spread(x)]

    return by.jit(program)(vector())


def qr(by: Compiler) -> Any:
    return by.jit(lambda x: [(jnp.linalg.qr(m), jnp.linalg.det(m)) for m in _spread(x)])(vector())


def lu_and_solve(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        return [(lax.linalg.lu(m), jnp.linalg.solve(m, x[:64]), jnp.linalg.inv(m)) for m in _spread(x)]

    return by.jit(program)(vector())


def gradients_through_decompositions(by: Compiler) -> Any:
    def loss(x: jax.Array) -> jax.Array:
        parts = [jnp.linalg.eigh(m @ m.T + jnp.eye(64))[0].sum() + jnp.linalg.slogdet(m)[1] for m in _spread(x)]
        return sum(parts, jnp.zeros(()))

    return by.jit(jax.value_and_grad(loss))(vector())


def matrix_functions(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        return [(jax.scipy.linalg.expm(m), jnp.linalg.matrix_power(m, 5), jnp.linalg.pinv(m)) for m in _spread(x)]

    return by.jit(program)(vector())


def foreign_function(by: Compiler) -> Any:
    """LAPACK's Cholesky by its registered name, with its operand's buffer as that of its result."""
    jnp.linalg.cholesky(jnp.eye(2)).block_until_ready()  # registers it
    shapes = (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    call = jax.ffi.ffi_call("lapack_spotrf_ffi", shapes, input_layouts=[(0, 1)], output_layouts=[(0, 1), ()],
                            input_output_aliases={0: 0})  # fmt: skip

    def program(x: jax.Array) -> Any:
        return [call(m @ m.T + 2 * jnp.eye(64), uplo=np.uint8(ord("L"))) for m in _spread(x)]

    return by.jit(program)(vector())


def fourier_transforms(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        return [(jnp.fft.fft(w[0]), jnp.fft.rfft2(w), jnp.fft.irfft(jnp.fft.rfft(w)), jnp.fft.ifftn(w)) for w in waves]

    return by.jit(program)(vector())


def sorts(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.round(jnp.sin(jnp.outer(x, x) * k) * 8) for k in range(1, 5)]
        both = [lax.sort((w, jnp.cos(w), lax.broadcasted_iota(jnp.int32, w.shape, 1)), num_keys=2) for w in waves]
        return both, [(jnp.sort(w, axis=0, descending=True), jnp.argsort(w, stable=True)) for w in waves]

    return by.jit(program)(vector())


def top_k(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        return [(lax.top_k(w, 9), lax.approx_max_k(w, 4), jnp.median(w, axis=0)) for w in waves]

    return by.jit(program)(vector())


def convolutions_and_pooling(by: Compiler) -> Any:
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


def scatters_and_gathers(by: Compiler) -> Any:
    def program(x: jax.Array, places: jax.Array) -> Any:
        waves = [jnp.sin(jnp.outer(x, x) * k) for k in range(1, 5)]
        return [
            (w.at[places].add(1.0, mode="drop"), w.at[:, places].max(0.5, mode="clip"), w.at[places].get(mode="fill"),
             jax.ops.segment_sum(w, places, 16), jnp.where(w > 0, w, 0.0).at[places, places].mul(2.0))
            for w in waves
        ]  # fmt: skip

    return by.jit(program)(vector(), jnp.arange(256, dtype=jnp.int32) * 7 % 300 - 20)


def equations_by_iteration(by: Compiler) -> Any:
    def program(x: jax.Array) -> Any:
        m = jnp.eye(256) + jnp.outer(jnp.tanh(x), jnp.tanh(x)) / 256
        tridiagonal = lax.linalg.tridiagonal_solve(x * 0.1, jnp.ones(256), x * 0.1, wide(x)[:, None])
        return jax.scipy.sparse.linalg.cg(m, wide(x), maxiter=20)[0], tridiagonal

    return by.jit(program)(vector())


CASES = named(
    cholesky, singular_values, eigenvalues_of_symmetric_matrices, eigenvalues_and_schur_forms, qr, lu_and_solve,
    gradients_through_decompositions, matrix_functions, foreign_function, fourier_transforms, sorts, top_k,
    convolutions_and_pooling, scatters_and_gathers, equations_by_iteration,
)  # fmt: skip
