"""Features: finite, unit-free, and a function of the graph's structure alone."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from worked_example import TINY

from graphrl.graphs.features import (
    BUCKETS,
    EDGE_FEATURES,
    NODE_FEATURES,
    TYPE_FEATURES,
    edge_features,
    node_features,
    type_features,
)
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


@st.composite
def graphs(draw: st.DrawFn) -> ComputationGraph:
    """Small graphs with zeros, aliases, control edges, multi-output ops and huge figures among them."""
    n = draw(st.integers(1, 8))
    sizes = st.one_of(st.just(0), st.integers(0, 100), st.integers(0, 2**50))
    seconds = st.one_of(st.just(0.0), st.floats(1e-9, 10), st.just(1e29))
    ops: list[Op] = []
    tensors: list[str] = ["x"]
    for i in range(n):
        inputs = tuple(draw(st.lists(st.sampled_from(tensors), max_size=3, unique=True)))
        outputs = [Tensor(f"t{i}.{k}", draw(sizes)) for k in range(draw(st.integers(0, 3)))]
        if outputs and inputs and draw(st.booleans()):
            outputs[0] = Tensor(outputs[0].name, outputs[0].bytes, alias=inputs[0])
        after = tuple(draw(st.lists(st.sampled_from(ops), max_size=2, unique=True))) if ops else ()
        ops.append(
            Op(
                f"op{i}",
                runtime=draw(seconds),
                inputs=inputs,
                outputs=tuple(outputs),
                after=tuple(op.name for op in after),
                workspace_bytes=draw(sizes),
                weight_bytes=draw(sizes),
                flops=draw(sizes),
            )
        )
        tensors += [tensor.name for tensor in outputs]
    kept = draw(st.lists(st.sampled_from(tensors), max_size=2, unique=True))
    return ComputationGraph("drawn", tuple(ops), (Tensor("x", 7),), tuple(kept))


@settings(max_examples=30)
@given(graphs())
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
@given(graphs(), st.randoms(use_true_random=False))
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
@given(graphs(), st.sampled_from([0.25, 8.0]), st.sampled_from([2, 1024]))
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


def test_kinds_that_are_known_are_told() -> None:
    assert rows("add", "Transpose", "reduce_sum", "conv_general_dilated")[:, :2].tolist() == [
        [1, 0],
        [1, 0],
        [0, 1],
        [0, 0],
    ]
