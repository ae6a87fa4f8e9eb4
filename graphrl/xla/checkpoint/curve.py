"""`graphrl.checkpoint_curve`: memory against slowdown, to choose a budget from."""

import dataclasses
import inspect
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphrl.errors import ProblemError
from graphrl.units import aligned, format_bytes, parse_bytes
from graphrl.xla.checkpoint.function import checkpoint
from graphrl.xla.checkpoint.report import COMPUTED, KEPT, CheckpointReport, Figures, sizes_lines
from graphrl.xla.checkpoint.settings import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOWDOWNS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.33)
OPTIONS = frozenset(inspect.signature(checkpoint).parameters) - {"fn", "budget", "slowdown"}


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """The plan within a limit: of the least memory for one of time, of the least time for one of bytes.

    Attributes:
      limit: that was asked for, a slowdown or a budget.
      slowdown: of the plan, as `CheckpointReport.slowdown`.
      peak_bytes, kept_bytes, moved_bytes: as in `Figures`.
      kept_values, computed_values: how many lie in memory between the passes, and are computed again, of those that
        `CheckpointReport.values` lists.
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
        """What a report on a plan within the limit says."""
        planned, kinds = report.planned, [value.what for value in report.values]
        sizes = planned.peak_bytes, planned.kept_bytes, planned.moved_bytes
        counts = kinds.count(KEPT), kinds.count(COMPUTED)
        return cls(limit, report.slowdown, *sizes, *counts, report.compiled_bytes)


@dataclasses.dataclass(frozen=True)
class CheckpointCurve:
    """Memory against slowdown; `str()` of it is a table.

    With more time no plan needs more memory, with a smaller budget none needs more and none is faster: by XLA's figure
    where plans were verified, else as predicted (of budgets that are parts, by the bytes kept).

    Attributes:
      function: its name.
      chip: whose times were taken.
      plain: what jax does by itself.
      points: from the least slowdown on, or from the largest budget on.
      sizes: of symbolic dimensions, for which all figures are: see `checkpoint`.
    """

    function: str
    chip: str
    plain: Figures
    points: tuple[CurvePoint, ...]
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, limits: Sequence[float], reports: Sequence[CheckpointReport]) -> "CheckpointCurve":
        """A curve over ascending slowdowns, of one report each on a function: the least memory within each slowdown."""
        best = []
        for number, limit in enumerate(limits):
            within = [*reports[: number + 1], *(other for other in reports if other.slowdown <= limit)]
            best.append(min(within, key=lambda each: (_needed(each), each.slowdown)))
        return cls._of(limits, best)

    @classmethod
    def of_budgets(cls, budgets: Sequence[float | str], reports: Sequence[CheckpointReport]) -> "CheckpointCurve":
        """A curve over descending budgets, of one report each on a function: the fastest plan within each budget, or
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
        """Draws it, and saves the picture if a path is given; see `CheckpointReport.plot`."""
        from graphrl.plan.plot import write_figure
        from graphrl.xla.checkpoint.plot import curve_figure

        figure = curve_figure(self)
        if path is not None:
            write_figure(figure, path)
        return figure

    def share(self, point: CurvePoint) -> float:
        """A point's part of the peak that jax has."""
        return point.peak_bytes / max(self.plain.peak_bytes, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """All figures under the names of the attributes, and the share of each point, for `json.dump`."""
        points = [{**dataclasses.asdict(point), "share": self.share(point)} for point in self.points]
        return {**dataclasses.asdict(self), "points": points}

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("limit", "slowdown", "peak", "share", "kept", "values kept", "computed again")]
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
        return "\n".join([*aligned(rows), *sizes_lines(self.sizes)])


def _needed(report: CheckpointReport, is_part: bool = False) -> float:
    """Bytes that a plan needs by XLA's figure, else as predicted, where a budget that `is_part` limits those kept."""
    if report.compiled_bytes is not None:
        return report.compiled_bytes
    return report.planned.kept_bytes if is_part else report.planned.peak_bytes


def checkpoint_curve(
    fn: Callable[..., Any],
    *args: Any,
    slowdowns: Sequence[float] | None = None,
    budgets: Sequence[float | str] | None = None,
    **kwargs: Any,
) -> CheckpointCurve:
    """What `graphrl.checkpoint` would save of a function's gradient at several limits, of time or of memory.

    Args:
      fn: the function.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s; nothing is computed.
      slowdowns: limits of time; without any limits 0, 2, 5, 10, 20 and 33%.
      budgets: limits of memory in place of them, all of them parts or all of them bytes. With `verify` a part may be
        exceeded as predicted, by the plan of a larger one that is no slower and for which XLA needs no more.
      **kwargs: options of `graphrl.checkpoint` but for its limits (chip, offload, method, seconds of search for each
        limit, seed, cache, verify, static_argnums, static_argnames); all others are the function's own.

    Raises:
      ProblemError: an option is at fault, or a budget cannot be met.
      ArgumentError: jax cannot trace an argument or a result; one line has its name.
    """
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    if budgets is None:
        limits = sorted(_limits("slowdown", SLOWDOWNS if slowdowns is None else slowdowns))
        reports = [checkpoint(fn, slowdown=limit, **options).report(*args, **kwargs) for limit in limits]
        return CheckpointCurve.of(limits, reports)
    if slowdowns is not None:
        raise ProblemError("slowdowns and budgets are both given: a curve has limits of one kind")
    limits = _limits("budget", budgets)
    if len({isinstance(limit, str) for limit in limits}) > 1:
        raise ProblemError("budgets are parts and bytes: must be all parts, such as 0.5, or all bytes")
    limits.sort(key=lambda limit: parse_bytes(limit) if isinstance(limit, str) else limit, reverse=True)
    reports = [checkpoint(fn, budget=limit, **options).report(*args, **kwargs) for limit in limits]
    return CheckpointCurve.of_budgets(limits, reports)


def _limits(name: str, limits: Sequence[Any]) -> list[Any]:
    """Checked limits: Python numbers, or bytes as they are written.

    Raises:
      ProblemError: it is no sequence or an empty one, or a limit is out of range.
    """
    values = [] if isinstance(limits, str) or not isinstance(limits, Iterable) else list(limits)
    if not values:
        raise ProblemError(f"{name}s is {reprlib.repr(limits)}: must be a list of limits, such as [0.05, 0.2]")
    return [getattr(Settings(**{name: limit}), name) for limit in values]
