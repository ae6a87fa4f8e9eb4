"""The script of the tables on shardings, on a small problem in the place of the contest's."""

from pathlib import Path

import pytest
from launched import Launch, launch
from processes import check_fault
from shardings import TINY, write

__all__ = ["launch"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in "BG":
        write(folder / f"asplos-2025-iopddl-{name}.json.gz", TINY)
    return folder


def test_tables_have_a_row_for_each_instance(launch: Launch, data: Path) -> None:
    done = launch("sharding", "--quick", "--data", str(data))
    assert done.returncode == 0, done.stderr
    contest, parts, learning = (
        Path("out", f"sharding-{name}.md").read_text() for name in ("contest", "parts", "learning")
    )
    assert "2.000 points of 2, below every team's cost on 2 instances" in contest
    assert "| B " in contest
    assert "no reduction" in parts
    assert "Costs of searches with the untrained policy as guide differ by" in learning
    assert "trained policy |" not in learning.replace("untrained policy |", "")


def test_faults_are_one_line(launch: Launch, data: Path) -> None:
    check_fault(launch("sharding", "--data", "nowhere"), "is missing: download the instances of google/iopddl")
    check_fault(launch("sharding", "--data", str(data), "--instances", "Z"), "unknown instance 'Z'")
