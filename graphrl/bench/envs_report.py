"""The rows of environments as a table and as a picture."""

from collections.abc import Sequence
from typing import IO

from rich.console import Console

from graphrl.bench.envs import EnvRow
from graphrl.bench.report import machine_line, make_console, make_table
from graphrl.colours import GRID


def print_envs(rows: Sequence[EnvRow], console: Console | None = None) -> None:
    """Prints proposals and evaluations a second by number of environments."""
    console = console or make_console()
    first = rows[0]
    heading = f"{first.env}: proposals evaluated a second ({first.evaluations:,} evaluations each, {first.transfer})"
    columns = "envs", "proposals / s", "evaluations / s", "/ run_batch", "compile s"
    table = make_table(f"{heading}\n{machine_line(rows)}", "ops", *columns)
    for row in rows:
        table.add_row(
            f"{row.n:,}",
            f"{row.envs:,}",
            f"{row.proposals_per_s:.3g}",
            f"{row.evaluations_per_s:,.0f}",
            f"{row.ratio_to_batch:.3g}",
            f"{row.compile_s:.1f}",
        )
    console.print(table)


def write_envs_plot(rows: Sequence[EnvRow], file: IO[bytes]) -> None:
    """Writes a PNG: proposals a second against environments, both on log scales, a line a size of graphs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained", dpi=150)
    axis = figure.subplots()
    for n in dict.fromkeys(row.n for row in rows):
        points = sorted((row.envs, row.proposals_per_s) for row in rows if row.n == n)
        axis.plot(*zip(*points, strict=True), marker="o", markersize=5, linewidth=1.5, label=f"{n:,} ops")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    counts = sorted({row.envs for row in rows})
    axis.set_xticks(counts, [f"{count:,}" for count in counts])
    axis.set_xlabel("environments at once")
    axis.set_ylabel(f"proposals / s ({rows[0].evaluations:,} evaluations each)")
    axis.grid(True, which="major", color=GRID, linewidth=0.6)
    axis.legend(frameon=False)
    figure.suptitle(f"{rows[0].env}\n{machine_line(rows)}", fontsize=9)
    FigureCanvasAgg(figure).print_png(file)
