"""The command line: failures of the machine, Ctrl-C, and closed output pipes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import psutil
import pytest
from command_line import check_failure, compiled_lists
from worked_example import TINY

import graphrl
from graphrl.cli import main
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.json import write_json
from graphrl.plan import Plan
from graphrl.solvers.base import Interrupted
from graphrl.solvers.schedules import solver as schedules

__all__ = ["compiled_lists"]


def replace_optimize(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Plan]) -> None:
    monkeypatch.setattr("graphrl.commands.optimize.optimize", function)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (MemoryError(), "out of memory"),
        (KeyboardInterrupt(), "interrupted before"),
        (OSError(28, "No space left on device"), "No space left"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nstack"), "RESOURCE_EXHAUSTED"),
    ],
)
def test_failures_of_the_machine(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, fault: str
) -> None:
    def fail(*_: Any, **__: Any) -> Plan:
        raise error

    replace_optimize(monkeypatch, fail)
    check_failure(["optimize", model], 1, fault, capsys)


def test_a_bug_keeps_its_traceback(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Plan:
        raise RuntimeError("a bug")

    replace_optimize(monkeypatch, fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["optimize", model])


def test_a_plan_that_cannot_be_written_is_saved_elsewhere(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def vanish(*args: Any, **options: Any) -> Plan:
        folder.rmdir()
        return graphrl.optimize(*args, **options)

    replace_optimize(monkeypatch, vanish)
    monkeypatch.setenv("TMPDIR", str(folder.parent))
    monkeypatch.setattr("tempfile.tempdir", None)
    check_failure(["optimize", model, "--method", "list", "--output", str(folder / "x")], 1, "; the plan is in", capsys)
    (saved,) = folder.parent.glob("graphrl-*/plan.json")
    Plan.load(saved).check(TINY)


def test_ctrl_c_writes_the_best_plan(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_a_real_search(tmp_path: Path) -> None:
    schedules.prepare(with_memory=True)  # the process loads it, and has a plan before the signal arrives
    ops = [Op(f"op{i}", "x", 1.0, (f"t{i // 2}",) if i else (), (Tensor(f"t{i + 1}", i % 7),)) for i in range(300)]
    graph = ComputationGraph("tree", (Op("root", outputs=(Tensor("t0", 1),)), *ops))
    write_json(graph, tmp_path / "g.json")
    command = [sys.executable, "-m", "graphrl", "optimize", str(tmp_path / "g.json"), "--seconds", "300", "--json"]
    command += ["--devices", "2", "--output", str(tmp_path / "plan.json"), "--method", "anneal-schedule"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while psutil.Process(process.pid).cpu_times().user < 8:  # it has a plan, however busy the machine is
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["interrupted"] is True
    Plan.load(tmp_path / "plan.json").check(graph)


@pytest.mark.usefixtures("ctrl_c")
def test_exit_code_after_ctrl_c() -> None:
    """Errors while Python shuts down do not change it: JAX crashes there if it was compiling."""
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


def test_a_closed_output_pipe_gives_no_traceback(model: str) -> None:
    command = [sys.executable, "-m", "graphrl", "optimize", model, "--method", "list", "--json"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
