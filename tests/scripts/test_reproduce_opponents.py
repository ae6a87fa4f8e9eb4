"""The script of the tables on other methods: its files, resumption after a stop, and its faults."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import work_apart
from comparison_rows import read_rows
from launched import Launch, launch
from processes import PACKAGE, ROOT, check_fault
from reproduce.measurements import map_in_processes

from graphrl.errors import GraphrlError

__all__ = ["launch"]


def test_tables_and_pictures(launch: Launch) -> None:
    options = ("--quick", "--sections", "dags,layered", "--methods", "list")
    done = launch("opponents", *options)
    assert done.returncode == 0, done.stderr
    out = Path("out")
    names = {f"dags-{transfer}-{devices}" for transfer in ("free", "rendezvous", "link") for devices in (2, 4)}
    pictures = {f"{name}.png" for name in (*names, "layered-30", "layered-40")}
    texts = "opponents-dags.md", "opponents-layered.md"
    assert {path.name for path in out.iterdir()} == {"runs.jsonl", *texts, *pictures}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    dags = (out / "opponents-dags.md").read_text()
    assert dags.count("\n## Random DAGs: makespan on ") == 6
    assert "| method | 0.1 s | 0.2 s | worst | to bound | optimal | won or tied | seconds | failed |" in dags
    assert "| list | 0.00% | 0.00% | 0.00% |" in dags  # the best known, as there is no other
    title, _, summary, _, origin, *_ = dags.splitlines()
    assert title == "# Makespan of random DAGs"
    assert summary == "`list` has the least mean gap to the best known after 0.2 s: 0.00%."
    assert "| `list` | 0.00% | 0.00% | 0.00% | 0.00% | 0.00% | 0.00% |" in dags
    command = " ".join(("python scripts/reproduce_opponents.py --out out", *options))
    assert re.fullmatch(rf"Command: `{command}`\. Seed: 0\. Hardware: .*\. Versions: .*\. Date: \d+-\d+-\d+\.", origin)
    rows = read_rows(out / "runs.jsonl")
    assert len(rows) == 2 * 2 * (6 + 2)  # graphs, times, tables
    assert launch("opponents", *options).returncode == 0
    assert read_rows(out / "runs.jsonl") == rows


def test_makespans_on_a_core_each(launch: Launch) -> None:
    options = ("--quick", "--sections", "optima-dags,moves,gaps")
    done = launch("opponents", *options)
    assert done.returncode == 0, done.stderr
    out = Path("out")
    optima, moves, gaps = ((out / f"opponents-{name}.md").read_text() for name in ("optima-dags", "moves", "gaps"))
    assert re.search(r"\| 12 \| 2 \| 2 \| 100% \| 100% \| 0.00% \| 0.00% \| 2 of 2 \|", optima)
    assert len(re.findall(r"\| (shift|send) \| \d+\.\d% ", moves)) == 2
    assert "| graphs | list | auto, 5,000 evaluations | auto, 0.1 s | auto, 0.2 s |" in gaps
    assert len(re.findall(r"\| (rendezvous|link) \| 2 \| \d \| ", gaps)) == 4
    assert "failed:" not in gaps
    kept = out / "measured.jsonl"
    assert "1 core" in json.loads(kept.read_text().splitlines()[0])["machine"]
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:-2]))  # as if it had been stopped
    done = launch("opponents", "--quick", "--sections", "gaps")
    assert done.stderr.count("measuring:") == 2
    assert [json.loads(line)["key"] for line in kept.read_text().splitlines()] == [
        json.loads(line)["key"] for line in lines
    ]


def test_work_apart_has_a_core_and_a_death_is_a_fault() -> None:
    done = dict(map_in_processes(work_apart.cores, [3, 1, 2], 1))
    assert done.keys() == {1, 2, 3}
    assert all(len(some) == 1 for some in done.values())
    with pytest.raises(GraphrlError, match="a process died"):
        list(map_in_processes(work_apart.die, [1, 2], 1))


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    told = tmp_path / "process"
    program = f"""
from pathlib import Path
import work_apart
from reproduce.measurements import map_in_processes
if __name__ == "__main__":
    list(map_in_processes(work_apart.stay, [Path({str(told)!r})], 1))
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    folders = os.pathsep.join([str(PACKAGE), str(ROOT / "scripts"), str(ROOT / "tests/helpers")])
    with subprocess.Popen([sys.executable, str(path)], env=os.environ | {"PYTHONPATH": folders}) as parent:
        waited(told.exists)
        parent.kill()
    process = Path("/proc") / told.read_text()
    waited(lambda: not process.exists() or "\nState:\tZ" in (process / "status").read_text())


def waited(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_faults_are_one_line(launch: Launch) -> None:
    for arguments, fault in (
        (("--sections", "dogs"), "unknown section 'dogs'"),
        (("--sections", "dags", "--methods", "list,cats"), "unknown method 'cats': "),
        (("--sections", "dags,layered", "--methods", "inductor"), "none of --methods takes part"),
        (("--sections", "dags", "--times", "soon"), "argument --times: soon: must be numbers of seconds"),
    ):
        check_fault(launch("opponents", *arguments), fault)
