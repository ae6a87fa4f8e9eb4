"""The rows as a table and a picture for people and as JSON lines for machines."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from graphrl.bench.cases import Measured, Row
from graphrl.colours import COLOURS, GRID, MARKERS

_STYLES = tuple(zip(COLOURS, MARKERS, strict=False))  # graphrl, then the yardsticks
_MAX_COLUMNS = 3


def json_lines(rows: Sequence[Measured]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows)


def title(row: Row) -> str:
    """What was measured, in words, without the size."""
    if row.what == "brkga":
        return f"BRKGA, {(row.objective or '').replace('_', ' ')}"
    parts = row.what.removeprefix("decode + ")
    return f"{parts}, {row.transfer}" if "makespan" in parts else parts


def machine_line(rows: Sequence[Measured]) -> str:
    """What was measured on, and how, in one line."""
    first = rows[0]
    cores = "1 thread, pinned to one core" if first.pinned else f"{first.threads} thread" + "s" * (first.threads > 1)
    clock = "CPU time" if first.clock == "cpu" else "wall time"
    return f"{first.device_kind} · {cores} · jax {first.jax} · {clock}, median of {first.repeats}"


def print_table(rows: Sequence[Row]) -> None:
    """Prints evaluations a second, their ratios and graphrl's compile seconds, then the shares of its BRKGA runs."""
    console = make_console()
    methods = list(dict.fromkeys(row.method for row in rows))
    others = methods[1:]
    columns = *methods, *(f"/ {other}" for other in others), "compile s"
    table = make_table(f"Evaluations a second\n{machine_line(rows)}", "ops", "case", *columns)
    for last, (ops, what), by_method in _by_case(rows):
        ours = by_method[methods[0]]
        ratios = (_ratio(ours.ratios.get(other)) for other in others)
        rates = (_rate(by_method[method]) for method in methods)
        table.add_row(ops, what, *rates, *ratios, _shown(ours.compile_s, "{:.1f}"), end_section=last)
    console.print(table)
    searches = [row for row in rows if row.method == "graphrl" and row.what == "brkga"]
    if searches:
        table = make_table("graphrl's BRKGA runs", "ops", "case", "own work", "Beta draws", "compile s, cached")
        for row in searches:
            shares = (_shown(share, "{:.0%}") for share in (row.own_share, row.beta_share))
            table.add_row(f"{row.n:,}", title(row), *shares, _shown(row.cached_compile_s, "{:.1f}"))
        console.print(table)
    for note in dict.fromkeys(f"{row.method}: {row.note}" for row in rows if row.note):
        console.print(note, markup=False)


def make_console() -> Console:
    """Where tables go: the terminal, or lines wide enough for them."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def make_table(heading: str, *columns: str) -> Table:
    """An empty table; all columns but that of the case are numbers."""
    table = Table(title=heading, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    return table


def _by_case(rows: Sequence[Row]) -> list[tuple[bool, tuple[str, str], dict[str, Row]]]:
    """(whether the next case is of another size, (ops, title), rows by method), in order."""
    cases: dict[tuple[int, str], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.n, title(row)), {})[row.method] = row
    sizes = [ops for ops, _ in cases]
    last = [a != b for a, b in zip(sizes, [*sizes[1:], -1], strict=True)]
    return [
        (end, (f"{ops:,}", what), by_method) for end, ((ops, what), by_method) in zip(last, cases.items(), strict=True)
    ]


def _rate(row: Row) -> str:
    if row.evaluations_per_s is None:
        return "-"
    rate = row.evaluations_per_s
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_plot(rows: Sequence[Row], file: IO[bytes]) -> None:
    """Writes a PNG: evaluations a second against ops, a line a method, a panel a case."""
    points = [
        (title(row), row.method, row.n, row.evaluations_per_s) for row in rows if row.evaluations_per_s is not None
    ]
    write_curves(f"Evaluations a second\n{machine_line(rows)}", ("ops", "evaluations / s"), points, file)


def write_curves(
    heading: str, labels: tuple[str, str], points: Sequence[tuple[str, str, int, float]], file: IO[bytes]
) -> None:
    """Writes a PNG of curves, both axes on log scales.

    Args:
      heading: above all.
      labels: of the axes.
      points: panel, line in it, x and y.
      file: to write to.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels, lines = (list(dict.fromkeys(point[place] for point in points)) for place in (0, 1))
    columns = min(_MAX_COLUMNS, len(panels))
    height = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(0.8 + 3.6 * columns, 1.5 + 2.7 * height), layout="constrained", dpi=150)
    axes = figure.subplots(height, columns, squeeze=False, sharex=True, sharey=True).ravel()
    ticks = sorted({x for *_, x, _ in points})
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_title(panel, fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(labels[0], fontsize=9)
        axis.set_ylabel(labels[1], fontsize=9)
        axis.label_outer()
        axis.grid(True, which="major", color=GRID, linewidth=0.6)
        axis.tick_params(labelsize=8)
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.set_xticks([], minor=True)
        for line, (color, marker) in zip(lines, itertools.cycle(_STYLES)):
            curve = sorted((x, y) for one, other, x, y in points if (one, other) == (panel, line))
            if curve:
                axis.plot(
                    *zip(*curve, strict=True), color=color, marker=marker, markersize=5, linewidth=1.5, label=line
                )
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles = {text: line for axis in axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.suptitle(heading, fontsize=10)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles), frameon=False)
    FigureCanvasAgg(figure).print_png(file)
