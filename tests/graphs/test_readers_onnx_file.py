"""ONNX files: lazy loading of weights, and broken files."""

import os
import random
import tracemalloc
from pathlib import Path

import onnx
import pytest
from broken import file_refusal, refusal
from broken_onnx import BROKEN_ONNX
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_models import LIGHT, branch_body, info, model, node, read, weight

from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.onnx.model import MAX_VALUES, without_weights


def test_weights_are_not_loaded(tmp_path: Path) -> None:
    """64 MB of weights, in the graph, in a Constant and in a body: less than 1 MB is ever in memory."""
    path = tmp_path / "model.onnx"
    then = branch_body("then", [node("Add", ["m", "b"], ["t"])], [weight("b", 2000, 2000)])
    other = branch_body("else", [node("Identity", ["m"], ["e"])])
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
    read_graph(path)  # imports
    tracemalloc.start()
    graph = read_graph(path)
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


@pytest.mark.parametrize("name", BROKEN_ONNX)
def test_broken_models_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = BROKEN_ONNX[name].make(tmp_path)
    assert BROKEN_ONNX[name].says in file_refusal(path)
    assert os.listdir(tmp_path) == [path.name]
