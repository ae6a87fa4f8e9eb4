"""Benchmark rows as a table, a picture and JSON lines."""

import itertools
import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from graphrl.bench.cases import Measured, Row
from graphrl.colours import COLOURS, GRID, MARKERS

_STYLES = tuple(zip(COLOURS, MARKERS, strict=False))  # graphrl, then the yardsticks
_MAX_COLUMNS = 3


def json_lines(rows: Sequence[Measured]) -> str:
    """Returns the rows as text, with one JSON object per line."""
    return "".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows)


def title(row: Row) -> str:
    """Describes a row's measurement in words, without the sizes."""
    if row.what == "brkga":
        return f"BRKGA, {(row.objective or '').replace('_', ' ')}"
    parts = row.what.removeprefix("decode + ")
    return f"{parts}, {row.transfer}" if "makespan" in parts else parts


def machine_line(rows: Sequence[Measured]) -> str:
    """Describes the machine and its settings in one line."""
    first = rows[0]
    cores = "1 thread, pinned to one core" if first.pinned else f"{first.threads} thread" + "s" * (first.threads > 1)
    clock = "CPU time" if first.clock == "cpu" else "wall time"
    return f"{first.device_kind} · {cores} · jax {first.jax} · {clock}, median of {first.repeats}"


class Table(NamedTuple):
    """Format of one kind of rows, as a printed table and as a picture."""

    heading: Callable[[Any], str]  # first row -> heading of the printed table
    columns: Mapping[str, Callable[[Any], str]]  # by column name: row -> text of its cell
    section: Callable[[Any], Hashable]  # row -> key; rows with equal keys form one section
    title: Callable[[Any], str]  # first row -> title of the picture
    labels: tuple[str, str]  # labels of the picture's axes
    point: Callable[[Any], tuple[str, str, int, float] | None]  # row -> point, see `write_curves`; None: not plotted

    def print(self, rows: Sequence[Measured]) -> None:
        """Prints the rows as a table."""
        table = make_table(f"{self.heading(rows[0])}\n{machine_line(rows)}", *self.columns)
        for row, following in zip(rows, (*rows[1:], None), strict=True):
            last = following is None or self.section(following) != self.section(row)
            table.add_row(*(text(row) for text in self.columns.values()), end_section=last)
        make_console().print(table)

    def plot(self, rows: Sequence[Measured], file: IO[bytes]) -> None:
        """Plots the rows as curves, and writes them as PNG to the file."""
        points = [point for point in map(self.point, rows) if point is not None]
        write_curves(f"{self.title(rows[0])}\n{machine_line(rows)}", self.labels, points, file)


def print_table(rows: Sequence[Row]) -> None:
    """Prints evaluations per second, their ratios and graphrl's compile time, then how its BRKGA runs spend time."""
    console = make_console()
    methods = list(dict.fromkeys(row.method for row in rows))
    columns = *methods, *(f"/ {other}" for other in methods[1:]), "compile s"
    table = make_table(f"Evaluations a second\n{machine_line(rows)}", "ops", "graphs", "case", *columns)
    cases = [list(case) for _, case in itertools.groupby(rows, lambda row: (row.n, row.graphs, title(row)))]
    for case, following in zip(cases, (*cases[1:], None), strict=True):
        own = case[0]
        rates = {row.method: row.evaluations_per_s for row in case}
        figures = *map(rates.get, methods), *map(own.ratios.get, methods[1:])
        last = following is None or following[0].n != own.n
        table.add_row(
            *(f"{own.n:,}", f"{own.graphs:,}", title(own), *map(_rounded, figures), f"{own.compile_s:.1f}"),
            end_section=last,
        )
    console.print(table)
    searches = [row for row in rows if row.own_share is not None]
    if searches:
        table = make_table("BRKGA runs of graphrl", "ops", "case", "own work", "Beta draws", "compile s, cached")
        for row in searches:
            cached = "-" if row.cached_compile_s is None else f"{row.cached_compile_s:.1f}"
            table.add_row(f"{row.n:,}", title(row), f"{row.own_share:.0%}", f"{row.beta_share:.0%}", cached)
        console.print(table)


def make_console() -> Console:
    """Returns the console for tables: the terminal, or, without one, lines of 140 characters."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def make_table(heading: str, *columns: str) -> RichTable:
    """Returns an empty table, right-aligned except for the column "case"."""
    table = RichTable(title=heading, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
    for column in columns:
        table.add_column(column, justify="left" if column == "case" else "right")
    return table


def _rounded(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def write_plot(rows: Sequence[Row], file: IO[bytes]) -> None:
    """Writes a PNG that plots evaluations per second against ops, one line per method, one panel per case."""
    points = [(f"{title(row)}; batch of {row.graphs}", row.method, row.n, row.evaluations_per_s) for row in rows]
    write_curves(f"Evaluations a second\n{machine_line(rows)}", ("ops", "evaluations / s"), points, file)


def write_curves(
    heading: str, labels: tuple[str, str], points: Sequence[tuple[str, str, int, float]], file: IO[bytes]
) -> None:
    """Writes a PNG of curves, with log scales on both axes.

    Args:
      heading: heading of the whole picture.
      labels: labels of the x and y axes.
      points: (panel name, curve name, x, y) for each point.
      file: binary file to write to.
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
