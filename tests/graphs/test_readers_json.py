"""The format graphrl-graph, recognition of files, and refusals of all broken files but ONNX."""

import gzip
import json
import os
import time
from pathlib import Path

import pytest
from broken import BROKEN, TINY, file_refusal, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.errors import GraphError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import Layer
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.json import graph_from_dict, graph_to_dict, write_json

FORMAT_EXAMPLE = """
{"format": "graphrl-graph", "version": 1, "name": "tiny", "inputs": [{"name": "x", "bytes": 4}],
 "ops": [{"name": "a", "type": "input", "runtime": 1.0, "inputs": ["x"], "after": [],
          "outputs": [{"name": "a0", "bytes": 4}], "workspace_bytes": 0, "weight_bytes": 0, "flops": 0}],
 "outputs": ["a0"]}
"""


def test_the_example_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(FORMAT_EXAMPLE)
    op = Op("a", "input", 1.0, ("x",), (Tensor("a0", 4),))
    expected = ComputationGraph("tiny", (op,), (Tensor("x", 4),), ("a0",))
    assert read_graph(path) == read_graph(str(path)) == expected


def test_everything_but_names_may_be_left_out() -> None:
    value = {"format": "graphrl-graph", "version": 1, "ops": [{"name": "a", "outputs": [{"name": "t"}]}]}
    graph = graph_from_dict(value)
    assert graph == ComputationGraph("", (Op("a", outputs=(Tensor("t"),)),))
    assert graph_to_dict(graph) == value | {"name": ""}


def test_the_file_is_one_line_an_op(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    write_json(graph_from_dict(TINY), path)
    assert path.read_text() == (
        '{"format": "graphrl-graph",\n'
        ' "version": 1,\n'
        ' "name": "tiny",\n'
        ' "inputs": [\n'
        '  {"name": "x", "bytes": 4}\n'
        " ],\n"
        ' "ops": [\n'
        '  {"name": "a", "runtime": 1.0, "inputs": ["x"], "outputs": [{"name": "a0", "bytes": 4}]},\n'
        '  {"name": "b", "runtime": 2.0, "inputs": ["a0"], "outputs": [{"name": "b0", "bytes": 3}], "flops": 7}\n'
        " ],\n"
        ' "outputs": ["b0"]}\n'
    )
    assert read_graph(path) == graph_from_dict(TINY)


def test_gzip_is_by_name_when_writing_and_by_content_when_reading(tmp_path: Path) -> None:
    graph = graph_from_dict(TINY)
    write_json(graph, tmp_path / "a.json.gz")
    write_json(graph, str(tmp_path / "b.json.gz"))
    write_json(graph, tmp_path / "plain.json")
    data = (tmp_path / "a.json.gz").read_bytes()
    assert gzip.decompress(data) == (tmp_path / "plain.json").read_bytes()
    assert data == (tmp_path / "b.json.gz").read_bytes()  # no time stamp, no file name
    (tmp_path / "a.json.gz").rename(tmp_path / "renamed")
    assert read_graph(tmp_path / "renamed") == graph


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(b"\xef\xbb\xbf\n\t " + json.dumps(TINY).encode())  # an editor's byte-order mark
    assert read_graph(path) == graph_from_dict(TINY)


names = st.text(st.characters(), min_size=1, max_size=8)  # any character, lone surrogates too


@settings(max_examples=30)
@given(graphs(), st.lists(names, min_size=40, max_size=40, unique=True), st.floats(0, 1e30), st.integers(0, 2**62))
def test_round_trip(graph: ComputationGraph, labels: list[str], runtime: float, flops: int) -> None:
    """Any graph survives the round trip, whatever its names; nothing that is empty or 0 is written."""
    label_of = dict(zip(("x", *graph.tensor_names), labels, strict=False))

    def renamed(tensor: Tensor) -> Tensor:
        alias, reuses = (None if name is None else label_of[name] for name in (tensor.alias, tensor.reuses))
        return Tensor(label_of[tensor.name], tensor.bytes, alias, reuses)

    ops = tuple(
        Op(
            name=op.name,
            type=labels[0],
            runtime=runtime,
            inputs=tuple(label_of[name] for name in op.inputs),
            outputs=tuple(map(renamed, op.outputs)),
            after=op.after,
            workspace_bytes=op.workspace_bytes,
            weight_bytes=op.weight_bytes,
            flops=flops,
        )
        for op in graph.ops
    )
    graph = ComputationGraph(
        labels[1], ops, tuple(map(renamed, graph.inputs)), tuple(label_of[name] for name in graph.outputs)
    )
    value = graph_to_dict(graph)
    assert graph_from_dict(value) == graph
    assert graph_from_dict(json.loads(json.dumps(value))) == graph
    for op in value["ops"]:
        assert all(item for key, item in op.items() if key != "name")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    path = BROKEN[name].make(tmp_path)
    before = sorted(os.walk(tmp_path))
    assert BROKEN[name].says in file_refusal(path)
    assert sorted(os.walk(tmp_path)) == before


KEYS = ["format", "version", "name", "ops", "inputs", "outputs", "bytes", "after", "alias"]
SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.text()
ANY_JSON = st.recursive(SCALARS, lambda s: st.lists(s) | st.dictionaries(st.sampled_from(KEYS), s), max_leaves=12)


@settings(max_examples=30)
@given(ANY_JSON, ANY_JSON, st.sampled_from(["", "ops", "inputs", "outputs"]))
def test_any_json_is_a_graph_or_refused(top: object, inner: object, key: str) -> None:
    value = {**top, "format": "graphrl-graph", "version": 1} if isinstance(top, dict) else top
    if key:
        value = {"format": "graphrl-graph", "version": 1, "ops": [{"name": "a", "outputs": inner}], key: inner}
    message = refusal(lambda: graph_from_dict(value, source="here"))
    assert not message or message.startswith("here: ")
    assert message.isprintable()


@given(st.integers(0, len(json.dumps(TINY)) - 1), st.sampled_from('0aé{}[]",:-'))
def test_one_wrong_character_is_one_line_or_another_graph(place: int, character: str) -> None:
    text = json.dumps(TINY)
    text = text[:place] + character + text[place + 1 :]
    try:
        value = json.loads(text)
    except ValueError:
        return
    assert refusal(lambda: graph_from_dict(value)).isprintable()


def test_time_grows_with_the_ops(tmp_path: Path) -> None:
    """About 0.5 s on one core; the limit only catches superlinear time."""
    ops = [
        Op(f"op{i}", "MatMul", 1e-3, (f"t{i // 2 - 1}",) if i > 1 else (), (Tensor(f"t{i}", i),)) for i in range(20_000)
    ]
    graph = ComputationGraph("large", tuple(ops))
    write_json(graph, tmp_path / "large.json")
    start = time.perf_counter()
    assert read_graph(tmp_path / "large.json") == graph
    assert time.perf_counter() - start < 10


def test_layers_come_back_and_are_checked() -> None:
    op = Op("conv", outputs=(Tensor("y", 4),), layer=Layer(batch=1, output_x=2, kernel_x=3))
    graph = ComputationGraph("layers", (op, Op("b")))
    value = graph_to_dict(graph)
    assert value["ops"][0]["layer"] == {"batch": 1, "output_x": 2, "kernel_x": 3}
    assert graph_from_dict(value) == graph
    for layer, fault in (
        ({"kernel": 3}, "unknown key"),
        ({"batch": -1}, "layer.batch is -1: must be an integer from 0"),
        ({"batch": 1.5}, "layer.batch is 1.5"),
        (3, "op 'conv': layer is 3: must be an object"),
    ):
        value["ops"][0]["layer"] = layer
        with pytest.raises(GraphError, match=fault):
            graph_from_dict(value)
