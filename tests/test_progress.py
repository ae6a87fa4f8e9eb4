"""Sizes and times as text, and the bar that shows progress."""

import io
import sys
import time

import pytest
from worked_example import TINY

from graphrl.commands.progress import progress_bar, share_spent
from graphrl.costs.problem import Problem
from graphrl.plan import Plan
from graphrl.solvers.base import Budget
from graphrl.units import (
    byte_unit,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("16GiB", 16 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("2 kib", 2048),
        ("0", 0),
        ("1e3", 1000),
        (".5MiB", 2**19),
    ],
)
def test_parse_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


def test_parse_rates_and_times() -> None:
    assert [parse_rate(text) for text in ("1.5GB/s", "inf", "2GiB/s", "7")] == [1.5e9, float("inf"), 2**31, 7]
    assert [parse_seconds(text) for text in ("10us", "0.5", "3 ms", "2min", "1h")] == [1e-5, 0.5, 3e-3, 120, 3600]


def test_format() -> None:
    assert [format_bytes(value) for value in (0, 12, 1023, 1536, 10 * 2**20, 2**40)] == [
        "0 B",
        "12 B",
        "1023 B",
        "1.50 KiB",
        "10.0 MiB",
        "1.00 TiB",
    ]
    assert [format_seconds(value) for value in (0, 7, 1.25e-3, 4e-7, 3600)] == [
        "0 s",
        "7.00 s",
        "1.25 ms",
        "400 ns",
        "3600 s",
    ]
    assert byte_unit(0) == (1, "B")
    assert byte_unit(2**62) == (2.0**60, "EiB")


def test_share_of_the_budget() -> None:
    assert share_spent(Budget(100, 10.0), 50, 1.0) == 0.5
    assert share_spent(Budget(100, 10.0), 1, 9.0) == 0.9
    assert share_spent(Budget(None, 1.0), 10, 2.0) == 1.0


@pytest.mark.parametrize("limit", [None, 11, 12])
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
