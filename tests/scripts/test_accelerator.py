"""scripts/accelerator.py on the CPU: rows, page, limits, missing packages, wheels and wrong usage."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerator
import pytest
from processes import PACKAGE, ROOT, run_script
from reproduce.accelerator.job import Job, measure
from reproduce.accelerator.page import page_text, write_curves

SCRIPT = ROOT / "scripts" / "accelerator.py"
# Packages that a machine with jax, flax, optax, chex and numba may lack.
ABSENT = (
    *("ortools", "dask", "distributed", "pymetis", "tensorboardX", "psutil", "onnx", "orbax", "msgspec"),
    *("flashbax", "jraph"),
)
REFUSE = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Refuse())
"""


PARTS = """
import json, sys, time
from reproduce.accelerator.job import Job, faults, measure
def write(row):
    print(json.dumps({"section": section, "part": part, **row}))
    if row.get("agent"):
        sys.exit()  # it trains
for section, _, part in (name.partition(":") for name in sys.argv[1:]):
    with faults(write):
        measure(Job(section, part, "cpu", time.time() + 60, True, 0), write)
"""


def refused(folder: Path, packages: Sequence[str] = ABSENT) -> dict[str, str]:
    """The environment of processes in which packages are refused."""
    (folder / "refuse").mkdir()
    (folder / "refuse" / "sitecustomize.py").write_text(REFUSE.replace("ABSENT", repr(packages)))
    folders = folder / "refuse", PACKAGE, ROOT / "scripts"
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}


def run_accelerator(
    folder: Path, *options: str, seconds: int, environment: dict[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]], str]:
    """Runs the script on the CPU at a small size; returns its result, its rows and its page."""
    page = folder / "page.md"
    command = [sys.executable, str(SCRIPT), "--platform", "cpu", "--seconds", str(seconds), "--output", str(page)]
    environment = environment or os.environ | {"PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    lines = [line.removeprefix("accelerator: ") for line in done.stderr.splitlines()]
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return done, rows, page.read_text() if page.exists() else ""


class Enough(BaseException):
    """Raised once a test has enough rows."""


def measured_here(section: str, part: str = "", most: int = 1000) -> list[dict[str, Any]]:
    """The rows of a part, measured in this process without errors; the part ends after `most` rows."""
    rows: list[dict[str, Any]] = []

    def write(row: dict[str, Any]) -> None:
        rows.append(row)
        if len(rows) == most:
            raise Enough

    with contextlib.suppress(Enough):
        measure(Job(section, part, "cpu", time.time() + 60, True, 0), write)
    assert not [row for row in rows if "fault" in row]
    return [{"section": section, **row} for row in rows]


def page_of(rows: list[dict[str, Any]], *parts: str, picture: str = "") -> str:
    return page_text(rows, Namespace(seed=0, parts=parts, platform="cpu", small=True), picture)


def test_costs_and_searches_need_few_packages(tmp_path: Path) -> None:
    options = "--sections", "costs,search", "--seed", "3"
    done, rows, page = run_accelerator(tmp_path, *options, seconds=120, environment=refused(tmp_path))
    assert (done.returncode, [row for row in rows if "fault" in row or "cut" in row]) == (0, [])
    differences = [row["difference"] for row in rows if "difference" in row]
    assert len(differences) == 5
    assert max(differences) < 1e-6
    assert [row["evaluations_per_s"] > 0 for row in rows if "work" in row] == [True, True]
    title, _, summary, _, head, *_ = page.splitlines()
    assert title == "# graphrl on a CPU, small sizes"
    assert head.startswith("Command: `python scripts/accelerator.py --platform cpu --seconds 120 --output")
    assert ". Seed: 3. Hardware: " in head
    assert summary.startswith("**No GPU has been measured yet.**")
    assert "| BRKGA, makespan | 32 | 8 |" in page
    assert "| **no** |" not in page


@pytest.mark.slow
def test_rollouts_and_the_same_on_the_cpu() -> None:
    rows = measured_here("rollouts")
    assert {row["env"] for row in rows} == {"Proposal-v0", "Ordering-v0", "Compile-v0", "MemoryMap-v0"}
    assert {row["envs"] for row in rows} == {64}
    assert [row["rollouts_per_s"] > 0 for row in rows] == [True] * 4
    ordering = next(row for row in rows if row["env"] == "Ordering-v0")
    assert ordering["steps_per_s"] == pytest.approx(ordering["n"] * ordering["rollouts_per_s"])
    page = page_of([*rows, *({**row, "section": "cpu"} for row in rows)], "rollouts", "cpu")
    assert page.count("| Ordering-v0 | 32 |") == 2
    assert page.count(" | 1 |\n") == 4  # the rate of the one over that of the other


@pytest.mark.slow
def test_training_has_a_curve(tmp_path: Path) -> None:
    rows = measured_here("training", "egrl", most=2)
    looks = [row["step"] for row in rows]
    assert looks[0] == 0 < looks[-1]
    assert write_curves(rows, tmp_path / "page.png")
    page = page_of(rows, "training:egrl", picture="page.png")
    lines = re.findall(r"\| egrl \| [\d,]+ \| \d+ \| \d+ \| [\d.e+]+ \| speedup \| [\d.]+ \|", page)
    assert len(lines) == len(looks) == 2
    assert "![Learning curves](page.png)" in page
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_rows_name_the_packages_that_are_missing(tmp_path: Path) -> None:
    """Only jraph is missing, and only where it is needed; msgspec, which reads settings, is there."""
    parts = ["rollouts", *(f"training:{agent}" for agent in ("regal", "go", "egrl", "topoformer"))]
    environment = refused(tmp_path, [name for name in ABSENT if name != "msgspec"])
    done = subprocess.run(
        [sys.executable, "-c", PARTS, *parts], env=environment, capture_output=True, text=True, check=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    missing = {row.get("env") or row["part"]: row["missing"] for row in rows if "missing" in row}
    assert missing == dict.fromkeys(("regal", "go", "egrl", "Proposal-v0", "Compile-v0"), "jraph")
    assert len([row for row in rows if "fault" in row]) == len(missing)
    assert [row["step"] for row in rows if row.get("agent") == "topoformer"][:1] == [0]
    assert "- Proposal-v0: the package jraph is missing: --wheels" in page_of(rows, "rollouts")


def test_a_section_that_is_cut_says_so(tmp_path: Path) -> None:
    done, rows, page = run_accelerator(tmp_path, "--sections", "search,costs", seconds=2)
    assert done.returncode == 0
    assert any("cut at its limit of" in row.get("cut", "") for row in rows)
    assert "cut at its limit of" in page


def test_wheels_come_first(tmp_path: Path) -> None:
    """Processes import a wheel's package: here a jraph that raises."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "jraph-9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("jraph/__init__.py", "raise ModuleNotFoundError('of the wheel', name='of_the_wheel')")
    _, rows, _ = run_accelerator(tmp_path, "--sections", "training:regal", "--wheels", str(wheels), seconds=20)
    assert {row["missing"] for row in rows if "missing" in row} == {"of_the_wheel"}


USAGE = {
    "--sections costs,cots": "unknown section 'cots': known are costs, rollouts, search, training, cpu, tr",
    "--sections=": "unknown section ''",
    "--platform abacus": "invalid choice: 'abacus'",
    "--seconds 0": "--seconds 0: must be from 1 to 86,400",
    "--seconds nan": "--seconds nan: must be",
    "--seed -1": "--seed -1: must be from 0",
    "--output=--": "argument --output: '--' is no value",
    "--output page.txt": "must be a file that ends in .md",
    "--wheels .": "must be a folder with files that end in .whl",
    "--wheels nowhere": "must be a folder with files that end in .whl",
    "--wheels broken": "a.whl is no wheel",
    "--second 3": "unrecognized arguments",
}


def test_wrong_usage_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.whl").write_text("no")
    for options, fault in USAGE.items():
        monkeypatch.setattr(sys, "argv", ["accelerator.py", *options.split()])
        with pytest.raises(SystemExit) as end:
            accelerator.main()
        assert (end.value.code, fault in capsys.readouterr().err.splitlines()[-1]) == (2, True), options
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_no_such_accelerator(tmp_path: Path) -> None:
    done = run_script("accelerator", tmp_path, "--platform", "tpu", "--seconds", "60", "--output", "page.md")
    assert done.returncode == 1
    assert "jax finds no tpu here" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "page.md").exists()
