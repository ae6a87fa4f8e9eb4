"""Orders chosen by the memory of the plan so far: compiled code and pure JAX agree, also on shared and kept buffers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import random_graphs
from ordering_graphs import SHARING

from graphrl.compiled.custom_call import pure_jax
from graphrl.decoding import sequential
from graphrl.decoding.op_features import FEATURES, Head
from graphrl.decoding.rollout import Rollout
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import PaddedGraph, pad_batch

GRAPHS, SAMPLES, WIDTH = 6, 4, 3
BATCH: PaddedGraph = pad_batch(random_graphs(np.random.default_rng(0), GRAPHS, SHARING), SHARING)


def drawn_head(graph: PaddedGraph, seed: int = 0) -> Head:
    g, n = graph.workspace.shape
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return Head(normal(g, n), normal(g, n, WIDTH), normal(len(FEATURES), WIDTH), normal(WIDTH))


def everything(graph: PaddedGraph, head: Head) -> tuple[Rollout, Rollout, jax.Array, Head]:
    """Greedy and sampled orders; log-probabilities of fixed orders, and the gradient of their weighted sum."""
    keys = jax.random.split(jax.random.key(0), len(graph.num_ops))
    greedy, samples = sequential.rollout(graph, head), sequential.rollout(graph, head, keys, SAMPLES)
    order = jnp.concatenate([greedy.order, jnp.flip(greedy.order, 1)], 1)
    weight = jnp.arange(1, 3, dtype=jnp.float32)[None]

    def loss(head: Head) -> tuple[jax.Array, jax.Array]:
        log_probs = sequential.log_prob(graph, head, order)
        return (log_probs * weight).sum(), log_probs

    gradient, log_probs = jax.grad(loss, has_aux=True)(head)
    return greedy, samples, log_probs, gradient


@functools.cache
def both() -> tuple[Any, Any]:
    """Results of compiled code and of pure JAX, which decodes the samples of the former by their log-probabilities."""
    head = drawn_head(BATCH)
    host = jax.jit(everything)(BATCH, head)
    with pure_jax():
        pure = jax.jit(lambda graph, head: everything(graph, head))(BATCH, head)
        log_probs = jax.jit(lambda *args: sequential.log_prob(*args))(BATCH, head, host[1].order)
    np.testing.assert_allclose(host[1].log_prob, log_probs, rtol=1e-4, atol=1e-4)
    return host, pure


def test_greedy_orders_and_gradients_are_those_of_pure_jax() -> None:
    (greedy, _, log_probs, gradient), (wanted, _, wanted_log_probs, wanted_gradient) = both()
    np.testing.assert_array_equal(greedy.order, wanted.order)
    np.testing.assert_array_equal(greedy.peak, wanted.peak)
    np.testing.assert_allclose(greedy.log_prob, wanted.log_prob, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(log_probs, wanted_log_probs, rtol=1e-4, atol=1e-4)
    assert max(float(jnp.abs(leaf).max()) for leaf in gradient) > 0.1
    for leaf, expected in zip(gradient, wanted_gradient, strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-4)


def test_samples_are_complete_orders_that_differ() -> None:
    orders = np.asarray(both()[0][1].order)
    for graph, ops in zip(orders, BATCH.num_ops, strict=True):
        assert (np.sort(graph[:, :ops]) == np.arange(ops)).all()
        assert (graph[:, ops:] == SHARING.ops).all()
    assert len({order.tobytes() for order in orders.reshape(-1, SHARING.ops)}) > GRAPHS


def test_a_beam_is_that_of_pure_jax() -> None:
    graph = pad_batch([layered(30, seed) for seed in range(3)])
    head = drawn_head(graph)
    beam = jax.jit(sequential.beam, static_argnums=2)(graph, head, 4)
    with pure_jax():
        wanted = jax.jit(lambda graph, head: sequential.beam(graph, head, 4))(graph, head)
    np.testing.assert_array_equal(beam.order, wanted.order)
    np.testing.assert_array_equal(beam.peak, wanted.peak)
    np.testing.assert_allclose(beam.log_prob, wanted.log_prob, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("feature", "last"), [("freed", 3), ("gain", 3), ("added", 2)])
def test_a_feature_decides(feature: str, last: int) -> None:
    """Four ops are ready after the first, which writes three tensors: op 3 frees most, op 2 adds most."""
    ops = [
        Op("start", outputs=(Tensor("a", 4), Tensor("b", 2), Tensor("c", 9))),
        Op("one", inputs=("a",), outputs=(Tensor("d", 3),)),
        Op("two", inputs=("b",), outputs=(Tensor("e", 8),)),
        Op("three", inputs=("c",), outputs=(Tensor("f", 4),)),
    ]
    graph = pad_batch([ComputationGraph("fan", ops=tuple(ops))])
    kernel = np.zeros((len(FEATURES), 2), np.float32)
    kernel[FEATURES.index(feature)] = 1, -1
    n = graph.sizes.ops
    head = Head(jnp.zeros((1, n)), jnp.zeros((1, n, 2)), jnp.asarray(kernel), jnp.asarray([1.0, -1.0]))
    assert int(sequential.rollout(graph, head).order[0, 0, 1]) == last


def test_illegal_orders_have_probability_zero() -> None:
    """A reversed order runs an op before its inputs; the legal order next to it keeps its own log-probability."""
    chain = ComputationGraph(
        "chain",
        ops=(
            Op("first", outputs=(Tensor("a", 4),)),
            Op("second", inputs=("a",), outputs=(Tensor("b", 2),)),
            Op("third", inputs=("a",), outputs=(Tensor("c", 3),)),
        ),
    )
    graph = pad_batch([chain])
    n, head = graph.sizes.ops, drawn_head(graph)
    orders = [(0, 2, 1), (2, 0, 1), (0, 1, 1)]  # legal, illegal with one ready op, an op twice
    order = jnp.asarray([[[*each, *[n] * (n - 3)] for each in orders]], jnp.int32)

    def loss(head: Head) -> tuple[jax.Array, jax.Array]:
        log_probs = sequential.log_prob(graph, head, order)
        return log_probs[0, 0], log_probs

    gradient, log_probs = jax.jit(jax.grad(loss, has_aux=True))(head)
    with pure_jax():
        wanted_gradient, wanted = jax.jit(lambda head: jax.grad(loss, has_aux=True)(head))(head)
    np.testing.assert_allclose(log_probs, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.isfinite(log_probs[0]), [True, False, False])
    for leaf, expected in zip(gradient, wanted_gradient, strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-4)
