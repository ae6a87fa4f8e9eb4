"""ONNX models as graphs: known models, weights, names, functions, shapes and dims."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import CHIP, LIGHT, array, info, model, node, read, refused, weight

from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import Layer
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.onnx.inference import fold
from graphrl.graphs.roofline import DEFAULT_CHIP, runtime


# Ops, weights in MB and GFLOP (a multiply-add is two, as published figures for these networks are multiply-adds).
@pytest.mark.parametrize(
    ("name", "ops", "megabytes", "gflops"),
    [
        ("bvlc_alexnet", 24, 243.9, 1.32),
        ("densenet121", 668, 32.6, 5.75),
        ("inception_v2", 371, 44.9, 4.07),
        ("resnet50", 176, 102.4, 8.22),
        ("shufflenet", 203, 5.7, 0.26),
        ("squeezenet", 66, 4.9, 0.71),
        ("vgg19", 46, 574.7, 39.30),
    ],
)
def test_light_models(name: str, ops: int, megabytes: float, gflops: float) -> None:
    graph = read_graph(LIGHT / f"light_{name}.onnx")
    arrays = graph.arrays
    assert graph.name == f"light_{name}"
    assert arrays.num_ops == arrays.num_tensors == ops
    assert arrays.weight_bytes.sum() / 1e6 == pytest.approx(megabytes, abs=0.05)
    assert arrays.flops.sum() / 1e9 == pytest.approx(gflops, abs=0.005)
    assert (arrays.tensor_bytes > 0).all()  # every shape is known
    assert (arrays.runtime > 0).all()
    assert arrays.kept.sum() == 1
    assert graph.ops[arrays.producer[arrays.kept][0]].outputs[0].bytes == 4 * 1000
    assert sum(tensor.bytes for tensor in graph.inputs) == arrays.weight_bytes.sum() + 4 * 3 * 224 * 224
    sources, targets = arrays.dependencies()
    assert len(np.unique(np.concatenate([sources, targets]))) == ops  # no isolated op


def test_a_known_model() -> None:
    """y = relu(x w + b): bytes, FLOPs, weights and run times by hand."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="multiply"),
        node("Add", ["m", "b"], ["s"]),
        node("Relu", ["s"], ["y"]),
    ]
    graph = read(model(nodes, {"x": (2, 3)}, weights=[weight("w", 3, 5), weight("b", 5)]))
    wider, same = Layer.of((2, 3), (2, 5)), Layer.of((2, 5), (2, 5))
    expected = (
        Op("multiply", "MatMul", 124.0, ("x", "w"), (Tensor("m", 40),), weight_bytes=60, flops=60, layer=wider),
        Op("Add.1", "Add", 100.0, ("m", "b"), (Tensor("s", 40),), weight_bytes=20, flops=10, layer=same),
        Op("Relu.2", "Relu", 80.0, ("s",), (Tensor("y", 40),), flops=10, layer=same),
    )
    assert graph == ComputationGraph(
        "model", expected, (Tensor("x", 24), Tensor("w", 60), Tensor("b", 20)), outputs=("y",)
    )


def test_the_chip_decides_run_times(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx.gz"
    path.write_bytes(gzip.compress(model([node("Relu", ["x"], ["y"])], {"x": (1000,)})))
    assert read_graph(path) == read_graph(path, chip=DEFAULT_CHIP)
    assert read_graph(path).name == "model"
    assert read_graph(path, chip="cpu").ops[0].runtime == runtime(1000, 8000, "cpu")
    assert read_graph(path, chip=CHIP).ops[0].runtime == 8000.0
    with pytest.raises(GraphrlError, match=r"^unknown chip 'abacus'"):
        read_graph(path, chip="abacus")


# Costs that are counted once.
def test_weights_are_charged_to_their_first_reader() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["i"]), node("Mul", ["i", "w"], ["y"])]
    graph = read(model(nodes, {"x": (4, 4)}, weights=[weight("w", 4, 4), weight("unread", 9)]))
    assert [op.weight_bytes for op in graph.ops] == [64, 0, 0]
    assert all("w" in op.inputs for op in graph.ops)
    assert [tensor.name for tensor in graph.inputs] == ["x", "w"]


def test_what_depends_on_weights_only_is_a_weight() -> None:
    nodes = [
        node("Constant", [], ["shape"], value=array("shape", [4, 4])),
        node("ConstantOfShape", ["shape"], ["fill"]),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["t", "fill"], ["v"]),
        node("Add", ["x", "v"], ["y"]),
    ]
    graph = read(model(nodes, {"x": (4, 4)}, weights=[weight("w", 4, 4)]))
    assert [(op.type, op.inputs, op.weight_bytes) for op in graph.ops] == [("Add", ("x", "v"), 64)]


def test_compressed_weights_and_random_numbers_are_not_folded() -> None:
    nodes = [
        node("DequantizeLinear", ["q", "scale"], ["w"]),
        node("RandomNormal", [], ["r"], shape=[4, 4]),
        node("Sum", ["x", "w", "r"], ["y"]),
    ]
    weights = [array("q", np.zeros((4, 4)), np.int8), array("scale", 1, np.float32)]
    graph = read(model(nodes, {"x": (4, 4)}, weights=weights))
    assert [(op.type, op.weight_bytes) for op in graph.ops] == [
        ("DequantizeLinear", 20),
        ("RandomNormal", 0),
        ("Sum", 0),
    ]


def test_a_model_without_inputs_keeps_its_ops() -> None:
    nodes = [node("Constant", [], ["c"], value_floats=[1.0, 2.0]), node("Exp", ["c"], ["e"]), node("Neg", ["e"], ["y"])]
    graph = read(model(nodes, {}))
    assert [op.type for op in graph.ops] == ["Exp", "Neg"]
    assert graph.ops[0].weight_bytes == 8


def test_a_constant_output_is_external() -> None:
    graph = read(model([node("Relu", ["x"], ["y"])], {"x": (2,)}, outputs=["y", "w", "x"], weights=[weight("w", 3)]))
    assert graph.inputs == (Tensor("x", 8), Tensor("w", 12))
    assert graph.outputs == ("y", "w", "x")
    assert graph.ops[0].weight_bytes == 0


def test_dead_nodes_and_unread_optional_outputs_are_dropped() -> None:
    nodes = [
        node("Dropout", ["x"], ["d", "mask"]),
        node("Exp", ["d"], ["dead"]),
        node("TopK", ["d", "k"], ["values", "y"]),
        node("Split", ["d"], ["left", "right"], num_outputs=2),
        node("Relu", ["right"], ["z"]),
    ]
    graph = read(model(nodes, {"x": (4,)}, outputs=["y", "z"], weights=[array("k", [2])]))
    assert [(op.type, [t.name for t in op.outputs]) for op in graph.ops] == [
        ("Dropout", ["d"]),
        ("TopK", ["values", "y"]),  # values is unread, but it is no optional output
        ("Split", ["left", "right"]),
        ("Relu", ["z"]),
    ]


def test_names_are_unique_and_nodes_sorted() -> None:
    nodes = [
        node("Add", ["a", "b"], ["y"], name="same"),
        node("Exp", ["x"], ["a"], name="same"),
        node("Neg", ["x", ""], ["b", ""]),
        node("Neg", ["x"], ["c"], name="Neg.2"),
        node("Mul", ["c", "y"], ["z"]),
    ]
    graph = read(model(nodes, {"x": (2,)}, outputs=["z"]))
    assert [op.name for op in graph.ops] == ["same.1", "Neg.2'", "same", "Neg.2", "Mul.4"]
    assert graph.ops[1].inputs == ("x",)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (TensorProto.BOOL, 5),
        (TensorProto.DOUBLE, 40),
        (TensorProto.BFLOAT16, 10),
        (TensorProto.FLOAT8E4M3FN, 5),
        (TensorProto.INT4, 3),
        (TensorProto.UINT8, 5),
        (TensorProto.COMPLEX64, 40),
    ],
)
def test_bytes_of_element_types(dtype: int, size: int) -> None:
    graph = read(model([node("Identity", ["x"], ["y"])], [info("x", (5,), dtype)], opset=21))
    assert graph.ops[0].outputs[0].bytes == graph.inputs[0].bytes == size


# Shapes.
def test_sizes_that_are_computed_from_shapes() -> None:
    """Exporters write reshape(x.shape[0]

    2, -1) and expand(-1, ...) this way; shape inference alone cannot follow.
    """
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Div", ["batch", "two"], ["half"]),
        node("Unsqueeze", ["half", "axis"], ["half_1d"]),
        node("Concat", ["half_1d", "minus"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["r"]),
        node("Shape", ["r"], ["r_shape"]),
        node("ConstantOfShape", ["rank"], ["ones"], value=array("one", [1])),
        node("Mul", ["ones", "minus"], ["minus_ones"]),
        node("Equal", ["r_shape", "minus_ones"], ["kept"]),
        node("Where", ["kept", "ones", "r_shape"], ["sizes"]),
        node("ReduceProd", ["sizes"], ["all"], keepdims=1),
        node("Reshape", ["r", "all"], ["flat"]),
        node("Range", ["zero", "half", "one"], ["positions"]),
        node("Cast", ["positions"], ["floats"], to=TensorProto.FLOAT),
        node("Reshape", ["flat", "target"], ["again"]),
        node("Transpose", ["again"], ["turned"]),
        node("Add", ["turned", "floats"], ["y"]),
    ]
    values = {"zero": 0, "one": 1, "two": 2, "axis": [0], "minus": [-1], "rank": [2]}
    weights = [array(name, value) for name, value in values.items()]
    graph = read(model(nodes, {"x": ("batch", 6)}, weights=weights), dims={"batch": 4})
    assert [op.type for op in graph.ops] == ["Reshape", "Reshape", "Reshape", "Transpose", "Add"]
    assert graph.ops[-1].outputs == (Tensor("y", 4 * 12 * 2),)


def test_a_model_that_only_computes_with_shapes() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["n"]),
             node("Range", ["zero", "n", "one"], ["r"]), node("Neg", ["r"], ["y"])]  # fmt: skip
    weights = [array("zero", 0), array("one", 1)]
    for outputs, sizes in ((["y"], {"y": 56}), (["y", "r"], {"y": 56, "r": 56})):
        graph = read(model(nodes, {"x": (2, "n")}, outputs, weights), dims={"n": 7})
        assert {tensor.name: tensor.bytes for op in graph.ops for tensor in op.outputs} == sizes


def test_small_values_that_make_a_large_one_are_not_computed() -> None:
    weights = [array(name, np.ones(shape)) for name, shape in (("a", (512, 1, 1)), ("b", (512, 1)), ("c", (64,)))]
    nodes = [node("Max", ["a", "b", "c"], ["m"]), node("Add", ["c", "c"], ["s"]), node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info("x", (1,))], [info("y", (1,))], weights)
    tracemalloc.start()
    assert fold(graph, 20)
    assert tracemalloc.get_traced_memory()[1] < 30e6  # the result of Max has 134 MB
    tracemalloc.stop()
    assert [left.op_type for left in graph.node] == ["Max", "Relu"]


@pytest.mark.parametrize(
    ("type", "data", "other", "folded"),
    [
        ("Expand", (40,), [40], True),
        ("Expand", (1024,), [1024], True),
        ("Expand", (2, 1), [2, 512], True),
        ("Expand", (3, 1), [1, 342], False),  # 1,026
        ("Expand", (), [1025], False),
        ("Expand", (0, 1), [1, 1 << 40], False),
        ("Gather", (512, 2), [0] * 512, True),
        ("Gather", (512, 2), [0] * 513, False),  # 1,026
        ("Gather", (0, 3), [], True),
        ("Gather", (), [0], False),
    ],
)
def test_values_are_computed_up_to_their_limit(
    type: str, data: tuple[int, ...], other: list[int], folded: bool
) -> None:
    """The result has to be small, however many elements the data have."""
    weights = [array("data", np.ones(data)), array("other", other)]
    nodes = [node(type, ["data", "other"], ["small"]), node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info("x", (1,))], [info("y", (1,))], weights)
    assert fold(graph, 20) == folded


def test_the_limit_of_a_gather_is_that_of_its_axis() -> None:
    for axis, folded in ((0, False), (1, True), (-1, True)):
        nodes = [node("Gather", ["data", "other"], ["small"], axis=axis), node("Relu", ["x"], ["y"])]
        weights = [array("data", np.ones((2, 512))), array("other", [0, 1, 0])]  # 3 x 512 or 2 x 3
        assert fold(helper.make_graph(nodes, "g", [info("x", (1,))], [info("y", (1,))], weights), 20) == folded


def test_dims_by_name_and_by_axis() -> None:
    nodes = [node("MatMul", ["x", "z"], ["m"]), node("NonZero", ["m"], ["n"]), node("Transpose", ["n"], ["y"])]
    data = model(nodes, {"x": ("batch", None), "z": ("k", 7)})
    assert "give dims, such as batch=1, x:1=1, k=1" in refused(data)
    assert "op 'NonZero.1': 'n' has dimensions of unknown size: give dims, such as n:1=1" in refused(
        data, dims={"batch": 8, "x:1": 5, "k": 5}
    )
    graph = read(data, dims={"batch": 8, "x:1": 5, "k": 5, "n:1": 11})
    assert [op.outputs[0].bytes for op in graph.ops] == [4 * 8 * 7, 8 * 2 * 11, 8 * 2 * 11]
    assert graph.ops[0].flops == 2 * 8 * 5 * 7


@pytest.mark.parametrize(
    ("dims", "fault"),
    [
        ({"btch": 8}, "dims: 'btch' names no unknown dimension of the model: unknown are 'batch'"),
        ({"batch": 8, "x:1": 3}, "dims: 'x:1' names no unknown dimension"),
        ({"batch": -1}, "dims: the size of 'batch' must be an integer from 0"),
        ({"batch": 2.0}, "dims: the size of 'batch' must be an integer from 0"),
        ({"batch": True}, "dims: the size of 'batch' must be an integer from 0"),
        ({"batch": 10**5000}, "dims: the size of 'batch' must be an integer from 0"),
    ],
)
def test_wrong_dims(dims: dict[str, int], fault: str) -> None:
    assert fault in refused(model([node("Relu", ["x"], ["y"])], {"x": ("batch", 3)}), dims=dims)
