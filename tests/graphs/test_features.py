"""Features: finite, unit-free, and a function of the graph's structure alone; relations against a plain closure."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from worked_example import TINY

from graphrl.errors import GraphError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.features import (
    BUCKETS,
    EDGE_FEATURES,
    FROM_CLOSURE,
    FROM_DEPENDENCY,
    FROM_REDUCTION,
    INCOMPARABLE,
    NODE_FEATURES,
    PADDING,
    RELATIONS,
    SELF,
    TO_REDUCTION,
    TYPE_FEATURES,
    edge_features,
    node_features,
    padded_relations,
    relations,
    type_features,
)
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

SIZES = st.one_of(st.just(0), st.integers(0, 100), st.integers(0, 2**50))
SECONDS = st.one_of(st.just(0.0), st.floats(1e-9, 10), st.just(1e29))


@st.composite
def extreme(draw: st.DrawFn) -> ComputationGraph:
    """Graphs whose numbers are 0, small or huge."""
    graph = draw(graphs())
    ops = [
        dataclasses.replace(
            op, runtime=draw(SECONDS), workspace_bytes=draw(SIZES), weight_bytes=draw(SIZES), flops=draw(SIZES)
        )
        for op in graph.ops
    ]
    return dataclasses.replace(graph, ops=tuple(ops))


@settings(max_examples=30)
@given(extreme())
def test_features_are_finite_and_of_the_stated_shape(graph: ComputationGraph) -> None:
    nodes, edges = node_features(graph), edge_features(graph)
    assert nodes.shape == (graph.arrays.num_ops, len(NODE_FEATURES))
    assert edges.shape == (len(graph.arrays.use_op), len(EDGE_FEATURES))
    assert nodes.dtype == edges.dtype == np.float32
    for features in (nodes, edges):
        assert np.isfinite(features).all()
        assert (features >= -1e-6).all()
        assert (features <= 50).all()  # log1p of 2^50 bytes over a mean of a fraction of a byte


@settings(max_examples=30)
@given(extreme(), st.randoms(use_true_random=False))
def test_renumbering_and_renaming_ops_only_renumbers_the_features(graph: ComputationGraph, random: object) -> None:
    order = list(range(len(graph.ops)))
    random.shuffle(order)  # type: ignore[attr-defined]
    names = {op.name: f"renamed {i}" for i, op in enumerate(graph.ops)}
    ops = tuple(
        dataclasses.replace(
            graph.ops[i], name=names[graph.ops[i].name], after=tuple(names[b] for b in graph.ops[i].after)
        )
        for i in order
    )
    other = ComputationGraph("renumbered", ops, graph.inputs, graph.outputs)
    np.testing.assert_allclose(node_features(other), node_features(graph)[order], rtol=1e-5, atol=1e-6)

    def by_names(g: ComputationGraph) -> dict[tuple[str, str], np.ndarray]:
        a = g.arrays
        ends = zip(a.use_tensor, a.use_op, strict=True)
        keys = [(g.tensor_names[t], g.ops[v].name) for t, v in ends]
        return dict(zip(keys, edge_features(g), strict=True))

    mine = {(tensor, names[op]): row for (tensor, op), row in by_names(graph).items()}
    theirs = by_names(other)
    assert mine.keys() == theirs.keys()
    for key, row in mine.items():
        np.testing.assert_allclose(theirs[key], row, rtol=1e-5, atol=1e-6)


@settings(max_examples=30)
@given(extreme(), st.sampled_from([0.25, 8.0]), st.sampled_from([2, 1024]))
def test_units_do_not_matter(graph: ComputationGraph, seconds: float, factor: int) -> None:
    ops = tuple(
        dataclasses.replace(
            op,
            runtime=op.runtime * seconds,
            workspace_bytes=op.workspace_bytes * factor,
            weight_bytes=op.weight_bytes * factor,
            outputs=tuple(dataclasses.replace(tensor, bytes=tensor.bytes * factor) for tensor in op.outputs),
        )
        for op in graph.ops
    )
    other = ComputationGraph("scaled", ops, graph.inputs, graph.outputs)
    np.testing.assert_allclose(node_features(other), node_features(graph), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(edge_features(other), edge_features(graph), rtol=1e-5, atol=1e-6)


def test_features_of_the_worked_example() -> None:
    column = dict(zip(NODE_FEATURES, node_features(TINY).T.astype(float), strict=True))
    np.testing.assert_allclose(column["depth"], [0, 0.5, 0.5, 1])
    np.testing.assert_allclose(column["height"], [1, 0.5, 0.5, 0])
    np.testing.assert_allclose(column["top_level"], [0, 0.2, 0.2, 0.8], rtol=1e-6)
    np.testing.assert_allclose(column["bottom_level"], [1, 0.6, 0.8, 0.2], rtol=1e-6)
    np.testing.assert_allclose(column["slack"], [0, 0.2, 0, 0], atol=1e-6)
    np.testing.assert_allclose(column["need_of_largest"], np.array([4, 7, 11, 9]) / 11, rtol=1e-6)
    np.testing.assert_allclose(column["released_bytes"], np.log1p(np.array([0, 2, 2, 8]) / 3.25), rtol=1e-6)
    np.testing.assert_allclose(column["uses"], np.log1p([2, 1, 1, 0]), rtol=1e-6)
    edge = dict(zip(EDGE_FEATURES, edge_features(TINY).T.astype(float), strict=True))
    np.testing.assert_allclose(edge["bytes_of_largest"], [0.8, 0.8, 0.6, 1])
    np.testing.assert_allclose(edge["consumers"], np.log1p([2, 2, 1, 1]), rtol=1e-6)
    np.testing.assert_allclose(edge["share_of_inputs"], [1, 1, 0.375, 0.625])
    np.testing.assert_allclose(edge["only_in"], [1, 1, 0, 0])


def rows(*types: str) -> np.ndarray:
    return type_features(ComputationGraph("types", tuple(Op(str(i), type, 1.0) for i, type in enumerate(types))))


def test_any_text_is_a_type_and_equal_texts_are_equal() -> None:
    features = rows("reduce_max", "", "x", "a type that nobody has seen", "reduce_max", "Réduction")
    assert features.shape == (6, len(TYPE_FEATURES))
    assert features.dtype == np.float32
    np.testing.assert_array_equal(features[0], features[4])
    np.testing.assert_allclose(np.linalg.norm(features[:, 2:], axis=1), [1, 0, 1, 1, 1, 1], rtol=1e-6)


def test_names_with_parts_in_common_are_close() -> None:
    names = rows("reduce_max", "reduce_sum", "dot_general")[:, -BUCKETS:]
    assert names[0] @ names[1] > 0.3 > abs(names[0] @ names[2])


def test_known_kinds_are_given() -> None:
    assert rows("add", "Transpose", "reduce_sum", "conv_general_dilated")[:, :2].tolist() == [
        [1, 0],
        [1, 0],
        [0, 1],
        [0, 0],
    ]


# Relations, the seven graphs of Topoformer.


def plain_relations(graph: ComputationGraph) -> np.ndarray:
    """Relations by definition, pair by pair."""
    n = graph.arrays.num_ops
    edges = np.zeros((n, n), bool)
    edges[graph.arrays.dependencies()] = True
    closure = edges.copy()
    for k in range(n):
        closure |= closure[:, [k]] & closure[[k]]
    through = (closure.astype(int) @ closure.astype(int)) > 0  # a path of two edges or more
    codes = np.full((n, n), INCOMPARABLE)
    for j, i in zip(*np.nonzero(closure), strict=True):
        code = FROM_CLOSURE if not edges[j, i] else FROM_DEPENDENCY if through[j, i] else FROM_REDUCTION
        codes[i, j], codes[j, i] = code, code + TO_REDUCTION - FROM_REDUCTION
    np.fill_diagonal(codes, SELF)
    return codes


@settings(max_examples=30)
@given(graphs(max_ops=12))
def test_relations_are_those_of_the_definition(graph: ComputationGraph) -> None:
    codes = relations(graph)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes, plain_relations(graph))


@pytest.mark.parametrize("ops", [3, 8, 9, 64, 120])
def test_relations_of_layered_graphs(ops: int) -> None:
    graph = layered(ops, 3)
    np.testing.assert_array_equal(relations(graph), plain_relations(graph))


@settings(max_examples=30)
@given(graphs(max_ops=12), st.randoms(use_true_random=False))
def test_renumbering_ops_renumbers_the_relations(graph: ComputationGraph, random: object) -> None:
    order = list(range(len(graph.ops)))
    random.shuffle(order)  # type: ignore[attr-defined]
    other = ComputationGraph("other", tuple(graph.ops[i] for i in order), graph.inputs, graph.outputs)
    np.testing.assert_array_equal(relations(other), relations(graph)[np.ix_(order, order)])


def test_relations_of_a_worked_example() -> None:
    """a -> b -> d and a -> d; c follows a by a control edge alone; e is isolated."""
    graph = ComputationGraph(
        "worked",
        (
            Op("a", outputs=(Tensor("a0", 1), Tensor("a1", 1))),
            Op("b", inputs=("a0", "a1"), outputs=(Tensor("b0", 1),)),
            Op("c", after=("a",)),
            Op("d", inputs=("a0", "b0"), outputs=(Tensor("d0", 1),)),
            Op("e", inputs=("d0",)),
        ),
    )
    expected = [[0, 4, 4, 5, 6], [1, 0, 7, 4, 6], [1, 7, 0, 7, 7], [2, 1, 7, 0, 4], [3, 3, 7, 1, 0]]
    np.testing.assert_array_equal(relations(graph), expected)
    assert len(RELATIONS) == 8


def test_relations_of_padding_have_a_code_of_its_own() -> None:
    graph = layered(5, 0)
    padded = padded_relations(graph, 8)
    np.testing.assert_array_equal(padded[:5, :5], relations(graph))
    assert (padded[5:] == PADDING).all()
    assert (padded[:, 5:] == PADDING).all()
    with pytest.raises(GraphError, match="has 5 ops: must be at most the 4 that it is padded to"):
        padded_relations(graph, 4)


def test_relations_of_two_thousand_ops_take_a_fraction_of_a_second() -> None:
    graph = layered(2000, 0)
    started = time.process_time()
    relations(graph)
    assert time.process_time() - started < 0.2  # 0.012 s, measured
