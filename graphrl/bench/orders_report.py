"""The rows of decoders of orders, and of learning, as a table and as a picture."""

from collections.abc import Sequence
from typing import IO

from rich.console import Console

from graphrl.bench.orders import DECODERS, LEARNING, OrderRow
from graphrl.bench.report import machine_line, make_console, make_table
from graphrl.colours import COLOURS, GRID

_COLOR = dict(zip((*DECODERS, LEARNING), COLOURS, strict=False))


def print_orders(rows: Sequence[OrderRow], console: Console | None = None) -> None:
    """Prints orders and graphs a second by size, number of graphs and decoder, and what an update learns from."""
    console = console or make_console()
    columns = "graphs", "work", "orders / graph", "orders / s", "graphs / s", "/ drawing", "compile s"
    table = make_table(f"Orders decoded and costed a second (layered graphs)\n{machine_line(rows)}", "ops", *columns)
    for row, following in zip(rows, (*rows[1:], None), strict=True):
        table.add_row(
            f"{row.n:,}",
            f"{row.graphs:,}",
            row.work,
            f"{row.orders:,}",
            f"{row.orders_per_s:,.0f}",
            f"{row.orders_per_s / row.orders:,.0f}",
            f"{row.ratio_to_drawing:.3g}",
            f"{row.compile_s:.1f}",
            end_section=following is None or (following.n, following.graphs) != (row.n, row.graphs),
        )
    console.print(table)


def write_orders_plot(rows: Sequence[OrderRow], file: IO[bytes]) -> None:
    """Writes a PNG: orders a second against graphs at once, both on log scales, a panel a size, a line a work."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(row.n for row in rows))
    figure = Figure(figsize=(0.8 + 3.2 * len(sizes), 3.8), layout="constrained", dpi=150)
    axes = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    counts = sorted({row.graphs for row in rows})
    for axis, n in zip(axes, sizes, strict=True):
        for work, color in _COLOR.items():
            points = sorted((row.graphs, row.orders_per_s) for row in rows if (row.n, row.work) == (n, work))
            if points:
                axis.plot(*zip(*points, strict=True), color=color, marker="o", markersize=5, label=work)
        axis.set_title(f"{n:,} ops", fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.set_xlabel("graphs at once")
        axis.grid(True, which="major", color=GRID, linewidth=0.6)
    axes[0].set_ylabel("orders / s")
    axes[0].legend(frameon=False)
    figure.suptitle(f"Orders decoded and costed a second\n{machine_line(rows)}", fontsize=9)
    FigureCanvasAgg(figure).print_png(file)
