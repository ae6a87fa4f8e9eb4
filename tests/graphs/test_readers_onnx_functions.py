"""Functions of ONNX models: with another operator set than the model's, with attributes, in bodies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper
from onnx_models import array, branch_body, info, loop, model, node, read, refused, weight

from graphrl.graphs.graph import ComputationGraph


def function(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    opset: int,
    inputs: Sequence[str] = ("a",),
    *,
    domain: str = "custom",
    defaults: Sequence[onnx.AttributeProto] = (),
    imports: Sequence[str] = (),
) -> onnx.FunctionProto:
    """A function with one output, o."""
    versions = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in imports)]
    return helper.make_function(domain, name, inputs, ["o"], nodes, versions, attribute_protos=defaults)


def call(name: str, *inputs: str, output: str = "y", domain: str = "custom", **attributes: Any) -> onnx.NodeProto:
    return node(name, list(inputs), [output], domain=domain, **attributes)


def summary(graph: ComputationGraph) -> list[tuple[str, int, int]]:
    return [(op.type, op.outputs[0].bytes, op.flops) for op in graph.ops]


BLOCK = [node("MatMul", ["a", "w"], ["p"]), node("Relu", ["p"], ["q"]), node("MatMul", ["q", "w"], ["o"])]
OLD_SUM = [node("ReduceSum", ["a"], ["o"], axes=[0], keepdims=0)]  # since opset 13, the axes are an input


@pytest.mark.parametrize("opset", [13, 18, 20, 21])
def test_a_function_of_any_opset_is_inlined(opset: int) -> None:
    data = model(
        [call("Block", "x", "w")], {"x": (64, 256)}, weights=[weight("w", 256, 256)],
        functions=[function("Block", BLOCK, 18, ["a", "w"])], opset=opset,
    )  # fmt: skip
    size, flops = 4 * 64 * 256, 2 * 64 * 256 * 256
    assert summary(read(data)) == [("MatMul", size, flops), ("Relu", size, 64 * 256), ("MatMul", size, flops)]


@pytest.mark.parametrize(
    ("nodes", "opset", "shape", "size"),
    [
        (OLD_SUM, 11, (4, 8), 4 * 8),
        ([node("Squeeze", ["a"], ["o"], axes=[0])], 11, (1, 8), 4 * 8),
        ([node("Pad", ["a"], ["o"], pads=[1, 1, 1, 1])], 2, (4, 8), 4 * 60),
        ([node("Slice", ["a"], ["o"], starts=[0], ends=[1], axes=[1])], 1, (4, 8), 4 * 4),
        ([node("TopK", ["a"], ["o", "i"], k=2)], 1, (4, 8), 4 * 8),
        ([node("Upsample", ["a", "s"], ["o"])], 9, (1, 1, 4, 4), 4 * 64),  # no converter has an adapter for it
    ],
)
def test_operators_that_are_others_in_the_models_opset(
    nodes: Sequence[onnx.NodeProto], opset: int, shape: tuple[int, ...], size: int
) -> None:
    data = model(
        [call("Old", "x", "s")], {"x": shape}, weights=[array("s", [1, 1, 2, 2], np.float32)],
        functions=[function("Old", nodes, opset, ["a", "s"])],
    )  # fmt: skip
    (op,) = read(data).ops
    assert (op.type, op.outputs[0].bytes) == (nodes[0].op_type, size)


def test_functions_in_functions_of_several_opsets() -> None:
    inner = function("Inner", OLD_SUM, 11, domain="deep")
    outer = function("Outer", [call("Inner", "a", output="p", domain="deep"), node("Softmax", ["p"], ["o"])], 18,
                     imports=["deep"])  # fmt: skip
    data = model([call("Outer", "x")], {"x": (4, 8)}, functions=[outer, inner])
    assert summary(read(data)) == [("ReduceSum", 32, 32), ("Softmax", 32, 40)]


@pytest.mark.parametrize("attributes", [{"value_ints": [0]}, {"value": array("v", [0])}])
def test_constants_of_newer_functions(attributes: dict[str, Any]) -> None:
    """`Constant` has numbers as attributes since opset 12."""
    nodes = [node("Constant", [], ["axes"], **attributes), node("ReduceSum", ["a", "axes"], ["o"], keepdims=0)]
    data = model([call("Sum", "x")], {"x": (4, 8)}, functions=[function("Sum", nodes, 18)], opset=11)
    assert summary(read(data)) == [("ReduceSum", 32, 32)]


def test_overloads_are_different_functions() -> None:
    one, two = function("F", [node("Relu", ["a"], ["o"])], 18), function("F", OLD_SUM, 11)
    one.overload, two.overload = "one", "two"
    calls = [call("F", "x", output="m"), call("F", "m")]
    calls[0].overload, calls[1].overload = "one", "two"
    assert [op.type for op in read(model(calls, {"x": (4, 8)}, functions=[one, two])).ops] == ["Relu", "ReduceSum"]


@pytest.mark.parametrize("opset", [11, 20])
def test_attributes_of_functions_and_their_defaults(opset: int) -> None:
    nodes = [node("ReduceSum", ["a"], ["o"])]
    nodes[0].attribute.add(name="axes", ref_attr_name="over", type=AttributeProto.INTS)
    nodes[0].attribute.add(name="keepdims", ref_attr_name="kept", type=AttributeProto.INT)
    defaults = [helper.make_attribute("over", [1]), helper.make_attribute("kept", 0)]
    functions = [function("F", nodes, 11, defaults=defaults)]
    for attributes, size in (({}, 4), ({"over": [0]}, 8), ({"kept": 1, "over": [0, 1]}, 1)):
        data = model([call("F", "x", **attributes)], {"x": (4, 8)}, functions=functions, opset=opset)
        assert summary(read(data)) == [("ReduceSum", 4 * size, 32)]


def test_functions_in_bodies_and_bodies_in_functions() -> None:
    functions = [function("Sum", OLD_SUM, 11)]
    branch = node("If", ["c"], ["y"], then_branch=branch_body("t", [call("Sum", "x", output="t")]),
                  else_branch=branch_body("e", [node("ReduceMax", ["x", "axes"], ["e"], keepdims=0)]))  # fmt: skip
    inputs = [info("x", (4, 8)), info("c", (), TensorProto.BOOL)]
    assert summary(read(model([branch], inputs, weights=[array("axes", [0])], functions=functions))) == [("If", 32, 32)]
    repeated = loop(*OLD_SUM, node("Add", ["s", "o"], ["t"]), state=info("s", (8,)), start="z", outputs=["o"])
    data = model([call("Repeat", "trips", "z", "x")], {"x": (4, 8), "z": (8,)}, weights=[array("trips", 3)],
                 functions=[function("Repeat", [repeated], 11, ["trips", "z", "a"])])  # fmt: skip
    assert summary(read(data)) == [("Loop", 32, 3 * (32 + 8))]


def test_a_function_in_the_place_of_a_standard_operator() -> None:
    gelu = function("Gelu", [node("Erf", ["a"], ["p"]), node("Mul", ["a", "p"], ["o"])], 13, domain="")
    assert [op.type for op in read(model([node("Gelu", ["x"], ["y"])], {"x": (4,)}, functions=[gelu])).ops] == [
        "Erf",
        "Mul",
    ]


def test_functions_without_calls_do_not_matter() -> None:
    functions = [function("Future", BLOCK, 999), function("Itself", [call("Itself", "a", output="o")], 18)]
    assert len(read(model([node("Relu", ["x"], ["y"])], {"x": (4,)}, functions=functions)).ops) == 1


def test_functions_that_cannot_be_inlined_are_refused_by_name() -> None:
    scan = node(
        "Scan", ["", "a", "a"], ["o", "p"], num_scan_inputs=1, body=branch_body("b", [node("Exp", ["a"], ["e"])])
    )
    for name, nodes, opset, fault in (
        ("Future", BLOCK, 999, "function 'custom.Future': ONNX opset version 999: onnx"),
        ("Itself", [call("Itself", "a", output="o")], 18, "Cycle detected"),
        ("Batched", [scan], 8, "function 'custom.Batched': its Scan is of opset 8"),
    ):
        data = model([call(name, "x")], {"x": (4,)}, functions=[function(name, nodes, opset, imports=["custom"])])
        assert fault in refused(data)


def test_what_a_file_notes_at_its_nodes_is_no_opset() -> None:
    relu = node("Relu", ["x"], ["y"])
    relu.metadata_props.add(key="graphrl.opset", value="no number")
    assert len(read(model([relu], {"x": (4,)})).ops) == 1
