"""The command line: results, exit codes, and faults in one line with nothing written."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphrl.cli import COMMANDS, main
from graphrl.commands.progress import progress_bar, share_spent
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.json import write_json
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted
from graphrl.units import (
    byte_unit,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)

TINY = ComputationGraph(
    "tiny",
    (
        Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
        Op("b", runtime=2, inputs=("a0",), outputs=(Tensor("b0", 3),)),
        Op("c", runtime=3, inputs=("a0",), outputs=(Tensor("c0", 5),), workspace_bytes=2),
        Op("d", runtime=1, inputs=("b0", "c0"), outputs=(Tensor("d0", 1),)),
    ),
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    write_json(TINY, path)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for outputs."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


# Results


def test_json_is_one_object_and_nothing_else(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", model, "--evaluations", "100", "--seed", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert err == ""
    assert (data["value"], data["peak_memory"], data["seed"], data["feasible"]) == (12, [12], 3, True)
    assert data["model"]["bandwidth"] is None
    assert data["bound"] <= 12
    assert data["interrupted"] is False
    assert data["written"] == []


def test_table_for_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", model, "--devices", "2", "--objective", "makespan", "--method", "list"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in ("tiny", "makespan", "lower bound", "rendezvous", "peak per device", "list, seed 0", "evaluations"):
        assert text in out


def test_files_are_written(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / name) for name in ("plan.json", "trace.json", "plan.png")]
    arguments = ["optimize", model, "--method", "list", "--json"]
    arguments += ["--output", files[0], "--trace", files[1], "--plot", files[2]]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["written"] == files
    Plan.load(files[0]).check(TINY)
    assert json.loads(Path(files[1]).read_text())["traceEvents"]
    assert Path(files[2]).read_bytes().startswith(b"\x89PNG")
    assert len(list(folder.iterdir())) == 3


def test_options_reach_the_problem(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["optimize", model, "--objective", "makespan", "--devices", "3", "--transfer", "link", "--json"]
    arguments += ["--latency", "10us", "--bandwidth", "1.5GB/s", "--memory-limit", "16GiB", "--resident-weights"]
    assert main([*arguments, "--method", "list", "--seconds", "2min"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == {
        "devices": 3,
        "transfer": "link",
        "latency": 1e-5,
        "bandwidth": 1.5e9,
        "resident_weights": True,
        "memory_limit": 16 * 2**30,
    }


def test_options_reach_the_method(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", model, "--method", "random-ready:samples=7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] == 7


def test_over_the_memory_limit_fails_but_is_written(
    model: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "plan.json"
    options = ["--objective", "makespan", "--memory-limit", "11", "--method", "list", "--output", str(path), "--json"]
    assert main(["optimize", model, *options]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["feasible"] is False
    assert err.count("\n") == 1
    assert "1 B more" in err
    assert Plan.load(path).excess == 1


def test_convert(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", model, str(folder / "graph.json")]) == 0
    assert "4 ops" in capsys.readouterr().out
    assert read_graph(folder / "graph.json") == TINY
    assert main(["convert", model, str(folder / "graph.json.gz"), "--json", "--seed", "1"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["ops"], data["tensors"], data["uses"], data["tensor_bytes"], data["runtime"]) == (4, 4, 4, 13, 7.0)
    assert gzip.decompress((folder / "graph.json.gz").read_bytes()) == (folder / "graph.json").read_bytes()


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)):
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert "graphrl" in out
        assert err == ""


def test_help_imports_neither_jax_nor_matplotlib() -> None:
    code = "import sys; from graphrl.cli import main; main(['--help']); main(['optimize', '--help'])"
    code += "; sys.exit(bool({'jax', 'matplotlib', 'onnx', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


# Faults

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
    (["--devices", "-1"], "devices is -1"),
    (["--devices", "two"], "not an integer"),
    (["--devices", "1.5"], "not an integer"),
    (["--devices", "nan"], "not an integer"),
    (["--devices", "1000000"], "devices is 1000000"),
    (["--objective", "speed"], "speed"),
    (["--transfer", "magic"], "magic"),
    (["--latency", "-1"], "latency"),
    (["--latency", "nan"], "nan"),
    (["--latency", "1e999"], "too large"),
    (["--latency", "5 fortnights"], "fortnights"),
    (["--bandwidth", "0"], "bandwidth is 0"),
    (["--bandwidth", "fast"], "fast"),
    (["--bandwidth", "5GHz"], "unknown unit"),
    (["--memory-limit", "16GiB"], "memory_limit"),
    (["--memory-limit", "0", "--objective", "makespan"], "memory_limit is 0"),
    (["--memory-limit", "16 apples", "--objective", "makespan"], "apples"),
    (["--memory-limit", "99999999TiB", "--objective", "makespan"], "outside"),
    (["--method", "magic"], "magic"),
    (["--method", "beam:length=9"], "its options are width"),
    (["--method", "beam:width=0"], "width is 0"),
    (["--method", "anneal:chains=0"], "chains is 0"),
    (["--evaluations", "0"], "evaluations is 0"),
    (["--evaluations", "-5"], "evaluations is -5"),
    (["--evaluations", "many"], "not an integer"),
    (["--evaluations", "9999999999"], "evaluations is 9999999999"),
    (["--seconds", "0"], "seconds is 0"),
    (["--seconds", "inf"], "inf"),
    (["--seed", "-1"], "seed is -1"),
    (["--seed", "x"], "not an integer"),
    (["--seed", "99999999999999999999"], "seed is 99999999999999999999"),
    (["--chip", "abacus"], "unknown chip"),
    (["--chip", "1,2,3,4"], "neither a chip"),
    (["--chip", "fast,1GB/s"], "no number"),
    (["--chip", "0,1GB/s"], "above 0"),
    (["--dim", "batch"], "NAME=SIZE"),
    (["--dim", "batch=x"], "not an integer"),
    (["--dim", "batch=8", "--dim", "batch=9"], "'batch' is given twice"),
    (["--colour", "red"], "unrecognized"),
    (["--dev", "2"], "unrecognized"),
    (["second.json"], "unrecognized arguments: second.json (graphrl optimize --help"),
    (["--plott", "x.png"], "is it --plot?"),
    (["--devices", "1e30"], "too large"),
    (["--trace", "x.ONNX.gz"], "--trace x.ONNX.gz is written as JSON: must not end in .onnx, but in .json"),
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


def check_failure(arguments: list[str], code: int, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the command: the exit code, one line on stderr that names the fault, nothing on stdout."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("graphrl")
    assert err.count("\n") == 1
    assert fault in err
    assert "Traceback" not in err


FILES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "No such file"),
    "empty": (b"", "empty"),
    "truncated": (json.dumps(CYCLE).encode()[:-10], "JSON"),
    "cycle": (json.dumps(CYCLE).encode(), "cycle"),
    "text": (b"hello", "no graph"),
    "binary": (bytes(range(256)), "no graph"),
    "broken onnx": (b"\x08\x09" + b"\xff" * 50, "ONNX"),
    "stablehlo": (b"#loc = loc(unknown)\nmodule @jit_f attributes {} {\n}", "compile().as_text()"),
    "broken gzip": (b"\x1f\x8b\x08\x00hello", "gzip"),
    "a plan": (b'{"format": "graphrl-plan", "version": 1}', "format"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["optimize", "convert"])
def test_bad_models(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], name: str, command: str) -> None:
    content, fault = FILES[name]
    path, output = tmp_path / "model", folder / "out.json"
    output.write_text("old")
    if content is not None:
        path.write_bytes(content)
    check_failure([command, str(path), *_output(command, output)], 1, fault, capsys)
    assert [path.read_text() for path in folder.iterdir()] == ["old"]


def _output(command: str, path: Path) -> list[str]:
    return [str(path)] if command == "convert" else ["--output", str(path)]


def test_a_directory_as_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(["optimize", str(tmp_path)], 1, "directory", capsys)


@pytest.fixture
def protected() -> Iterator[Path]:
    """A folder with files that may not be read or written, even if the tests run as root (who may all)."""
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
            os.setresuid(65534, 65534, 0)  # nobody; the saved id lets us come back
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
        (["--output", "{model}"], 2, "is the model itself"),
        (["--output", "{out}/a", "--trace", "{out}/../out/a"], 2, "is the file of --output already"),
        (["--output", ""], 1, "cannot write"),
        (["--output", "{model}/plan.json"], 1, "cannot write"),
        (["--trace", "{out}"], 1, "is a directory"),
        (["--plot", "{out}"], 1, "is a directory"),
        (["--plot", "{out}/plan.doc"], 1, "its ending must be one of"),
        (["--plot", "{out}/plan"], 1, "its ending must be one of"),
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


def test_convert_does_not_replace_its_input(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(["convert", model, model], 2, "the model itself", capsys)


@pytest.mark.parametrize("name", ["graph.onnx", "graph.hlo.txt", "graph.stg.gz", "graph.png"])
def test_json_is_not_written_under_the_name_of_another_format(
    model: str, folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (folder / name).write_bytes(b"old")
    check_failure(["convert", model, str(folder / name)], 2, "must not end in", capsys)
    check_failure(["optimize", model, "--output", str(folder / name)], 2, "must not end in", capsys)
    runs = ["compare", model, "--methods", "list", "--output", str(folder / name)]
    check_failure(runs, 2, "but in .jsonl", capsys)
    assert (folder / name).read_bytes() == b"old"
    for free in ("graph", "graph.v2", "graph.txt"):
        assert main(["convert", model, str(folder / free)]) == 0
        assert read_graph(folder / free) == TINY


def test_standard_output_as_a_file_that_is_appended_to(model: str, folder: Path) -> None:
    log = folder / "log"
    log.write_text("before\n")
    command = [sys.executable, "-m", "graphrl", "convert", model, "/dev/stdout"]
    with log.open("a") as file:
        subprocess.run(command, stdout=file, check=True)
    lines = log.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1].startswith("/dev/stdout: graph 'tiny'")
    assert json.loads("".join(lines[1:-1]))["name"] == "tiny"


def test_a_comparison_without_a_plan_shows_no_bound(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", model, "--methods", "xla", "--devices", "2"]) == 1
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith("graphrl: error: no run gave a plan: method 'xla' orders the ops of one")
    assert next(line for line in out.splitlines() if "tiny" in line).split() == ["tiny", "4", "-", "-", "-"]


@pytest.mark.parametrize("arguments", [[], ["dance"], ["--loud"], ["optimize", "--help=x"]])
def test_bad_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(arguments, 2, "error", capsys)


def replace_optimize(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Plan]) -> None:

    monkeypatch.setattr(sys.modules["graphrl.commands.optimize"], "optimize", function)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (MemoryError(), "out of memory"),
        (KeyboardInterrupt(), "interrupted before"),
        (OSError(28, "No space left on device"), "No space left"),
    ],
)
def test_failures_of_the_machine(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, fault: str
) -> None:
    def fail(*_: Any, **__: Any) -> Plan:
        raise error

    replace_optimize(monkeypatch, fail)
    check_failure(["optimize", model], 1, fault, capsys)


def test_a_device_error_is_one_line(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import jax

    def fail(*_: Any, **__: Any) -> Plan:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nstack")

    replace_optimize(monkeypatch, fail)
    check_failure(["optimize", model], 1, "RESOURCE_EXHAUSTED", capsys)


def test_a_mistake_of_ours_keeps_its_traceback(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Plan:
        raise RuntimeError("a bug")

    replace_optimize(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["optimize", model])


def test_a_plan_that_cannot_be_written_is_rescued(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import graphrl

    def vanish(*args: Any, **options: Any) -> Plan:
        folder.rmdir()
        return graphrl.optimize(*args, **options)

    replace_optimize(monkeypatch, vanish)
    monkeypatch.setenv("TMPDIR", str(folder.parent))
    monkeypatch.setattr("tempfile.tempdir", None)
    check_failure(["optimize", model, "--method", "list", "--output", str(folder / "x")], 1, "; the plan is in", capsys)
    (saved,) = folder.parent.glob("graphrl-*/plan.json")
    Plan.load(saved).check(TINY)


# Stopping early and pipes


def test_ctrl_c_writes_the_best_plan(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import graphrl

    def stop(*args: Any, **options: Any) -> Plan:
        raise Interrupted(graphrl.optimize(*args, **{**options, "method": "list"}))

    replace_optimize(monkeypatch, stop)
    path = folder / "plan.json"
    assert main(["optimize", model, "--output", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["interrupted"] is True
    Plan.load(path).check(TINY)
    assert main(["optimize", model]) == 0
    assert "interrupted" in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_in_a_real_search(tmp_path: Path) -> None:
    ops = [Op(f"op{i}", "x", 1.0, (f"t{i // 2}",) if i else (), (Tensor(f"t{i + 1}", i % 7),)) for i in range(300)]
    graph = ComputationGraph("tree", (Op("root", outputs=(Tensor("t0", 1),)), *ops))
    write_json(graph, tmp_path / "g.json")
    command = [sys.executable, "-m", "graphrl", "optimize", str(tmp_path / "g.json"), "--seconds", "300", "--json"]
    command += ["--devices", "2", "--output", str(tmp_path / "plan.json"), "--method", "brkga"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(20)  # compiled by then
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["interrupted"] is True
    Plan.load(tmp_path / "plan.json").check(graph)


def test_after_ctrl_c_the_exit_code_is_ours() -> None:
    """Whatever happens while Python takes down what was interrupted: JAX crashes if it was compiling."""
    code = """
import atexit, os, signal, sys
from graphrl import cli
def run(arguments):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("shown")
    return 1
atexit.register(os.abort)
cli._run = run
sys.exit(cli.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "shown\n", "")


def test_a_reader_that_leaves_is_no_traceback(model: str) -> None:
    command = [sys.executable, "-m", "graphrl", "optimize", model, "--method", "list", "--json"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


# Units and progress


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("16GiB", 16 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("2 kib", 2048),
        ("0", 0),
        ("1e3", 1000),
        (".5MiB", 2**19),
    ],
)
def test_parse_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


def test_parse_rates_and_times() -> None:
    assert [parse_rate(text) for text in ("1.5GB/s", "inf", "2GiB/s", "7")] == [1.5e9, float("inf"), 2**31, 7]
    assert [parse_seconds(text) for text in ("10us", "0.5", "3 ms", "2min", "1h")] == [1e-5, 0.5, 3e-3, 120, 3600]


def test_format() -> None:
    assert [format_bytes(value) for value in (0, 12, 1023, 1536, 10 * 2**20, 2**40)] == [
        "0 B",
        "12 B",
        "1023 B",
        "1.50 KiB",
        "10.0 MiB",
        "1.00 TiB",
    ]
    assert [format_seconds(value) for value in (0, 7, 1.25e-3, 4e-7, 3600)] == [
        "0 s",
        "7.00 s",
        "1.25 ms",
        "400 ns",
        "3600 s",
    ]
    assert byte_unit(0) == (1, "B")
    assert byte_unit(2**62) == (2.0**60, "EiB")


def test_share_of_the_budget() -> None:
    assert share_spent(Budget(100, 10.0), 50, 1.0) == 0.5
    assert share_spent(Budget(100, 10.0), 1, 9.0) == 0.9
    assert share_spent(Budget(None, 1.0), 10, 2.0) == 1.0


@pytest.mark.parametrize("limit", [None, 11, 12])
def test_progress_bar_on_a_terminal(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    problem = Problem("makespan", memory_limit=limit)
    plan = Plan.from_order(TINY, problem, [0] * 4, [0, 2, 1, 3], method="m", seconds=0, evaluations=1, seed=0)
    with progress_bar("[bold]tiny", problem, Budget(100)) as progress:
        assert progress is not None
        progress(50, 1.0, lambda: plan, 7.0)
        time.sleep(0.3)  # the bar is drawn ten times a second
    assert "[bold]tiny" in shown.getvalue()
    assert "50 evaluations" in shown.getvalue()
    assert ("1 B above the limit" if limit == 11 else "best 7.00 s") in shown.getvalue()


def test_no_progress_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("tiny", Problem(), Budget(100)) as progress:
        assert progress is None
