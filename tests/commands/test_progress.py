"""Sizes and times as text, and the bar that shows progress."""

import io
import re
import subprocess
import sys
import time

import pytest
from training_processes import ENVIRONMENT
from worked_example import TINY

from graphrl.commands.progress import TimeLeft, progress_bar, share_spent
from graphrl.costs.problem import Problem
from graphrl.plan import Plan
from graphrl.progress import Pace, progress_table
from graphrl.solvers.base import Budget
from graphrl.training.config import Schedule
from graphrl.training.folder import RunSettings
from graphrl.training.run import _Progress
from graphrl.units import byte_unit, format_bytes, format_seconds, parse_bytes, parse_rate, parse_seconds


def test_parse_bytes() -> None:
    texts = {"4096": 4096, "16GiB": 16 * 2**30, "1.5GB": 1_500_000_000, "2 kib": 2048, "1e3": 1000, ".5MiB": 2**19}
    assert [parse_bytes(text) for text in texts] == list(texts.values())


def test_parse_rates_and_times() -> None:
    assert [parse_rate(text) for text in ("1.5GB/s", "inf", "2GiB/s", "7")] == [1.5e9, float("inf"), 2**31, 7]
    assert [parse_seconds(text) for text in ("10us", "0.5", "3 ms", "2min", "1h")] == [1e-5, 0.5, 3e-3, 120, 3600]


def test_format() -> None:
    for value, text in (
        (0, "0 B"),
        (1536, "1.50 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (2**40, "1.00 TiB"),
    ):
        assert format_bytes(value) == text
    for seconds, text in ((0, "0 s"), (7, "7.00 s"), (1.25e-3, "1.25 ms"), (4e-7, "400 ns"), (3600, "3600 s")):
        assert format_seconds(seconds) == text
    assert byte_unit(0) == (1, "B")
    assert byte_unit(2**62) == (2.0**60, "EiB")


def test_share_of_the_budget() -> None:
    assert share_spent(Budget(100, 10.0), 50, 1.0) == 0.5
    assert share_spent(Budget(100, 10.0), 1, 9.0) == 0.9
    assert share_spent(Budget(None, 1.0), 10, 2.0) == 1.0


@pytest.mark.parametrize("limit", [None, 11])
def test_progress_bar_on_a_terminal(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    problem = Problem("makespan", memory_limit=limit)
    plan = Plan.from_order(TINY, problem, [0] * 4, [0, 2, 1, 3], method="m", seconds=0, evaluations=1, seed=0)
    with progress_bar("[bold]tiny", "makespan", Budget(100), limited=limit is not None) as progress:
        assert progress is not None
        progress(50, 1.0, lambda: plan, 7.0)
        time.sleep(0.3)  # the bar is drawn ten times a second
    assert "[bold]tiny" in shown.getvalue()
    assert "50 evaluations" in shown.getvalue()
    assert ("1 B above the limit" if limit == 11 else "best 7.00 s") in shown.getvalue()


def test_no_progress_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("tiny", "peak_memory", Budget(100)) as progress:
        assert progress is None


class Time:
    """A clock that tests set, and the part of its seconds spent on compiling."""

    def __init__(self) -> None:
        self.now = self.compiled = 0.0

    def pass_by(self, seconds: float, compiling: float = 0.0) -> None:
        self.now += seconds
        self.compiled += compiling

    def pace(self) -> Pace:
        return Pace(lambda: self.compiled, lambda: self.now)


def test_pace_is_that_of_work_without_compiling() -> None:
    time = Time()
    pace = time.pace()
    for seconds, compiling, each in ((70, 69, None), (2, 0, 2), (40, 39.9, 2), (4, 0.01, 3)):
        time.pass_by(seconds, compiling)
        pace.add("update")
        assert pace.each("update") == each
    assert pace.each("validation") is None
    time.pass_by(30)
    pace.add("validation")
    assert (pace.each("update"), pace.each("validation")) == (3, 30)


def test_time_left_of_a_training_counts_updates_and_validations_but_no_compiling() -> None:
    """A validation every 10 of 20 updates takes 20 s, an update 1 s; programs of three sizes compile."""
    time, shown = Time(), []
    schedule = Schedule(20, validate_every=10)
    observer = _Progress(schedule, time.pace(), lambda *row: shown.append(row[-1]), RunSettings("tiny", {}, "score"))
    time.pass_by(100, 80)
    observer.validation(0, {"score": 1.0})
    for step in range(1, 21):
        time.pass_by(*((61, 60) if step in (1, 2, 5) else (1, 0)))
        observer.update(step, time.now, 64, {"loss": 1.0})
        if step % 10 == 0:
            time.pass_by(20)
            observer.validation(step, {"score": 1.0})
    assert shown[:6] == ["compiling"] * 2 + ["17 s left", "16 s left", "15 s left", "14 s left"]
    assert shown[10:12] == ["29 s left", "28 s left"]
    assert shown[-1] == "20 s left"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_has_a_header_and_fixed_columns(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    with progress_table(20, text="compiling the first update", every=1000.0) as show:
        assert "compiling the first update" in shown.getvalue()
        show(9, {"env steps": "1,600", "held-out improvement": "-"}, "20 s left")
        show(10, {"env steps": "1,700", "held-out improvement": "1.2"}, "19 s left")  # too early
        show(20, {"env steps": "12,800"}, "0 s left")
    lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.getvalue()).replace("\r", "\n").splitlines()
    assert [line for line in lines if "  -  " in line or "env steps" in line] == [
        "update  env steps  held-out improvement  time left",
        "  9/20      1,600                     -  20 s",
        " 20/20     12,800                     -  0 s",
    ]


def test_time_left_of_a_search_counts_no_compiling() -> None:
    time = Time()
    left = TimeLeft(Budget(1000), time.pace())
    assert left.text(5.0) == "compiling"
    time.pass_by(60, 50)
    left.update(10)
    assert left.text(60.0) == "compiling"
    time.pass_by(10)
    left.update(110)
    assert left.text(70.0) == "89 s left"
    time.pass_by(60, 60)
    left.update(120)
    assert left.text(130.0) == "88 s left"
    assert TimeLeft(Budget(None, 10.0), time.pace()).text(4.0) == "6 s left"
    assert TimeLeft(Budget(1000, 10.0), time.pace()).text(12.0) == "0 s left"


def test_the_progress_bar_has_a_clock_of_compiling_where_evaluations_are_limited() -> None:
    """A search may import JAX only after the bar has started, as `auto` does."""
    program = """
import sys
from graphrl.commands import progress
from graphrl.solvers.base import Budget
progress.on_terminal = lambda: True
for budget, imported in ((Budget(None, 1.0), False), (Budget(100, 1.0), True)):
    with progress.progress_bar("tiny", "peak_memory", budget):
        assert ("jax" in sys.modules) == imported
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=ENVIRONMENT)
