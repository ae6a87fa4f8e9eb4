"""Orders sampled by compiled code: the same as in pure JAX, also under jax's transformations."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import random_graphs
from jax import lax
from ordering_graphs import SHARING

from graphrl.compiled import entry, integer
from graphrl.decoding import random_words as host_words
from graphrl.decoding.rollout import Rollout, peaks, sample, sampled_orders
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.random_bits import random_words, unit_interval

GRAPHS, SAMPLES, TIMES = 6, 5, 3
BATCH: PaddedGraph = pad_batch(random_graphs(np.random.default_rng(0), GRAPHS, SHARING), SHARING)

Orders = Callable[[PaddedGraph, jax.Array, jax.Array], jax.Array]
orders: Orders = functools.partial(sampled_orders, samples=SAMPLES)


def keys(count: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def priorities(graph: PaddedGraph, spread: float, seed: int = 0) -> np.ndarray:
    shape = graph.runtime.shape
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * np.float32(spread)


@pytest.fixture
def jax_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHRL_LOWERING", "jax")


def both(run: Callable[..., jax.Array], *args: object) -> tuple[np.ndarray, np.ndarray]:
    """Results of compiled code and of pure JAX."""
    host = jax.jit(lambda *args: run(*args)).lower(*args)
    assert "graphrl_" in host.as_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphrl.decoding.rollout.is_compiled", lambda: False)
        pure = jax.jit(lambda *args: run(*args)).lower(*args)
    assert "graphrl_" not in pure.as_text()
    return np.asarray(host.compile()(*args)), np.asarray(pure.compile()(*args))


@entry
def _words(seeds: np.ndarray, words: np.ndarray, uniform: np.ndarray) -> None:
    for i in range(len(words)):
        words[i] = host_words.random_word(seeds, integer(i))
        uniform[i] = host_words.unit_interval(host_words.random_word(seeds, integer(i)))


def test_random_words_are_those_of_pure_jax() -> None:
    seeds = np.random.default_rng(0).integers(0, 2**32, (20, 2), dtype=np.uint32)
    seeds[0], seeds[1] = 0, 2**32 - 1
    wanted = np.asarray(random_words(jnp.asarray(seeds), 40, 7)).transpose(1, 0, 2).reshape(20, -1)
    for row, own in zip(wanted, seeds, strict=True):
        words, uniform = np.empty(len(row), np.uint32), np.empty(len(row), np.float32)
        _words(own, words, uniform)
        np.testing.assert_array_equal(words, row)
        np.testing.assert_array_equal(uniform, unit_interval(jnp.asarray(row)))


@pytest.mark.parametrize("spread", [0, 1, 20, 1000])
def test_orders_are_those_of_pure_jax(spread: float) -> None:
    host, pure = both(orders, BATCH, priorities(BATCH, spread), keys(GRAPHS))
    np.testing.assert_array_equal(host, pure)
    for graph, ops in zip(host, BATCH.num_ops, strict=True):
        assert (np.sort(graph[:, :ops]) == np.arange(ops)).all()
        assert (graph[:, ops:] == SHARING.ops).all()


@pytest.mark.parametrize(("ops", "spread"), [(100, 3), (600, 0), (600, 5), (1100, 500), (2100, 1)])
def test_orders_of_large_graphs_are_those_of_pure_jax(ops: int, spread: float) -> None:
    """Blocks of 4, 8, 8, 8 and 16 slots; several rows an op."""
    graphs = pad_batch([layered(ops, 0), layered(ops * 3 // 4, 1)])
    host, pure = both(orders, graphs, priorities(graphs, spread), keys(2))
    np.testing.assert_array_equal(host, pure)


def test_ops_of_infinite_and_undefined_priorities_end_an_order_as_in_pure_jax() -> None:
    y = priorities(BATCH, 1)
    y[0, 0], y[1, 0], y[2, 0] = np.nan, np.inf, -np.inf
    host, pure = both(orders, BATCH, y, keys(GRAPHS))
    np.testing.assert_array_equal(host, pure)
    assert (host[0] == SHARING.ops).all()
    assert (host[2, :, 0] < SHARING.ops).all()


def test_padding_changes_no_order() -> None:
    """Blocks have the same width, and the other lanes are those of other graphs."""
    graph = [layered(40, 0)]
    own = pad_batch(graph)
    wide = pad_batch([*graph, layered(90, 1)])
    y = priorities(own, 3)
    padded = np.pad(np.repeat(y, 2, 0), ((0, 0), (0, wide.sizes.ops - own.sizes.ops)), constant_values=9)
    alone = jax.jit(orders)(own, y, keys(1))
    together = jax.jit(orders)(wide, padded, jnp.concatenate([keys(1), keys(1, 7)]))
    np.testing.assert_array_equal(alone[0, :, :40], together[0, :, :40])


def test_many_lanes_on_several_threads() -> None:
    """A batch large enough for other threads of XLA's pool: the first lanes are those of a small batch."""
    graphs = pad_batch([layered(100, seed) for seed in range(40)])
    y = priorities(graphs, 2)
    some, _ = both(orders, *jax.tree.map(lambda x: x[:3], (graphs, y, keys(40))))
    for _ in range(3):
        np.testing.assert_array_equal(jax.jit(orders)(graphs, y, keys(40))[:3], some)


def mapped(graph: PaddedGraph, y: jax.Array, keys: jax.Array) -> jax.Array:
    return jax.vmap(orders, (None, 0, 0))(graph, y, keys)


def twice(graph: PaddedGraph, y: jax.Array, keys: jax.Array) -> jax.Array:
    """One graph a call: an axis of times around an axis of graphs."""

    def of_graph(graph: PaddedGraph, y: jax.Array, key: jax.Array) -> jax.Array:
        one = jax.tree.map(lambda x: x[None], graph)
        return orders(one, y[None], key[None])[0]

    return jax.vmap(jax.vmap(of_graph), (None, 0, 0))(graph, y, keys)


def looped(graph: PaddedGraph, y: jax.Array, keys: jax.Array) -> jax.Array:
    return lax.scan(lambda _, x: (None, orders(graph, *x)), None, (y, keys))[1]


def sharded(graph: PaddedGraph, y: jax.Array, keys: jax.Array) -> jax.Array:
    mesh = jax.make_mesh((2,), ("graphs",), axis_types=(jax.sharding.AxisType.Auto,))
    by_graph, by_time = jax.P("graphs"), jax.P(None, "graphs")
    specs = (by_graph, by_time, by_time)
    return jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=by_time, check_vma=False)(graph, y, keys)


@pytest.mark.parametrize("transformed", [mapped, twice, looped, sharded])
def test_orders_are_the_same_under_transformations(transformed: Orders) -> None:
    y = np.stack([priorities(BATCH, 1 + time, time) for time in range(TIMES)])
    each = jnp.stack([keys(GRAPHS, time) for time in range(TIMES)])
    one = jax.jit(orders)
    wanted = [one(BATCH, *pair) for pair in zip(y, each, strict=True)]
    program = jax.jit(transformed).lower(BATCH, y, each)
    assert "graphrl_sampled_orders" in program.as_text()
    np.testing.assert_array_equal(program.compile()(BATCH, y, each), jnp.stack(wanted))


def test_no_gradient_flows_through_orders() -> None:
    def total(y: jax.Array, graph: PaddedGraph) -> jax.Array:
        return peaks(graph, orders(graph, y, keys(GRAPHS))).sum()

    assert not jax.jit(jax.grad(total))(priorities(BATCH, 1), BATCH).any()


def test_a_rollout_is_that_of_pure_jax(jax_only: None) -> None:
    def run() -> Rollout:
        drawn = jax.jit(functools.partial(sample, samples=SAMPLES))(BATCH, priorities(BATCH, 2), keys(GRAPHS))
        rollout: Rollout = jax.device_get(drawn)
        return rollout

    pure = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHRL_LOWERING", "auto")
        host = run()
    np.testing.assert_array_equal(host.order, pure.order)
    np.testing.assert_array_equal(host.peak, pure.peak)
    np.testing.assert_allclose(host.log_prob, pure.log_prob, rtol=1e-6)
