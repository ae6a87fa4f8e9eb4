"""ONNX models as graphs: branches with a known condition, and bodies that are repeated for each tensor."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import array, branch_body, info, loop, model, node, read, refused, weight

from graphrl.graphs.graph import ComputationGraph, Tensor

BOOL = TensorProto.BOOL
X = info("x", (4, 1, 8))
CONDITION = info("condition", (), BOOL)
WEIGHTS = [array("one", 1), array("three", 3), array("axes", [1]), weight("w", 8, 8)]
SQUEEZE = branch_body("squeeze", [node("Squeeze", ["x", "axes"], ["s"])])
PRODUCT = branch_body("product", [node("MatMul", ["x", "w"], ["s"])])
SAME = branch_body("same", [node("Identity", ["x"], ["s"])])
SIZE_IS_1 = [
    node("Shape", ["x"], ["shape"]),
    node("Gather", ["shape", "one"], ["size"]),
    node("Equal", ["size", "one"], ["condition"]),
]


def branch(then: onnx.GraphProto, other: onnx.GraphProto, outputs: Sequence[str] = ("q",)) -> onnx.NodeProto:
    """An If on the value named "condition"."""
    return node("If", ["condition"], outputs, then_branch=then, else_branch=other)


def results(names: Sequence[str], nodes: Sequence[onnx.NodeProto] = ()) -> onnx.GraphProto:
    """A branch with several results."""
    return helper.make_graph(nodes, "results", [], [onnx.ValueInfoProto(name=name) for name in names])


def read_branch(
    *nodes: onnx.NodeProto,
    shape: Sequence[int | str] = (4, 1, 8),
    weights: Sequence[onnx.TensorProto] = (),
    **options: object,
) -> ComputationGraph:
    """The graph of a model that gives relu(q), where x has this shape."""
    nodes = (*nodes, node("Relu", ["q"], ["y"]))
    return read(model(nodes, {"x": shape}, weights=[*WEIGHTS, *weights]), **options)


def ops(graph: ComputationGraph) -> list[tuple[str, tuple[str, ...], int]]:
    """Type, inputs and bytes of the only output of each op."""
    return [(op.type, op.inputs, op.outputs[0].bytes) for op in graph.ops]


def test_a_branch_that_shapes_decide_is_taken() -> None:
    taken = read_branch(*SIZE_IS_1, branch(SQUEEZE, PRODUCT))
    assert ops(taken) == [("Squeeze", ("x", "axes"), 128), ("Relu", ("q",), 128)]
    assert taken.inputs == (Tensor("x", 128), Tensor("axes", 8))
    other = read_branch(*SIZE_IS_1, branch(SQUEEZE, PRODUCT), shape=(4, 3, 8))  # a Squeeze of 3 is invalid
    assert ops(other) == [("MatMul", ("x", "w"), 384), ("Relu", ("q",), 384)]
    assert [op.weight_bytes for op in other.ops] == [256, 0]
    named = read_branch(*SIZE_IS_1, branch(SQUEEZE, PRODUCT), shape=("batch", "time", 8), dims={"batch": 4, "time": 1})
    assert ops(named) == ops(taken)


@pytest.mark.parametrize("value", [True, [True], [[True]]])
def test_a_branch_that_a_weight_decides_is_taken(value: object) -> None:
    graph = read_branch(branch(SQUEEZE, PRODUCT), weights=[array("condition", value, np.bool_)])
    assert [op.type for op in graph.ops] == ["Squeeze", "Relu"]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Constant", [], ["condition"], value=array("", False, np.bool_))],
        [node("Constant", [], ["zero"], value_int=0), node("Cast", ["zero"], ["condition"], to=BOOL)],
        [
            node("Shape", ["x"], ["shape"]),
            node("Size", ["shape"], ["rank"]),
            node("Equal", ["rank", "three"], ["is_3"]),
            node("Not", ["is_3"], ["is_not_3"]),
            node("And", ["is_3", "is_not_3"], ["neither"]),
            node("Xor", ["neither", "is_not_3"], ["condition"]),
        ],
        [node("Optional", [], ["o"], type=X.type), node("OptionalHasElement", ["o"], ["condition"])],
    ],
)
def test_a_branch_that_constants_or_ranks_decide_is_taken(nodes: list[onnx.NodeProto]) -> None:
    graph = read_branch(*nodes, branch(SQUEEZE, PRODUCT))
    assert [op.type for op in graph.ops] == ["MatMul", "Relu"]


def test_a_branch_that_a_size_in_dims_decides_is_taken() -> None:
    """The number of non-zero elements is known only from dims."""
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Size", ["places"], ["size"]),
        node("Greater", ["size", "three"], ["condition"]),
        branch(branch_body("then", [node("Cast", ["places"], ["s"], to=TensorProto.FLOAT)]), PRODUCT),
    ]
    assert "places:1=1" in refused(model([*nodes, node("Relu", ["q"], ["y"])], {"x": (4, 1, 8)}, weights=WEIGHTS))
    graph = read_branch(*nodes, dims={"places:1": 7})
    assert ops(graph)[1:] == [("Cast", ("places",), 84), ("Relu", ("q",), 84)]


@pytest.mark.parametrize(
    "other",
    [
        branch_body("custom", [node("Nobody", ["x"], ["s"], domain="of nobody")]),
        branch_body("type", [node("Cast", ["x"], ["s"], to=TensorProto.INT64)]),
        branch_body("rank", [node("Unsqueeze", ["x", "axes"], ["s"])]),
        branch_body("impossible", [node("MatMul", ["x", "axes"], ["t"]), node("Conv", ["t", "w"], ["s"])]),
    ],
)
def test_a_branch_that_is_not_taken_cannot_be_wrong(other: onnx.GraphProto) -> None:
    assert [op.type for op in read_branch(*SIZE_IS_1, branch(SQUEEZE, other)).ops] == ["Squeeze", "Relu"]
    decided = read_branch(branch(other, SQUEEZE), weights=[array("condition", False, np.bool_)])
    assert [op.type for op in decided.ops] == ["Squeeze", "Relu"]


def test_results_that_a_branch_does_not_compute() -> None:
    """Values from outside the branch, weights inside or outside of it, and the same value twice."""
    bias = branch_body("bias", [node("Neg", ["x"], ["unread"])], [weight("b", 8)])
    bias.output[0].name = "b"
    neg = node("Neg", ["x"], ["s"])
    for taken, expected in (
        (results(["x"]), [("Identity", ("x",), 128), ("Add", ("x", "q"), 128)]),
        (results(["w"]), [("Add", ("x", "q"), 1024)]),
        (bias, [("Add", ("x", "q"), 128)]),
        (results(["s"], [neg]), [("Neg", ("x",), 128), ("Add", ("x", "q"), 128)]),
    ):
        data = model([*SIZE_IS_1, branch(taken, PRODUCT), node("Add", ["x", "q"], ["y"])], [X], weights=WEIGHTS)
        assert ops(read(data)) == expected
    twice = branch(results(["s", "x", "s"], [neg]), results(["x", "x", "x"]), ["q", "r", "z"])
    data = model([*SIZE_IS_1, twice], [X], ["q", "r", "z"], weights=WEIGHTS)
    assert [(op.type, op.inputs, op.outputs) for op in read(data).ops] == [
        ("Neg", ("x",), (Tensor("q", 128),)),
        ("Identity", ("x",), (Tensor("r", 128),)),
        ("Identity", ("q",), (Tensor("z", 128),)),
    ]
    unread = branch(results(["s", "t"], [neg, node("Exp", ["s"], ["t"])]), results(["x", "x"]), ["", "y"])
    graph = read(model([*SIZE_IS_1, unread], [X], weights=WEIGHTS))
    assert ops(graph) == [("Neg", ("x",), 128), ("Exp", ("s",), 128)]


def test_names_of_branches_stay_unique() -> None:
    """Both branches, two Ifs and the outer graph use the same names, as do inner bodies."""
    inner = branch(branch_body("t", [node("Exp", ["s"], ["q"])]), branch_body("e", [node("Neg", ["s"], ["q"])]), ["i"])
    nested = branch_body("nested", [node("Neg", ["x"], ["s"], name="n"), inner])
    first, second = branch(nested, nested), branch(nested, nested, ["r"])
    nodes = [*SIZE_IS_1, first, second, node("Sum", ["q", "r"], ["s"], name="n"), node("Relu", ["s"], ["y"])]
    graph = read(model(nodes, [X], weights=WEIGHTS))
    assert [op.type for op in graph.ops] == ["Neg", "Exp", "Neg", "Exp", "Sum", "Relu"]
    assert len({op.name for op in graph.ops}) == len({op.outputs[0].name for op in graph.ops}) == 6
    assert [op.inputs for op in graph.ops][4:] == [("q", "r"), ("s",)]
    assert graph.ops[0].outputs[0].name in graph.ops[1].inputs
    assert graph.ops[2].outputs[0].name in graph.ops[3].inputs


def test_bodies_in_a_branch_keep_what_they_read() -> None:
    """A loop in the branch reads a value of the branch, which is the If's result, and has a value of that name."""
    add, state = node("Add", ["state", "s"], ["q"]), info("state", (4, 1, 8))
    nodes = [node("Neg", ["x"], ["s"]), loop(add, state=state, trips="three", gives=["q"], outputs=["l"])]
    taken = results(["s", "l"], nodes)
    data = model([*SIZE_IS_1, branch(taken, results(["x", "x"]), ["q", "y"])], [X], ["q", "y"], weights=WEIGHTS)
    graph = read(data)
    assert ops(graph) == [("Neg", ("x",), 128), ("Loop", ("three", "x", "q"), 128)]
    assert graph.ops[1].flops == 3 * 32


def test_branches_in_bodies_are_taken() -> None:
    """In the branch of an unknown condition, in a loop and in a scan; conditions known outside of them and inside."""
    exp = branch_body("exp", [node("Exp", ["x"], ["s"])])
    inner = branch(exp, PRODUCT, ["i"])
    unknown = node("If", ["go"], ["q"], then_branch=branch_body("then", [inner]), else_branch=SAME)
    data = model([*SIZE_IS_1, unknown, node("Relu", ["q"], ["y"])], [X, info("go", (), BOOL)], weights=WEIGHTS)
    graph = read(data)
    assert [(op.type, op.inputs, op.flops, op.weight_bytes) for op in graph.ops] == [
        ("If", ("go", "x"), 32, 0),
        ("Relu", ("q",), 32, 0),
    ]
    decide = [node("Shape", ["state"], ["sh"]), node("Size", ["sh"], ["rank"]), node("Equal", ["rank", "three"], ["c"])]
    other = branch_body("other", [node("MatMul", ["state", "w"], ["s"])])
    inside = node(
        "If", ["c"], ["next"], then_branch=branch_body("n", [node("Neg", ["state"], ["s"])]), else_branch=other
    )
    repeated = loop(*decide, inside, state=info("state", None), trips="three", gives=["next"])
    (op,) = read(model([repeated], [X], weights=WEIGHTS)).ops
    assert op.inputs == ("three", "x")
    assert op.flops == 3 * (32 + 1)  # of Neg and Equal
    item = branch_body("item", [node("Neg", ["item"], ["s"])])
    scanned = helper.make_graph([branch(item, PRODUCT, ["o"])], "body", [info("item", (1, 8))], [info("o", (1, 8))])
    data = model([*SIZE_IS_1, node("Scan", ["x"], ["y"], body=scanned, num_scan_inputs=1)], [X], weights=WEIGHTS)
    assert [(op.type, op.inputs, op.flops) for op in read(data).ops] == [("Scan", ("x",), 32)]


def test_a_branch_that_the_loop_decides_is_not_taken() -> None:
    inside = branch(branch_body("n", [node("Neg", ["state"], ["s"])]), PRODUCT, ["next"])
    body = helper.make_graph(
        [node("Identity", ["condition"], ["go_on"]), inside],
        "body",
        [info("i", (), TensorProto.INT64), CONDITION, info("state", (4, 1, 8))],
        [onnx.ValueInfoProto(name="go_on"), onnx.ValueInfoProto(name="next")],
    )
    (op,) = read(model([node("Loop", ["three", "", "x"], ["y"], body=body)], [X], weights=WEIGHTS)).ops
    assert "w" in op.inputs


def test_branches_of_different_shapes_are_refused() -> None:
    tail = node("Relu", ["q"], ["y"])
    longer = branch_body("longer", [node("Concat", ["x", "x"], ["s"], axis=0)])
    data = model([branch(longer, SAME), tail], [X, CONDITION])
    assert "'q' is [4, 1, 8] in else_branch, [8, 1, 8] in then_branch, and 'condition' decides" in refused(data)
    assert "give dims for the larger, such as q:0=8 (" in refused(data)
    assert [op.outputs[0].bytes for op in read(data, dims={"q:0": 8}).ops] == [256, 256]
    flat = branch_body("flat", [node("Flatten", ["x"], ["s"])])
    data = model([branch(flat, SAME), tail], [X, CONDITION])
    assert "such as q:0=4, q:1=1, q:2=8 (" in refused(data)
    assert [op.outputs[0].bytes for op in read(data, dims={"q:0": 4, "q:1": 1, "q:2": 8}).ops] == [128, 128]
    double = branch_body("double", [node("Cast", ["x"], ["s"], to=TensorProto.DOUBLE)])
    data = model([branch(SAME, double), tail], [X, CONDITION])
    assert "op 'If.0': impossible If: Mismatched tensor element type" in refused(data)
    by_twos = branch_body("twos", [node("SplitToSequence", ["x", "two"], ["s"])])
    by_threes = branch_body("threes", [node("SplitToSequence", ["x", "three"], ["s"])])
    nodes = [branch(by_twos, by_threes), node("ConcatFromSequence", ["q"], ["y"], axis=0)]
    data = model(nodes, [info("x", (6, 8)), CONDITION], weights=[array("two", 2), array("three", 3)])
    assert "'q' is sequence of 2 with 192 bytes in else_branch, sequence of 3 with 192 bytes in then_branch" in refused(
        data
    )


# SequenceMap.
def test_a_map_runs_its_body_for_each_tensor() -> None:
    """The last of three parts is smaller; the body's weight counts once."""
    nodes = [
        node("Constant", [], ["scale"], value_floats=[2.0, 2.0, 2.0]),
        node("MatMul", ["part", "w"], ["m"]),
        node("Mul", ["m", "scale"], ["result"]),
        node("Add", ["part", "bias"], ["sum"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("part", None), info("bias", None)],
        [info("result", None), info("sum", None)],
        [weight("w", 8, 3)],
    )
    nodes = [
        node("SplitToSequence", ["x", "two"], ["parts"]),
        node("SequenceMap", ["parts", "bias"], ["results", "sums"], body=body),
        node("ConcatFromSequence", ["results"], ["y"], axis=0),
    ]
    graph = read(model(nodes, {"x": (5, 8), "bias": (8,)}, ["y", "sums"], [array("two", 2)]))
    each = ["SequenceAt", "MatMul", "Mul", "Add"]
    assert [op.type for op in graph.ops] == [
        "SplitToSequence", *each * 3, "SequenceConstruct", "SequenceConstruct", "ConcatFromSequence"
    ]  # fmt: skip
    assert [op.flops for op in graph.ops if op.type == "MatMul"] == [96, 96, 48]
    assert [op.weight_bytes for op in graph.ops if op.type == "MatMul"] == [96, 0, 0]
    assert graph.ops[-1].outputs == (Tensor("y", 60),)
    assert [op.outputs for op in graph.ops if op.type == "SequenceConstruct"] == [
        (Tensor("results", 60),),
        (Tensor("sums", 160),),
    ]


def test_a_map_of_an_empty_sequence_runs_nothing() -> None:
    body = helper.make_graph([node("Exp", ["part"], ["e"])], "body", [info("part", None)], [info("e", None)])
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("SequenceMap", ["none"], ["mapped"], body=body),
        node("SequenceInsert", ["mapped", "x"], ["y"]),
    ]
    graph = read(model(nodes, {"x": (2,)}))
    assert ops(graph) == [("SequenceInsert", ("mapped", "x"), 8)]
