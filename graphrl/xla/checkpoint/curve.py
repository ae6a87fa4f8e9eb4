"""`graphrl.checkpoint_curve`: memory against slowdown, to choose a budget from."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphrl.errors import ProblemError
from graphrl.text_table import aligned
from graphrl.units import format_bytes
from graphrl.xla.checkpoint.function import checkpoint
from graphrl.xla.checkpoint.report import COMPUTED, KEPT, CheckpointReport, Figures, sizes_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOWDOWNS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.33)
OPTIONS = frozenset(inspect.signature(checkpoint).parameters) - {"fn", "budget", "slowdown"}


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """The least memory found within a limit of time.

    Attributes:
      limit: of the slowdown that was asked for.
      slowdown: of the plan, as `CheckpointReport.slowdown`.
      peak_bytes, kept_bytes, moved_bytes: as in `Figures`.
      kept_values, computed_values: how many lie in memory between the passes, and are computed again, of those that
        `CheckpointReport.values` lists.
    """

    limit: float
    slowdown: float
    peak_bytes: float
    kept_bytes: float
    moved_bytes: float
    kept_values: int
    computed_values: int

    @classmethod
    def of(cls, limit: float, report: CheckpointReport) -> "CurvePoint":
        """What a report on a plan within the limit says."""
        planned, kinds = report.planned, [value.what for value in report.values]
        sizes = planned.peak_bytes, planned.kept_bytes, planned.moved_bytes
        return cls(limit, report.slowdown, *sizes, kinds.count(KEPT), kinds.count(COMPUTED))


@dataclasses.dataclass(frozen=True)
class CheckpointCurve:
    """Memory against slowdown; `str()` of it is a table.

    Attributes:
      function: its name.
      chip: whose times were taken.
      plain: what jax does by itself.
      points: by limit.
      sizes: of symbolic dimensions, for which all figures are: see `checkpoint`.
    """

    function: str
    chip: str
    plain: Figures
    points: tuple[CurvePoint, ...]
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, limits: Sequence[float], reports: Sequence[CheckpointReport]) -> "CheckpointCurve":
        """What reports on one function say, one for each limit; what is within another limit counts there, too."""
        points = []
        for limit, report in zip(limits, reports, strict=True):
            within = [report, *(other for other in reports if other.slowdown <= limit)]
            best = min(within, key=lambda each: (each.planned.peak_bytes, each.slowdown))
            points.append(CurvePoint.of(limit, best))
        first = reports[0]
        return cls(first.function, first.chip, first.plain, tuple(points), first.sizes)

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
            rows.append((f"{point.limit:.0%}", f"{point.slowdown:+.1%}", *sizes, *values))
        return "\n".join([*aligned(rows), *sizes_lines(self.sizes)])


def checkpoint_curve(
    fn: Callable[..., Any], *args: Any, slowdowns: Sequence[float] = SLOWDOWNS, **kwargs: Any
) -> CheckpointCurve:
    """What `graphrl.checkpoint` would save of a function's gradient at several limits of time.

    Args:
      fn: the function.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s; nothing is computed.
      slowdowns: limits.
      **kwargs: options of `graphrl.checkpoint` but for its limits (chip, offload, method, seconds of search for each
        limit, seed, cache, static_argnums, static_argnames); all others are the function's own.

    Raises:
      ProblemError: an option is at fault.
      ArgumentError: jax cannot trace an argument or a result; one line has its name.
    """
    if not slowdowns:
        raise ProblemError("slowdowns are none: give at least one, such as (0.05, 0.2)")
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    reports = [checkpoint(fn, slowdown=limit, **options).report(*args, **kwargs) for limit in sorted(slowdowns)]
    return CheckpointCurve.of(sorted(slowdowns), reports)
