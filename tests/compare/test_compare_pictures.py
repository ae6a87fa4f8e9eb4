"""Pictures of comparisons."""

from pathlib import Path

import pytest
from comparison_rows import ROWS, read_again, row
from hypothesis import given
from hypothesis import strategies as st

from graphrl.compare.pictures import _edges, histogram_figure, quality_figure
from graphrl.compare.runs import Row
from graphrl.plan.plot import write_figure


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], [row("g", "a", None)], [row("g", "a$", 0), row("g", "_b^", 3)]])
def test_pictures_of_anything(rows: list[Row], tmp_path: Path) -> None:
    budgets = [*rows, *(read_again({**one.to_dict(), "budget": {"evaluations": 9, "seconds": None}}) for one in rows)]
    for number, figure in enumerate((quality_figure(budgets), histogram_figure(rows, rows[0].method))):
        write_figure(figure, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")


@given(st.floats(-1e4, 0), st.floats(0, 1e4))
def test_bins_hold_both_ends_and_part_at_zero(low: float, high: float) -> None:
    edges = _edges(low, high)
    assert edges[0] <= low <= high <= edges[-1]
    assert abs(edges).min() == 0
    assert len(edges) <= 29


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
