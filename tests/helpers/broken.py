"""Files that no reader may accept: `BROKEN` maps a name to a function that writes the file, and to words of its
one-line error.

Every error also names the file. `make(folder)` returns the path, which need not be inside the folder. Files that look
like ONNX are in broken_onnx.py.
"""

import copy
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from graphrl.errors import GraphError, GraphrlError
from graphrl.graphs.readers import read_graph


class Broken(NamedTuple):
    make: Callable[[Path], Path]
    says: str


BROKEN: dict[str, Broken] = {}


def refusal(call: Callable[[], object]) -> str:
    """Message of the GraphError that `call` raises, or "" if it raises no error."""
    try:
        call()
    except GraphError as error:
        return str(error)
    return ""


def file_refusal(path: Path) -> str:
    """The one short line with which `read_graph` refuses a file; it names the file."""
    with pytest.raises(GraphrlError) as caught:
        read_graph(path)
    message = str(caught.value)
    assert str(path)[:100] in message
    assert message.isprintable()
    assert len(message) - len(str(path)) < 250
    return message


TINY: dict[str, Any] = {
    "format": "graphrl-graph",
    "version": 1,
    "name": "tiny",
    "inputs": [{"name": "x", "bytes": 4}],
    "ops": [
        {"name": "a", "runtime": 1.0, "inputs": ["x"], "outputs": [{"name": "a0", "bytes": 4}]},
        {"name": "b", "runtime": 2.0, "inputs": ["a0"], "outputs": [{"name": "b0", "bytes": 3}], "flops": 7},
    ],
    "outputs": ["b0"],
}


def add_file(files: dict[str, Broken], name: str, says: str, content: bytes, suffix: str) -> None:
    """Adds a file of this content, whose name ends in the suffix."""

    def make(folder: Path) -> Path:
        path = folder / f"broken{suffix}"
        path.write_bytes(content)
        return path

    assert name not in files, name
    files[name] = Broken(make, says)


def _file(name: str, says: str, content: bytes, suffix: str) -> None:
    add_file(BROKEN, name, says, content, suffix)


def _text(name: str, says: str, text: str) -> None:
    _file(name, says, text.encode(), ".json")


def _changed(name: str, says: str, change: Callable[[dict[str, Any]], object]) -> None:
    """`TINY` after `change`."""
    graph = copy.deepcopy(TINY)
    change(graph)
    _text(name, says, json.dumps(graph))


def _top(name: str, says: str, /, **fields: Any) -> None:
    _changed(name, says, lambda graph: graph.update(fields))


def _op(name: str, says: str, /, **fields: Any) -> None:
    """`TINY` with fields of op b replaced."""
    _changed(name, says, lambda graph: graph["ops"][1].update(fields))


def _output(name: str, says: str, /, **fields: Any) -> None:
    """`TINY` with fields of tensor b0 replaced."""
    _changed(name, says, lambda graph: graph["ops"][1]["outputs"][0].update(fields))


# Faults of the file itself.
def _unreadable(folder: Path) -> Path:
    if os.geteuid() == 0:  # root may read any file, but not the start of its own address space
        return Path("/proc/self/mem")
    path = folder / "secret.json"
    path.write_text(json.dumps(TINY))
    path.chmod(0)
    return path


def _directory(folder: Path) -> Path:
    path = folder / "graph.json"
    path.mkdir()
    return path


BROKEN["missing file"] = Broken(lambda folder: folder / "missing.json", "No such file")
BROKEN["missing folder"] = Broken(lambda folder: folder / "missing" / "graph.json", "No such file")
BROKEN["file as folder"] = Broken(lambda folder: Path(__file__) / "graph.json", "Not a directory")
BROKEN["directory"] = Broken(_directory, "it is a directory")
BROKEN["no permission"] = Broken(_unreadable, "cannot read")
BROKEN["device"] = Broken(lambda folder: Path("/dev/zero"), "it is a device")
BROKEN["name too long"] = Broken(lambda folder: folder / ("n" * 300), "File name too long")
_file("empty file", "the file is empty", b"", ".json")
_formats = "not a graph that graphrl can read: XLA's HLO (text or proto), JSON (graphrl-graph, dnn-partitioning), ONNX"
_file("only white space", _formats, b" \n\n", ".graph")
_file("picture", "not a graph that graphrl can read", b"\x89PNG\r\n\x1a\n" + bytes(64), ".graph")
_file("UTF-16", "not UTF-8 text", json.dumps(TINY).encode("utf-16"), ".json")
_file("invalid UTF-8", "not UTF-8 text: byte 3 is 0xff", b'{"a\xff": 1}', ".json")
_file("truncated gzip", "broken or truncated gzip", gzip.compress(json.dumps(TINY).encode())[:-20], ".json.gz")
_file("garbage after gzip magic", "broken or truncated gzip", b"\x1f\x8b\x07garbage", ".json.gz")

# JSON that does not parse.
_text("truncated JSON", "broken or truncated JSON", json.dumps(TINY)[:-30])
_text("trailing comma", "broken or truncated JSON", '{"format": "graphrl-graph",}')
_text("text after the graph", "broken or truncated JSON: Extra data", json.dumps(TINY) + "{}")
_text("half a surrogate pair", "half of a surrogate pair", json.dumps(TINY).replace('"name": "', '"name": "\\ud800', 1))
_text("no JSON", "broken or truncated JSON", "ops: a, b")
_text("deeply nested JSON", "nested too deeply", '{"a":' * 100_000)
_text("integer of 5000 digits", "thousands of digits", json.dumps(TINY).replace("7", "7" * 5000))
_text("key twice", 'key "runtime" of "b" appears twice', json.dumps(TINY).replace('"flops": 7', '"runtime": 3'))
_text("key twice at the top", 'key "version" appears twice', json.dumps(TINY).replace('"name": "tiny"', '"version": 1'))

# JSON that is not a graph.
_text("a list", "the top level is a list: must be an object", "[]")
_text("an empty object", 'has no "format"', "{}")
_text("another format", 'has no "format"', '{"nodes": [], "edges": []}')
_top("wrong format", 'format is "graphrl-plan"', format="graphrl-plan")
_changed("missing version", 'has no "version"', lambda graph: graph.pop("version"))
_top("wrong version", 'version is 2: this graphrl reads "version": 1', version=2)
_top("version as bool", "version is true", version=True)
_top("unknown key at the top", 'the top level: unknown key "nodes"', nodes=[])
_top("name of another type", "the graph: name is null: must be text", name=None)
_top("ops as object", "the graph: ops is an object: must be a list", ops={"a": {}})
_changed("no ops", "has no ops", lambda graph: graph.pop("ops"))
_top("inputs as text", 'the graph: inputs is "x": must be a list', inputs="x")
_top("inputs of names", 'the graph, input number 0 is "x": must be an object', inputs=["x"])
_top("input without name", "the graph, input number 0: it has no name", inputs=[{"bytes": 4}])
_top("input with alias", "neither alias nor reuses", inputs=[{"name": "x", "alias": "a0"}])
_top("input with an empty name", "an input tensor has an empty name", inputs=[{"name": "x"}, {"name": ""}])
_top("input of negative bytes", "input 'x': bytes is -4: must be from 0 to 2^62", inputs=[{"name": "x", "bytes": -4}])
_top("outputs of objects", "the graph: outputs contains an object", outputs=[{"name": "b0"}])
_top("dangling output", "graph output 'z' is not a tensor", outputs=["b0", "z"])
_top("op as text", 'op number 0 is "a": must be an object', ops=["a"])

# Ops.
_changed("op without name", "op number 1: it has no name", lambda graph: graph["ops"][1].pop("name"))
_op("op name of another type", "op number 1: its name is 5: must be text", name=5)
_op("duplicate op", "op 'a' appears twice", name="a")
_op("unknown key in op", "op 'b': unknown key \"run_time\": the nearest of", run_time=1)
_op("type of another type", "op 'b': type is 1: must be text", type=1)
_op("inputs of op as text", "op 'b': inputs is \"a0\": must be a list of tensor names", inputs="a0")
_op("inputs of op of numbers", "op 'b': inputs contains 0: must be a list of tensor names", inputs=[0])
_op("after as object", "op 'b': after is an object", after={})
_op("outputs of names", "op 'b', output number 0 is \"b0\": must be an object", outputs=["b0"])
_op("dangling input", "op 'b': input 'z' is not a tensor", inputs=["z"])
_op("dangling control edge", "op 'b': control predecessor 'z' is not an op", after=["z"])
_op("tensor as control edge", "op 'b': control predecessor 'a0' is not an op", after=["a0"])
_op("reads its own output", "cycle: 'b' -> 'b'", inputs=["b0"])
_changed("cycle", "cycle: 'a' -> 'b' -> 'a'", lambda graph: graph["ops"][0].update(inputs=["b0"]))
_op("runtime as text", "op 'b': runtime is '1': must be a finite number", runtime="1")
_text("runtime 1e400", "op 'b': runtime is inf: must be a finite number", json.dumps(TINY).replace("2.0", "1e400"))

# Tensors.
_op("tensor without name", "op 'b', output number 0: it has no name", outputs=[{"bytes": 1}])
_output("tensor name of another type", "op 'b', output number 0: its name is null: must be text", name=None)
_output("unknown key in tensor", "op 'b', output number 0: unknown key \"shape\"", shape=[1])
_output("tensor with two producers", "op 'b': output 'a0' is already an output of op 'a'", name="a0")
_output("tensor produced and external", "op 'b': output 'x' is already an external input", name="x")
_output("bytes float", "op 'b', output 'b0': bytes is 4.5: must be an integral number", bytes=4.5)
_output("bytes text", "op 'b', output 'b0': bytes is '4': must be an integral number", bytes="4")
_output("bytes huge", "op 'b', output 'b0': bytes is 4611686018427387905: must be from 0", bytes=2**62 + 1)
_output("alias null", "op 'b', output number 0: alias is null: must be text", alias=None)
_output("alias to no input", "op 'b', output 'b0': alias names 'x', which is not an input of this op", alias="x")
_output("reuses too small a buffer", "5 bytes cannot reuse 'a0' of 4 bytes", reuses="a0", bytes=5)
_op("sum of bytes huge", "sums must stay below 2^63", outputs=[{"name": f"b{i}", "bytes": 2**62} for i in range(3)])
