"""Memory over a step as a picture, with and without a plan; and memory against slowdown."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphrl.colours import BETTER, FAINT, GREY, GRID
from graphrl.plan.plot import DPI, WIDTH, Picture, clean
from graphrl.units import byte_unit, format_bytes, format_seconds
from graphrl.xla.checkpoint.report import CheckpointReport, Figures

if TYPE_CHECKING:
    from graphrl.xla.checkpoint.curve import CheckpointCurve

HEIGHT = 4.5  # inches


def memory_figure(report: CheckpointReport) -> Figure:
    """Bytes over the forward and the backward pass, beside arguments, results and gradients."""
    figure = Picture(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    scale, unit = byte_unit(max(report.plain.peak_bytes, report.planned.peak_bytes, 1.0))
    for line, colour, figures, name in zip(
        report.timelines, (GREY, BETTER), (report.plain, report.planned), ("jax", "graphrl"), strict=True
    ):
        for ax, part in zip(axes, line, strict=True):
            x = np.linspace(0.0, 1.0, len(part)) if part else np.zeros(0)
            ax.fill_between(x, np.array(part) / scale, color=colour, alpha=0.25, step="mid", linewidth=0)
            ax.plot(x, np.array(part) / scale, color=colour, label=_label(name, figures), drawstyle="steps-mid")
    for ax, name in zip(axes, ("forward pass", "backward pass"), strict=True):
        _dress(ax, name)
        ax.set_xticks([])
    axes[0].set_ylabel(unit)
    axes[0].set_ylim(bottom=0)
    # beside the axes: the lines may be anywhere within
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"{clean(report.function)}: memory beside arguments, results and gradients")
    return figure


def curve_figure(curve: "CheckpointCurve") -> Figure:
    """The peak at each slowdown."""
    figure = Picture(figsize=(WIDTH * 0.6, HEIGHT), dpi=DPI, layout="constrained")
    ax = figure.subplots()
    points = [(0.0, curve.plain.peak_bytes), *((p.slowdown, p.peak_bytes) for p in curve.points)]
    scale, unit = byte_unit(max(peak for _, peak in points))
    x, y = np.array([(100 * slowdown, peak / scale) for slowdown, peak in points[1:]]).T
    ax.plot(x, y, "o-", color=BETTER, label="graphrl")
    ax.plot([0.0], [points[0][1] / scale], "o", color=GREY, label="jax")
    _dress(ax, f"{clean(curve.function)}: the peak beside arguments, results and gradients")
    ax.set_xlabel(f"estimated slowdown of a step of {format_seconds(curve.plain.seconds)}, %")
    ax.set_ylabel(unit)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return figure


def _label(name: str, figures: Figures) -> str:
    return f"{name}: peak {format_bytes(figures.peak_bytes)}, kept {format_bytes(figures.kept_bytes)}"


def _dress(ax: Axes, title: str) -> None:
    ax.set_title(title, loc="left", color=FAINT, fontsize=10)
    ax.grid(axis="y", color=GRID)
    ax.spines[["top", "right"]].set_visible(False)
