"""scripts/accelerator.py on the CPU: rows, page, limits, missing packages, wheels and wrong usage."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from processes import PACKAGE, ROOT, run_script

SCRIPT = ROOT / "scripts" / "accelerator.py"
# What a machine with jax, flax, optax, chex and numba may lack.
ABSENT = (
    *("ortools", "dask", "distributed", "pymetis", "tensorboardX", "psutil", "onnx", "orbax", "msgspec"),
    *("flashbax", "jraph"),
)
REFUSE = f"""
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Refuse())
"""


def run_accelerator(
    folder: Path, *options: str, without: bool = False, seconds: int = 120
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]], str]:
    """The script on the CPU in small, its rows and its page; perhaps with packages refused, in all its processes."""
    path = [str(PACKAGE)]
    if without:
        (folder / "refuse").mkdir()
        (folder / "refuse" / "sitecustomize.py").write_text(REFUSE)
        path.insert(0, str(folder / "refuse"))
    page = folder / "page.md"
    command = [sys.executable, str(SCRIPT), "--platform", "cpu", "--seconds", str(seconds), "--output", str(page)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    lines = [line.removeprefix("accelerator: ") for line in done.stderr.splitlines()]
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return done, rows, page.read_text() if page.exists() else ""


def test_costs_and_searches(tmp_path: Path) -> None:
    done, rows, page = run_accelerator(tmp_path, "--sections", "costs,search", "--seed", "3")
    assert (done.returncode, [row for row in rows if "fault" in row or "cut" in row]) == (0, [])
    differences = [row["difference"] for row in rows if "difference" in row]
    assert len(differences) == 5
    assert max(differences) < 1e-6
    assert [row["evaluations_per_s"] > 0 for row in rows if "work" in row] == [True, True]
    title, _, head, _, says, *_ = page.splitlines()
    assert title == "# graphrl on a CPU, in small"
    assert head.startswith("Command: `python scripts/accelerator.py --platform cpu --seconds 120 --output")
    assert ". Seed: 3. Hardware: " in head
    assert says.startswith("**No GPU has been measured yet.**")
    assert "| BRKGA, makespan | 32 | 8 |" in page
    assert "| **no** |" not in page


@pytest.mark.slow
def test_rollouts_and_the_same_on_the_cpu(tmp_path: Path) -> None:
    done, rows, page = run_accelerator(tmp_path, "--sections", "rollouts,cpu")
    assert done.returncode == 0
    own, cpu = ([row for row in rows if row["section"] == name and "n" in row] for name in ("rollouts", "cpu"))
    assert {row["env"] for row in own} == {"Proposal-v0", "Ordering-v0", "Compile-v0", "MemoryMap-v0"}
    assert {row["envs"] for row in own} == {64}
    assert [row["rollouts_per_s"] > 0 for row in (*own, *cpu)] == [True] * 8
    ordering = next(row for row in own if row["env"] == "Ordering-v0")
    assert ordering["steps_per_s"] == pytest.approx(ordering["n"] * ordering["rollouts_per_s"])
    assert page.count("| Ordering-v0 | 32 |") == 2


@pytest.mark.slow
def test_training_has_a_curve(tmp_path: Path) -> None:
    done, rows, page = run_accelerator(tmp_path, "--sections", "training:egrl", seconds=40)
    assert (done.returncode, [row for row in rows if "fault" in row]) == (0, [])
    looks = [row["step"] for row in rows if "value" in row]
    assert looks[0] == 0
    assert max(row["step"] for row in rows if "step" in row) > 0
    lines = re.findall(r"\| egrl \| [\d,]+ \| \d+ \| \d+ \| [\d.e+]+ \| speedup \| [\d.]+ \|", page)
    assert len(lines) == len(looks) > 2
    assert "![Learning curves](page.png)" in page
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_rows_name_the_packages_that_are_missing(tmp_path: Path) -> None:
    """Nothing but jraph is missed, and only where it is needed."""
    sections = "training:topoformer,costs,rollouts,search,training:regal,training:go,training:egrl"
    done, rows, page = run_accelerator(tmp_path, "--sections", sections, without=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    missing = {row.get("part") or row.get("env"): row["missing"] for row in rows if "missing" in row}
    assert missing == dict.fromkeys(("regal", "go", "egrl", "Proposal-v0", "Compile-v0"), "jraph")
    assert len([row for row in rows if "fault" in row]) == len(missing)
    assert {row["section"] for row in rows if {"difference", "steps_per_s", "work"} & set(row)} >= {"costs", "rollouts"}
    assert [row["step"] for row in rows if row.get("agent") == "topoformer"][:1] == [0]
    assert "- Proposal-v0: the package jraph is missing: --wheels" in page


def test_a_section_that_is_cut_says_so(tmp_path: Path) -> None:
    done, rows, page = run_accelerator(tmp_path, "--sections", "search,costs", seconds=2)
    assert done.returncode == 0
    assert any("cut at its limit of" in row.get("cut", "") for row in rows)
    assert "cut at its limit of" in page


def test_wheels_come_first(tmp_path: Path) -> None:
    """A package of a wheel is what the processes import: here a graphrl that cannot be."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "jraph-9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("jraph/__init__.py", "raise ModuleNotFoundError('of the wheel', name='of_the_wheel')")
    _, rows, _ = run_accelerator(tmp_path, "--sections", "training:regal", "--wheels", str(wheels), seconds=20)
    assert {row["missing"] for row in rows if "missing" in row} == {"of_the_wheel"}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--sections", "costs,cots"], "unknown section 'cots': known are costs, rollouts, search, training, cpu, tr"),
        (["--sections", ""], "unknown section ''"),
        (["--platform", "abacus"], "invalid choice: 'abacus'"),
        (["--seconds", "0"], "--seconds 0: must be from 1 to 86,400"),
        (["--seconds", "nan"], "--seconds nan: must be"),
        (["--seed", "-1"], "--seed -1: must be from 0"),
        (["--output=--"], "argument --output: '--' is no value"),
        (["--output", "page.txt"], "must be a file that ends in .md"),
        (["--wheels", "."], "must be a folder with files that end in .whl"),
        (["--wheels", "nowhere"], "must be a folder with files that end in .whl"),
        (["--second", "3"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, options: list[str], fault: str) -> None:
    done = run_script("accelerator", tmp_path, *options)
    assert (done.returncode, fault in done.stderr.splitlines()[-1]) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("no")
    done = run_script("accelerator", tmp_path, "--wheels", str(tmp_path))
    assert (done.returncode, "a.whl is no wheel" in done.stderr.splitlines()[-1]) == (2, True)


def test_no_such_accelerator(tmp_path: Path) -> None:
    done = run_script("accelerator", tmp_path, "--platform", "tpu", "--seconds", "60", "--output", "page.md")
    assert done.returncode == 1
    assert "jax finds no tpu here" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "page.md").exists()
