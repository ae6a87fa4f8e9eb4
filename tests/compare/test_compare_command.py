"""`graphrl compare`: its printed and written results, and its refusals."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from comparison_rows import MEMORY, json_lines, read_rows

from graphrl.cli import main
from graphrl.commands.compare import _methods, _seeds
from graphrl.commands.progress import runs_bar
from graphrl.compare.comparison import compare
from graphrl.compare.report import HEADINGS
from graphrl.compare.runs import make_runs
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.process import count_cores
from graphrl.solvers.base import Budget


def test_json_and_files(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    files = [str(out / name) for name in ("runs.jsonl", "quality.png", "hist.svg")]
    arguments = ["compare", model, "layered:20x2", "--methods", "list,given", "--seeds", "2", "--evaluations", "10"]
    arguments += ["--output", files[0], "--plot", files[1], "--histogram", files[2], "--baseline", "given", "--json"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert (data["runs"], data["done"], data["made"], data["interrupted"]) == (12, 12, 12, False)
    assert [method["method"] for method in data["methods"]] == ["list", "given"]
    assert [graph["ops"] for graph in data["graphs"]] == [4, 20, 20]
    assert data["graphs"][0] | {"fingerprint": ""} == {
        "graph": "tiny", "fingerprint": "", "ops": 4, "best": 12, "bound": data["graphs"][0]["bound"]
    }  # fmt: skip
    assert data["written"] == files
    assert len(printed.err.splitlines()) == 12
    assert printed.err.startswith("1/12 tiny, list, seed 0: 12 B in ")
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in Path(files[2]).read_bytes()
    rows = read_rows(files[0])
    assert len(rows) == 12
    assert json_lines(rows) == Path(files[0]).read_text()
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["made"] == 0
    assert again["methods"] == data["methods"]


def test_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--objective", "makespan", "--devices", "2", "--transfer", "free", "--seconds", "1"]
    assert main(["compare", model, "--methods", "list, given", *options, "--seeds", "4,", "--no-warm-up"]) == 0
    out, err = capsys.readouterr()
    for text in ("tiny", "makespan on 2 devices, free transfers", "1 graph, 1 seed, 1 s a run", *HEADINGS):
        assert text in out
    assert "seed 4: 5.00 s in" in err


def test_failures_are_reported(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--objective", "makespan", "--memory-limit", "1", "--evaluations", "5"]
    assert main(["compare", model, "--methods", "list,given", *options]) == 1
    out, err = capsys.readouterr()
    assert "list: 1 plan above the memory limit" in out
    assert err.splitlines()[-1] == "graphrl: error: no run gave a plan: no plan is within the memory limit"


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["--methods", "list"], 2, "required: MODEL"),
        (["{model}"], 2, "required: --methods"),
        (["{model}", "--methods", ","], 2, "names no method"),
        (["{model}", "--methods", "magic"], 2, "unknown method 'magic'"),
        (["{model}", "--methods", "list", "--seeds", "0"], 2, "0 seeds: must be from 1"),
        (["{model}", "--methods", "list", "--seeds", ","], 2, "names no seed"),
        (["layered:20x0", "--methods", "list"], 2, "an empty set"),
        (["{model}", "--methods", "list", "--seeds", "1,-2"], 2, "seed is -2"),
        (["{model}", "--methods", "list", "--processes", "99999"], 2, "processes is 99999"),
        (["{model}", "--methods", "list", "--baseline", "given"], 2, "baseline is 'given'"),
        (["{model}", "--methods", "list", "--output", "{model}"], 2, "is an input file"),
        (["{model}", "--methods", "list", "--plot", "{folder}/no/x.png"], 1, "there is no folder"),
        (["{folder}/missing.json", "--methods", "list"], 1, "No such file"),
        (["layered", "--methods", "list"], 2, "no set of graphs"),
    ],
)
def test_faults_are_one_line(
    arguments: list[str], code: int, fault: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(model).parent
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["compare", *(text.format(model=model, folder=folder) for text in arguments)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert fault in err
    assert err.count("\n") == 1
    assert err.startswith("graphrl")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_lists_of_methods_and_seeds() -> None:
    assert _methods("list, beam:width=10,ties=random,auto:a=1") == ("list", "beam:width=10,ties=random", "auto:a=1")
    assert (_seeds("3"), _seeds("0,1,5"), _seeds("7,")) == (3, (0, 1, 5), (7,))
    with pytest.raises(ProblemError):
        _methods("list,a=1,a=1")


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "processes", [1, pytest.param(2, marks=pytest.mark.skipif(count_cores() < 2, reason="one core"))]
)
def test_ctrl_c_shows_what_is_done(tmp_path: Path, processes: int) -> None:
    path = tmp_path / "runs.jsonl"
    command = [sys.executable, "-m", "graphrl", "compare", "layered:30x2000", "--methods", "list", "--json"]
    command += ["--processes", str(processes), "--output", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    data = json.loads(out)
    assert data["interrupted"] is True
    assert 3 <= data["done"] < 2000
    assert len(read_rows(path)) - data["done"] in (0, 1)  # the signal may arrive between two steps
    assert err.splitlines()[-1] == f"graphrl: interrupted: {data['done']} of 2000 runs done"
    assert all(line[0].isdigit() for line in err.splitlines()[:-1])  # no tracebacks


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ops = (Op("a", runtime=1, outputs=(Tensor("a0", 4),)),)
    runs = make_runs([ComputationGraph("[b]g", ops)], MEMORY, ["list"], [0, 1], Budget(5), cores=1)
    assert compare(runs, watch=lambda missing: runs_bar(missing, 1)).new == 2
    for text in ("2/2", "[b]g, list, seed 1: 4 B in"):
        assert text in shown.getvalue()


@pytest.fixture
def models(model: str) -> Path:
    """A folder with a graph, a broken one, one that is cut short and a link to nowhere."""
    folder = Path(model).parent / "models"
    folder.mkdir()
    (folder / "tiny.json").write_bytes(Path(model).read_bytes())
    (folder / "cut.json").write_bytes(Path(model).read_bytes()[:-9])
    (folder / "empty.onnx").touch()
    (folder / "gone.hlo").symlink_to("nowhere")
    return folder


BUDGET = ["--methods", "list", "--evaluations", "5"]


def test_files_that_cannot_be_read_are_named_and_left_out(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(models), str(models / "empty.onnx"), "layered:20", *BUDGET]) == 1
    out, err = capsys.readouterr()
    assert "2 graphs, 1 seed" in out
    lines = err.splitlines()
    assert [line.startswith("graphrl: left out: ") for line in lines] == [True] * 3 + [False] * 2
    for line, (name, reason) in zip(
        lines, [("cut.json", "truncated JSON"), ("empty.onnx", "empty"), ("gone.hlo", "No such file")], strict=False
    ):
        assert str(models / name) in line
        assert reason in line


def test_json_names_what_was_left_out(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = models.parent / "rows.jsonl"
    arguments = ["compare", str(models), *BUDGET, "--json", "--output", str(rows)]
    assert main(arguments) == 1
    data = json.loads(capsys.readouterr().out)
    assert list(data["unreadable"]) == [str(models / name) for name in ("cut.json", "empty.onnx", "gone.hlo")]
    assert "truncated JSON" in data["unreadable"][str(models / "cut.json")]
    assert (data["runs"], data["made"]) == (1, 1)
    for name in ("cut.json", "empty.onnx", "gone.hlo"):
        (models / name).unlink()
    assert main(arguments) == 0  # and its rows are reused
    data = json.loads(capsys.readouterr().out)
    assert (data["unreadable"], data["runs"], data["made"]) == ({}, 1, 0)


def test_nothing_that_can_be_read_is_an_error(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "tiny.json").unlink()
    assert main(["compare", str(models), *BUDGET, "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(": ")[2].partition(": ")[0] for line in err.splitlines()] == ["left out"] * 3 + ["error"]
    assert err.splitlines()[-1] == "graphrl: error: none of the 3 files can be read"
    assert main(["compare", str(models / "cut.json"), *BUDGET]) == 1
    assert capsys.readouterr().err.startswith(f"graphrl: error: {models / 'cut.json'}: broken or truncated JSON")
