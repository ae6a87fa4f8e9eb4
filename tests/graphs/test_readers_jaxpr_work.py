"""JAX functions as graphs: bytes and FLOPs of every kind of op."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from traced import TOY, only, shape

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.jaxpr.reader import from_jax
from graphrl.graphs.readers.jaxpr.work import array_bytes


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (jnp.float32, 40),
        (jnp.bfloat16, 20),
        (jnp.float8_e4m3fn, 10),
        (jnp.int4, 5),
        (jnp.uint2, 3),
        (jnp.bool_, 10),
        (jnp.complex64, 80),
        (jax.dtypes.float0, 0),
        (jax.random.key(0).dtype, 80),
        (jax.random.key(0, impl="rbg").dtype, 160),
    ],
    ids=str,
)
def test_bytes_of_every_kind_of_dtype(dtype: Any, size: int) -> None:
    assert array_bytes(jax.ShapeDtypeStruct((10,), dtype)) == size


def test_bytes_and_work_of_odd_dtypes_in_graphs() -> None:
    def f(key: jax.Array, narrow: jax.Array, flags: jax.Array) -> tuple[jax.Array, ...]:
        noise = jax.random.normal(jax.random.fold_in(key, 1), (8,), jnp.bfloat16)
        return noise, narrow.astype(jnp.int8), ~flags, jax.random.split(key, 3)

    graph = from_jax(f, jax.random.key(0), shape(8, dtype=jnp.int4), shape(8, dtype=jnp.bool_))
    assert [tensor.bytes for tensor in graph.inputs] == [8, 4, 8]
    sizes = {tensor.name: tensor.bytes for op in graph.ops for tensor in op.outputs}
    assert [sizes[name] for name in graph.outputs] == [16, 8, 8, 24]


def test_scalars_empty_arrays_and_tokens_cost_nothing_but_exist() -> None:
    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        token = lax.create_token(x)
        lax.after_all(token)
        return jnp.sum(x @ x.T), jnp.concatenate([x, x])

    graph = from_jax(f, shape(0, 3), chip=TOY)
    assert only(graph, "concatenate").runtime == 0
    assert only(graph, "reduce_sum").outputs[0].bytes == 4


LINEAR_ALGEBRA: dict[str, tuple[Callable[..., Any], float]] = {
    "cholesky": (jnp.linalg.cholesky, 1 / 3),
    "lu": (jax.scipy.linalg.lu_factor, 2 / 3),
    "qr": (jnp.linalg.qr, 8 / 3),
    "eigh": (jnp.linalg.eigh, 9),
    "svd": (jnp.linalg.svd, 21),
    "eig": (jnp.linalg.eig, 25),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_factorisations_count_their_leading_terms(name: str) -> None:
    function, factor = LINEAR_ALGEBRA[name]
    with jax.numpy_dtype_promotion("standard"):  # jax.scipy's own code
        graph = from_jax(function, shape(3, 300, 300))
    assert sum(op.flops for op in graph.ops) == pytest.approx(3 * factor * 300**3, rel=0.03)


def test_solving_and_differentiating_linear_systems() -> None:
    graph = from_jax(lambda a, b: jnp.linalg.solve(a, b), shape(50, 50), shape(50))
    solve = only(graph, "custom_linear_solve")
    assert solve.flops == pytest.approx(2 * 50 * 50, rel=0.1)
    gradient = from_jax(jax.grad(lambda a: jnp.linalg.slogdet(a)[1]), shape(6, 6))
    assert len(gradient.ops) > 5


def convolution_flops(graph: ComputationGraph) -> list[int]:
    return [op.flops for op in graph.ops if op.type == "conv_general_dilated"]


@settings(max_examples=25)
@given(
    size=st.integers(3, 12),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    groups=st.integers(1, 2),
)
def test_convolutions_count_padding_and_not_holes(size: int, kernel: int, stride: int, groups: int) -> None:
    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            [(kernel // 2, kernel // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    arguments = (shape(2, size, size, 4), shape(kernel, kernel, 4 // groups, 6))
    (forward,) = convolution_flops(from_jax(convolve, *arguments))
    out = (size + 2 * (kernel // 2) - kernel) // stride + 1
    assert forward == 2 * 2 * out * out * kernel * kernel * (4 // groups) * 6
    backward = convolution_flops(from_jax(jax.grad(lambda x, w: convolve(x, w).sum(), (0, 1)), *arguments))
    # Each gradient repeats the forward pairs, minus those of the padding in the image gradient.
    assert len(backward) == 2
    assert all(flops <= forward for flops in backward)
    if stride == 1 or kernel > 1:
        assert all(flops >= 0.4 * forward for flops in backward)


def test_other_work_is_counted_by_rule() -> None:
    def flops(function: Callable[..., Any], *args: Any) -> int:
        return sum(op.flops for op in from_jax(function, *args).ops)

    x = shape(8, 64)
    assert flops(lambda x: jnp.sum(x, axis=0), x) == 512
    assert flops(lambda x: x.T.reshape(-1), x) == 0
    assert flops(lambda x: x**5, x) == 3 * 512
    assert flops(lambda x: jnp.cumsum(x, axis=1), x) == 512
    assert flops(lambda x: lax.sort(x, dimension=1), x) == 512 * 6
    assert flops(lambda x: lax.top_k(x, 3), x) == 512 * 2
    assert flops(jnp.fft.fft, shape(8, 64, dtype=jnp.complex64)) == 5 * 512 * 6
    assert flops(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), x) == 512
    assert flops(lambda x: x.at[0].add(jnp.ones(64)), x) == 64
    assert flops(lambda x, r: lax.ragged_dot(x, jnp.ones((2, 64, 5)), r), x, shape(2, dtype=jnp.int32)) == 2 * 512 * 5
    assert flops(lambda x: lax.reduce(x, 1.0, lambda a, b: a * b + a, (0,)), x) == 2 * 512
    assert flops(lambda a: jax.scipy.linalg.solve_triangular(a, jnp.ones((8, 2))), shape(8, 8)) == 8 * 16


def test_gathers_and_slices_read_only_what_they_take() -> None:
    graph = from_jax(lambda table, i: table[i], shape(1000, 8), shape(4, dtype=jnp.int32), chip=TOY)
    gather = only(graph, "gather")
    assert gather.runtime <= 2 * 4 * 8 * 4 + 4 * 8
