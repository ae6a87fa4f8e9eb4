"""ONNX models as graphs: sequences, optionals, maps and text, with known and unknown sizes."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import array, info, loop, model, node, read, refused

from graphrl.graphs.graph import ComputationGraph, Tensor

X = info("x", (5, 8))  # 160 bytes
WEIGHTS = [array(name, value) for name, value in {"zero": 0, "two": 2, "last": -1, "parts": [1, 4], "five": 5}.items()]
TWOS = node("SplitToSequence", ["x", "two"], ["s"])  # 64, 64 and 32 bytes
ROWS = node("SplitToSequence", ["x"], ["rows"])
JOIN = node("ConcatFromSequence", ["s"], ["y"], axis=0)


def sequence(name: str, element: onnx.TypeProto | None = None) -> onnx.ValueInfoProto:
    """An input or output that is a sequence of tensors [2]."""
    element = element or helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    return helper.make_value_info(name, helper.make_sequence_type_proto(element))


def graph_of(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> ComputationGraph:
    return read(model(nodes, [X], outputs, WEIGHTS, opset=21))


def sizes(*nodes: onnx.NodeProto) -> list[int]:
    """Bytes of each op's outputs."""
    return [op.outputs[0].bytes for op in graph_of(*nodes).ops]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([TWOS, node("SequenceAt", ["s", "zero"], ["y"])], [160, 64]),
        ([TWOS, node("SequenceAt", ["s", "last"], ["y"])], [160, 32]),
        ([node("SplitToSequence", ["x", "parts"], ["s"]), node("SequenceAt", ["s", "zero"], ["y"])], [160, 32]),
        ([node("SplitToSequence", ["x"], ["s"], axis=-1), node("SequenceAt", ["s", "zero"], ["y"])], [160, 20]),
        ([TWOS, JOIN], [160, 160]),
        ([node("SplitToSequence", ["x"], ["s"], keepdims=0), JOIN], [160, 160]),
        ([node("SequenceConstruct", ["x", "x"], ["s"]), JOIN], [320, 320]),
        ([TWOS, node("Identity", ["s"], ["t"]), node("SequenceAt", ["t", "last"], ["y"])], [160, 160, 32]),
        ([TWOS, node("SequenceErase", ["s"], ["y"])], [160, 128]),
        ([TWOS, node("SequenceErase", ["s", "zero"], ["y"])], [160, 96]),
        ([TWOS, node("SequenceInsert", ["s", "x"], ["t"]), node("SequenceAt", ["t", "last"], ["y"])], [160, 320, 160]),
        (
            [TWOS, node("SequenceInsert", ["s", "x", "last"], ["t"]), node("SequenceAt", ["t", "last"], ["y"])],
            [160, 320, 32],  # before the last
        ),
        ([node("Optional", ["x"], ["o"]), node("OptionalGetElement", ["o"], ["y"])], [160, 160]),
        ([node("OptionalGetElement", ["x"], ["y"])], [160]),
        (
            [
                TWOS,
                node("Optional", ["s"], ["o"]),
                node("OptionalGetElement", ["o"], ["t"]),
                node("SequenceAt", ["t", "last"], ["y"]),
            ],
            [160, 160, 160, 32],
        ),
    ],
)
def test_bytes_are_the_sum_of_the_tensors(nodes: list[onnx.NodeProto], expected: list[int]) -> None:
    assert sizes(*nodes) == expected
    assert sum(op.flops for op in graph_of(*nodes).ops) == 0


def test_sequence_ops_copy_what_they_pass_on() -> None:
    """CHIP takes a second a byte; a Split and a Concat would take as long."""
    split, at, join = graph_of(TWOS, node("SequenceAt", ["s", "last"], ["t"]), JOIN, outputs=("t", "y")).ops
    assert split.runtime == 160 + 8 + 160
    assert at.runtime == 32 + 8 + 32  # the tensor it takes, read and written
    assert join.runtime == 160 + 160
    assert split.layer is None


def test_new_axes() -> None:
    split = node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0)
    nodes = [split, node("ConcatFromSequence", ["s"], ["q"], axis=-1, new_axis=1), node("MatMul", ["q", "q"], ["y"])]
    data = model(nodes, {"x": (8, 8)}, opset=21)
    assert read(data).ops[-1].flops == 2 * 8 * 8 * 8


def test_lengths_are_constants() -> None:
    nodes = [
        TWOS,
        node("SequenceLength", ["s"], ["length"]),
        node("Add", ["length", "last"], ["place"]),
        node("SequenceAt", ["s", "place"], ["t"]),
        node("Cast", ["length"], ["factor"], to=TensorProto.FLOAT),
        node("Mul", ["t", "factor"], ["y"]),
    ]
    graph = graph_of(*nodes)
    assert [(op.type, op.outputs[0].bytes) for op in graph.ops] == [
        ("SplitToSequence", 160),
        ("SequenceAt", 32),
        ("Mul", 32),
    ]


def test_sequences_may_be_results_and_weights() -> None:
    graph = read(model([TWOS], [X], ["s"], WEIGHTS))
    assert graph.outputs == ("s",)
    nodes = [TWOS, node("SequenceAt", ["s", "zero"], ["part"]), node("Add", ["z", "part"], ["y"])]
    graph = read(model(nodes, {"z": (2, 8)}, ["y"], [*WEIGHTS, array("x", np.zeros((5, 8)), np.float32)]))
    assert [(op.type, op.weight_bytes) for op in graph.ops] == [("Add", 64)]


def test_positions_that_depend_on_data() -> None:
    """Positions do not matter among equal tensors."""
    inputs = [X, info("place", (), TensorProto.INT64)]
    at = node("SequenceAt", ["rows", "place"], ["y"])
    assert read(model([ROWS, at], inputs)).ops[1].outputs == (Tensor("y", 32),)
    erase = node("SequenceErase", ["rows", "place"], ["y"])
    assert read(model([ROWS, erase], inputs)).ops[1].outputs == (Tensor("y", 128),)
    insert = node("SequenceInsert", ["s", "x", "place"], ["y"])
    assert "'y' is of kind sequence: the number" in refused(model([TWOS, insert], inputs, weights=WEIGHTS))
    at = node("SequenceAt", ["s", "place"], ["y"])
    assert "give dims, such as y:0=1" in refused(model([TWOS, at], inputs, weights=WEIGHTS))


@pytest.mark.parametrize(
    ("nodes", "inputs", "fault"),
    [
        (
            [node("SplitToSequence", ["x", "k"], ["y"])],
            [X, info("k", (), TensorProto.INT64)],
            "'y' is of kind sequence",
        ),
        ([node("SequenceAt", ["s", "zero"], ["y"])], [sequence("s")], "input 's': 's' is of kind sequence: the number"),
        (
            [node("OptionalGetElement", ["o"], ["y"])],
            [helper.make_value_info("o", helper.make_optional_type_proto(X.type))],
            "input 'o': 'o' is of kind optional: it must be known whether it has a value",
        ),
        ([node("SplitToSequence", ["x"], ["y"])], [info("x", (2**40, 1))], "the number (at most 4096)"),
    ],
)
def test_unknown_sequences_are_refused(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], fault: str
) -> None:
    assert fault in refused(model(nodes, inputs, weights=WEIGHTS))


# Loops and branches.
def sequence_loop(nodes: list[onnx.NodeProto], trips: str, start: str) -> onnx.NodeProto:
    """A Loop that carries the sequence `state`, and then `next`."""
    return loop(*nodes, state=sequence("state", OPEN), trips=trips, start=start, gives=["next"], outputs=["s"])


OPEN = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
EMPTY = node("SequenceEmpty", [], ["none"])
APPEND = [node("Neg", ["x"], ["item"]), node("SequenceInsert", ["state", "item"], ["next"])]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([TWOS, node("SequenceAt", ["s", "five"], ["y"])], "position 5 of a sequence of length 3"),
        (
            [node("SequenceConstruct", ["x"], ["s"]), node("SequenceAt", ["s", "two"], ["y"])],
            "position 2 of a sequence",
        ),
        ([TWOS, node("SequenceErase", ["s", "five"], ["y"])], "position 5 of a sequence of length 3"),
        ([TWOS, node("SequenceInsert", ["s", "x", "five"], ["y"])], "position 5 of a sequence of length 3"),
        ([TWOS, node("ConcatFromSequence", ["s"], ["y"], axis=1)], "its tensors have shapes [2, 8] and [1, 8]"),
        ([TWOS, node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1)], "shapes [2, 8] and [1, 8]"),
        ([node("SequenceConstruct", ["x", "parts"], ["s"]), JOIN], "impossible SequenceConstruct"),
    ],
)
def test_sequences_that_no_runtime_takes_are_refused(nodes: list[onnx.NodeProto], reason: str) -> None:
    assert reason in refused(model(nodes, [X], ["y"], WEIGHTS, opset=21))


def test_a_loop_that_appends() -> None:
    graph = graph_of(EMPTY, sequence_loop(APPEND, "five", "none"), JOIN)
    assert [op.outputs for op in graph.ops] == [(Tensor("s", 800),), (Tensor("y", 800),)]
    op = graph.ops[0]
    assert op.flops == 5 * 40
    assert op.workspace_bytes == 160 + 5 * 160  # in the last run: item and next
    copies = sum(160 * k + 160 + 160 * (k + 1) for k in range(5))
    assert op.runtime == 5 * (160 + 160) + copies + 5 * 2


def test_a_loop_over_the_tensors_of_a_sequence() -> None:
    nodes = [node("SequenceAt", ["rows", "i"], ["row"]), node("Exp", ["row"], ["e"])]
    nodes += [node("SequenceInsert", ["state", "e"], ["next"])]
    graph = graph_of(ROWS, EMPTY, sequence_loop(nodes, "five", "none"), JOIN)
    assert [(op.type, op.outputs[0].bytes, op.flops) for op in graph.ops] == [
        ("SplitToSequence", 160, 0),
        ("Loop", 160, 40),
        ("ConcatFromSequence", 160, 0),
    ]
    uneven = [node("SequenceAt", ["t", "i"], ["part"]), node("SequenceInsert", ["state", "part"], ["next"])]
    split = node("SplitToSequence", ["x", "two"], ["t"])
    data = model([split, EMPTY, sequence_loop(uneven, "two", "none"), JOIN], [X], weights=WEIGHTS, opset=21)
    assert "op 'Loop.2', in its body: 'part' has dimensions of unknown size: give dims" in refused(data)
    assert [op.outputs[0].bytes for op in read(data, dims={"part:0": 2}).ops] == [160, 128, 128]


def test_a_loop_that_changes_no_size() -> None:
    """Independent of the number of runs."""
    nodes = [
        node("SequenceAt", ["state", "i"], ["row"]),
        node("Exp", ["row"], ["e"]),
        node("SequenceErase", ["state", "i"], ["fewer"]),
        node("SequenceInsert", ["fewer", "e", "i"], ["next"]),
    ]
    inputs = [X, info("trips", (), TensorProto.INT64)]
    graph = read(model([ROWS, sequence_loop(nodes, "trips", "rows"), JOIN], inputs))
    assert [op.outputs[0].bytes for op in graph.ops] == [160, 160, 160]
    data = model([EMPTY, sequence_loop(APPEND, "trips", "none"), JOIN], inputs)
    assert "op 'Loop.1': 's' is of kind sequence: the number" in refused(data)
    grows = [
        node("SequenceAt", ["state", "last"], ["row"]),
        node("Concat", ["row", "row"], ["e"], axis=0),
        node("SequenceInsert", ["state", "e"], ["next"]),
    ]
    data = model([ROWS, sequence_loop(grows, "two", "rows"), JOIN], [X], weights=WEIGHTS)
    assert "op 'Loop.1': 's' is of kind sequence: the number" in refused(data)


def test_runs_of_a_loop_are_followed_up_to_a_limit() -> None:
    weights = [*WEIGHTS, array("many", 500), array("more", 4097)]
    graph = read(model([EMPTY, sequence_loop(APPEND, "many", "none"), JOIN], [X], weights=weights))
    assert graph.ops[-1].outputs == (Tensor("y", 500 * 160),)
    assert "'s' is of kind sequence" in refused(
        model([EMPTY, sequence_loop(APPEND, "more", "none"), JOIN], [X], weights=weights)
    )


def test_branches_that_give_sequences_alike() -> None:
    then = helper.make_graph([node("SplitToSequence", ["x", "two"], ["t"])], "then", [], [sequence("t", OPEN)])
    nodes = [node("Neg", ["x"], ["n"]), node("SplitToSequence", ["n", "two"], ["t"])]
    other = helper.make_graph(nodes, "else", [], [sequence("t", OPEN)])
    branch = node("If", ["condition"], ["s"], then_branch=then, else_branch=other)
    graph = read(model([branch, JOIN], [X, info("condition", (), TensorProto.BOOL)], weights=WEIGHTS))
    assert [op.outputs[0].bytes for op in graph.ops] == [160, 160]


# Unread values, text and maps.
LABELS = numpy_helper.from_array(np.array(["a", "bcd"], dtype=object), "labels")


def test_inputs_without_readers_are_accepted() -> None:
    inputs = [
        info("x", (2,)),
        sequence("sequence"),
        info("text", (2,), TensorProto.STRING),
        info("open", ("batch", 3)),
        info("rank", None),
        info("sized", (3,)),
        helper.make_value_info("map", helper.make_map_type_proto(TensorProto.INT64, X.type)),
        helper.make_value_info("optional", helper.make_optional_type_proto(X.type)),
        onnx.ValueInfoProto(name="untyped"),
    ]
    dead = node("Neg", ["open"], ["dead"])
    graph = read(model([dead, node("Relu", ["x"], ["y"])], inputs))
    assert graph.inputs == (Tensor("x", 8), Tensor("sized", 12))
    assert "give dims, such as batch=1 (" in refused(model([dead], inputs, ["dead"]))


def test_constants_of_text() -> None:
    inputs = [info("x", (2,)), info("place", (1,), TensorProto.INT64)]
    label = node("Gather", ["labels", "place"], ["label"])
    relu = node("Relu", ["x"], ["y"])
    assert [op.type for op in read(model([label, relu], inputs, weights=[LABELS])).ops] == ["Relu"]
    assert read(model([relu], inputs, ["y", "labels"], [LABELS])).inputs[-1] == Tensor("labels", 4)
    assert "'label' is of kind text" in refused(model([label, relu], inputs, ["y", "label"], [LABELS]))
    numbers = [node("Cast", ["labels"], ["n"], to=TensorProto.FLOAT), node("Add", ["x", "n"], ["y"])]
    assert [(op.type, op.weight_bytes) for op in read(model(numbers, inputs, weights=[LABELS])).ops] == [("Add", 8)]


def test_shapes_of_text_are_constants() -> None:
    inputs = [info("x", (1,)), info("text", (7,), TensorProto.STRING)]
    nodes = [node("Shape", ["text"], ["shape"]), node("Cast", ["shape"], ["n"], to=TensorProto.FLOAT)]
    graph = read(model([*nodes, node("Add", ["x", "n"], ["y"])], inputs))
    assert [tensor.name for tensor in graph.inputs] == ["x", "n"]
    words = node("Constant", [], ["words"], value_strings=["ab", "c"])
    lower = node("StringNormalizer", ["words"], ["text"], case_change_action="LOWER")
    graph = read(model([words, lower, *nodes, node("Add", ["x", "n"], ["y"])], inputs[:1]))
    assert [op.type for op in graph.ops] == ["Add"]


def test_classifiers() -> None:
    """Labels and maps count only where they are read."""

    def classifier(**labels: Any) -> onnx.NodeProto:
        weights: dict[str, Any] = {"coefficients": [1.0] * 24, "intercepts": [0.0] * 3}
        return helper.make_node("LinearClassifier", ["x"], ["label", "y"], domain="ai.onnx.ml", **weights, **labels)

    classify, text = classifier(classlabels_ints=[1, 2, 3]), classifier(classlabels_strings=["a", "b", "c"])
    zip_map = helper.make_node("ZipMap", ["y"], ["map"], domain="ai.onnx.ml", classlabels_int64s=[1, 2, 3])
    assert read(model([classify, zip_map], [X])).ops[0].outputs == (Tensor("label", 40), Tensor("y", 60))
    assert read(model([text], [X])).ops[0].outputs == (Tensor("y", 60),)
    assert "'label' is of kind text" in refused(model([text], [X], ["label", "y"]))
    assert "'map' is of kind sequence of maps: ONNX does not" in refused(model([classify, zip_map], [X], ["map"]))
