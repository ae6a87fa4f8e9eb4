"""Seconds of traced gradients against counts by hand, on a chip with round figures."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from graphrl.errors import GraphrlError
from graphrl.graphs.roofline import INTERCONNECTS, Chip
from graphrl.xla.checkpoint.equations import LONGEST
from graphrl.xla.checkpoint.primitives import HOST_LINK, send_to_host
from graphrl.xla.checkpoint.seconds import gradient_seconds

N = 64
BYTES = 4 * N * N
MEMORY = Chip("memory", 1e30, 1.0)  # a byte is a second, operations are free
PEAK = Chip("peak", 1.0, 1e30)
LAUNCH = Chip("launch", 1e30, 1e30, 1.0)
PRODUCT = 2 * N**3


def matrix(size: int = N) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, size), jnp.float32)


def seconds(function: Callable[..., Any], chip: Chip, arguments: int = 1) -> float:
    return gradient_seconds(jax.make_jaxpr(function)(*[matrix()] * arguments), chip)


def gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda x: loss(x).sum())


def test_a_chain_is_one_kernel_that_reads_and_writes_once() -> None:
    def chain(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.cos(x) * 2 + x).T.reshape(-1)

    assert seconds(chain, MEMORY) == 2 * BYTES
    assert seconds(chain, LAUNCH) == pytest.approx(1)
    assert seconds(chain, PEAK) == 4 * N * N


def test_products_read_and_write_memory() -> None:
    assert seconds(lambda x, y: jnp.sin(x @ y), MEMORY, 2) == 3 * BYTES + 2 * BYTES
    assert seconds(lambda x: jnp.sin(x) @ jnp.sin(x), MEMORY) == 2 * BYTES + 2 * BYTES
    assert seconds(lambda x, y: x @ y, PEAK, 2) == PRODUCT


def test_scatters_to_the_same_zeros_fill_their_own() -> None:
    def scattered(*updates: jax.Array) -> list[jax.Array]:
        zeros, places = jnp.zeros((N, N)), jnp.arange(N // 2, dtype=jnp.int32)
        return [zeros.at[places].add(update[: N // 2]) for update in updates]

    def taken(*updates: jax.Array) -> list[jax.Array]:
        return [update[: N // 2] for update in updates]

    def own(count: int) -> float:
        """Seconds without the slices and the indices, which occur only once."""
        return seconds(scattered, MEMORY, count) - seconds(taken, MEMORY, count)

    filled = BYTES + BYTES // 2 + BYTES  # zeros, updates, result
    assert own(1) == pytest.approx(filled, abs=16 * N)
    assert own(3) == pytest.approx(3 * filled, abs=16 * N)


def test_a_value_is_written_if_that_moves_fewer_bytes() -> None:
    def sums(*xs: jax.Array, readers: int) -> list[jax.Array]:
        shared = sum(xs)
        return [jnp.exp(shared * (1.0 + k)) for k in range(readers)]

    for operands, readers, expected in (
        (2, 2, 2 * 3),  # each reads both
        (4, 2, 5 + 2 * 2),  # written, and read by each
        (2, 4, 3 + 4 * 2),
    ):
        moved = seconds(lambda *xs, n=readers: sums(*xs, readers=n), MEMORY, operands)
        assert moved == expected * BYTES


@pytest.mark.parametrize(("length", "expected"), [(LONGEST, 2 * 2), (LONGEST + 1, 2 + 2 * 2)])
def test_a_long_chain_with_several_readers_is_written(length: int, expected: int) -> None:
    def chained(x: jax.Array) -> list[jax.Array]:
        for _ in range(length):
            x = jnp.sin(x)
        return [x + 1.0, x * 2.0]

    assert seconds(chained, MEMORY) == expected * BYTES


def test_a_chain_runs_once_for_each_slice_of_its_result() -> None:
    def halves(x: jax.Array, length: int) -> list[jax.Array]:
        for _ in range(length):
            x = jnp.sin(x)
        both = x[: N // 2] + x[N // 2 :]
        return [both + 1.0, both * 2.0]

    fits = (LONGEST - 3) // 2  # both halves of it, two slices and their sum
    assert seconds(lambda x: halves(x, fits), MEMORY) == 2 * (BYTES + BYTES / 2)
    assert seconds(lambda x: halves(x, fits + 1), MEMORY) == BYTES + BYTES / 2 + 2 * BYTES


def test_a_hyperbolic_tangent_with_several_readers_is_written() -> None:
    assert seconds(lambda x: jnp.tanh(x) * 2.0, MEMORY) == 2 * BYTES
    assert seconds(lambda x: ((y := jnp.tanh(x)) * 2.0, y + 1.0), MEMORY) == 2 * BYTES + 2 * 2 * BYTES


def test_rows_are_reduced_within_their_kernel_and_columns_are_not() -> None:
    assert seconds(lambda x: jax.nn.softmax(x, -1), MEMORY) == 2 * BYTES
    assert seconds(lambda x: x - x.sum(0, keepdims=True), MEMORY) == (BYTES + 4 * N) + (BYTES + 4 * N + BYTES)


def test_slices_read_their_part() -> None:
    assert seconds(lambda x: jnp.sin(x[: N // 4]), MEMORY) == BYTES / 2
    assert seconds(lambda x: jnp.sin(x[:, ::4]), MEMORY) == BYTES + BYTES / 4  # a part of every line


def test_dead_code_and_equal_equations_are_free() -> None:
    def loss(x: jax.Array) -> jax.Array:
        _unused = jnp.tanh(x) @ x
        return (x @ x) * (x @ x)

    assert seconds(loss, PEAK) == PRODUCT + N * N


def test_loops_and_branches_count_their_bodies() -> None:
    def scan(x: jax.Array) -> jax.Array:
        return lax.scan(lambda y, _: (y @ x, None), x, None, length=7)[0]

    assert seconds(scan, PEAK) == 7 * PRODUCT
    assert seconds(lambda x: lax.fori_loop(0, 5, lambda _, y: y @ x, x), PEAK) == pytest.approx(5 * PRODUCT, rel=1e-3)
    branches = [lambda x: x, lambda x: x @ x @ x, lambda x: x @ x]
    assert seconds(lambda x: lax.switch(0, branches, x), PEAK) == pytest.approx(2 * PRODUCT, rel=1e-3)


def test_scans_copy_stacked_results_and_slices_for_kernels() -> None:
    def moved(step: Callable[[jax.Array, jax.Array], tuple[jax.Array, Any]]) -> float:
        stack = jax.ShapeDtypeStruct((3, N, N), jnp.float32)
        return gradient_seconds(jax.make_jaxpr(lambda x, xs: lax.scan(step, x, xs))(matrix(), stack), MEMORY) / BYTES

    assert moved(lambda x, y: (x + y, None)) == 3 * 3
    assert moved(lambda x, y: (x + y, jnp.sin(y))) == 3 * (3 + 2)
    assert moved(lambda x, y: (x @ y, None)) == 3 * (3 + 2)
    assert moved(lambda x, y: ((z := x @ x), z)) == 3 * (2 + 2)


@pytest.mark.parametrize("prevent_cse", [True, False])
def test_recomputation_costs_unless_the_compiler_may_merge_it(prevent_cse: bool) -> None:
    def layer(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x) @ x

    plain = seconds(gradient(layer), PEAK)
    again = seconds(gradient(jax.checkpoint(layer, prevent_cse=prevent_cse)), PEAK)
    assert again - plain == pytest.approx(PRODUCT if prevent_cse else 0, abs=5 * N * N)


def test_a_barrier_keeps_equals_apart() -> None:
    def twice(x: jax.Array, apart: bool) -> jax.Array:
        return (x @ x) * ((lax.optimization_barrier(x) if apart else x) @ x)

    assert seconds(lambda x: twice(x, True), PEAK) - seconds(lambda x: twice(x, False), PEAK) == PRODUCT


def test_copies_use_the_link_in_parallel_with_kernels() -> None:
    policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    moving = gradient(jax.checkpoint(lambda x: jnp.sin(x @ x), policy=policy))
    free = Chip("free", 1e30, 1e30)
    assert seconds(moving, free) == pytest.approx(2 * BYTES / INTERCONNECTS[HOST_LINK].bandwidth)  # out, then back
    assert seconds(moving, MEMORY) > BYTES


@pytest.mark.parametrize(("products", "waits"), [(0, 1.0), (1, 0.5), (3, 0.0)])
def test_a_copy_runs_in_parallel_with_products_until_its_first_read(products: int, waits: float) -> None:
    """A chip whose products each take half as long as a copy."""
    copying = BYTES / INTERCONNECTS[HOST_LINK].bandwidth
    chip = Chip("half", 2 * 2 * N**3 / copying, 1e30)

    def run(x: jax.Array, is_moved: bool) -> jax.Array:
        x, copy = send_to_host(x, "x")
        for _ in range(products):
            x = x @ x
        return (lax.optimization_barrier((x, copy))[0] if is_moved else x) @ x

    def without(x: jax.Array) -> jax.Array:
        for _ in range(products):
            x = x @ x
        return x @ x

    own = seconds(lambda x: run(x, True), chip)
    assert own == pytest.approx(seconds(without, chip) + waits * copying)


def test_faults() -> None:
    with pytest.raises(GraphrlError, match="unknown chip"):
        gradient_seconds(jax.make_jaxpr(jnp.sin)(1.0), "abacus")
