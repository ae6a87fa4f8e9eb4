"""Comparisons: the file from which a run continues, and the forecast."""

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from comparison_rows import read_rows
from comparison_runs import chain, diamond, replace_solver, runs_of
from processes import environment

from graphrl.commands.progress import Forecast
from graphrl.compare.comparison import RUNS, compare, open_store
from graphrl.compare.table import summarise
from graphrl.errors import GraphrlError
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.rules.simple import solve_given

# The file


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert compare(runs_of("given", seeds=2), path).new == 4
    again = compare(runs_of("list", "given", seeds=2), path)
    assert (again.new, len(again.rows), again.others) == (4, 8, [])
    assert [row.method for row in again.rows] == ["list", "list", "given", "given"] * 2
    changed = compare(runs_of("given", graphs=(diamond(runtime=9), chain(5))), path)
    assert (changed.new, len(changed.others)) == (1, 7)
    assert len(read_rows(path)) == 9


def test_failures_are_run_again_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    with monkeypatch.context() as patch:
        replace_solver(patch, lambda *_: 1 / 0)  # type: ignore[arg-type]
        compare(runs_of("given"), path)
    assert compare(runs_of("given"), path).new == 0
    retried = compare(runs_of("given"), path, retry=True)
    assert (retried.new, [row.error for row in retried.rows]) == (2, [None, None])
    assert [row.error for row in read_rows(path)] == [None, None]


def test_every_cut_of_the_last_line_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    rows = compare(runs_of("given", "list"), path).rows
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in (start, start + 1, start + 9, start + 40, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with open_store(path, RUNS) as store:
            stored = list(store.rows.values())
            if len(stored) < 4:
                assert stored == rows[:3]
                store.append(rows[3])
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hello", "line 1: it is no JSON"),
        ('{"format": "graphrl-plan", "version": 1}', "line 1: not a run"),
        ('{"format": "graphrl-run", "version": 7}\n', "version is 7"),
        ('{"format": "graphrl-run", "version": 1}\n', "missing"),
        ('{"format": "graphrl-ru\n{}\n', "line 1: it is no JSON"),
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "precious.txt"
    path.write_text(text)
    with pytest.raises(GraphrlError, match=fault):
        compare(runs_of("given"), path)
    assert path.read_text() == text


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with open_store(path, RUNS), pytest.raises(GraphrlError, match="another comparison"):
        compare(runs_of("given"), path)
    with pytest.raises(GraphrlError, match="regular file"):
        compare(runs_of("given"), tmp_path)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(task: Task) -> Plan:
        if task.graph.name != "diamond":
            raise KeyboardInterrupt
        return solve_given(task)

    path = tmp_path / "runs.jsonl"
    with monkeypatch.context() as patch:
        replace_solver(patch, stop)
        comparison = compare(runs_of("given"), path)
    assert (comparison.interrupted, len(comparison.rows)) == (True, 1)
    assert compare(runs_of("given"), path).new == 1


SLOW = """
import sys, time
import graphrl.compare.runs as execute
from graphrl.compare.comparison import compare
from comparison_runs import runs_of
from graphrl.solvers.rules.simple import solve_given

def slow(task):
    time.sleep(0.05)
    return solve_given(task)

execute.find_solver = lambda name: slow
compare(runs_of("given", "list", seeds=20), sys.argv[1])
"""


def test_a_killed_comparison_continues(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(path)], env=environment())
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < 5:
            assert process.poll() is None, "the comparison ended by itself"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = read_rows(path)
    path.write_bytes(path.read_bytes() + b'{"format": "graphrl-run", "ver')  # as if it had been writing
    assert 5 <= len(before) < 80
    resumed = compare(runs_of("given", "list", seeds=20), path)
    assert resumed.new == 80 - len(before)
    assert [row for row in resumed.rows if row in before] == before
    straight = summarise(compare(runs_of("given", "list", seeds=20)).rows)
    for ours, theirs in zip(summarise(resumed.rows), straight, strict=True):
        same_clock = dataclasses.replace(ours, seconds=theirs.seconds, compile_share=theirs.compile_share)
        assert same_clock == theirs


def test_the_forecast_learns() -> None:
    runs = runs_of("given", "list", seeds=2, seconds=10)
    forecast = Forecast(runs, 2)
    assert forecast.seconds_left() == pytest.approx(8 * 10 / 2)
    row = compare(runs[:1]).rows[0]
    forecast.add(dataclasses.replace(row, seconds=64.0, compile_seconds=60.0))  # compiles, unlike the others
    assert forecast.seconds_left() == pytest.approx((3 * 4 + 4 * 10) / 2)
    forecast.add(dataclasses.replace(row, seconds=8.0))
    assert forecast.seconds_left() == pytest.approx((2 * 6 + 4 * 10) / 2)
