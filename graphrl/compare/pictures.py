"""Pictures of a comparison, as in papers: quality against time, and histograms of improvements over a baseline."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from graphrl.colours import BETTER, COLOURS, GREY, GRID, MARKERS, WORSE, colour
from graphrl.compare.report import budget_line, heading
from graphrl.compare.runs import Row
from graphrl.compare.table import best_known, by_method_and_case, gap, improvements
from graphrl.plan.plot import DPI

_DASHES = ("-", "--", ":")  # further methods get other markers and dashes
_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # percent
_POINTS = 200  # of a curve
_MAX_COLUMNS, _BINS = 3, 24
_TITLE_WIDTH = 6.4  # inches


def quality_figure(rows: Sequence[Row], others: Sequence[Row] = ()) -> Figure:
    """Draws the mean gap to the best known value, in percent, against seconds on a log axis.

    The axis of gaps is linear up to 1% and logarithmic above. A method's line starts when it has a plan for every
    graph, follows the means at each time, and ends at a marker. A method that does not improve its first plan is only a
    marker. Rows may be of several budgets: each has a line and a marker.

    Args:
      rows: rows of one problem.
      others: further rows that the best known values may come from.
    """
    best = best_known([*rows, *others])
    figure = Figure(figsize=(10, 5.6), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for number, (method, cases) in enumerate(by_method_and_case(rows).items()):
        good = [row for group in cases.values() for row in group if row.feasible and row.curve]
        cycle = number // len(COLOURS)
        marker, dashes = MARKERS[(number + cycle) % len(COLOURS)], _DASHES[cycle % len(_DASHES)]
        for last, budget in enumerate(reversed(dict.fromkeys(row.budget for row in good))):
            at_budget = [row for row in good if row.budget == budget]
            seconds, gaps = _mean_curve(at_budget, [best[row.case].value for row in at_budget])
            axes.plot(seconds, gaps, dashes, linewidth=1.3, drawstyle="steps-post", color=colour(number))
            label = None if last else method
            axes.plot(
                seconds[-1:],
                gaps[-1:],
                marker,
                label=label,
                markersize=6,
                linestyle="",
                color=colour(number),
                clip_on=False,
            )
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1, linscale=0.5)
    axes.set_ylim(bottom=0)
    top = axes.get_ylim()[1]
    axes.set_yticks([0, *(tick for tick in _TICKS if tick <= top)])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("seconds")
    axes.set_ylabel("mean gap to the best known")
    axes.set_title("\n".join(_plain(line) for line in _title(rows)), fontsize=10, loc="left")
    axes.grid(True, which="major", color=GRID, linewidth=0.6)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    return figure


def _title(rows: Sequence[Row]) -> list[str]:
    budgets = dict.fromkeys(row.budget for row in rows)
    problem, counts = heading(rows).split("\n")
    return [problem, f"{counts.rpartition(', ')[0]}, {'; '.join(map(budget_line, budgets))}"]


def _mean_curve(rows: Sequence[Row], references: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Averages the rows' curves: returns times in seconds and mean gaps in percent, both `[k]`.

    The mean curve starts when all rows have a value, and ends at the mean of the rows' ends.
    """
    end = float(np.mean([row.curve[-1][0] for row in rows]))
    begin = min(max(row.curve[0][0] for row in rows), end)
    single = all(len(row.curve) == 1 for row in rows)
    seconds = np.array([end]) if single else np.geomspace(max(begin, 1e-6), max(end, 1e-6), _POINTS)
    gaps = np.zeros(len(seconds))
    for row, reference in zip(rows, references, strict=True):
        times, values = np.array([point[0] for point in row.curve]), [point[2] for point in row.curve]
        place = np.searchsorted(times, seconds, side="right") - 1
        place[-1] = len(times) - 1  # its last value, also if it ended after the mean of the ends
        gaps += [gap(values[max(0, i)], reference) for i in place]
    return seconds, 100 * gaps / len(rows)


def histogram_figure(rows: Sequence[Row], baseline: str) -> Figure:
    """Draws a histogram per method: improvements over the baseline in percent, one per graph.

    As in REGAL (arXiv 1905.02494), figure 2. Better is green, worse red; ties only count in the title's percentage.

    Args:
      rows: rows of one problem and budget.
      baseline: method of the rows that the others are compared with.
    """
    methods = [method for method in by_method_and_case(rows) if method != baseline]
    columns = min(_MAX_COLUMNS, max(1, len(methods)))
    lines = math.ceil(max(1, len(methods)) / columns)
    size = max(_TITLE_WIDTH, 1 + 3.6 * columns), 1.2 + 2.5 * lines
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
    percents = {method: 100 * np.array(improvements(rows, method, baseline)) for method in methods}
    drawn = np.concatenate([*percents.values(), [0.0]])
    drawn = drawn[np.isfinite(drawn)]
    edges = _edges(float(drawn.min()), float(drawn.max()))
    for axes, method in zip(panels, methods, strict=False):
        _draw_histogram(axes, method, baseline, percents[method], edges)
    for axes in panels[len(methods) :]:
        axes.set_visible(False)
    figure.suptitle(_plain(f"Improvement over {baseline}\n{heading(rows)}"), fontsize=10)
    return figure


def _edges(low: float, high: float) -> np.ndarray:
    """Computes edges of equal bins that cover all values, in percent; 0 is one of the edges."""
    width = max((high - low) / _BINS, 0.01)
    # slightly wider than the values: rounding must not put the ends outside
    first, last = math.floor(low / width - 1e-9), math.ceil(high / width + 1e-9)
    return width * np.arange(min(first, -1), max(last, 1) + 1)


def _draw_histogram(axes: Any, method: str, baseline: str, percents: np.ndarray, edges: np.ndarray) -> None:
    equal = np.abs(percents) <= 1e-7
    for values, shade in ((percents[(percents > 0) & ~equal], BETTER), (percents[(percents < 0) & ~equal], WORSE)):
        axes.hist(values[np.isfinite(values)], bins=edges, color=shade, edgecolor="white", linewidth=0.4)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel("improvement [%]", fontsize=9)
    axes.set_ylabel("graphs", fontsize=9)
    axes.set_ylim(0, max(1.05, axes.get_ylim()[1]))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=8, labelbottom=True)  # also where the panel below is empty
    title = method
    if len(percents):
        share = 100 * np.mean((percents > 0) | equal)
        least, most = percents.min() + 0.0, percents.max() + 0.0  # + 0.0: no -0.0
        title += f"\nas good or better on {share:.1f}%, {least:+.1f}% to {most:+.1f}%"
    axes.set_title(_plain(title), fontsize=9)


def _plain(text: str) -> str:
    """Escapes text so that matplotlib does not read it as a formula."""
    return text.replace("$", r"\$")
