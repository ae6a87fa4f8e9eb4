"""Files on which native code crashes, never ends or takes all memory: one line, and the process survives."""

import gzip
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import psutil
import pytest
from command_line import check_failure
from onnx import helper
from onnx_models import array, model, node

from graphrl.errors import GraphError, GraphrlError, ProblemError
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.foreign import Foreign, ReadLimits

NO_PARAMETER_0 = "HloModule m\nENTRY e {\n  ROOT p = f32[] parameter(1)\n}"
DEEP = f"HloModule m\nENTRY e {{\n  ROOT p = {'(' * 100_000}f32[]{')' * 100_000} parameter(0)\n}}"


def doubling(times: int) -> bytes:
    """A shape computed by doubling a vector: 2^times numbers in ONNX's data propagation."""
    doubled = [node("Concat", [f"s{k}", f"s{k}"], [f"s{k + 1}"], axis=0) for k in range(times)]
    nodes = [node("Identity", ["w"], ["s0"]), *doubled, node("Reshape", ["x", f"s{times}"], ["y"])]
    return model(nodes, {"x": (2, 3)}, weights=[array("w", [2, 3])])


def counted() -> bytes:
    """A shape that is one of the 2e8 numbers of a Range."""
    nodes = [
        node("Range", ["first", "limit", "step"], ["numbers"]),
        node("Gather", ["numbers", "place"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["y"]),
    ]
    scalars = [array("first", 0), array("limit", 200_000_000), array("step", 1)]
    return model(nodes, {"x": (2, 3)}, weights=[*scalars, array("place", [5])])


def nested(depth: int) -> bytes:
    """Local functions that call one another: 10^depth nodes."""
    functions = []
    for level in range(depth):
        steps = zip(["a", *map(str, range(9))], map(str, range(10)), strict=True)
        inner = ("Relu", "") if level == 0 else (f"F{level - 1}", "custom")
        body = [helper.make_node(inner[0], [a], [b], domain=inner[1]) for a, b in steps]
        versions = [helper.make_opsetid("", 20), helper.make_opsetid("custom", 1)]
        functions.append(helper.make_function("custom", f"F{level}", ["a"], ["9"], body, versions))
    return model([node(f"F{depth - 1}", ["x"], ["y"], domain="custom")], {"x": (2, 3)}, functions=functions)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Other child processes may exist before the test."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def _refusal(folder: Path, name: str, content: bytes, limits: ReadLimits) -> str:
    path = folder / name
    path.write_bytes(content)
    with pytest.raises(GraphrlError) as caught:
        read_graph(path, limits=limits)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("text", [NO_PARAMETER_0, DEEP], ids=["parameter 1 alone", "deep tuples"])
def test_text_that_kills_xla_s_parser(tmp_path: Path, text: str) -> None:
    message = _refusal(tmp_path, "m.hlo", text.encode(), ReadLimits())
    assert "XLA's parser of HLO text crashes on it (SIG" in message


@pytest.mark.parametrize(
    ("content", "step"),
    [(doubling(40), "shape inference"), (counted(), "shape inference"), (nested(9), "inlining of functions")],
    ids=["Concat", "Range", "functions"],
)
def test_models_of_two_kilobytes_that_take_all_memory(tmp_path: Path, content: bytes, step: str) -> None:
    assert len(content) < 3000
    message = _refusal(tmp_path, "m.onnx", content, ReadLimits(memory=200e6))
    assert f"ONNX's {step} needs more than 191 MiB, the limit (limits=, --read-limits in commands)" in message


def test_models_that_never_end(tmp_path: Path) -> None:
    message = _refusal(tmp_path, "m.onnx", nested(9), ReadLimits(seconds=0.3))
    assert "ONNX's inlining of functions takes more than 300 ms, the limit" in message


def test_results_that_grow_too_much() -> None:
    with Foreign(ReadLimits()) as foreign, pytest.raises(GraphError, match=r"inlining of functions makes .* too much"):
        foreign.call("inline_functions", nested(3), growth=1000)


def test_one_process_serves_several_calls() -> None:
    small, before = nested(2), set(psutil.Process().children())
    with Foreign(ReadLimits()) as foreign:
        inlined = foreign.call("inline_functions", small)
        assert len(onnx.ModelProto.FromString(inlined).graph.node) == 100
        with pytest.raises(GraphError, match="cannot be inlined"):
            foreign.call("inline_functions", b"no model")
        inferred = onnx.ModelProto.FromString(foreign.call("infer_shapes", inlined))
        assert [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim] == [2, 3]
        assert len(set(psutil.Process().children()) - before) == 1


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_process_too(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(nested(9))
    ident, started = threading.get_ident(), time.monotonic()
    threading.Timer(1.0, signal.pthread_kill, (ident, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        read_graph(path)
    assert time.monotonic() - started < 30


def test_gzip_that_unpacks_to_more_than_the_limit(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(30_000_000))
    assert len(bomb) < 50_000
    message = _refusal(tmp_path, "g.json.gz", bomb, ReadLimits(memory=20e6))
    assert "its gzip unpacks to more than 20,000,000 bytes, the limit (limits=, --read-limits in commands)" in message
    assert "truncated JSON" in _refusal(tmp_path, "h.json.gz", bomb, ReadLimits())


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "m.onnx", tmp_path / "g.json"
    path.write_bytes(nested(9))
    arguments = ["convert", str(path), str(output), "--read-limits"]
    check_failure([*arguments, "300ms,1GB"], 1, "takes more than 300 ms", capsys)
    check_failure([*arguments, "1min"], 2, "'1min' is not S,BYTES: write for example 5min,16GB", capsys)
    check_failure([*arguments, "0,1GB"], 2, "limit of reading: seconds is 0.0", capsys)
    assert not output.exists()


@pytest.mark.parametrize("limits", [{"seconds": 0}, {"seconds": "1"}, {"memory": -1}, {"memory": float("nan")}])
def test_limits_out_of_range_are_refused(limits: dict[str, float]) -> None:
    (name,) = limits
    with pytest.raises(ProblemError, match=f"limit of reading: {name} is .*: must be a number above 0"):
        ReadLimits(**limits)
