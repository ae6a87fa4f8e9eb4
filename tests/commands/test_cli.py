"""The command line: results for people and machines, files, help, other commands."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import check_failure, compiled_lists
from worked_example import TINY

from graphrl.cli import COMMANDS, main
from graphrl.graphs.readers import read_graph
from graphrl.plan import Plan

__all__ = ["compiled_lists"]


def test_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", model, "--devices", "2", "--objective", "makespan", "--method", "list"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in ("tiny", "makespan", "lower bound", "rendezvous", "peak per device", "list, seed 0", "evaluations"):
        assert text in out


def test_json_is_one_object_and_files_are_written(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / name) for name in ("plan.json", "trace.json", "plan.png")]
    arguments = ["optimize", model, "--evaluations", "100", "--seed", "3", "--json"]
    assert main([*arguments, "--output", files[0], "--trace", files[1], "--plot", files[2]]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert err == ""
    assert (data["value"], data["peak_memory"], data["seed"], data["feasible"]) == (12, [12], 3, True)
    assert data["model"]["bandwidth"] is None
    assert data["bound"] <= 12
    assert data["interrupted"] is False
    assert data["written"] == files
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
        "cpus": 0,
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


def test_convert_to_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder / "graph.json")
    assert main(["convert", "zoo:resnet50/inference/b1/jaxpr", path, "--layers", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["ops"], summary["weight_bytes"]) == (57, 102_546_848)
    assert len(read_graph(path).ops) == 57


def test_a_generated_graph_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "layered:20@7", str(folder / "graph.json")]) == 0
    assert "20 ops" in capsys.readouterr().out
    assert main(["optimize", "layered:20@7", "--method", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graph"] == read_graph(folder / "graph.json").name
    for command in (["optimize", "layered:20x3"], ["convert", "layered:20x3", str(folder / "x.json")]):
        check_failure(command, 2, "names 3 graphs, where one is needed: for example layered:20@0", capsys)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)):
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert "graphrl" in out
        assert err == ""
    assert main(["--help"]) == 0
    assert re.findall(r"^  ([a-z]+) {2,}[a-z]", capsys.readouterr().out, re.MULTILINE) == [*COMMANDS]


def test_help_imports_neither_jax_nor_matplotlib() -> None:
    code = "import sys; from graphrl.cli import main; main(['--help']); main(['optimize', '--help'])"
    code += "; sys.exit(bool({'jax', 'matplotlib', 'onnx', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_methods_that_import_jax_find_compiled_programs_on_disk(folder: Path) -> None:
    code = "import sys; from graphrl.cli import main; main(['optimize', 'missing.onnx', '--method', 'go'])"
    code += "; print(sys.modules['jax'].config.jax_compilation_cache_dir)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=env | {"XDG_CACHE_HOME": str(folder)},
    )
    assert done.stdout.splitlines()[-1] == str(folder / "graphrl" / "jax")


def test_convert_does_not_replace_its_input(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(["convert", model, model], 2, "an input file", capsys)


@pytest.mark.parametrize("name", ["graph.onnx", "graph.stg.gz"])
def test_json_is_not_written_under_the_name_of_another_format(
    model: str, folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (folder / name).write_bytes(b"old")
    check_failure(["convert", model, str(folder / name)], 2, "must end in .json, not in", capsys)
    check_failure(["optimize", model, "--output", str(folder / name)], 2, "must end in .json, not in", capsys)
    runs = ["compare", model, "--methods", "list", "--output", str(folder / name)]
    check_failure(runs, 2, "must end in .jsonl", capsys)
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
