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
_WIDTH = 9  # of a column of figures
_TEXT_WIDTHS = {"case": 29, "environment": 12, "policy": 7, "work": 18, "": 0}  # of columns of text, by name


def json_lines(rows: Sequence[Measured]) -> str:
    """Returns the rows as text, with one JSON object per line."""
    return "".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows)


def title(row: Row) -> str:
    """Describes a row's measurement in words, without the sizes."""
    if row.what == "brkga":
        return f"BRKGA, {(row.objective or '').replace('_', ' ')}"
    parts = row.what.removeprefix("decode + ")
    return f"{parts}, {row.transfer}" if "makespan" in parts else parts


def machine_line(row: Measured | Sequence[Measured]) -> str:
    """Describes the machine of a row, or of the first of several, and its settings in one line."""
    first = row if isinstance(row, Measured) else row[0]
    cores = "1 thread, pinned to one core" if first.pinned else f"{first.threads} thread" + "s" * (first.threads > 1)
    clock = "CPU time" if first.clock == "cpu" else "wall time"
    return f"{first.device_kind} · {cores} · jax {first.jax} · {clock}, median of {first.repeats}"


class Table(NamedTuple):
    """Format of one kind of rows, as a table that is printed line by line, and as a picture."""

    heading: str  # of the table and of the picture
    columns: Mapping[str, Callable[[Any], str]]  # by column name: row -> text of its cell
    section: Callable[[Any], Hashable]  # row -> key; rows with equal keys form one section
    labels: tuple[str, str]  # labels of the picture's axes
    point: Callable[[Any], tuple[str, str, int, float] | None]  # row -> point, see `write_curves`; None: not plotted
    panels: int = 3  # of the picture, side by side

    def printer(self) -> Callable[[Sequence[Any]], None]:
        """Returns a function that prints rows, as soon as they are measured, below the heading and the rows before."""
        last: Any = None

        def add(rows: Sequence[Any]) -> None:
            nonlocal last
            for row in rows:
                if last is None:
                    print_text(f"{self.heading}\n{machine_line(row)}", style="bold")
                    print_text(self._line({name: name for name in self.columns}))
                elif self.section(row) != self.section(last):
                    print_text("")
                print_text(self._line({name: text(row) for name, text in self.columns.items()}))
                last = row

        return add

    def _line(self, cells: Mapping[str, str]) -> str:
        """Formats a line: columns of fixed widths, since the next rows are not known yet."""
        padded = (
            cell.ljust(_TEXT_WIDTHS[name]) if name in _TEXT_WIDTHS else cell.rjust(max(_WIDTH, len(name)))
            for name, cell in cells.items()
        )
        return "  ".join(padded).rstrip()

    def plot(self, rows: Sequence[Measured], file: IO[bytes]) -> None:
        """Plots the rows as curves, and writes them as PNG to the file."""
        points = [point for point in map(self.point, rows) if point is not None]
        write_curves(f"{self.heading}\n{machine_line(rows)}", self.labels, points, file, self.panels)


SEARCH_TABLE = Table(  # a row is a case: graphrl's row and, if it was measured, that of pure JAX
    heading="Evaluations a second",
    columns={
        "ops": lambda case: f"{case[0].n:,}",
        "graphs": lambda case: f"{case[0].graphs:,}",
        "case": lambda case: title(case[0]),
        "graphrl": lambda case: _rounded(case[0].evaluations_per_s),
        "pure JAX": lambda case: _rounded(case[1].evaluations_per_s if case[1:] else None),
        "times pure JAX": lambda case: _rounded(case[0].ratios.get("pure JAX")),
        "compile s": lambda case: f"{case[0].compile_s:.1f}",
    },
    section=lambda case: case[0].n,
    labels=("ops", "evaluations / s"),
    point=lambda row: (f"{title(row)}; batch of {row.graphs}", row.method, row.n, row.evaluations_per_s),
)


STEPS_TABLE = Table(
    heading="Steps a second of parallel environments",
    columns={
        "environment": lambda row: row.env,
        "ops": lambda row: f"{row.n:,}",
        "envs": lambda row: f"{row.envs:,}",
        "policy": lambda row: row.policy,
        "steps / s": lambda row: _figure(row.steps_per_s),
        "s / million": lambda row: _figure(row.s_per_million_steps),
        "pure JAX": lambda row: _figure(row.jax_steps_per_s),
        "times pure JAX": lambda row: "-" if row.ratio_to_jax is None else f"{row.ratio_to_jax:.2f}",
        "compile s": lambda row: "-" if row.compile_s is None else f"{row.compile_s:.1f}",
        "": lambda row: row.skipped,
    },
    section=lambda row: row.env,
    labels=("parallel environments", "steps / s"),
    panels=2,
    point=lambda row: (
        None
        if row.steps_per_s is None
        else (f"{row.env}, {row.policy}", row.model or f"{row.size:,} ops", row.envs, row.steps_per_s)
    ),
)


def models_table(models: Sequence[str]) -> Table:
    """Returns the table for rows of models: with a column of their names."""
    environment, *columns = STEPS_TABLE.columns.items()
    width = max(map(len, models))
    return STEPS_TABLE._replace(
        columns=dict([environment, ("graph".ljust(width), lambda row: row.model.ljust(width)), *columns])
    )


def print_shares(rows: Sequence[Row]) -> None:
    """Prints how the BRKGA runs among the rows spend their time, and their compile time with a cache."""
    searches = [row for row in rows if row.own_share is not None]
    if searches:
        table = make_table("BRKGA runs of graphrl", "ops", "case", "own work", "Beta draws", "compile s, cached")
        for row in searches:
            cached = "-" if row.cached_compile_s is None else f"{row.cached_compile_s:.1f}"
            table.add_row(f"{row.n:,}", title(row), f"{row.own_share:.0%}", f"{row.beta_share:.0%}", cached)
        make_console().print(table)


def print_text(text: str, *, style: str | None = None) -> None:
    """Prints text without wrapping its lines."""
    make_console().print(text, style=style, markup=False, soft_wrap=True)


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


def _figure(value: float | None) -> str:
    """Formats a figure with three digits, and all digits before the point."""
    if value is None:
        return "-"
    return f"{float(f'{value:.3g}'):,.10g}"


def _rounded(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def write_curves(
    heading: str, labels: tuple[str, str], points: Sequence[tuple[str, str, int, float]], file: IO[bytes], most: int
) -> None:
    """Writes a PNG of curves, with log scales on both axes.

    Args:
      heading: heading of the whole picture.
      labels: labels of the x and y axes.
      points: (panel name, curve name, x, y) for each point.
      file: binary file to write to.
      most: most panels side by side.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels, lines = (list(dict.fromkeys(point[place] for point in points)) for place in (0, 1))
    columns = max(1, min(most, len(panels)))
    height = max(1, math.ceil(len(panels) / columns))
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
