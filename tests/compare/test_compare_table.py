"""Comparisons in numbers: summaries, gaps, ties, contradictions, and their Markdown; and in pictures."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from comparison_rows import MEMORY, ROWS, read_again, row
from scipy.stats import ttest_1samp

from graphrl.compare.pictures import histogram_figure, quality_figure
from graphrl.compare.report import HEADINGS, as_dict, cells, markdown, notes, percent, values_by_graph
from graphrl.compare.runs import Row
from graphrl.compare.table import best_known, contradictions, estimate, gap, improvements, summarise
from graphrl.plan.plot import write_figure


def test_arithmetic() -> None:
    a, b = summarise(ROWS)
    assert (a.method, a.graphs, a.runs, a.failed) == ("a", 2, 4, 0)
    assert a.mean_gap == pytest.approx(((0 + 0.2) / 2 + (0.2 + 0.4) / 2) / 2)
    assert a.worst_gap == pytest.approx(0.4)
    assert a.bound_gap == pytest.approx(((0.25 + 0.5) / 2 + (0.2 + 0.4) / 2) / 2)
    assert a.seconds == pytest.approx((2 + 2) / 2)
    assert a.compile_share == pytest.approx(1 / 8)
    assert a.value == pytest.approx(math.sqrt(110 * 65))
    assert a.optimal == 0
    assert b.mean_gap == pytest.approx((0.1 + 0.02) / 2)
    assert b.bound_gap == pytest.approx((30 / 80 + 0.02) / 2)
    assert b.optimal == 0.25  # 50 on h is the bound
    # means over seeds: g is tied at 110, h is b's
    assert (a.won, a.won_or_tied, b.won, b.won_or_tied) == (0, 0.5, 0.5, 1.0)
    assert cells(b) == ["b", "6.00%", "10.0%", "19.8%", "25%", "50%", "100%", "5", ""]


def test_graphs_weigh_the_same_whatever_the_number_of_their_runs() -> None:
    (summary,) = summarise([row("g", "a", 10), *(row("h", "a", 10 + seed, seed=seed) for seed in range(3))])
    assert summary.mean_gap == pytest.approx((0 + (0 + 0.1 + 0.2) / 3) / 2)


def test_previous_rows_give_the_best_known_only() -> None:
    others = [row("g", "c", 90, bound=85), row("h", "c", 55, bound=45), row("elsewhere", "c", 1)]
    assert best_known([*ROWS, *others])[("g", MEMORY)] == (90, 85)
    a, _ = summarise(ROWS, others)
    assert a.mean_gap == pytest.approx(((100 / 90 + 120 / 90) / 2 - 1 + 0.3) / 2)
    assert (a.graphs, a.won_or_tied) == (2, 0.5)


def test_problems_are_apart() -> None:
    rows = [row("g", "a", 7), row("g", "a", 3.5, objective="makespan")]
    assert [best.value for best in best_known(rows).values()] == [7, 3.5]


def test_failures_and_plans_above_the_limit_count_as_neither_good_nor_won() -> None:
    rows = [
        row("g", "a", None),
        row("g", "a", 5, seed=1),
        row("g", "b", 10),
        row("g", "b", 10, seed=1),
        row("g", "c", 1, excess=3),
        row("g", "c", 1, seed=1, excess=3),
    ]
    a, b, c = summarise(rows)
    assert [summary.failed for summary in (a, b, c)] == [1, 0, 2]
    assert (a.mean_gap, b.mean_gap, c.mean_gap) == (0, 1, None)  # 5 is the best known value, 1 is over the limit
    assert [summary.won for summary in (a, b, c)] == [0, 1, 0]
    assert (a.value, c.seconds) == (None, None)
    assert b.value == pytest.approx(10)
    assert cells(c) == ["c", "-", "-", "-", "0%", "0%", "0%", "-", "2 of 2"]
    lines = notes(rows, [a, b, c])
    assert lines == ["a: it broke", "c: 2 plans above the memory limit"]
    assert improvements(rows, "a", "b") == []


def test_ties() -> None:
    exact = summarise([row("g", "a", 2**40), row("g", "b", 2**40 + 1), row("g", "c", 2**40)])
    assert [(one.won, one.won_or_tied) for one in exact] == [(0, 1), (0, 0), (0, 1)]
    seconds = summarise(
        [row("g", "a", 0.1 + 0.2, objective="makespan"), row("g", "b", 0.3, objective="makespan", bound=0.3)]
    )
    assert [(one.won, one.won_or_tied, one.optimal) for one in seconds] == [(0, 1, 1), (0, 1, 1)]
    alone = summarise([row("g", "a", 4)])
    assert [(one.won, one.won_or_tied) for one in alone] == [(1, 1)]


def test_gaps_of_nothing() -> None:
    assert (gap(0, 0), gap(1, 0), gap(3, 2)) == (0, math.inf, 0.5)
    summaries = summarise([row("g", "a", 0), row("g", "b", 2)])
    assert [one.mean_gap for one in summaries] == [0, math.inf]
    assert [one.value for one in summaries] == [None, pytest.approx(2)]
    assert percent(math.inf) == "inf"
    json.dumps(as_dict([row("g", "a", 0), row("g", "b", 2)]), allow_nan=False)


def test_improvements() -> None:
    assert improvements(ROWS, "b", "a") == pytest.approx([0, 1 - 51 / 65])
    assert improvements(ROWS, "a", "b") == pytest.approx([0, 1 - 65 / 51])
    assert improvements(ROWS, "a", "nobody") == []


def test_contradictions_are_noted() -> None:
    rows = [row("g", "a", 10), row("g", "b", 12, bound=11)]
    assert contradictions(rows) == [("g", MEMORY)]
    assert contradictions(ROWS) == []
    assert "a value of g is below its lower bound" in notes(rows, summarise(rows))[0]
    close = [row("g", "a", 0.3, objective="makespan", bound=0.1 + 0.2)]
    assert contradictions(close) == []


def test_notes_on_compiling_and_machines() -> None:
    (summary, _) = summarise(ROWS)
    assert notes(ROWS, [summary]) == ["a: 12% of its time was compilation"]
    other = read_again({**ROWS[2].to_dict(), "machine": "slide rule"})
    assert "abacus, 1 cores; slide rule, 1 cores" in notes([*ROWS, other], [])[0]


def test_markdown() -> None:
    text = markdown(HEADINGS, [cells(summary) for summary in summarise(ROWS)])
    lines = text.splitlines()
    assert lines[0] == "| method | mean gap | worst gap | to bound | optimal | won | won or tied | seconds | failed |"
    assert lines[1] == "| --- " + "| ---: " * 8 + "|"
    assert lines[3].startswith("| b | 6.00% | 10.0% |")
    assert markdown(["x"], [["a|b"]]).splitlines()[2] == r"| a\|b |"


def test_values_by_graph() -> None:
    headings, lines = values_by_graph(ROWS)
    assert headings == ["graph", "ops", "a", "b", "best known", "bound"]
    assert lines == [["g", "4", "110 B", "110 B", "100 B", "80 B"], ["h", "4", "65 B", "51 B", "50 B", "50 B"]]


@pytest.mark.parametrize("count", [2, 16])
def test_intervals_are_those_of_students_t_however_many_values_there_are(count: int) -> None:
    values = np.random.default_rng(count).normal(0.1, 0.05, count)
    low, high = ttest_1samp(values, 0.0).confidence_interval(0.95)
    interval = estimate(values.tolist())
    assert interval.half is not None
    assert (interval.mean - interval.half, interval.mean + interval.half) == pytest.approx((low, high))


def test_estimates_of_one_value_and_of_no_value() -> None:
    assert estimate([0.5]) == (0.5, None)
    assert math.isnan(estimate([]).mean)
    assert estimate([0.01, 0.03]).percent(True) == "+2.00% ± 12.71"


# Pictures


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], [row("g", "a", None)], [row("g", "a$", 0), row("g", "_b^", 3)]])
def test_pictures_of_anything(rows: list[Row], tmp_path: Path) -> None:
    budgets = [*rows, *(read_again({**one.to_dict(), "budget": {"evaluations": 9, "seconds": None}}) for one in rows)]
    for number, figure in enumerate((quality_figure(budgets), histogram_figure(rows, rows[0].method))):
        write_figure(figure, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


def test_every_method_looks_different() -> None:
    rows = [row("g", f"m{i}", 4 + i) for i in range(30)]
    lines = quality_figure(rows).axes[0].get_lines()
    curves, markers = lines[::2], lines[1::2]
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 30
    assert len({(line.get_color(), line.get_marker()) for line in markers}) == 30


def test_every_panel_of_the_histogram_has_its_ticks() -> None:
    """A panel with nothing below it in its column is not the last of the grid."""
    rows = [row("g", method, 4) for method in "abcdefgh"]
    figure = histogram_figure(rows, "a")
    figure.draw_without_rendering()
    for axes in (axes for axes in figure.axes if axes.get_visible()):
        assert any(label.get_text() and label.get_visible() for label in axes.get_xticklabels())
        assert axes.get_title().endswith("100.0%, +0.0% to +0.0%")
