"""`graphrl.checkpoint_curve`: memory against slowdown, to choose a budget from."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from graphrl.errors import ProblemError
from graphrl.units import format_bytes
from graphrl.xla.checkpoint.function import checkpoint
from graphrl.xla.checkpoint.report import CheckpointReport, Figures

SLOWDOWNS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.33)
OPTIONS = frozenset(inspect.signature(checkpoint).parameters) - {"fn", "budget", "slowdown"}


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """The least memory found within a limit of time.

    Attributes:
      limit: of the slowdown that was asked for.
      slowdown: of the plan, as `CheckpointReport.slowdown`.
      peak_bytes, kept_bytes, moved_bytes: as in `Figures`.
    """

    limit: float
    slowdown: float
    peak_bytes: float
    kept_bytes: float
    moved_bytes: float

    @classmethod
    def of(cls, limit: float, report: CheckpointReport) -> "CurvePoint":
        """What a report on a plan within the limit says."""
        planned = report.planned
        return cls(limit, report.slowdown, planned.peak_bytes, planned.kept_bytes, planned.moved_bytes)


@dataclasses.dataclass(frozen=True)
class CheckpointCurve:
    """Memory against slowdown; `str()` of it is a table.

    Attributes:
      function: its name.
      chip: whose times were taken.
      plain: what jax does by itself.
      points: by limit.
    """

    function: str
    chip: str
    plain: Figures
    points: tuple[CurvePoint, ...]

    @classmethod
    def of(cls, limits: Sequence[float], reports: Sequence[CheckpointReport]) -> "CheckpointCurve":
        """What reports on one function say, one for each limit."""
        points = [CurvePoint.of(limit, report) for limit, report in zip(limits, reports, strict=True)]
        return cls(reports[0].function, reports[0].chip, reports[0].plain, tuple(points))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws it to a file (.png, .svg, .pdf).

        Raises:
          GraphrlError: it cannot be written.
        """
        from graphrl.xla.checkpoint.plot import save_curve_figure

        save_curve_figure(self, path)

    def __str__(self) -> str:
        lines = [f"{'limit':>8}  {'slowdown':>8}  {'peak':>10}  {'kept':>10}"]
        plain = CurvePoint(0.0, 0.0, self.plain.peak_bytes, self.plain.kept_bytes, 0.0)
        for name, point in (("jax", plain), *((f"{point.limit:.0%}", point) for point in self.points)):
            sizes = f"{format_bytes(point.peak_bytes):>10}  {format_bytes(point.kept_bytes):>10}"
            lines.append(f"{name:>8}  {point.slowdown:>+8.1%}  {sizes}")
        return "\n".join(lines)


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
    """
    if not slowdowns:
        raise ProblemError("slowdowns are none: give at least one, such as (0.05, 0.2)")
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    reports = [checkpoint(fn, slowdown=limit, **options).report(*args, **kwargs) for limit in sorted(slowdowns)]
    return CheckpointCurve.of(sorted(slowdowns), reports)
