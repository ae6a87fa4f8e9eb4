"""The rows as a picture: evaluations a second against ops, both on log scales, a line a method, a panel a case."""

import math
from collections.abc import Sequence
from typing import IO, Any

from graphrl.bench.cases import METHODS, Row
from graphrl.bench.report import machine_line, title
from graphrl.colours import COLOURS, GREY, GRID

_STYLE = {
    "graphrl": (COLOURS[0], "o", "graphrl"),
    "plain": (COLOURS[1], "s", "plain JAX (vmap, argmax)"),
    "compiled": (COLOURS[2], "^", "compiled (C++ heap)"),
    "reference": (GREY, "v", "reference (ops only)"),
}
_MAX_COLUMNS = 3


def write_plot(rows: Sequence[Row], file: IO[bytes]) -> None:
    """Writes a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(title(row) for row in rows))
    columns = min(_MAX_COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(0.8 + 3.6 * columns, 1.5 + 2.7 * lines), layout="constrained", dpi=150)
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel, [row for row in rows if title(row) == panel])
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles = {text: line for axis in axes for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.suptitle(f"Evaluations a second\n{machine_line(rows)}", fontsize=10)
    if handles:
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles), frameon=False
        )
    FigureCanvasAgg(figure).print_png(file)


def _draw(axis: Any, panel: str, rows: Sequence[Row]) -> None:
    axis.set_title(panel, fontsize=9)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("ops", fontsize=9)
    axis.set_ylabel("evaluations / s", fontsize=9)
    axis.label_outer()
    axis.grid(True, which="major", color=GRID, linewidth=0.6)
    axis.tick_params(labelsize=8)
    sizes = sorted({row.n for row in rows})
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.set_xticks([], minor=True)
    for method in METHODS:
        points = sorted(
            (row.n, row.evaluations_per_s) for row in rows if row.method == method and row.evaluations_per_s
        )
        if points:
            color, marker, text = _STYLE[method]
            axis.plot(*zip(*points, strict=True), color=color, marker=marker, markersize=5, linewidth=1.5, label=text)
