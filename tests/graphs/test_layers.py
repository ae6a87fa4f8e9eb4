"""Models coarsened to layers: rules of merging, conservation of costs, and shapes and windows from readers."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from onnx_models import LIGHT, info, model, node, read, weight
from random_graphs import graphs
from traced import shape

from graphrl.graphs.coarsen import coarsened, own_weights
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.features import LAYER_FEATURES, layer_features
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import Layer
from graphrl.graphs.readers.jaxpr.reader import from_jax

TYPES = ["Conv", "Relu", "Add", "ReduceMean", "Reshape"]


def check_nothing_is_lost(graph: ComputationGraph, layers: ComputationGraph) -> None:
    """Checks total FLOPs, run times and weights, kept tensors, and the bytes that layers write."""
    before, after = graph.arrays, layers.arrays
    assert sum(op.flops for op in layers.ops) == sum(op.flops for op in graph.ops)
    assert after.weight_bytes.sum() == before.weight_bytes.sum()
    assert after.runtime.sum() == pytest.approx(before.runtime.sum())
    assert set(layers.outputs) == set(graph.outputs)
    size = dict(zip(graph.tensor_names, before.tensor_bytes.tolist(), strict=True))
    for name, num_bytes in zip(layers.tensor_names, after.tensor_bytes.tolist(), strict=True):
        assert num_bytes == size[name]


@given(st.data())
def test_nothing_is_lost_of_any_graph(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=12))
    ops = [
        Op(
            **{field: getattr(op, field) for field in Op.__dataclass_fields__}
            | {"type": data.draw(st.sampled_from(TYPES))}
        )
        for op in graph.ops
    ]
    graph = ComputationGraph(graph.name, tuple(ops), graph.inputs, graph.outputs)
    layers = coarsened(graph)  # it refuses cycles
    check_nothing_is_lost(graph, layers)
    assert len(layers.ops) <= len(graph.ops)
    again = coarsened(layers)
    assert {op.name for op in again.ops} <= {op.name for op in layers.ops}


def residual_block() -> ComputationGraph:
    """A convolution with batch norm, activation and a residual add, and its reader."""
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1], group=2),
        node("BatchNormalization", ["c2", "s", "s", "s", "s"], ["n2"], name="norm"),
        node("Add", ["n2", "r1"], ["sum"], name="add"),
        node("Relu", ["sum"], ["r2"], name="relu2"),
        node("MaxPool", ["r2"], ["p"], name="pool", kernel_shape=[2, 4], strides=[2, 2]),
        node("ReduceMean", ["p"], ["y"], name="mean"),
    ]
    weights = [weight("w1", 8, 3, 3, 3), weight("w2", 8, 4, 3, 3), weight("b2", 8), weight("s", 8)]
    return read(model(nodes, {"x": (1, 3, 16, 16)}, weights=weights))


def test_norm_activation_and_residual_add_join_their_convolution() -> None:
    graph = residual_block()
    layers = coarsened(graph)
    check_nothing_is_lost(graph, layers)
    assert [op.name for op in layers.ops] == ["conv1", "conv2", "pool", "mean"]
    assert [op.inputs for op in layers.ops] == [("x",), ("r1",), ("r2",), ("p",)]
    assert [[tensor.name for tensor in op.outputs] for op in layers.ops] == [["r1"], ["r2"], ["p"], ["y"]]
    assert [op.weight_bytes for op in layers.ops] == [864, 4 * (288 + 8 + 8), 0, 0]
    assert [tensor.name for tensor in layers.inputs] == ["x"]


def test_onnx_layers_have_shapes_and_windows() -> None:
    first, second, pool, mean = coarsened(residual_block()).ops
    image = {"batch": 1, "input_x": 16, "input_y": 16, "output_x": 16, "output_y": 16, "output_z": 8}
    window = {"kernel_x": 3, "kernel_y": 3, "stride": 1, "padding": 1, "dilation": 1}
    assert first.layer == Layer(**image, **window, input_z=3, groups=1)
    assert second.layer == Layer(**image, **window, input_z=8, groups=2)
    assert pool.layer == Layer(1, 16, 16, 8, 7, 8, 8, 1, 4, 2, 2, 0, 1)
    assert mean.layer is not None
    assert mean.layer.kernel_x == 0


def test_an_operator_of_others_may_pad_as_it_likes() -> None:
    other = node("Blur", ["x"], ["y"], domain="custom", kernel_shape=[3, 3], pads=[1])
    proto = onnx.ModelProto.FromString(model([other], {"x": (1, 3, 8, 8)}))
    proto.graph.output[0].CopyFrom(info("y", (1, 3, 8, 8)))
    (op,) = read(proto.SerializeToString()).ops
    assert op.layer == Layer(1, 8, 8, 3, 8, 8, 3, 1, 3, 3, 1, 0, 1)


def test_jax_layers_have_shapes_and_windows() -> None:
    def f(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.nn.silu(y + 1.0)
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jax.nn.softmax(y.reshape(2, -1) @ v)

    graph = from_jax(f, shape(2, 16, 8, 3), shape(3, 3, 3, 5), shape(40, 7), weights_argnums=(1, 2))
    layers = coarsened(graph)
    check_nothing_is_lost(graph, layers)
    assert [op.type for op in layers.ops] == ["conv_general_dilated", "reduce_window_max", "dot_general", "reduce_max"]
    assert [op.weight_bytes for op in layers.ops] == [540, 0, 1120, 0]
    assert layers.ops[0].layer == Layer(2, 8, 16, 3, 4, 8, 5, 1, 3, 3, 2, 0, 1)
    assert layers.ops[1].layer == Layer(2, 4, 8, 5, 2, 1, 40, 1, 2, 2, 2, 0, 1)


def test_a_convolution_over_no_dimension_has_a_layer() -> None:
    graph = from_jax(lambda x, w: lax.conv_general_dilated(x, w, (), ()), shape(2, 3), shape(4, 3))
    assert graph.ops[0].layer == Layer(1, 2, 1, 3, 2, 1, 4, 1, 1, 1, 1, 0, 1)  # a matrix


def test_normalisations_are_layers_of_their_own() -> None:
    def f(x: jax.Array, w: jax.Array, scale: jax.Array) -> jax.Array:
        y = x @ w
        y = y + x
        y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-6) * scale[None]
        return y @ w

    layers = coarsened(from_jax(f, shape(4, 8), shape(8, 8), shape(8), weights_argnums=(1, 2)))
    assert [op.type for op in layers.ops] == ["dot_general", "reduce_sum", "dot_general"]
    assert layers.ops[1].weight_bytes == 32


def test_what_nothing_feeds_joins_its_only_reader() -> None:
    ops = (
        Op("mask", "broadcast", outputs=(Tensor("m", 4),)),
        Op("scaled", "mul", inputs=("w",), outputs=(Tensor("s", 8),), weight_bytes=8),
        Op("a", "dot_general", inputs=("x", "s", "m"), outputs=(Tensor("a0", 4),)),
        Op("b", "dot_general", inputs=("a0", "m"), outputs=(Tensor("b0", 4),)),
    )
    layers = coarsened(ComputationGraph("loose", ops, (Tensor("w", 8), Tensor("x", 8))))
    assert [op.name for op in layers.ops] == ["mask", "a", "b"]
    assert layers.ops[1].inputs == ("x", "m")
    assert layers.ops[1].weight_bytes == 8


def test_control_edges_and_aliases_stay() -> None:
    ops = (
        Op("a", "Conv", outputs=(Tensor("a0", 4),)),
        Op("b", "Conv", after=("a",), outputs=(Tensor("b0", 8),)),
        Op("view", "bitcast", inputs=("b0",), outputs=(Tensor("v0", 8, alias="b0"),), after=("a",)),
        Op("c", "Conv", inputs=("v0",), outputs=(Tensor("c0", 8, alias="v0"),)),
    )
    layers = coarsened(ComputationGraph("edges", ops))
    assert [(op.name, op.after) for op in layers.ops] == [("a", ()), ("b", ("a",)), ("c", ())]
    assert layers.ops[1].outputs == (Tensor("v0", 8),)
    assert layers.ops[2].outputs == (Tensor("c0", 8, alias="v0"),)


def test_weights_are_told_from_inputs() -> None:
    ops = (
        Op("a", inputs=("x", "w", "b"), weight_bytes=12, outputs=(Tensor("a0"),)),
        Op("b", inputs=("a0", "w", "y"), weight_bytes=0),
        Op("c", inputs=("z", "u"), weight_bytes=8),
    )
    sizes = {"x": 12, "w": 8, "b": 4, "y": 8, "z": 8, "u": 8}
    graph = ComputationGraph("told", ops, tuple(Tensor(name, size) for name, size in sizes.items()))
    assert own_weights(graph) == [{"w", "b"}, set(), {"u"}]


@pytest.mark.parametrize(
    ("name", "layers"),
    [("resnet50/inference/b1/jaxpr", 57), ("gpt2/inference/b1/jaxpr", None)],
)
def test_models_of_the_zoo(name: str, layers: int | None) -> None:
    graph = zoo.load(name).graph
    coarse = coarsened(graph)
    check_nothing_is_lost(graph, coarse)
    assert layers is None or len(coarse.ops) == layers


def test_an_onnx_model() -> None:
    graph = read((LIGHT / "light_resnet50.onnx").read_bytes())
    layers = coarsened(graph)
    check_nothing_is_lost(graph, layers)
    assert len(layers.ops) == 57
    assert np.all([op.layer is not None for op in layers.ops])


def test_features_of_layers() -> None:
    graph = WORKLOADS["resnet50"]()
    features = np.expm1(layer_features(graph).astype(np.float64))
    assert features.shape == (57, len(LAYER_FEATURES))
    column = {name: features[:, i] for i, name in enumerate(LAYER_FEATURES)}
    weights = [op.weight_bytes for op in graph.ops]
    np.testing.assert_allclose(column["weight_size"], weights, rtol=1e-5)
    np.testing.assert_allclose(column["n_w_left"][[0, -1]], [sum(weights), weights[-1]], rtol=1e-5)
    np.testing.assert_allclose(column["n_ops_left"], np.arange(57)[::-1], rtol=1e-5, atol=1e-5)
    first = {name: round(float(values[1])) for name, values in column.items()}
    assert (first["ifm_x"], first["ifm_z"], first["ofm_y"], first["ofm_z"]) == (224, 3, 112, 64)
    assert (first["kernel_x"], first["stride"], first["pad"], first["batch"]) == (7, 2, 3, 1)
    assert first["ofm_size"] == 112 * 112 * 64
    reverse = graph.arrays.topological[::-1].copy()
    np.testing.assert_allclose(layer_features(graph, reverse)[:, 1], layer_features(graph)[::-1, 1])


def test_features_without_shapes_are_bytes() -> None:
    ops = Op("a", "add", inputs=("x",), outputs=(Tensor("a0", 5),)), Op("b", "sort", inputs=("a0", "x"))
    graph = ComputationGraph("plain", ops, (Tensor("x", 7),))
    features = np.expm1(layer_features(graph))
    assert features[0, LAYER_FEATURES.index("ofm_size")] == pytest.approx(5)
    assert features[:, LAYER_FEATURES.index("ifm_size")] == pytest.approx([7, 12])
    assert features[:, LAYER_FEATURES.index("ifm_x")].tolist() == [0, 0]
