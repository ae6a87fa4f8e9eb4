"""The jraph view: the same edges, padding apart, and a network that padding does not change."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from search_graphs import SIZES, random_dag

from graphrl.graphs.features import node_features, padded_features
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.jraph_view import to_graphs_tuple
from graphrl.graphs.padding import Sizes, pad


def graphs_tuple(graph: ComputationGraph, sizes: Sizes) -> jraph.GraphsTuple:
    """A graph with its own features, padded."""
    nodes, edges = map(jnp.asarray, padded_features(graph, sizes))
    return to_graphs_tuple(jax.tree.map(jnp.asarray, pad(graph, sizes)), nodes, edges)


def test_edges_are_uses_and_padding_is_a_graph_of_its_own() -> None:
    graph = random_dag(0, 20)
    a, view = graph.arrays, graphs_tuple(graph, SIZES)
    e = len(a.use_op)
    np.testing.assert_array_equal(view.n_node, [20, SIZES.ops + 1 - 20])
    np.testing.assert_array_equal(view.n_edge, [e, SIZES.uses - e])
    np.testing.assert_array_equal(view.senders[:e], a.producer[a.use_tensor])
    np.testing.assert_array_equal(view.receivers[:e], a.use_op)
    assert np.all(np.asarray(view.senders[e:]) >= 20)
    assert np.all(np.asarray(view.receivers[e:]) >= 20)
    np.testing.assert_array_equal(view.nodes[:20], node_features(graph))
    assert not np.any(np.asarray(view.nodes[20:]))


def test_control_edges_follow_the_uses_and_have_no_features() -> None:
    ops = (
        Op("a", runtime=1.0, outputs=(Tensor("x", 4),)),
        Op("b", runtime=1.0, inputs=("x",), after=("a",)),
        Op("c", runtime=1.0, inputs=("x",), after=("b",)),
    )
    sizes = Sizes(ops=8, tensors=8, slots=8, rows=16, uses=8, controls=8, shares=0)
    view = graphs_tuple(ComputationGraph("controls", ops), sizes)
    assert view.edges.shape[0] == 16
    np.testing.assert_array_equal(view.n_edge, [4, 12])
    np.testing.assert_array_equal(view.senders[:4], [0, 0, 0, 1])
    np.testing.assert_array_equal(view.receivers[:4], [1, 2, 1, 2])
    assert np.all(np.asarray(view.senders[4:]) == 8)
    assert np.all(np.asarray(view.receivers[4:]) == 8)
    assert np.any(np.asarray(view.edges[:2]))
    assert not np.any(np.asarray(view.edges[2:]))


def test_a_network_sees_no_padding_not_even_in_a_full_bucket() -> None:
    network = jraph.GraphNetwork(
        update_edge_fn=lambda edges, senders, receivers, globals_: jnp.concatenate([edges, senders - receivers], -1),
        update_node_fn=lambda nodes, sent, received, globals_: jnp.concatenate([nodes, sent, received], -1),
    )
    for ops in (17, SIZES.ops):
        graph = random_dag(ops, ops)
        wide = Sizes(ops=48, tensors=48, slots=48, rows=64, uses=80, controls=0, shares=0)
        small, large = (jax.jit(network)(graphs_tuple(graph, sizes)) for sizes in (SIZES, wide))
        np.testing.assert_allclose(small.nodes[:ops], large.nodes[:ops], rtol=1e-5, atol=1e-5)
        assert np.all(np.isfinite(np.asarray(small.nodes)))
