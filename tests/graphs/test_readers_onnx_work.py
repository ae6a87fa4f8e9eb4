"""ONNX models as graphs: bodies of branches, loops and scans, and FLOPs."""

import pytest
from onnx import TensorProto, helper
from onnx_models import array, branch_body, info, loop, model, node, read, weight

from graphrl.graphs.graph import Tensor
from graphrl.graphs.readers.onnx.work import Call, flops
from graphrl.graphs.readers.work import traffic


def test_a_branch_costs_its_most_expensive_body() -> None:
    then = branch_body(
        "then", [node("MatMul", ["x", "w"], ["t"]), node("Exp", ["t"], ["u"]), node("Neg", ["u"], ["v"])]
    )
    other = branch_body("else", [node("Add", ["x", "c"], ["e"])], [weight("c", 4, 4)])
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
    nodes = [node("MatMul", ["s", "x"], ["m"]), node("Exp", ["m"], ["t"]), node("Neg", ["t"], ["out"])]
    weights = [] if trips is None else [array("trips", trips)]
    inputs = [info("x", (4, 4)), *([info("trips", (), TensorProto.INT64)] if trips is None else [])]
    repeated = loop(*nodes, state=info("s", None), gives=["t", "out"], outputs=["y", "stacked"])
    dims = {"stacked:0": 3} if trips is None or trips > 7 else {}
    (op,) = read(model([repeated], inputs, outputs=["y", "stacked"], weights=weights), dims=dims).ops
    assert op.outputs == (Tensor("y", 64), Tensor("stacked", 64 * (3 if dims else runs)))
    assert op.flops == runs * (128 + 16 + 16)
    assert op.workspace_bytes == 64 + 64 + 1  # the next state, the stacked output, and the condition
    assert op.inputs == ("trips", "x")


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
    assert traffic([10**9, 16], 4000, partial=True) == 4000 + 16 + 4000
    assert traffic([40, 8], 40, partial=False) == 88
    assert traffic([], 8, partial=True) == 8
