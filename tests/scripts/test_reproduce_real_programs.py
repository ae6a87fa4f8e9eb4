"""The script of the tables on real programs: its files, resumption after a stop, and its faults."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest
from launched import Launch, launch
from processes import check_fault
from reproduce.real_programs import same_results
from reproduce.real_programs.memory import memory, prediction
from reproduce.real_programs.programs import Settings
from reproduce.real_programs.same_results import identical

from graphrl.errors import GraphrlError
from graphrl.xla.hook import why_unavailable

__all__ = ["launch"]

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))


def cells(text: str, first: str) -> list[str]:
    """The cells of the only line of a table that starts with `name`."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_section_is_written_and_goes_on_where_it_was(
    tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_results, "_QUICK", "cholesky")  # one case: the suite tests all of them
    program = "cell/training/b2"
    options = ("--quick", "--programs", program, "--methods", "list")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as scripts run
        done = launch("real_programs", *options)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    sections = (
        "memory", "prediction", "identical", "resident", "planning", "totals", "zoo", "same-results", "placement"
    )  # fmt: skip
    texts = {name: (out / f"programs-{name}.md").read_text() for name in sections}
    for text in texts.values():
        assert "failed:" not in text
        assert "| - |" not in text
        assert (
            "Command: `python scripts/reproduce_real_programs.py --out out " + " ".join(options) + "`. Seed: 0." in text
        )

    _, ops, default, less, heuristic, _, plan, bound, *_ = cells(texts["memory"], program)
    assert int(ops) > 100
    assert float(bound) <= float(plan) <= min(float(default), float(less), float(heuristic.split()[0]))
    assert "| all | 3 | 3 | " in texts["prediction"]
    assert cells(texts["identical"], program)[3:5] == ["yes", "100%"]
    resident = [line for line in texts["resident"].splitlines() if line.startswith(f"| {program} |")]
    assert len(resident) == 2
    assert all(line.endswith("| identical |") for line in resident)
    assert texts["planning"].count(f"| {program} |") == 1
    assert texts["totals"].count("| neural ODE |") == 1
    assert texts["zoo"].count(f"| {program} |") == 1
    assert cells(texts["same-results"], "all")[1:3] == ["1", "0"]
    assert texts["placement"].count(f"| {program} |") == 2  # two links

    measured = (out / "measured.jsonl").read_bytes()
    (out / "measured.jsonl").write_bytes(measured + b'{"key": {"wh')  # a kill
    settings = Settings(out=out, quick=True, programs=(program,), times=(0.2, 0.5))
    for make in (memory, prediction, identical):
        assert all(table.text in texts[make.__name__] for table in make(settings))
    assert (out / "measured.jsonl").read_bytes() == measured


def test_what_failed_is_noted_and_made_again_when_asked(tmp_path: Path) -> None:
    key = {"what": "temporaries", "program": "cell/inference/b3", "schedule": "memory"}
    failed = {"key": key, "value": None, "error": "OSError: gone", "machine": "m", "graphrl": "0", "jax": "0"}
    (tmp_path / "measured.jsonl").write_text(json.dumps(failed | {"date": "2026-01-01T00:00:00"}) + "\n")
    settings = Settings(out=tmp_path, programs=("cell/inference/b3",), times=(0.2, 0.5))
    (table,) = memory(settings)
    assert "XLA memory |" not in table.text  # a column without figures
    assert "- failed: temporaries cell/inference/b3 memory: OSError: gone\n" in table.text
    (table,) = memory(dataclasses.replace(settings, retry=True))
    assert float(cells(table.text, "cell/inference/b3")[-4].rstrip("%")) <= 100
    assert "failed:" not in table.text


def test_faults_are_one_line(tmp_path: Path, launch: Launch) -> None:
    with pytest.raises(GraphrlError, match="program 'cell/other/b3': must be as in "):
        Settings(programs=("cell/other/b3",)).check()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "measured.jsonl").write_text("[1]\n")
    check_fault(launch("real_programs", "--sections", "memory"), "out/measured.jsonl, line 1: it is no measurement")
