"""Graphs of ONNX models: structure, sizes and costs against hand counts, what runtimes compute once, and refusals."""

import gzip
import os
import random
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from broken import BROKEN, refusal
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphrl.errors import GraphError, GraphrlError
from graphrl.files import Content
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.onnx import parse_onnx, read_onnx
from graphrl.graphs.readers.onnx_flops import Call, bytes_moved, flops
from graphrl.graphs.readers.onnx_wire import MAX_VALUES, without_weights
from graphrl.graphs.roofline import DEFAULT_CHIP, Chip, runtime

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
CHIP = Chip("unit", 1.0, 1.0)  # a FLOP and a byte take a second each

Shape = Sequence[int | str | None] | None
node = helper.make_node


def info(name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def array(name: str, values: object, dtype: type = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, dtype), name)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape] | Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str] = ("y",),
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 20,
) -> bytes:
    given = [info(*item) for item in inputs.items()] if isinstance(inputs, Mapping) else list(inputs)
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name=name) for name in outputs], weights)
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=versions, functions=functions, ir_version=9).SerializeToString()


def read(data: Content, **options: object) -> ComputationGraph:
    return parse_onnx(data, "model.onnx", **{"chip": CHIP, **options})  # type: ignore[arg-type]


def refused(data: Content, **options: object) -> str:
    with pytest.raises(GraphError) as caught:
        read(data, **options)
    assert str(caught.value).startswith("model.onnx: ")
    assert str(caught.value).isprintable()
    return str(caught.value)


# Ops, weights in MB and GFLOP (a multiply-add is two, as published figures for these networks are multiply-adds).
@pytest.mark.parametrize(
    ("name", "ops", "megabytes", "gflops"),
    [
        ("bvlc_alexnet", 24, 243.9, 1.32),
        ("densenet121", 668, 32.6, 5.75),
        ("inception_v1", 143, 28.0, 2.89),
        ("inception_v2", 371, 44.9, 4.07),
        ("resnet50", 176, 102.4, 8.22),
        ("shufflenet", 203, 5.7, 0.26),
        ("squeezenet", 66, 4.9, 0.71),
        ("vgg19", 46, 574.7, 39.30),
        ("zfnet512", 22, 349.0, 2.99),
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
    expected = (
        Op("multiply", "MatMul", 124.0, ("x", "w"), (Tensor("m", 40),), weight_bytes=60, flops=60),
        Op("Add.1", "Add", 100.0, ("m", "b"), (Tensor("s", 40),), weight_bytes=20, flops=10),
        Op("Relu.2", "Relu", 80.0, ("s",), (Tensor("y", 40),), flops=10),
    )
    assert graph == ComputationGraph(
        "model", expected, (Tensor("x", 24), Tensor("w", 60), Tensor("b", 20)), outputs=("y",)
    )


def test_the_chip_decides_run_times(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx.gz"
    path.write_bytes(gzip.compress(model([node("Relu", ["x"], ["y"])], {"x": (1000,)})))
    assert read_graph(path) == read_onnx(path) == read_graph(path, chip=DEFAULT_CHIP)
    assert read_graph(path).name == "model"
    assert read_graph(path, chip="cpu").ops[0].runtime == runtime(1000, 8000, "cpu")
    assert read_graph(path, chip=CHIP).ops[0].runtime == 8000.0
    with pytest.raises(GraphrlError, match=r"^unknown chip 'abacus'"):
        read_graph(path, chip="abacus")


# What happens once.
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


def test_functions_are_inlined() -> None:
    body = [node("Exp", ["a"], ["e"]), node("Add", ["e", "a"], ["r"])]
    function = helper.make_function("custom", "ExpAdd", ["a"], ["r"], body, [helper.make_opsetid("", 20)])
    graph = read(model([node("ExpAdd", ["x"], ["y"], domain="custom")], {"x": (2,)}, functions=[function]))
    assert [op.type for op in graph.ops] == ["Exp", "Add"]


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
    """How exporters write reshape(x.shape[0] // 2, -1) and expand(-1, ...), which inference alone cannot follow."""
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
    ("dims", "says"),
    [
        ({"btch": 8}, "dims: 'btch' names no unknown dimension of the model: unknown are 'batch'"),
        ({"batch": 8, "x:1": 3}, "dims: 'x:1' names no unknown dimension"),
        ({"batch": 0}, "dims: the size of 'batch' must be an integer from 1"),
        ({"batch": -1}, "dims: the size of 'batch' must be an integer from 1"),
        ({"batch": 2.0}, "dims: the size of 'batch' must be an integer from 1"),
        ({"batch": True}, "dims: the size of 'batch' must be an integer from 1"),
        ({"batch": 10**5000}, "dims: the size of 'batch' must be an integer from 1"),
    ],
)
def test_wrong_dims(dims: dict[str, int], says: str) -> None:
    assert says in refused(model([node("Relu", ["x"], ["y"])], {"x": ("batch", 3)}), dims=dims)


# Bodies. Each body reads x (or w) from around it.
def _branch(name: str, nodes: Sequence[onnx.NodeProto], weights: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=nodes[-1].output[0])], weights)


def test_a_branch_costs_its_most_expensive_body() -> None:
    then = _branch("then", [node("MatMul", ["x", "w"], ["t"]), node("Exp", ["t"], ["u"]), node("Neg", ["u"], ["v"])])
    other = _branch("else", [node("Add", ["x", "c"], ["e"])], [weight("c", 4, 4)])
    branch = node("If", ["condition"], ["y"], then_branch=then, else_branch=other)
    inputs = [info("x", (4, 4)), info("condition", (), TensorProto.BOOL)]
    (op,) = read(model([branch], inputs, weights=[weight("w", 4, 4)])).ops
    assert op.inputs == ("condition", "x", "w")
    assert op.flops == 2 * 64 + 16 + 16
    assert op.weight_bytes == 64 + 64  # w, and c of the branch not taken
    assert op.runtime == (64 + 64 + 64) + (64 + 64) + (64 + 64)
    assert op.workspace_bytes == 64 + 64  # t and u; v is the op's own output
    assert op.outputs == (Tensor("y", 64),)


@pytest.mark.parametrize(("trips", "runs"), [(7, 7), (0, 0), (2**63 - 1, 1), (None, 1)])
def test_a_loop_costs_its_body_times_its_trips(trips: int | None, runs: int) -> None:
    nodes = [
        node("MatMul", ["state", "x"], ["m"]),
        node("Exp", ["m"], ["next"]),
        node("Identity", ["go"], ["go_on"]),
        node("Neg", ["next"], ["out"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), onnx.ValueInfoProto(name="state")],
        [onnx.ValueInfoProto(name=name) for name in ("go_on", "next", "out")],
    )
    body.input[2].type.tensor_type.elem_type = TensorProto.FLOAT
    weights = [] if trips is None else [array("trips", trips)]
    inputs = [info("x", (4, 4)), *([info("trips", (), TensorProto.INT64)] if trips is None else [])]
    loop = node("Loop", ["trips", "", "x"], ["y", "stacked"], body=body)
    dims = {"stacked:0": 3} if trips is None or trips > 7 else {}
    (op,) = read(model([loop], inputs, outputs=["y", "stacked"], weights=weights), dims=dims).ops
    assert op.outputs == (Tensor("y", 64), Tensor("stacked", 64 * (3 if dims else runs)))
    assert op.flops == runs * (128 + 16 + 16)
    assert op.workspace_bytes == 64 + 64 + 1  # the next state, what is given out, and the condition
    assert op.inputs == ("trips", "x")


def test_a_loop_that_changes_the_shape_of_its_state_is_refused() -> None:
    body = helper.make_graph(
        [node("Concat", ["state", "state"], ["next"], axis=0), node("Identity", ["go"], ["go_on"])],
        "body",
        [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), info("state", None)],
        [onnx.ValueInfoProto(name="go_on"), onnx.ValueInfoProto(name="next")],
    )
    data = model([node("Loop", ["n", "", "x"], ["y"], body=body)], {"x": (2,)}, weights=[array("n", 3)])
    assert "op 'Loop.0': the shape of 'y' is unknown" in refused(data) or "unknown size" in refused(data)


def test_a_scan_costs_its_body_times_its_length() -> None:
    nodes = [node("Add", ["state", "item"], ["next"]), node("Mul", ["next", "w"], ["out"])]
    body = helper.make_graph(
        nodes, "body", [info("state", (3,)), info("item", (3,))], [info("next", (3,)), info("out", (3,))]
    )
    scan = node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    data = model([scan], {"start": (3,), "x": (3, 10)}, outputs=["last", "y"], weights=[weight("w", 3)])
    (op,) = read(data).ops
    assert op.flops == 10 * 6
    assert op.runtime == 10 * 72
    assert op.inputs == ("start", "x", "w")
    assert op.outputs == (Tensor("last", 12), Tensor("y", 120))


# FLOPs.
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Call("Conv", {}, [(2, 8, 9, 9), (16, 4, 3, 3)], [(2, 16, 7, 7)]), 2 * (2 * 16 * 49) * 36),
        (Call("Conv", {}, [(2, 8, 9, 9), (16, 8, 3, 3), (16,)], [(2, 16, 7, 7)]), 1568 * (2 * 72 + 1)),
        (Call("ConvTranspose", {}, [(2, 8, 5, 5), (8, 4, 3, 3)], [(2, 4, 11, 11)]), 2 * 400 * 36),
        (Call("QLinearConv", {}, [(1, 2, 4, 4), (), (), (3, 2, 1, 1), ()], [(1, 3, 4, 4)]), 2 * 48 * 2),
        (Call("MatMul", {}, [(2, 3, 4), (4, 5)], [(2, 3, 5)]), 2 * 30 * 4),
        (Call("MatMul", {}, [(4,), (4,)], [()]), 8),
        (Call("Gemm", {}, [(3, 4), (4, 5), (5,)], [(3, 5)]), 2 * 15 * 4 + 15),
        (Call("Gemm", {"transA": 1}, [(4, 3), (4, 5)], [(3, 5)]), 2 * 15 * 4),
        (Call("Einsum", {"equation": b"bij, bjk -> bik"}, [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)]), 2 * 2 * 3 * 4 * 5),
        (Call("Einsum", {"equation": b"...ij,...jk"}, [(7, 3, 4), (4, 5)], [(7, 3, 5)]), 2 * 7 * 3 * 4 * 5),
        (Call("LSTM", {}, [(6, 2, 3), (1, 16, 3), (1, 16, 4)], [(6, 1, 2, 4)]), 2 * 12 * (48 + 64)),
        (Call("MaxPool", {"kernel_shape": [3, 2]}, [(1, 1, 9, 9)], [(1, 1, 7, 8)]), 56 * 6),
        (Call("GlobalAveragePool", {}, [(1, 2, 9, 9)], [(1, 2, 1, 1)]), 162),
        (Call("ReduceSum", {}, [(3, 4), (1,)], [(3, 1)]), 12),
        (Call("Softmax", {}, [(3, 4)], [(3, 4)]), 60),
        (Call("BatchNormalization", {}, [(3, 4)], [(3, 4)]), 24),
        (Call("LRN", {"size": 5}, [(1, 8, 2, 2)], [(1, 8, 2, 2)]), 32 * 13),
        (Call("TopK", {"axis": -1}, [(2, 100), (1,)], [(2, 7), (2, 7)]), 200 * 3),
        (Call("Sum", {}, [(4,), (4,), (4,)], [(4,)]), 8),
        (Call("Mean", {}, [(4,), (4,), (4,)], [(4,)]), 12),
        (Call("Attention", {}, [(2, 4, 6, 8), (2, 4, 10, 8), (2, 4, 10, 16)], [(2, 4, 6, 16)]), 480 * (2 * 24 + 5)),
        (
            Call(
                "Attention", {"q_num_heads": 4, "kv_num_heads": 2}, [(2, 6, 32), (2, 10, 16), (2, 10, 8)], [(2, 6, 16)]
            ),
            2 * 6 * 10 * (2 * (32 + 16) + 5 * 4),
        ),
        (Call("Det", {}, [(5, 3, 3)], [(5,)]), 5 * 18),
        (Call("DFT", {}, [(1, 8, 2)], [(1, 8, 2)]), 5 * 16 * 3),
        (Call("Relu", {}, [(3, 4)], [(3, 4)]), 12),
        (Call("Sigmoid", {}, [(3, 4)], [(3, 4)]), 36),
        (Call("Reshape", {}, [(3, 4), (1,)], [(12,)]), 0),
        (Call("NobodyKnows", {}, [(3, 4)], [(5,), (6,)]), 11),
    ],
)
def test_flops(call: Call, expected: int) -> None:
    assert flops(call) == expected


@pytest.mark.parametrize(
    "type", ["Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "Attention", "TopK", "DFT"]
)
def test_flops_of_nodes_without_the_inputs_that_they_need(type: str) -> None:
    assert flops(Call(type, {}, [], [])) >= 0
    assert flops(Call(type, {}, [()], [(3,)])) >= 0


def test_a_gather_reads_only_what_it_takes() -> None:
    assert bytes_moved("Gather", [10**9, 16], 4000) == 4000 + 16 + 4000
    assert bytes_moved("Add", [40, 8], 40) == 88
    assert bytes_moved("Constant", [], 8) == 8


# The file.
def test_weights_are_not_loaded(tmp_path: Path) -> None:
    """64 MB of weights, in the graph, in a Constant and in a body: less than 1 MB is ever held."""
    path = tmp_path / "model.onnx"
    then = _branch("then", [node("Add", ["m", "b"], ["t"])], [weight("b", 2000, 2000)])
    other = _branch("else", [node("Identity", ["m"], ["e"])])
    nodes = [
        node("Constant", [], ["c"], value=weight("c", 2000, 2000)),
        node("MatMul", ["x", "w"], ["h"]),
        node("MatMul", ["h", "c"], ["m"]),
        node("If", ["condition"], ["z"], then_branch=then, else_branch=other),
        node("MatMul", ["z", "v"], ["y"]),
    ]
    inputs = [info("x", (2000, 2000)), info("condition", (), TensorProto.BOOL)]
    floats = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[2000, 2000], float_data=[0.5] * 4_000_000)
    path.write_bytes(model(nodes, inputs, weights=[weight("w", 2000, 2000), floats]))
    assert path.stat().st_size > 64_000_000
    read_onnx(path)  # imports
    tracemalloc.start()
    graph = read_onnx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert [op.weight_bytes for op in graph.ops] == [16_000_000] * 4


def test_weights_in_other_files_need_not_be_there() -> None:
    external = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 5], data_location=TensorProto.EXTERNAL)
    external.external_data.add(key="location", value="nowhere.bin")
    graph = read(model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, weights=[external]))
    assert graph.ops[0].weight_bytes == 60


def test_field_numbers_are_those_of_onnx() -> None:
    def number(message: type, field: str) -> int:
        return message.DESCRIPTOR.fields_by_name[field].number  # type: ignore[attr-defined]

    assert number(onnx.ModelProto, "graph") == 7
    assert number(onnx.ModelProto, "functions") == 25
    assert number(onnx.FunctionProto, "node") == 7
    assert [number(onnx.GraphProto, field) for field in ("node", "initializer", "sparse_initializer")] == [1, 5, 15]
    assert number(onnx.NodeProto, "attribute") == 5
    attribute = ("t", "g", "tensors", "graphs", "sparse_tensor", "sparse_tensors")
    assert [number(onnx.AttributeProto, field) for field in attribute] == [5, 6, 10, 11, 22, 23]
    assert [number(onnx.SparseTensorProto, field) for field in ("values", "indices")] == [1, 2]
    values = ("float_data", "int32_data", "int64_data", "raw_data", "double_data", "uint64_data", "data_location")
    assert [number(TensorProto, field) for field in values] == [4, 5, 7, 9, 10, 11, 14]


@given(st.integers(0, 2 * MAX_VALUES), st.integers(0, 5))
def test_only_large_values_are_dropped(size: int, depth: int) -> None:
    tensor = TensorProto(name="w" * 200, data_type=TensorProto.UINT8, dims=[size], raw_data=bytes(size))
    graph = helper.make_graph([node("Constant", [], ["c"], value=tensor)], "g", [], [], [tensor])
    for _ in range(depth):
        graph = helper.make_graph([node("If", ["c"], ["d"], then_branch=graph)], "outer", [], [])
    message = helper.make_model(graph).SerializeToString()
    stripped = onnx.ModelProto.FromString(without_weights(message))
    if size <= MAX_VALUES:
        assert stripped == onnx.ModelProto.FromString(message)
        return
    graph = stripped.graph
    for _ in range(depth):
        graph = graph.node[0].attribute[0].g
    for left in (graph.initializer[0], graph.node[0].attribute[0].t):
        assert (left.name, list(left.dims), left.data_type) == (tensor.name, [size], TensorProto.UINT8)
        assert left.raw_data == b""
        assert left.data_location == TensorProto.EXTERNAL


SQUEEZENET = (LIGHT / "light_squeezenet.onnx").read_bytes()


@given(st.integers(0, len(SQUEEZENET) - 1))
def test_any_truncation_is_refused_or_a_shorter_model(length: int) -> None:
    assert refusal(lambda: read(SQUEEZENET[:length])).isprintable()


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_any_damage_is_refused_in_one_line_or_read(seed: int, count: int) -> None:
    generator = random.Random(seed)
    data = bytearray(SQUEEZENET)
    for _ in range(count):
        data[generator.randrange(len(data))] = generator.randrange(256)
    message = refusal(lambda: read(bytes(data)))
    assert message.isprintable()
    assert len(message) < 1000


@pytest.mark.parametrize("name", [name for name in BROKEN if "ONNX" in name])
def test_broken_models_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = BROKEN[name].make(tmp_path)
    with pytest.raises(GraphrlError) as caught:
        read_graph(path)
    message = str(caught.value)
    assert BROKEN[name].says in message
    assert str(path) in message
    assert message.isprintable()
    assert len(message) - len(str(path)) < 250
    assert os.listdir(tmp_path) == [path.name]
