"""Memory of written values, padded pictures, transposed operands, and zeros to scatter into."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphrl
from graphrl.graphs.readers.jaxpr.flatten import External, flatten
from graphrl.graphs.roofline import find_chip
from graphrl.xla.checkpoint.derivative import Order, derivative, orders_of, padded_bytes
from graphrl.xla.checkpoint.fusion import fusion_of, materialized_values
from graphrl.xla.checkpoint.gradient import gradient_of
from graphrl.xla.checkpoint.program import Program, program_of
from graphrl.xla.checkpoint.solvers.choice import Pricing
from graphrl.xla.checkpoint.solvers.level import Level


def convolution(shape: tuple[int, ...], padding: Any, stride: int) -> Any:
    """The equation of a convolution on pictures of three channels."""
    kernel = jax.ShapeDtypeStruct((3, 3, 3, 8), jnp.float32)

    def run(picture: jax.Array, kernel: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(picture, kernel, (stride, stride), padding, dimension_numbers=numbers)

    return jax.make_jaxpr(run)(jax.ShapeDtypeStruct(shape, jnp.float32), kernel).eqns[0]


def test_only_uneven_padding_is_a_copy() -> None:
    assert padded_bytes(convolution((2, 8, 8, 3), "SAME", 1)) == 0
    assert padded_bytes(convolution((2, 8, 8, 3), "VALID", 2)) == 0
    assert padded_bytes(convolution((2, 8, 8, 3), "SAME", 2)) == 4 * 2 * 9 * 9 * 3  # a row and a column at one end
    assert padded_bytes(convolution((2, 8, 9, 3), "SAME", 2)) == 4 * 2 * 9 * 11 * 3
    assert padded_bytes(convolution((2, 8, 8, 3), [(0, 0), (3, -1)], 1)) == 4 * 2 * 8 * 10 * 3
    assert padded_bytes(convolution((0, 8, 8, 3), "SAME", 2)) == 0


def orders(fn: Any, *shapes: tuple[int, ...]) -> list[Order]:
    """Dimension orders of the operands of a function's only product."""
    closed = jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    nodes = flatten(closed, [External("", 4, weight=False)] * len(shapes), find_chip("h200")).nodes
    (product,) = [node for node in nodes if node.type == "dot_general"]
    return [order for _, order in orders_of(nodes, product)]


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ji,jk->ik", "ij,kj->ik", "bhij,bhjk->bhik", "ibj,bjk->bik"])
def test_products_read_these_as_they_are(equation: str) -> None:
    """Batch dimensions are adjacent, but not innermost; so are summed and other dimensions."""
    dims = {name: 2 + number for number, name in enumerate("bhijk")}
    shapes = (tuple(dims[d] for d in side) for side in equation.split("->")[0].split(","))
    assert orders(lambda a, b: jnp.einsum(equation, a, b), *shapes) == [(), ()]


def test_products_need_others_transposed() -> None:
    def product(a: jax.Array, b: jax.Array, sums: Any, batch: Any) -> jax.Array:
        return jax.lax.dot_general(a, b, (sums, batch))

    # heads between positions and features: batch and head are two strides
    split = orders(lambda a, b: product(a, b, ((3,), (3,)), ((0, 2), (0, 2))), (2, 5, 3, 4), (2, 6, 3, 4))
    assert split == [(0, 2, 1, 3), (0, 2, 1, 3)]
    assert orders(lambda a, b: product(a, b, ((1,), (1,)), ((2,), (2,))), (5, 4, 3), (6, 4, 3)) == [
        (2, 0, 1),
        (2, 0, 1),
    ]
    # two dimensions that are summed, in the first operand's order: the second's are the other way round
    assert orders(lambda a, b: product(a, b, ((0, 1), (1, 0)), ((), ())), (3, 4, 5), (4, 3, 6)) == [(), (2, 1, 0)]
    assert orders(lambda a, b: product(a, b, ((1, 0), (1, 0)), ((), ())), (3, 4, 5), (3, 4, 6)) == [(), ()]
    # a dimension of one element fits anywhere
    assert orders(lambda a, b: product(a, b, ((3,), (3,)), ((0, 2), (0, 2))), (1, 5, 3, 4), (1, 6, 3, 4)) == [(), ()]


def test_transposed_views_are_looked_through() -> None:
    def heads(a: jax.Array, b: jax.Array) -> jax.Array:
        swapped = (jnp.swapaxes(x, 1, 2) for x in (a, b))
        return jnp.einsum("bhtd,bhsd->bhts", *swapped)

    assert orders(heads, (2, 5, 3, 4), (2, 6, 3, 4)) == [(0, 2, 1, 3), (0, 2, 1, 3)]
    assert orders(heads, (2, 1, 3, 4), (2, 6, 3, 4)) == [(), (0, 2, 1, 3)]
    assert orders(lambda a, b: jnp.matmul(a.T, b.T), (3, 4), (5, 3)) == [(), ()]


def peak(loss: Any, *args: jax.Array) -> float:
    """Peak bytes of the gradient by jax's own choice."""
    return graphrl.checkpoint(loss, budget=1.0, seconds=0.1, cache=False).report(*args).plain.peak_bytes


def test_transposed_operands_count_at_the_peak() -> None:
    def loss(x: jax.Array, w: jax.Array, sums: tuple[int, int]) -> jax.Array:
        return jnp.sin(jax.lax.dot_general(jnp.sin(x), w, (((0, 1), sums), ((), ())))).sum()

    x, same, swapped = jnp.ones((8, 16, 4)), jnp.ones((8, 16, 64)), jnp.ones((16, 8, 64))
    as_it_is = peak(lambda x: loss(x, same, (0, 1)), x)
    transposed = peak(lambda x: loss(x, swapped, (1, 0)), x)
    assert as_it_is + swapped.nbytes - x.nbytes <= transposed <= as_it_is + swapped.nbytes


def level_of(loss: Any, *args: Any) -> tuple[Program, Level]:
    """A function as a program, and the level of choices for its gradient by all arguments."""
    program = program_of(jax.make_jaxpr(loss)(*args))
    return program, gradient_of(program, [True] * len(args), find_chip("h200")).gradient.levels[0]


def test_recomputed_values_are_written_in_the_order_of_products() -> None:
    """An expert's tokens of several groups are in an order that serves no product."""
    tokens, weights = jnp.ones((8, 4, 16, 32)), jnp.ones((4, 32, 64))
    _, level = level_of(lambda x, w: jnp.sin(jnp.einsum("sech,ehd->secd", jnp.sin(x), w)).sum(), tokens, weights)
    (copy,) = np.flatnonzero(level.kernel_copies)
    assert level.kernel_copies[copy] == tokens.nbytes == level.bytes[level.kernel_reads[copy]]
    _, level = level_of(lambda x, w: jnp.sin(jnp.einsum("sech,ehd->secd", jax.nn.softmax(x), w)).sum(), tokens, weights)
    assert not level.kernel_copies.any()  # XLA's kernel for softmaxes goes by rows
    _, level = level_of(lambda x, w: jnp.sin(jnp.sin(x) @ w).sum(), jnp.ones((8, 32)), jnp.ones((32, 64)))
    assert not level.kernel_copies.any()


@pytest.mark.parametrize(
    ("more", "is_kept"),
    [(jnp.zeros_like, False), (jnp.sin, True)],
    ids=["a softmax alone", "another reader, too"],
)
def test_values_that_only_a_softmax_reads_are_not_kept(more: Any, is_kept: bool) -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        scores = x @ w
        return jnp.sin(jax.nn.softmax(scores) + more(scores)).sum()

    program, level = level_of(loss, jnp.ones((8, 16)), jnp.ones((16, 64)))
    named = {program.equations[place].primitive.name for place in level.place[level.named]}
    assert ("dot_general" in named) == is_kept
    assert "div" in named  # the softmax itself


def test_zeros_to_scatter_into_count_all_the_time() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID")).sum()

    picture = jnp.ones((64, 64))
    report = graphrl.checkpoint(loss, budget=1.0, seconds=0.1, cache=False).report(picture)
    (forward, backward) = report.timelines[0]
    assert min(forward + backward) >= 2 * picture.nbytes


def test_summed_results_are_not_written_over_an_operand() -> None:
    """The gradient of a bias is a sum, which XLA computes in the kernel of its operand."""

    def loss(x: jax.Array, w: jax.Array, b: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.square(jnp.tanh(x @ w + b[None]) @ v).sum()

    shapes = (64, 8), (8, 64), (64,), (64, 1)
    x, w, b, v = (jnp.ones(shape) for shape in shapes)
    whole, plain = 4 * 64 * 64, peak(lambda x, w, v: loss(x, w, b, v), x, w, v)
    assert peak(loss, x, w, b, v) > plain + 0.9 * whole


def test_sums_of_a_loop_are_in_the_memory_of_the_results() -> None:
    def loss(xs: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros_like(xs[0]), xs)[0].sum()

    xs, w = jnp.ones((16, 2, 128)), jnp.ones((128, 128))
    added = peak(loss, xs, w) - peak(lambda xs: loss(xs, w), xs)
    assert added < 0.5 * w.nbytes


def test_the_initial_value_of_two_sums_is_copied() -> None:
    def loss(xs: jax.Array, apart: bool) -> jax.Array:
        def step(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
            return (jnp.sin(carry[0] + x), jnp.cos(carry[1] * x)), None

        (a, b), _ = jax.lax.scan(step, (jnp.ones(64), jnp.ones(64)), xs)
        return (1.0 * a + 2.0 * b if apart else a + b).sum()

    xs = jnp.ones((8, 64))
    assert peak(lambda xs: loss(xs, False), xs) == peak(lambda xs: loss(xs, True), xs)


LENGTH, WIDTH = 256, 64


@pytest.mark.parametrize(("axis", "is_written"), [(0, True), (1, False)])
def test_summed_values_with_other_readers_take_bytes(axis: int, is_written: bool) -> None:
    """True where channels are weighted by a function of their means; not for rows, as in a softmax."""

    def weighted(x: jax.Array) -> jax.Array:
        y = jnp.sin(x)
        return (y * y.sum(axis, keepdims=True)).sum()

    shape = jax.ShapeDtypeStruct((LENGTH, WIDTH), jnp.float32)
    own = derivative(program_of(jax.make_jaxpr(weighted)(shape)), [True], find_chip("h200"))
    fusion = fusion_of(own)
    (value,) = (value for value in fusion.written if own.node(value.node).type == "sin")
    assert not fusion.written[value]  # to save seconds its readers compute it
    assert materialized_values(own, fusion)[value] == is_written


def test_gradients_of_softmaxes_are_not_written_over_an_operand() -> None:
    """XLA reduces a row in the kernel that then writes it; a gradient without a reduction is written in place."""

    def scored(of_rows: Any) -> Any:
        return lambda x, w, v: jnp.square(of_rows(x @ w) @ v).sum()

    x, w, v = jnp.ones((64, 8)), jnp.ones((8, 64)), jnp.ones((64, 2))
    plain, softmax = peak(scored(jnp.tanh), x, w, v), peak(scored(jax.nn.softmax), x, w, v)
    assert softmax > plain + 0.9 * 4 * 64 * 64


def test_kept_values_use_the_memory_of_gradients() -> None:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.sin(x @ w)
        return x.sum()

    x, weights = jnp.ones((16, 32)), [jnp.ones((32, 32))] * 8
    program, level = level_of(lambda x, *weights: loss(list(weights), x), x, *weights)
    assert level.result_bytes.tolist() == [x.nbytes, *[4 * 32 * 32] * 8]
    plain = Pricing(gradient_of(program, [True] * 9, find_chip("h200")).gradient).plain
    assert plain.kept > 14 * x.nbytes
    assert plain.peak < level.workspace.max() + 9 * x.nbytes  # the library's workspace, and half of the kept values
