"""Declared shapes of ONNX models and users' dims, against shapes that follow from the inputs."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import array, branch_body, info, loop, node, read, refused, weight
from onnx_models import model as undeclared_model

from graphrl.cli import main
from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph
from graphrl.optimize import optimize

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] | dict[str, Sequence[int | str | None] | None],
    outputs: Sequence[onnx.ValueInfoProto] = (onnx.ValueInfoProto(name="y"),),
    *,
    declared: Sequence[onnx.ValueInfoProto] = (),
    weights: Sequence[onnx.TensorProto] = (),
    ir_version: int = 9,
    opset: int = 21,
) -> bytes:
    """A model that declares its outputs and other tensors."""
    made = onnx.ModelProto.FromString(undeclared_model(nodes, inputs, (), weights, opset=opset))
    made.graph.output.extend(outputs)
    made.graph.value_info.extend(declared)
    made.ir_version = ir_version
    return made.SerializeToString()


def sizes(graph: ComputationGraph) -> dict[str, int]:
    return {tensor.name: tensor.bytes for op in graph.ops for tensor in op.outputs}


RELU = node("Relu", ["x"], ["y"])


# Declarations that contradict the inferred shapes.
def test_stale_declarations_do_not_count() -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "w"], ["y"])]
    declared = [info("a", (1, 8)), info("b", (1, 8), TensorProto.DOUBLE), info("nowhere", (3,)), info("a", (2, 8))]
    data = model(nodes, {"x": ("batch", 8)}, [info("y", ("batch", 8))], declared=declared, weights=[weight("w", 8, 8)])
    assert sizes(read(data, dims={"batch": 64})) == dict.fromkeys("aby", 4 * 64 * 8)


@pytest.mark.parametrize(
    "output",
    [info("y", (4, 8)), info("y", (8, 8, 8)), info("y", ()), info("y", (8, 8), TensorProto.DOUBLE),
     helper.make_tensor_sequence_value_info("y", FLOAT, None), info("y", ("batch", 8)), info("y", (-1, 8))],
)  # fmt: skip
def test_an_output_declared_otherwise_has_the_size_that_follows(output: onnx.ValueInfoProto) -> None:
    assert sizes(read(model([RELU], {"x": (8, 8)}, [output]))) == {"y": 256}


@pytest.mark.parametrize("op", [node("GroupNormalization", ["x", "w", "w"], ["y"], num_groups=2),
                                node("MeanVarianceNormalization", ["x"], ["y"])])  # fmt: skip
def test_stale_declarations_of_operators_without_inference_do_not_count(op: onnx.NodeProto) -> None:
    data = model([op], {"x": ("batch", 4, 8, 8)}, [info("y", (1, 4, 8, 8))], weights=[weight("w", 4)])
    assert sizes(read(data, dims={"batch": 3})) == {"y": 4 * 3 * 256}


def test_stale_declarations_in_bodies_do_not_count() -> None:
    body = helper.make_graph(
        [node("MatMul", ["s", "x"], ["m"]), node("Exp", ["m"], ["t"]), node("Identity", ["go"], ["on"])], "body",
        [info("i", (), INT64), info("go", (), BOOL), info("s", (1, 8))],
        [info("on", (), BOOL), info("t", (1, 8))], value_info=[info("m", (1, 8))],
    )  # fmt: skip
    loop = node("Loop", ["n", "", "x"], ["y"], body=body)
    (op,) = read(model([loop], {"x": (8, 8)}, [info("y", (1, 8))], weights=[array("n", 2)])).ops
    assert (op.outputs[0].bytes, op.flops, op.workspace_bytes) == (256, 2 * (2 * 512 + 64), 512)


def test_outputs_that_are_inputs_have_their_size() -> None:
    data = model([RELU], {"x": ("n", 8)}, [info("y", (1,)), info("x", (1,))])
    assert sizes(read(data, dims={"n": 4})) == {"y": 128}
    body = helper.make_graph(
        [node("Exp", ["s"], ["o"])], "body", [info("i", (), INT64), info("go", (), BOOL), info("s", (1,))],
        [info("go", (), BOOL), info("s", (1,)), info("o", (1,))],
    )  # fmt: skip
    outputs = [info("y", (1,)), info("z", (1, 1))]
    repeated = node("Loop", ["n", "", "x"], ["y", "z"], body=body)
    (op,) = read(model([repeated], {"x": (4, 8)}, outputs, weights=[array("n", 3)])).ops
    assert [tensor.bytes for tensor in op.outputs] == [128, 3 * 128]


def test_declarations_count_where_nothing_follows() -> None:
    nodes = [node("Foo", ["x"], ["f"], domain="custom"), node("Relu", ["f"], ["r"]), node("NonZero", ["r"], ["y"])]
    declared = [info("f", ("batch", 5)), info("r", (1, 5))]  # r follows from f
    data = model(nodes, {"x": ("batch", 3)}, [info("y", (2, 7), INT64)], declared=declared)
    assert sizes(read(data, dims={"batch": 4})) == {"f": 80, "r": 80, "y": 112}


def test_a_tensor_declared_twice_is_refused_where_nothing_follows() -> None:
    nodes = [node("Foo", ["x"], ["f"], domain="custom"), node("Relu", ["f"], ["y"])]
    data = model(nodes, {"x": (3,)}, declared=[info("f", (3,)), info("f", (4,))])
    assert "'f' is declared twice, as FLOAT [3] and as FLOAT [4]" in refused(data)


@pytest.mark.parametrize("ir_version", [3, 9])
def test_inputs_that_are_weights(ir_version: int) -> None:
    nodes = [node("Add", ["x", "w"], ["y"])]

    def data(declared: onnx.ValueInfoProto) -> bytes:
        return model(nodes, [info("x", (3,)), declared], weights=[weight("w", 3)], ir_version=ir_version)

    assert sizes(read(data(info("w", ("k",))))) == {"y": 12}
    assert "input 'w': declared as FLOAT [4], but its weight is FLOAT [3]" in refused(data(info("w", (4,))))
    assert "declared as DOUBLE [3], but" in refused(data(info("w", (3,), TensorProto.DOUBLE)))


# Impossible models.
IMPOSSIBLE: dict[str, tuple[onnx.NodeProto, Sequence[onnx.TensorProto]]] = {
    "Incompatible dimensions for matrix": (node("MatMul", ["x", "w"], ["y"]), [weight("w", 3, 8)]),
    "Incompatible dimensions": (node("Add", ["x", "w"], ["y"]), [weight("w", 3, 8)]),
    "same rank": (node("Concat", ["x", "w"], ["y"], axis=0), [weight("w", 8)]),
    "'x' is a tensor(float), but 'w' a tensor(int64)": (
        node("Concat", ["x", "w"], ["y"], axis=0),
        [array("w", [[1] * 8])],
    ),
    "[8, 8] has 64 elements, [4, 2] has 8": (node("Reshape", ["x", "w"], ["y"]), [array("w", [4, 2])]),
    "incompatible shapes": (node("Reshape", ["x", "w"], ["y"]), [array("w", [3, -1])]),
    "Dimension mismatch": (node("Gemm", ["x", "w"], ["y"]), [weight("w", 3, 8)]),
    "[7] cannot be broadcast to [8, 5]": (
        node("Gemm", ["x", "w", "b"], ["y"]),
        [weight("w", 8, 5), weight("b", 7)],
    ),
    "'w' is a tensor(float)": (node("Gather", ["x", "w"], ["y"]), [weight("w", 1)]),
    "'j' is 8 and 4": (node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik"), [weight("w", 4, 5)]),
    "[4] cannot be broadcast to [8, 8]": (node("LayerNormalization", ["x", "w"], ["y"]), [weight("w", 4)]),
    "must be 1 instead of 8": (node("Squeeze", ["x", "w"], ["y"]), [array("w", [0])]),
}


@pytest.mark.parametrize("reason", IMPOSSIBLE)
def test_impossible_models_are_refused(reason: str) -> None:
    op, weights = IMPOSSIBLE[reason]
    message = refused(model([op], {"x": (8, 8)}, [info("y", (8, 8))], weights=weights))
    assert f"op '{op.op_type}.0': impossible {op.op_type}: " in message
    assert reason in message
    assert message.endswith(f" (it reads {', '.join(map(repr, op.input))})")


@pytest.mark.parametrize(
    ("image", "weights", "attributes", "reason"),
    [
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, "its input has 3 channels, its weights take 2"),
        ((1, 3, 8, 8), (4, 1, 3, 3), {"group": 3}, "its 4 channels are not divisible by 3 groups"),
        ((1, 3, 2, 2), (4, 3, 5, 5), {}, "'y' would have size -2 on axis 2"),
    ],
)
def test_impossible_convolutions_are_refused(
    image: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any], reason: str
) -> None:
    data = model([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": image}, weights=[weight("w", *weights)])
    assert f"op 'Conv.0': impossible Conv: {reason}" in refused(data)


def test_impossible_ops_after_an_unknown_one_are_refused() -> None:
    nodes = [node("Foo", ["x"], ["f"], domain="custom"), node("Add", ["x", "f"], ["y"])]
    message = refused(model(nodes, {"x": (3,)}, [info("y", (3,))], declared=[info("f", (4,))]))
    assert "op 'Add.1': impossible Add: Incompatible dimensions" in message


def test_a_branch_may_be_for_other_sizes() -> None:
    """Exporters write a check of sizes as `If`: a branch that cannot run does no harm."""
    then = branch_body("then", [node("Add", ["x", "w"], ["s"])])
    then.output[0].CopyFrom(info("s", (3, 8)))
    other = branch_body("else", [node("Relu", ["x"], ["e"])])
    branch = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = [info("x", (3, 8)), info("c", (), BOOL)]
    assert sizes(read(model([branch], inputs, [info("y", (3, 8))], weights=[weight("w", 2, 8)]))) == {"y": 96}


def test_types_that_only_newer_opsets_allow_are_taken() -> None:
    data = model([RELU], [info("x", (3,), TensorProto.BFLOAT16)], opset=6)
    assert sizes(read(data)) == {"y": 6}
    norm = node("BatchNormalization", ["x", "w", "w", "w", "w"], ["y"])  # of one type until opset 14
    data = model([norm], [info("x", (1, 3, 4), TensorProto.FLOAT16)], weights=[weight("w", 3)], opset=9)
    assert sizes(read(data)) == {"y": 24}


# Sizes: 0, and unknown ones.
EMPTY = [
    ([node("Relu", ["x"], ["a"]), node("MatMul", ["a", "w"], ["y"])], {"a": 0, "y": 0}),
    ([node("MatMul", ["t", "x"], ["y"])], {"y": 4 * 5 * 8}),
    ([node("ReduceSum", ["x"], ["y"], keepdims=0)], {"y": 4}),
    ([node("Reshape", ["x", "copy"], ["y"])], {"y": 0}),
    ([node("Concat", ["x", "w"], ["y"], axis=0)], {"y": 4 * 64}),
    ([node("Split", ["x"], ["y", "z"], num_outputs=2)], {"y": 0, "z": 0}),
    ([node("Softmax", ["x"], ["y"])], {"y": 0}),
]


@pytest.mark.parametrize(("nodes", "expected"), EMPTY)
def test_a_size_of_0_is_one_like_any_other(nodes: Sequence[onnx.NodeProto], expected: dict[str, int]) -> None:
    inputs = [info("x", ("past", 8)), info("t", (5, "past"))]
    weights = [weight("w", 8, 8), array("copy", [0, 2, 4])]
    graph = read(model(nodes, inputs, weights=weights), dims={"past": 0})
    assert sizes(graph) == expected
    assert graph == read(model(nodes, {"x": (0, 8), "t": (5, 0)}, weights=weights))
    assert np.isfinite([op.runtime for op in graph.ops]).all()
    assert optimize(graph, seconds=0.05).value >= 0


def test_a_loop_over_nothing() -> None:
    body = helper.make_graph(
        [node("Add", ["s", "t"], ["u"]), node("Exp", ["u"], ["o"])], "body",
        [info("s", (8,)), info("t", (8,))], [info("u", (8,)), info("o", (8,))],
    )  # fmt: skip
    scan = node("Scan", ["z", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    outputs = [onnx.ValueInfoProto(name="last"), onnx.ValueInfoProto(name="y")]
    (op,) = read(model([scan], {"z": (8,), "x": ("n", 8)}, outputs), dims={"n": 0}).ops
    assert ([tensor.bytes for tensor in op.outputs], op.flops) == ([32, 0], 0)


def test_negative_sizes_are_unknown_ones() -> None:
    nodes = [node("Foo", ["x"], ["f"], domain="custom"), node("Relu", ["f"], ["y"])]
    data = model(nodes, {"x": (-1, 3)}, [info("y", (-7, 3))], declared=[info("f", (-5, 3))])
    assert "give dims, such as x:0=1 " in refused(data)
    assert "'f' has dimensions of unknown size: give dims, such as f:0=1 " in refused(data, dims={"x:0": 2})
    assert sizes(read(data, dims={"x:0": 2, "f:0": 4})) == {"f": 48, "y": 48}


@pytest.mark.parametrize(
    ("dims", "fault"),
    [
        ({"y:0": 4}, "dims: 'y:0' is 4, but 'y' has size 8 on axis 0 in the model"),
        ({"batch": 4}, "dims: 'batch' is 4, but 'y' has size 8 on axis 0 in the model"),
        ({"a:1": 4}, "dims: 'a:1' is 4, but 'a' has size 3 on axis 1 in the model"),
        ({"x:0": 9}, "dims: 'x:0' is 9, but 'x' has size 8 on axis 0 in the model"),
        ({"y:2": 9}, "dims: 'y:2' names no unknown dimension of the model: all are known"),
    ],
)
def test_dims_that_contradict_the_model(dims: dict[str, int], fault: str) -> None:
    data = model([node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])], {"x": (8, 3)}, [info("y", ("batch", 3))])
    assert fault in refused(data, dims=dims)
    assert sizes(read(data, dims={"batch": 8, "y:1": 3})) == {"a": 96, "y": 96}


def test_dims_of_an_unknown_number_of_axes() -> None:
    nodes = [node("Foo", ["x"], ["f"], domain="custom"), node("Relu", ["f"], ["y"])]
    data = model(nodes, {"x": None}, declared=[info("f", None)])
    assert "also 'x:0'" in refused(data, dims={"x:1": 3})
    assert sizes(read(data, dims={"x:0": 3, "f:0": 2, "f:1": 5})) == {"f": 40, "y": 40}
    assert "also 'f:1'" in refused(data, dims={"x:0": 3, "f:0": 2, "f:2": 5})


# Messages whose advice works.
GROWING = loop(node("Concat", ["s", "x"], ["t"], axis=0))
INNER = node("Loop", ["trips", "", "s"], ["t"], body=helper.make_graph(
    [node("Concat", ["s2", "x"], ["t2"], axis=0), node("Identity", ["go2"], ["on2"])], "inner",
    [info("i2", (), INT64), info("go2", (), BOOL), onnx.ValueInfoProto(name="s2")],
    [onnx.ValueInfoProto(name="on2"), onnx.ValueInfoProto(name="t2")]))  # fmt: skip
UNKNOWN: dict[str, bytes] = {
    "input": model([RELU], {"x": ("batch", None, -1)}),
    "axes of an input": model([RELU], {"x": None}),
    "axes of a custom op": model([node("Foo", ["x"], ["y"], domain="custom")], {"x": (2,)}, [info("y", None)]),
    "sizes of a custom op": model(
        [node("Foo", ["x"], ["f"], domain="custom"), node("Relu", ["f"], ["y"])],
        {"x": (2,)},
        declared=[info("f", ("k", None))],
    ),
    "data": model([node("NonZero", ["x"], ["y"])], {"x": (2,)}),
    "named data": model([node("NonZero", ["x"], ["y"])], {"x": (2,)}, [info("y", (None, "found"), INT64)]),
    "computed shape": model([node("Reshape", ["x", "s"], ["y"])], [info("x", (1, 1)), info("s", (3,), INT64)]),
    "computed axes": model([node("Reshape", ["x", "s"], ["y"])], [info("x", (1, 1)), info("s", ("k",), INT64)]),
    "growing": model([GROWING], {"x": (4, 8)}, weights=[array("trips", 5)]),
    "growing, named": model([GROWING], {"x": (4, 8)}, [info("y", ("last", 8))], weights=[array("trips", 5)]),
    "growing axes": model([loop(node("Unsqueeze", ["s", "ax"], ["t"]))], {"x": (4, 8)},
                          weights=[array("trips", 5), array("ax", [0])]),
    "trips": model([loop(node("Relu", ["s"], ["t"]), node("Exp", ["t"], ["o"]), gives=("t", "o"), outputs=("y", "z"))],
                   [info("x", (4, 8)), info("trips", (), INT64)],
                   [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")]),
    "data in a body": model(
        [loop(node("NonZero", ["s"], ["q"]), node("ReduceMax", ["q"], ["m"], keepdims=0),
              node("Cast", ["m"], ["f"], to=FLOAT), node("Add", ["s", "f"], ["t"]))],
        {"x": (4, 8)}, weights=[array("trips", 5)]),
    "a growing loop in a loop": model([loop(INNER)], {"x": (4, 8)}, weights=[array("trips", 5)]),
    "branches of two sizes": model(
        [node("If", ["c"], ["y"], then_branch=branch_body("t", [node("Exp", ["x"], ["a"])]),
              else_branch=branch_body("e", [node("Concat", ["x", "x"], ["b"], axis=0)]))],
        [info("x", (4, 8)), info("c", (), BOOL)]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_the_advice_of_a_message_works(name: str, tmp_path: Path) -> None:
    """From Python and on the command line, each message in turn."""
    dims: dict[str, int] = {}
    while message := _refusal(UNKNOWN[name], dims):
        advice = re.search(r"give dims.*, such as ((?:\S+=\d+,? )+)", message)
        assert advice is not None, message
        given = {key: int(size) for key, size in re.findall(r"(\S+)=(\d+)", advice[1])}
        assert given.keys().isdisjoint(dims)
        dims |= given
    assert dims
    path = tmp_path / "model.onnx"
    path.write_bytes(UNKNOWN[name])
    options = [text for key, size in dims.items() for text in ("--dim", f"{key}={size}")]
    assert main(["convert", str(path), str(tmp_path / "graph.json"), *options]) == 0


def _refusal(data: bytes, dims: dict[str, int]) -> str:
    """The line with which a model is refused; "" if it is read."""
    try:
        read(data, dims=dims)
    except GraphError as error:
        return str(error)
    return ""


def test_the_advice_to_declare_works() -> None:
    nodes = [node("Foo", ["x"], ["f"], domain="custom"), node("Relu", ["f"], ["y"])]
    assert "op 'Foo.0': the type of 'f' is unknown: declare it in the model, with its shape" in refused(
        model(nodes, {"x": (3,)})
    )
    assert "dims: the type of 'f' is unknown: declare it" in refused(model(nodes, {"x": (3,)}), dims={"f:0": 3})
    assert sizes(read(model(nodes, {"x": (3,)}, declared=[info("f", (7,))]))) == {"f": 28, "y": 28}
    untyped = [onnx.ValueInfoProto(name="x")]
    assert "input 'x': the type of 'x' is unknown: declare it in the model" in refused(model([RELU], untyped))
    data = model([GROWING], {"x": (4, 8)}, [info("y", (24, 8))], weights=[array("trips", 5)])
    assert sizes(read(data)) == {"y": 768}


# Loops whose state grows.
@pytest.mark.parametrize("dims", [{"y:0": 24}, {"y:0": 24, "y:1": 8}])
def test_a_growing_state_has_its_last_size_in_every_iteration(dims: dict[str, int]) -> None:
    growing = loop(node("Exp", ["s"], ["e"]), node("Concat", ["e", "x"], ["t"], axis=0))
    (op,) = read(model([growing], {"x": (4, 8)}, weights=[array("trips", 5)]), dims=dims).ops
    assert op.outputs[0].bytes == 4 * 24 * 8
    assert op.flops == 5 * 24 * 8
    assert op.workspace_bytes == 4 * (24 + 28) * 8
    assert "'y:1' is 9, but 'y' has size 8" in refused(
        model([growing], {"x": (4, 8)}, weights=[array("trips", 5)]), dims={"y:0": 24, "y:1": 9}
    )


def test_a_shrinking_state_has_its_first_size_in_every_iteration() -> None:
    shrinking = loop(node("Exp", ["s"], ["e"]), node("Slice", ["e", "one", "end", "axis"], ["t"]))
    weights = [array("trips", 3), array("one", [1]), array("end", [99]), array("axis", [0])]
    data = model([shrinking], {"x": (4, 8)}, weights=weights)
    assert "give dims, such as y:0=1 " in refused(data)
    (op,) = read(data, dims={"y:0": 1}).ops
    assert (op.outputs[0].bytes, op.flops, op.workspace_bytes) == (32, 3 * 32, 4 * (32 + 24))


def test_a_growing_state_that_never_runs_has_its_first_size() -> None:
    assert sizes(read(model([GROWING], {"x": (4, 8)}, weights=[array("trips", 0)]))) == {"y": 128}


def test_bodies_see_the_constants_around_them() -> None:
    then = branch_body("then", [node("ReduceSum", ["x", "axes"], ["t"], keepdims=0)])
    other = branch_body("else", [node("ReduceMax", ["x", "axes"], ["e"], keepdims=0)])
    branch = node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    (op,) = read(model([branch], [info("x", (4, 8)), info("c", (), BOOL)], weights=[array("axes", [0])])).ops
    assert (op.outputs[0].bytes, op.weight_bytes, op.inputs) == (32, 8, ("c", "x", "axes"))
