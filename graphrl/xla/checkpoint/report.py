"""What `graphrl.checkpoint` decided about a function, for people and for machines."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphrl.units import aligned, format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEPT, COMPUTED, MOVED = "kept", "computed again", "moved to the host"
LINES = 12  # of each kind, in the text


@dataclasses.dataclass(frozen=True)
class ReportedValue:
    """What happens to a value between the passes.

    Attributes:
      what: "kept", "computed again" or "moved to the host".
      value: its type and shape, as jax writes them.
      bytes: of it, in loops of all steps together, or of those of a stretch, if it is kept for so long.
      seconds: that computing it again takes, in loops of all steps.
      line: of the user's code that computes it; "" where jax does not know.
      place: of its equation in the function, after those of the loops around it.
    """

    what: str
    value: str
    bytes: int
    seconds: float
    line: str
    place: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ReportedStretch:
    """A loop that runs in stretches.

    Attributes:
      trips: its steps.
      steps: of a stretch, which run forward once more together before they run backward.
      unrolled: whether these stand one after the other, and are no loop.
      line: of the user's code; "" where jax does not know.
      place: of its equation in the function, after those of the loops around it.
    """

    trips: int
    steps: int
    unrolled: bool
    line: str
    place: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of a step, as foretold.

    Attributes:
      kept_bytes: that wait in memory for the backward pass.
      moved_bytes: that wait in the memory of the host.
      peak_bytes: most at once, beside arguments, results and gradients.
      seconds: by roofline.
    """

    kept_bytes: float
    moved_bytes: float
    peak_bytes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """What a function's gradient keeps, and what that costs. `str()` of it is a table.

    Attributes:
      function: its name.
      chip: whose times were taken.
      plain: what jax does by itself.
      planned: what was decided.
      argument_bytes, result_bytes: of the function's arguments, and of its results and gradients.
      segments: that are computed again, one after another.
      values: by kind and size, largest first.
      stretches: of loops that run in stretches.
      timelines: bytes over the step, beside arguments, results and gradients: (plain, planned), each of the forward
        pass, then of the backward pass.
      search_seconds: that planning took, whenever it was.
      from_cache: whether the plan was read from disk.
      above_least: share of its time by which the plan may be above the least within the budget, by CP-SAT's proof and
        in the search's own measure of time; None where it was not asked or time is limited.
      compiled_bytes: what XLA says that the plan needs in place of `planned.peak_bytes`; None where it was not asked.
      sizes: of symbolic dimensions, for which the plan was made and all figures are.
      as_written: whether the function runs as it is written, without a plan, since a custom rule of it closes over a
        traced value: the rule's gradient exists only in the trace of that value.
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

    @property
    def slowdown(self) -> float:
        """Share of the step's time that the plan adds; below 0 where it takes less."""
        return self.planned.seconds / self.plain.seconds - 1.0 if self.plain.seconds else 0.0

    @property
    def total_bytes(self) -> float:
        """The peak of the whole step: arguments, results, gradients and all else, by XLA's figure if there is one."""
        own = self.planned.peak_bytes if self.compiled_bytes is None else self.compiled_bytes
        return self.argument_bytes + self.result_bytes + own

    def to_dict(self) -> dict[str, Any]:
        """All figures under the names of the attributes, for `json.dump`."""
        return {**dataclasses.asdict(self), "slowdown": self.slowdown, "total_bytes": self.total_bytes}

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws memory over the step, with and without the plan, and saves the picture if a path is given.

        Args:
          path: its ending says the format: .png, .svg or .pdf.

        Raises:
          GraphrlError: the file cannot be written, or its ending names no such format.
        """
        from graphrl.plan.plot import write_figure
        from graphrl.xla.checkpoint.plot import memory_figure

        figure = memory_figure(self)
        if path is not None:
            write_figure(figure, path)
        return figure

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [(self.function, "peak", "beside arguments", "kept", "on the host", "step")]
        outside = self.argument_bytes + self.result_bytes
        for name, figures in (("jax", self.plain), ("graphrl", self.planned)):
            sizes = (outside + figures.peak_bytes, figures.peak_bytes, figures.kept_bytes, figures.moved_bytes)
            rows.append((name, *map(format_bytes, sizes), format_seconds(figures.seconds)))
        lines = aligned(rows, left=1)
        for what in (KEPT, MOVED, COMPUTED):
            lines += self._of_kind(what)
        for loop in self.stretches:
            how = "one after the other" if loop.unrolled else "as a loop"
            lines.append(f"in stretches of {loop.steps} steps, {how}: the {loop.trips} of {loop.line}".rstrip())
        where = "read from the plan cache" if self.from_cache else "found now"
        lines.append(
            f"estimated by roofline of {self.chip}: {self.slowdown:+.1%} a step; {self.segments} segments; "
            f"planned in {format_seconds(self.search_seconds)}, {where}"
        )
        lines += sizes_lines(self.sizes)
        if self.as_written:
            lines.append(
                "not planned, and figures without the gradient: a custom rule closes over a traced value, so the "
                "function runs as it is written, in whatever memory and time jax needs"
            )
        if self.compiled_bytes is not None:
            off = self.compiled_bytes / max(self.planned.peak_bytes, 1.0) - 1.0
            lines.append(
                f"compiled by XLA: {format_bytes(self.compiled_bytes)} beside arguments, {off:+.1%} to what was "
                f"foretold; {format_bytes(self.total_bytes)} at the peak"
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
        lines = [f"{what}: {len(values)} values, {format_bytes(total)}"]
        lines += [f"  {format_bytes(v.bytes):>9}  {v.value}  {v.line}".rstrip() for v in values[:LINES]]
        if len(values) > LINES:
            lines.append(f"  and {len(values) - LINES} more")
        return lines


def sizes_lines(sizes: Mapping[str, int]) -> list[str]:
    """A line with the sizes that a plan takes for symbolic dimensions; no line without such dimensions."""
    shown = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return [f"planned, and all figures, for {shown}: sizes that stand for symbolic dimensions"] if sizes else []
