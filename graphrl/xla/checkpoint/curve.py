"""`graphrl.checkpoint_curve`: memory against slowdown, to choose a budget from."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from graphrl.errors import ProblemError
from graphrl.graphs.roofline import Chip
from graphrl.units import format_bytes
from graphrl.xla.checkpoint.function import CheckpointedFunction
from graphrl.xla.checkpoint.report import Figures
from graphrl.xla.checkpoint.settings import SECONDS, Settings

SLOWDOWNS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.33)


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
    fn: Callable[..., Any],
    *args: Any,
    slowdowns: Sequence[float] = SLOWDOWNS,
    chip: str | Chip | None = None,
    offload: bool = False,
    method: str = "auto",
    seconds: float = SECONDS,
    seed: int = 0,
    cache: bool = True,
    **kwargs: Any,
) -> CheckpointCurve:
    """What `graphrl.checkpoint` would save of a function's gradient at several limits of time.

    Args:
      fn: the function.
      *args, **kwargs: its arguments, arrays or `jax.ShapeDtypeStruct`s; nothing is computed.
      slowdowns: limits.
      chip, offload, method, seconds, seed, cache: as in `graphrl.checkpoint`; `seconds` for each limit.

    Raises:
      ProblemError: an option is at fault.
    """
    if not slowdowns:
        raise ProblemError("slowdowns are none: give at least one, such as (0.05, 0.2)")
    points, report = [], None
    for limit in sorted(slowdowns):
        settings = Settings(None, limit, chip, offload, method, seconds, seed, cache)
        report = CheckpointedFunction(fn, settings).report(*args, **kwargs)
        found = report.planned
        points.append(CurvePoint(limit, report.slowdown, found.peak_bytes, found.kept_bytes, found.moved_bytes))
    assert report is not None
    return CheckpointCurve(report.function, report.chip, report.plain, tuple(points))
