"""The command line: wrong options, models and outputs are one line, and nothing is written."""

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import check_failure
from worked_example import TINY

from graphrl.cli import COMMANDS, main
from graphrl.graphs.readers.json import write_json

CYCLE = {
    "format": "graphrl-graph",
    "version": 1,
    "name": "g",
    "ops": [{"name": "a", "inputs": ["y"], "outputs": [{"name": "x", "bytes": 1}]},
            {"name": "b", "inputs": ["x"], "outputs": [{"name": "y", "bytes": 1}]}],
}  # fmt: skip

OPTION_FAULTS = [
    ([], "required"),
    (["--devices", "0"], "devices is 0"),
    (["--devices", "1000000"], "devices is 1000000"),
    (["--transfer", "magic"], "magic"),
    (["--latency", "nan"], "nan"),
    (["--latency", "5 fortnights"], "fortnights"),
    (["--bandwidth", "0"], "bandwidth is 0"),
    (["--memory-limit", "16GiB"], "memory_limit"),
    (["--memory-limit", "99999999TiB", "--objective", "makespan"], "outside"),
    (["--method", "magic"], "magic"),
    (["--method", "beam:length=9"], "known are width"),
    (["--method", "anneal:chains=0"], "chains is 0"),
    (["--evaluations", "0"], "evaluations is 0"),
    (["--seconds", "0"], "seconds is 0"),
    (["--seed", "-1"], "seed is -1"),
    (["--chip", "abacus"], "unknown chip"),
    (["--chip", "fast,1GB/s"], "no number"),
    (["--dim", "batch"], "NAME=SIZE"),
    (["--dim", "batch=8", "--dim", "batch=9"], "'batch' is given twice"),
    (["--dev", "2"], "unrecognized"),
    (["second.json"], "2 models, where one is planned: for a plan of each of them, add --batch"),
    (["--plott", "x.png"], "did you mean --plot?"),
    (["--devices", "1e30"], "too large"),
    (["--trace", "x.ONNX.gz"], "--trace x.ONNX.gz is written as JSON: must end in .json, not in .onnx"),
    (["--trace", "-"], "/dev/stdout"),
]


@pytest.mark.parametrize(("options", "fault"), OPTION_FAULTS)
def test_bad_options(
    model: str, folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], fault: str
) -> None:
    output = folder / "plan.json"
    output.write_text("old")
    arguments = ["optimize", *([model] if options else []), *options, "--output", str(output)]
    check_failure(arguments, 2, fault, capsys)
    assert [path.read_text() for path in folder.iterdir()] == ["old"]


FILES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "No such file"),
    "empty": (b"", "empty"),
    "truncated": (json.dumps(CYCLE).encode()[:-10], "JSON"),
    "cycle": (json.dumps(CYCLE).encode(), "cycle"),
    "text": (b"hello", "not a graph"),
    "binary": (bytes(range(256)), "not a graph"),
    "broken onnx": (b"\x08\x09" + b"\xff" * 50, "ONNX"),
    "stablehlo": (b"#loc = loc(unknown)\nmodule @jit_f attributes {} {\n}", "compile().as_text()"),
    "broken gzip": (b"\x1f\x8b\x08\x00hello", "gzip"),
    "a plan": (b'{"format": "graphrl-plan", "version": 1}', "format"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_models(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content, fault = FILES[name]
    path, output = tmp_path / "model", folder / "out.json"
    output.write_text("old")
    if content is not None:
        path.write_bytes(content)
    check_failure(["convert", str(path), str(output)], 1, fault, capsys)
    check_failure(["optimize", str(path), "--output", str(output)], 1, fault, capsys)
    assert [path.read_text() for path in folder.iterdir()] == ["old"]


def test_a_directory_as_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(["optimize", str(tmp_path)], 1, "directory", capsys)


@pytest.fixture
def protected() -> Iterator[Path]:
    """A folder whose files cannot be read or written, even if the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_json(TINY, folder / "secret.json")
        write_json(TINY, folder / "model.json")
        (folder / "old.json").write_text("old")
        (folder / "secret.json").chmod(0)
        (folder / "old.json").chmod(0o444)
        (folder / "closed").mkdir(mode=0o555)
        root = os.geteuid() == 0
        if root:
            os.setresuid(65534, 65534, 0)  # nobody; the saved id lets us switch back
        try:
            yield folder
        finally:
            if root:
                os.setresuid(0, 0, 0)


def test_no_permission(protected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, closed, old = str(protected / "model.json"), protected / "closed", protected / "old.json"
    check_failure(["optimize", str(protected / "secret.json")], 1, "ermission", capsys)
    check_failure(["convert", model, str(closed / "x.json")], 1, "ermission", capsys)
    check_failure(["optimize", model, "--output", str(closed / "x.json")], 1, "ermission", capsys)
    check_failure(["optimize", model, "--trace", str(old)], 1, "write-protected", capsys)
    assert old.read_text() == "old"
    assert list(closed.iterdir()) == []


@pytest.mark.parametrize(
    ("outputs", "code", "fault"),
    [
        (["--output", "{out}"], 1, "is a directory"),
        (["--output", "{out}/no/plan.json"], 1, "there is no folder"),
        (["--output", "{model}"], 2, "is an input file"),
        (["--output", "{out}/a", "--trace", "{out}/../out/a"], 2, "is the file of --output already"),
        (["--output", ""], 1, "cannot write"),
        (["--output", "{model}/plan.json"], 1, "cannot write"),
        (["--plot", "{out}/plan.doc"], 1, "its ending must be one of"),
    ],
)
def test_outputs_are_checked_before_the_work(
    model: str, folder: Path, capsys: pytest.CaptureFixture[str], outputs: list[str], code: int, fault: str
) -> None:
    before = Path(model).read_bytes()
    arguments = [text.format(out=folder, model=model) for text in outputs]
    started = time.perf_counter()
    check_failure(["optimize", model, "--seconds", "100", "--method", "random", *arguments], code, fault, capsys)
    assert time.perf_counter() - started < 20
    assert Path(model).read_bytes() == before
    assert list(folder.iterdir()) == []


def options_of(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """All options in a command's usage line."""
    assert main([command, "--help"]) == 0
    return re.findall(r"--[a-z-]+", capsys.readouterr().out.partition("\n\n")[0])


@pytest.mark.parametrize("command", COMMANDS)
def test_two_dashes_are_no_value(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Python versions differ in how argparse treats `--` as a value."""
    positional = {"convert": ["a", "b"], "bench": [], "compare": ["a", "--methods=list"]}.get(command, ["a"])
    for option in options_of(command, capsys):
        for arguments in ([f"{option}=--", *positional], [*positional, f"{option}=--"]):
            check_failure([command, *arguments], 2, f"graphrl {command}: error: argument {option}: '--' is not", capsys)
    check_failure([command, "--", *positional, "--"], 2, "'--' is not an argument", capsys)
    check_failure([command, "--none=--", *positional], 2, "unrecognized arguments: --none=--", capsys)


def test_two_dashes_end_the_options(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "--method=list", "--json", "--", model]) == 0
    capsys.readouterr()
    assert main(["optimize", model, "--method", "list", "--json", "--"]) == 0
    capsys.readouterr()
    check_failure(["optimize", "--", "--method=--"], 1, "No such file", capsys)
    check_failure(["optimize", model, "--seconds", "--"], 2, "argument --seconds: expected one argument", capsys)
    check_failure(["optimize", model, "--seconds="], 2, "argument --seconds: '' is not a time", capsys)
    check_failure(["train", "regal", "--set=agent.rounds=--"], 2, "agent.rounds is '--': must be an integer", capsys)
