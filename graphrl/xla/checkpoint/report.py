"""Reports on the plans of `graphrl.checkpoint`, as tables, figures and data.

`CheckpointReport` describes one plan, `CheckpointCurve` plans within several limits.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphrl.colours import BETTER, FAINT, GREY, GRID
from graphrl.units import align_columns, byte_unit, format_bytes, format_seconds

if TYPE_CHECKING:  # matplotlib takes half a second to import, and only pictures need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


KEPT, RECOMPUTED, MOVED = "kept", "computed again", "moved to the host"
HEADINGS = {KEPT: "kept", MOVED: "offloaded", RECOMPUTED: "recomputed"}  # headings in the table, in this order
LINES = 12  # most values of each kind in the table
HEIGHT = 4.5  # height of a figure in inches


@dataclasses.dataclass(frozen=True)
class ReportedValue:
    """A value of the forward pass, and how the backward pass gets it.

    Attributes:
      what: "kept", "computed again" or "moved to the host".
      value: its type and shape, as jax writes them.
      bytes: size of the value in bytes; in loops, of all steps together, or of the steps of a stretch if it is kept
        only that long.
      seconds: estimated time to compute it again, in seconds; in loops, for all steps.
      line: line of the user's code that computes it; "" if jax does not know.
      place: indices of the loops around its equation, from the outermost, and then of the equation itself.
    """

    what: str
    value: str
    bytes: int
    seconds: float
    line: str
    place: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ReportedStretch:
    """A loop that runs in stretches: blocks of steps that run forward once more together before they run backward.

    Attributes:
      trips: number of steps of the loop.
      steps: number of steps in a stretch.
      unrolled: whether the steps of a stretch are unrolled instead of run as a loop.
      line: line of the user's code that has the loop; "" if jax does not know.
      place: indices of the loops around it, from the outermost, and then of its own equation.
    """

    trips: int
    steps: int
    unrolled: bool
    line: str
    place: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Figures:
    """Predicted memory and time of a step (forward and backward pass).

    Attributes:
      kept_bytes: bytes kept in device memory for the backward pass.
      moved_bytes: bytes kept for it in host memory.
      peak_bytes: most bytes in use at one time, without arguments, results and gradients.
      seconds: run time by roofline, in seconds.
    """

    kept_bytes: float
    moved_bytes: float
    peak_bytes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """A plan for a function's gradient: values kept, recomputed and moved, memory and time. `str()` of it is a table.

    Attributes:
      function: name of the function.
      chip: name of the chip for which run times are estimated.
      plain: memory and time of jax's default.
      planned: memory and time of the plan.
      argument_bytes, result_bytes: bytes of the function's arguments, and of its results and gradients.
      segments: number of segments (consecutive equations) that are computed again.
      values: values that are kept, moved or computed again, sorted by kind and size, largest first.
      stretches: loops that run in stretches.
      timelines: bytes in use at points of the step, without arguments, results and gradients: (plain, planned), each
        as (forward pass, backward pass).
      search_seconds: seconds that planning took, now or in an earlier process.
      from_cache: whether the plan was read from disk.
      above_least: upper bound on the plan's time above the least possible within the budget, as a share of the latter:
        proven by CP-SAT, in the search's own estimate of time; None without such a proof or where time is limited.
      compiled_bytes: XLA's figure for the plan, which replaces `planned.peak_bytes`; None without `verify`.
      sizes: sizes of symbolic dimensions for which the plan was made, and to which all figures refer.
      as_written: whether the function runs without a plan, since a custom rule of it closes over a traced value: the
        rule's gradient exists only in the trace of that value.
      devices: number of devices that share the step; all bytes and seconds are one device's.
    """

    function: str
    chip: str
    plain: Figures
    planned: Figures
    argument_bytes: int
    result_bytes: int
    segments: int
    values: tuple[ReportedValue, ...]
    stretches: tuple[ReportedStretch, ...]
    timelines: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    search_seconds: float
    from_cache: bool = False
    above_least: float | None = None
    compiled_bytes: int | None = None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    as_written: bool = False
    devices: int = 1

    @property
    def slowdown(self) -> float:
        """Time that the plan adds, as a share of the step's time by jax's default; negative if it takes less time."""
        return self.planned.seconds / self.plain.seconds - 1.0 if self.plain.seconds else 0.0

    @property
    def total_bytes(self) -> float:
        """Peak of the whole step: arguments, results, gradients and the rest, by XLA's figure if there is one."""
        peak = self.planned.peak_bytes if self.compiled_bytes is None else self.compiled_bytes
        return self.argument_bytes + self.result_bytes + peak

    def to_dict(self) -> dict[str, Any]:
        """Converts the report to a dictionary for `json.dump`, with the attributes, `slowdown` and `total_bytes`."""
        return {**dataclasses.asdict(self), "slowdown": self.slowdown, "total_bytes": self.total_bytes}

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws memory over the step, with and without the plan, and saves the figure if a path is given.

        Args:
          path: its suffix selects the format: .png, .svg or .pdf.

        Raises:
          GraphrlError: the file cannot be written, or its suffix names no such format.
        """
        return _drawn(_memory_figure(self), path)

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [(self.function, "peak", "without arguments", "kept", "offloaded", "step")]
        outside = self.argument_bytes + self.result_bytes
        for name, figures in (("jax", self.plain), ("graphrl", self.planned)):
            sizes = (outside + figures.peak_bytes, figures.peak_bytes, figures.kept_bytes, figures.moved_bytes)
            rows.append((name, *map(format_bytes, sizes), format_seconds(figures.seconds)))
        lines = align_columns(rows, left=1)
        for what in HEADINGS:
            lines += self._of_kind(what)
        for loop in self.stretches:
            how = "unrolled" if loop.unrolled else "as a loop"
            lines.append(f"in stretches of {loop.steps} steps, {how}: the {loop.trips} of {loop.line}".rstrip())
        where = "read from the plan cache" if self.from_cache else "in a new search"
        lines.append(
            f"estimated by roofline of {self.chip}: {self.slowdown:+.1%} a step; {self.segments} segments; "
            f"planned in {format_seconds(self.search_seconds)}, {where}"
        )
        lines += sizes_lines(self.sizes)
        if self.devices > 1:
            lines.append(f"shared by {self.devices} devices: all figures are one device's")
        if self.as_written:
            lines.append(
                "not planned: a custom rule closes over a traced value, so the function runs as it is written; the "
                "figures are without the gradient"
            )
        if self.compiled_bytes is not None:
            error = self.compiled_bytes / max(self.planned.peak_bytes, 1.0) - 1.0
            lines.append(
                f"compiled by XLA: {format_bytes(self.compiled_bytes)} without arguments, {error:+.1%} from the "
                f"prediction; {format_bytes(self.total_bytes)} at the peak"
            )
        if self.above_least is not None:
            lines.append(
                f"the step takes at most {self.above_least:.1%} more than the least possible within the budget"
            )
        return "\n".join(lines)

    def _of_kind(self, what: str) -> list[str]:
        values = [value for value in self.values if value.what == what]
        if not values:
            return []
        total = sum(value.bytes for value in values)
        lines = [f"{HEADINGS[what]}: {len(values)} values, {format_bytes(total)}"]
        lines += [f"  {format_bytes(v.bytes):>9}  {v.value}  {v.line}".rstrip() for v in values[:LINES]]
        if len(values) > LINES:
            lines.append(f"  and {len(values) - LINES} more")
        return lines


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """The plan within one limit: that of least memory for a limit of time, the fastest for a limit of memory.

    Attributes:
      limit: the requested limit, a slowdown or a budget.
      slowdown: slowdown of the plan, as in `CheckpointReport`.
      peak_bytes, kept_bytes, moved_bytes: as in `Figures`.
      kept_values: number of values in `CheckpointReport.values` that are kept in device memory between the passes.
      computed_values: number of values in it that are computed again.
      compiled_bytes: as in `CheckpointReport`.
    """

    limit: float | str
    slowdown: float
    peak_bytes: float
    kept_bytes: float
    moved_bytes: float
    kept_values: int
    computed_values: int
    compiled_bytes: int | None = None

    @classmethod
    def of(cls, limit: float | str, report: CheckpointReport) -> "CurvePoint":
        """Creates the point of a plan within the limit from its report."""
        planned, kinds = report.planned, [value.what for value in report.values]
        sizes = planned.peak_bytes, planned.kept_bytes, planned.moved_bytes
        counts = kinds.count(KEPT), kinds.count(RECOMPUTED)
        return cls(limit, report.slowdown, *sizes, *counts, report.compiled_bytes)


@dataclasses.dataclass(frozen=True)
class CheckpointCurve:
    """Plans for one function within several limits, as a curve of memory against slowdown. `str()` of it is a table.

    With more time no plan needs more memory. With a smaller budget no plan needs more memory and no plan is faster.
    Memory is XLA's figure if plans were verified, else the prediction (for budgets that are parts, the bytes kept).

    Attributes:
      function: name of the function.
      chip: name of the chip for which run times are estimated.
      plain: memory and time of jax's default.
      points: points in ascending order of slowdown, or in descending order of budget.
      sizes: sizes of symbolic dimensions to which all figures refer: see `checkpoint`.
    """

    function: str
    chip: str
    plain: Figures
    points: tuple[CurvePoint, ...]
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, limits: Sequence[float], reports: Sequence[CheckpointReport]) -> "CheckpointCurve":
        """Creates a curve over ascending slowdowns from one report for each: the least memory within each slowdown."""
        best = []
        for number, limit in enumerate(limits):
            within = [*reports[: number + 1], *(other for other in reports if other.slowdown <= limit)]
            best.append(min(within, key=lambda each: (_needed(each), each.slowdown)))
        return cls._of(limits, best)

    @classmethod
    def of_budgets(cls, budgets: Sequence[float | str], reports: Sequence[CheckpointReport]) -> "CheckpointCurve":
        """Creates a curve over descending budgets from one report for each: the fastest plan within each budget, or
        that of a larger budget if it needs no more memory by XLA's figure.
        """
        best: list[CheckpointReport] = []
        for number, budget in enumerate(budgets):
            is_part = not isinstance(budget, str)
            fastest = min(reports[number:], key=lambda each: (each.planned.seconds, _needed(each, is_part)))
            is_less = bool(best) and _needed(best[-1], is_part) <= _needed(fastest, is_part)
            best.append(best[-1] if is_less else fastest)
        return cls._of(budgets, best)

    @classmethod
    def _of(cls, limits: Sequence[float | str], reports: Sequence[CheckpointReport]) -> "CheckpointCurve":
        points = tuple(CurvePoint.of(limit, report) for limit, report in zip(limits, reports, strict=True))
        first = reports[0]
        return cls(first.function, first.chip, first.plain, points, first.sizes)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the curve, and saves the figure if a path is given; see `CheckpointReport.plot`."""
        return _drawn(_curve_figure(self), path)

    def share(self, point: CurvePoint) -> float:
        """Returns a point's peak as a share of the peak of jax's default."""
        return point.peak_bytes / max(self.plain.peak_bytes, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Converts the curve to a dictionary for `json.dump`, with the attributes and the `share` of each point."""
        points = [{**dataclasses.asdict(point), "share": self.share(point)} for point in self.points]
        return {**dataclasses.asdict(self), "points": points}

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("limit", "slowdown", "peak", "share", "kept", "values kept", "recomputed")]
        plain = format_bytes(self.plain.peak_bytes), "100%", format_bytes(self.plain.kept_bytes)
        rows.append(("jax", "+0.0%", *plain, "", ""))
        for point in self.points:
            sizes = format_bytes(point.peak_bytes), f"{self.share(point):.0%}", format_bytes(point.kept_bytes)
            values = str(point.kept_values), str(point.computed_values)
            limit = point.limit if isinstance(point.limit, str) else f"{point.limit:.0%}"
            rows.append((limit, f"{point.slowdown:+.1%}", *sizes, *values))
        if all(point.compiled_bytes is not None for point in self.points):
            compiled = ["compiled", "", *(format_bytes(point.compiled_bytes or 0) for point in self.points)]
            rows = [(*row, cell) for row, cell in zip(rows, compiled, strict=True)]
        return "\n".join([*align_columns(rows), *sizes_lines(self.sizes)])


def _needed(report: CheckpointReport, is_part: bool = False) -> float:
    """Returns XLA's bytes for a plan, or else the predicted ones: kept bytes if the budget `is_part`, else the peak."""
    if report.compiled_bytes is not None:
        return report.compiled_bytes
    return report.planned.kept_bytes if is_part else report.planned.peak_bytes


def sizes_lines(sizes: Mapping[str, int]) -> list[str]:
    """Returns a line with the sizes that a plan assumes for symbolic dimensions; none without such dimensions."""
    text = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return [f"planned for {text}: all figures are for these sizes of symbolic dimensions"] if sizes else []


def _drawn(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """Saves a figure if a path is given; returns it."""
    from graphrl.plan.plot import write_figure

    if path is not None:
        write_figure(figure, path)
    return figure


def _memory_figure(report: CheckpointReport) -> "Figure":
    """Draws bytes over the forward and the backward pass, without arguments, results and gradients."""
    from graphrl.plan.plot import DPI, WIDTH, Picture, clean

    figure = Picture(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    scale, unit = byte_unit(max(report.plain.peak_bytes, report.planned.peak_bytes, 1.0))
    for line, colour, figures, name in zip(
        report.timelines, (GREY, BETTER), (report.plain, report.planned), ("jax", "graphrl"), strict=True
    ):
        label = f"{name}: peak {format_bytes(figures.peak_bytes)}, kept {format_bytes(figures.kept_bytes)}"
        for ax, part in zip(axes, line, strict=True):
            x = np.linspace(0.0, 1.0, len(part)) if part else np.zeros(0)
            ax.fill_between(x, np.array(part) / scale, color=colour, alpha=0.25, step="mid", linewidth=0)
            ax.plot(x, np.array(part) / scale, color=colour, label=label, drawstyle="steps-mid")
    for ax, name in zip(axes, ("forward pass", "backward pass"), strict=True):
        _dress(ax, name)
        ax.set_xticks([])
    axes[0].set_ylabel(unit)
    axes[0].set_ylim(bottom=0)
    # outside of the axes, since the lines may be anywhere within
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(f"{clean(report.function)}: memory without arguments, results and gradients")
    return figure


def _curve_figure(curve: CheckpointCurve) -> "Figure":
    """Draws the peak at each slowdown."""
    from graphrl.plan.plot import DPI, WIDTH, Picture, clean

    figure = Picture(figsize=(WIDTH * 0.6, HEIGHT), dpi=DPI, layout="constrained")
    ax = figure.subplots()
    points = [(0.0, curve.plain.peak_bytes), *((p.slowdown, p.peak_bytes) for p in curve.points)]
    scale, unit = byte_unit(max(peak for _, peak in points))
    x, y = np.array([(100 * slowdown, peak / scale) for slowdown, peak in points[1:]]).T
    ax.plot(x, y, "o-", color=BETTER, label="graphrl")
    ax.plot([0.0], [points[0][1] / scale], "o", color=GREY, label="jax")
    _dress(ax, f"{clean(curve.function)}: the peak without arguments, results and gradients")
    ax.set_xlabel(f"estimated slowdown of a step of {format_seconds(curve.plain.seconds)}, %")
    ax.set_ylabel(unit)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False)
    return figure


def _dress(ax: "Axes", title: str) -> None:
    ax.set_title(title, loc="left", color=FAINT, fontsize=10)
    ax.grid(axis="y", color=GRID)
    ax.spines[["top", "right"]].set_visible(False)
