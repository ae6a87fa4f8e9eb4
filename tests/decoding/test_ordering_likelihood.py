"""The probability of an order under eq. 8: exact, with an exact gradient."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ordering_graphs import SIZES, all_orders, padded_orders, plain_log_prob, small_graphs

from graphrl.decoding.likelihood import RANGE, log_prob
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import pad_batch

GRAPHS = small_graphs(8)
BATCH = pad_batch(GRAPHS, SIZES)
N = SIZES.ops
compiled = jax.jit(log_prob)


def drawn(scale: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(GRAPHS), N)).astype(np.float32) * np.float32(scale)


@functools.cache
def orders_of_all() -> tuple[list[list[tuple[int, ...]]], np.ndarray]:
    """All orders of every graph; and padded, `[g, most, n]`, repeated where a graph has fewer."""
    every = [list(all_orders(graph)) for graph in GRAPHS]
    most = max(map(len, every))
    return every, np.stack([padded_orders((orders * most)[:most], N) for orders in every])


def six_orders() -> np.ndarray:
    """Some of the orders: `[g, 6, n]`."""
    _, orders = orders_of_all()
    return orders[:, np.linspace(0, orders.shape[1] - 1, 6).astype(int)]


@pytest.mark.parametrize("scale", [1, 20])
def test_probabilities_are_products_over_the_steps_and_those_of_all_orders_sum_to_1(scale: float) -> None:
    every, orders = orders_of_all()
    priorities, some = drawn(scale), six_orders()
    log_probs, of_some = (np.asarray(compiled(BATCH, priorities, which)) for which in (orders, some))
    for g, graph in enumerate(GRAPHS):
        assert np.exp(log_probs[g, : len(every[g])]).sum() == pytest.approx(1, abs=2e-5)
        for order, value in zip(some[g, :, : graph.arrays.num_ops].tolist(), of_some[g], strict=True):
            assert value == pytest.approx(plain_log_prob(graph, priorities[g], order), rel=1e-5, abs=1e-5)


def test_the_gradient_is_that_of_the_plain_definition() -> None:
    some, weight = six_orders(), np.random.default_rng(1).normal(size=(len(GRAPHS), 6)).astype(np.float32)
    priorities = drawn(3)
    gradient = jax.jit(jax.grad(lambda y: (log_prob(BATCH, y, jnp.asarray(some)) * weight).sum()))(priorities)
    for g, graph in enumerate(GRAPHS):
        n = graph.arrays.num_ops
        each = [_plain_gradient(graph, priorities[g], tuple(order)) for order in some[g, :, :n].tolist()]
        np.testing.assert_allclose(gradient[g, :n], weight[g] @ np.array(each), atol=2e-4)
        assert np.all(gradient[g, n:] == 0)


def test_priorities_far_apart_lose_no_digits() -> None:
    """Some weights are 10^50 times others: running sums and their differences would lose them."""
    graph = layered(120, 3)
    batch, n = pad_batch([graph]), 120
    size = batch.sizes.ops
    rng = np.random.default_rng(0)
    y = np.zeros((1, size), np.float32)
    y[0, :n] = rng.uniform(-60, 60, n)
    order = tuple(graph.arrays.topological.tolist())
    value, gradient = jax.jit(
        jax.value_and_grad(lambda y: log_prob(batch, y, jnp.asarray(padded_orders([order], size))).sum())
    )(y)
    assert value == pytest.approx(plain_log_prob(graph, y[0], order), rel=1e-6)
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(gradient[0, :n], _plain_gradient(graph, y[0], order), atol=1e-4)


def test_lower_priorities_than_the_range_count_as_its_end() -> None:
    lower, clipped = drawn(1), drawn(1)
    lower[:, 0] = -1e6
    for y, graph in zip(clipped, GRAPHS, strict=True):
        y[0] = y[1 : graph.arrays.num_ops].max() - RANGE
    orders = six_orders()
    np.testing.assert_allclose(compiled(BATCH, lower, orders), compiled(BATCH, clipped, orders), rtol=1e-5)


def test_padding_changes_nothing() -> None:
    y, orders = drawn(3), six_orders()
    wide = pad_batch(GRAPHS, dataclasses.replace(SIZES, ops=13, slots=13 + 24))
    more = np.full((*orders.shape[:2], 13), 13, np.int32)
    more[..., :N] = np.where(orders == N, 13, orders)
    wider = np.concatenate([y, np.full((len(GRAPHS), 5), 77, np.float32)], 1)
    np.testing.assert_allclose(compiled(wide, wider, more), compiled(BATCH, y, orders), rtol=1e-5)


def _plain_gradient(graph: ComputationGraph, y: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    n = graph.arrays.num_ops
    before = np.zeros((n, n), bool)
    before[tuple(graph.arrays.dependencies())] = True
    done, gradient = np.zeros(n, bool), np.ones(n)
    for op in order:
        ready = ~done & (before & ~done[:, None] == 0).all(0)
        values = np.where(ready, y[:n].astype(np.float64), -np.inf)
        gradient -= np.exp(values - np.logaddexp.reduce(values))
        done[op] = True
    return gradient
