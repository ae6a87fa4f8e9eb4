"""Topoformer's features: known values, units, numbering, and encodings that are eigenvectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.errors import GraphError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.features import (
    OP_FEATURES,
    ORDER_FEATURES,
    laplacian_encodings,
    order_features,
    padded_order_features,
)
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


@given(graphs(max_ops=10))
def test_features_are_finite_bounded_and_of_the_stated_shape(graph: ComputationGraph) -> None:
    features = order_features(graph)
    assert features.shape == (len(graph.ops), len(ORDER_FEATURES)) == (len(graph.ops), 28)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert (np.abs(features) <= 1).all()
    assert (features[:, :8] >= 0).all()


@given(graphs(max_ops=10), st.randoms(use_true_random=False))
def test_renumbering_ops_renumbers_all_but_the_encodings(graph: ComputationGraph, random: object) -> None:
    order = list(range(len(graph.ops)))
    random.shuffle(order)  # type: ignore[attr-defined]
    other = ComputationGraph("other", tuple(graph.ops[i] for i in order), graph.inputs, graph.outputs)
    np.testing.assert_array_equal(order_features(other)[:, :8], order_features(graph)[order, :8])


@pytest.mark.parametrize("ops", [60, 250])  # LAPACK and ARPACK
def test_renumbering_a_graph_without_equal_eigenvalues_renumbers_its_encodings(ops: int) -> None:
    graph = layered(ops, 1)
    order = np.random.default_rng(0).permutation(ops).tolist()
    other = ComputationGraph("other", tuple(graph.ops[i] for i in order))
    np.testing.assert_allclose(order_features(other), order_features(graph)[order], atol=1e-5)


def test_features_of_a_worked_example() -> None:
    """a -> b -> d, a -> d twice, b0 also read by e; c is isolated; d's first output is an alias."""
    graph = ComputationGraph(
        "worked",
        (
            Op("a", outputs=(Tensor("a0", 4), Tensor("a1", 1)), weight_bytes=100),
            Op("b", inputs=("a0",), outputs=(Tensor("b0", 10),), workspace_bytes=8),
            Op("c", workspace_bytes=2),
            Op("d", inputs=("a0", "a1", "b0"), outputs=(Tensor("d0", 4, alias="a0"), Tensor("d1", 5))),
            Op("e", inputs=("b0",), after=("d",)),
        ),
        outputs=("d1",),
    )
    column = dict(zip(OP_FEATURES, order_features(graph).T, strict=False))
    np.testing.assert_allclose(column["output_bytes"], [0.5, 1, 0, 0.5, 0])
    np.testing.assert_allclose(column["workspace_bytes"], [0, 1, 0.25, 0, 0])
    np.testing.assert_allclose(column["in_degree"], [0, 0.5, 0, 1, 1])
    np.testing.assert_allclose(column["out_degree"], [1, 1, 0, 0.5, 0])
    np.testing.assert_allclose(column["least_from_source"], [0, 0.5, 0, 0.5, 1])
    np.testing.assert_allclose(column["largest_from_source"], np.array([0, 1, 0, 2, 3], np.float32) / 3)
    np.testing.assert_allclose(column["least_to_sink"], [1, 0.5, 0, 0.5, 0])
    np.testing.assert_allclose(column["largest_to_sink"], np.array([3, 2, 0, 1, 0], np.float32) / 3)


def path(ops: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(ops - 1), np.arange(1, ops)


@pytest.mark.parametrize("ops", [30, 400, 3000])  # ARPACK alone cannot separate the last one's eigenvalues
def test_encodings_of_a_path_are_its_cosines(ops: int) -> None:
    encodings = laplacian_encodings(*path(ops), np.arange(ops))
    assert (encodings[1:-1, 0] < encodings[2:, 0]).sum() >= ops - 4  # rises with the level
    inner = np.sqrt(np.where((np.arange(ops) == 0) | (np.arange(ops) == ops - 1), 1.0, 2.0))
    for k in range(20):
        cosine = inner * np.cos(np.pi * (k + 1) * np.arange(ops) / (ops - 1))
        cosine /= np.abs(cosine).max()
        assert min(np.abs(encodings[:, k] - sign * cosine).max() for sign in (1, -1)) < 1e-4


def test_components_have_encodings_of_their_own_and_small_graphs_fewer() -> None:
    """A path of three ops, one of two, and one op."""
    source, target = np.array([0, 1, 3]), np.array([1, 2, 4])
    encodings = laplacian_encodings(source, target, np.array([0, 1, 2, 0, 1, 0]))
    np.testing.assert_allclose(encodings[:, 0], [-1, 0, 1, 0, 0, 0], atol=1e-9)
    assert not encodings[5].any()
    assert not encodings[:, 3:].any()
    used = {tuple(np.flatnonzero(np.abs(column) > 1e-9).tolist()) for column in encodings[:, :3].T}
    assert used == {(0, 2), (0, 1, 2), (3, 4)}


def test_padding_rows_are_zero() -> None:
    graph = layered(20, 0)
    padded = padded_order_features(graph, 24)
    np.testing.assert_array_equal(padded[:20], order_features(graph))
    assert not padded[20:].any()
    with pytest.raises(GraphError, match="has 20 ops: must be at most the 8 it is padded to"):
        padded_order_features(graph, 8)
