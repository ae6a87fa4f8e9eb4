"""The script of the tables: what it writes, that it goes on where it was, and its faults."""

import re
import subprocess
from pathlib import Path

from comparison_rows import read_rows
from processes import check_fault, run_script


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script("reproduce_opponents", folder, "--out", "out", *arguments)


def test_tables_and_pictures(tmp_path: Path) -> None:
    options = ("--quick", "--sections", "dags,layered", "--methods", "list")
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    names = {f"dags-{transfer}-{devices}" for transfer in ("free", "rendezvous", "link") for devices in (2, 4)}
    pictures = {f"{name}.png" for name in (*names, "layered-30", "layered-40")}
    texts = "opponents-dags.md", "opponents-layered.md"
    assert {path.name for path in out.iterdir()} == {"runs.jsonl", *texts, *pictures}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    dags = (out / "opponents-dags.md").read_text()
    assert dags.count("\n## Random DAGs: makespan on ") == 6
    assert "| method | 0.2 s | 0.5 s | worst | to bound | optimal | won or tied | seconds | failed |" in dags
    assert "| list | 0.00% | 0.00% | 0.00% |" in dags  # the best known, as there is no other
    title, _, origin, *_ = dags.splitlines()
    assert title == "# Makespan of random DAGs"
    command = " ".join(("python scripts/reproduce_opponents.py --out out", *options))
    assert re.fullmatch(rf"Command: `{command}`\. Seed: 0\. Hardware: .*\. Versions: .*\. Date: \d+-\d+-\d+\.", origin)
    rows = read_rows(out / "runs.jsonl")
    assert len(rows) == 2 * 2 * (6 + 2)  # graphs, times, tables
    assert run(tmp_path, *options).returncode == 0
    assert read_rows(out / "runs.jsonl") == rows


def test_faults_are_one_line(tmp_path: Path) -> None:
    for arguments, fault in (
        (("--sections", "dogs"), "unknown section 'dogs'"),
        (("--sections", "dags", "--methods", "list,cats"), "unknown method 'cats': known are auto, list, hlfet"),
        (("--sections", "dags,layered", "--methods", "inductor"), "none of --methods takes part"),
        (("--sections", "dags", "--times", "soon"), "argument --times: soon: must be numbers of seconds"),
    ):
        check_fault(run(tmp_path, *arguments), fault)
