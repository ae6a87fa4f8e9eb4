"""Explanation of a program's memory, as a table, as data and as a picture."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphrl.colours import BRIGHT, COLOURS, FAINT, GREY, GRID, LIMIT, PALE, TEXT, WORSE
from graphrl.errors import GraphrlError, shortened
from graphrl.graphs.readers.hlo.proto import Source
from graphrl.units import align_columns, byte_unit, format_bytes
from graphrl.xla.explain.memory import (
    BROADCAST,
    CAUSES,
    COLLECTIVE,
    COPY,
    IN_USE,
    KEPT,
    LAYOUT,
    LIBRARY,
    LOOP,
    ONE_HOT,
    WAITING,
)
from graphrl.xla.explain.remedies import Remedy

if TYPE_CHECKING:  # matplotlib takes half a second to import, and only pictures need it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARGUMENTS, RESULTS, OTHER, UNLISTED = "arguments", "results", "other", "unlisted"
TITLES = {
    **CAUSES,
    ARGUMENTS: "arguments",
    RESULTS: "results",
    OTHER: "of XLA's figure, not in graphrl's model",
    UNLISTED: "not listed in the message",
}
NEEDED = (IN_USE, WAITING, LOOP, LIBRARY, ARGUMENTS, RESULTS, OTHER, UNLISTED)  # bytes that no remedy here is for
PLACES, REMEDIES = 12, 10  # most lines of a table
LEAST_SHOWN = 0.002  # share of the total: smaller parts are one row of the table
_COLUMNS = 1500  # most points of the picture
_COLOUR_OF = {
    ARGUMENTS: PALE, RESULTS: "#D5D5D5", KEPT: BRIGHT[0], ONE_HOT: BRIGHT[1], LAYOUT: BRIGHT[2], BROADCAST: BRIGHT[3],
    COLLECTIVE: BRIGHT[4], COPY: BRIGHT[5], LOOP: BRIGHT[6], LIBRARY: COLOURS[7], IN_USE: "#8899AA", WAITING: "#C9B8DA",
}  # fmt: skip
_STRUCTURE = ("while", "body", "cond", "closed_call", "checkpoint", "rematted_computation")  # words of op names


class Cause(NamedTuple):
    """Bytes of the program's total with one cause.

    Attributes:
      key: a key of `TITLES`.
      bytes: the bytes.
    """

    key: str
    bytes: int

    @property
    def title(self) -> str:
        """The cause in words."""
        return TITLES[self.key]


class Place(NamedTuple):
    """Arrays at the peak that one line of the user's code computes, for one cause.

    Attributes:
      source: the line; with the op name of the largest array.
      cause: a key of `CAUSES`.
      bytes: size of all of them.
      arrays: number of them.
      shape: type and shape of the largest, e.g. "f32[16,8192,512]".
    """

    source: Source
    cause: str
    bytes: int
    arrays: int
    shape: str


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
    """Why a program needs its memory. `str()` of it is a table.

    Attributes:
      program: the module's name in XLA.
      argument_bytes: bytes of arguments.
      result_bytes: bytes of results that are not in donated arguments.
      temp_bytes: bytes of temporaries.
      is_measured: True if `temp_bytes` is XLA's own figure, not graphrl's prediction of it.
      predicted_bytes: graphrl's prediction of `temp_bytes`, from which savings are computed.
      live_bytes: bytes of arrays at the peak; the rest of the temporaries are holes.
      bound_bytes: lower bound on temporaries in any order that computes each value once.
      best_bytes: predicted temporaries in the best order found.
      causes: bytes by cause; those that can be avoided first, the largest first. Their sum is `total_bytes`.
      places: arrays at the peak by line and cause, the largest first.
      remedies: what would help, the largest saving first.
      peak: origin of the instruction that runs at the peak.
      timeline: bytes of arrays by cause, `[T]` each, over the T instructions.
      peak_time: index of the peak in `timeline`.
      backward_time: index of the first instruction of the backward pass; None without one.
      limit_bytes: memory of the device, if known.
    """

    program: str
    argument_bytes: int
    result_bytes: int
    temp_bytes: int
    is_measured: bool
    predicted_bytes: int
    live_bytes: int
    bound_bytes: int
    best_bytes: int
    causes: Sequence[Cause]
    places: Sequence[Place]
    remedies: Sequence[Remedy]
    peak: Source
    timeline: Mapping[str, np.ndarray] = dataclasses.field(repr=False)
    peak_time: int
    backward_time: int | None
    limit_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of arguments, temporaries, and results outside of donated arguments."""
        return self.argument_bytes + self.result_bytes + self.temp_bytes

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws memory over the program's time by cause.

        Args:
          path: file to save the picture to, .png, .svg or .pdf; None to save none.

        Returns:
          The figure. Notebooks show it.

        Raises:
          GraphrlError: the file cannot be written; its ending is not that of a picture; or it is the explanation of a
            message, which has no timeline.
        """
        if not self.timeline:
            raise GraphrlError("a message does not say when arrays are there: give the program's module for a picture")
        from graphrl.plan.plot import write_figure

        figure = _figure(self)
        if path is not None:
            write_figure(figure, path)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Converts the explanation to a dictionary for `json.dump`; the timeline is left out."""
        left_out = ("timeline", "causes", "places", "remedies", "peak")
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in left_out}
        return {
            **data,
            "total_bytes": self.total_bytes,
            "peak": self.peak._asdict(),
            "causes": [{"cause": cause.key, "title": cause.title, "bytes": cause.bytes} for cause in self.causes],
            "places": [{**place._asdict(), "source": place.source._asdict()} for place in self.places],
            "remedies": [{**remedy._asdict(), "source": remedy.source._asdict()} for remedy in self.remedies],
        }

    def __str__(self) -> str:
        sections = [[self._heading()], self._causes_table(), self._places_table(), self._order_lines()]
        return "\n\n".join("\n".join(lines) for lines in (*sections, self._remedies_table()) if lines)

    def _heading(self) -> str:
        by = "XLA's figure" if self.is_measured else "predicted"
        parts = f"arguments {format_bytes(self.argument_bytes)}, results {format_bytes(self.result_bytes)}"
        text = f"{self.program} needs {format_bytes(self.total_bytes)}: {parts}, "
        text += f"temporaries {format_bytes(self.temp_bytes)} ({by})"
        if self.limit_bytes is None:
            return text
        over = self.total_bytes - self.limit_bytes
        fits = f"{format_bytes(over)} too many" if over > 0 else "it fits"
        return f"{text}; the device has {format_bytes(self.limit_bytes)}: {fits}"

    def _causes_table(self) -> list[str]:
        rows = [("why", "bytes", "share")]
        least = LEAST_SHOWN * self.total_bytes
        small = sum(cause.bytes for cause in self.causes if cause.bytes < least)
        large = [(cause.title, cause.bytes) for cause in self.causes if cause.bytes >= least]
        for title, size in (*large, *([("all others", small)] if small else []), ("total", self.total_bytes)):
            rows.append((title, format_bytes(size), f"{size / max(1, self.total_bytes):.0%}"))
        return align_columns(rows, left=1)

    def _places_table(self) -> list[str]:
        shown = [place for place in self.places if place.bytes >= LEAST_SHOWN * self.total_bytes][:PLACES]
        if not shown:
            return []
        rows = [("where, at the peak", "bytes", "")]
        for place in shown:
            count = f"{place.arrays} arrays, the largest " if place.arrays > 1 else ""
            what = f"  {TITLES[place.cause]}: {count}{place.shape} of {short_name(place.source.op_name)}"
            rows.append((line_of(place.source), format_bytes(place.bytes), what))
        lines = [line.rstrip() for line in _with_text_last(rows)]
        left = self.places[len(shown) :]
        if left:
            lines.append(f"and {format_bytes(sum(place.bytes for place in left))} of {len(left)} more places")
        if not self.timeline:
            return lines
        return [*lines, f"at the peak runs {short_name(self.peak.op_name)}, {line_of(self.peak)}"]

    def _order_lines(self) -> list[str]:
        if not self.temp_bytes or not self.timeline:
            return []
        best = "no better order found"
        if self.best_bytes < self.predicted_bytes:
            best = f"the best order found needs {format_bytes(self.best_bytes)}"
        return [f"temporaries in any order: at least {format_bytes(self.bound_bytes)}; {best}"]

    def _remedies_table(self) -> list[str]:
        if not self.timeline:
            return ["give the program's module too for what would help: XLA_FLAGS=--xla_dump_to=FOLDER writes it"]
        if not self.remedies:
            return ["no remedy found that saves anything"]
        rows = [("what would help (predicted, not additive)", "saves", "leaves", "")]
        for remedy in self.remedies[:REMEDIES]:
            at = f" ({line_of(remedy.source)})" if remedy.source.line else ""
            left = format_bytes(max(0, self.total_bytes - remedy.saves))
            rows.append((remedy.kind, format_bytes(remedy.saves), left, f"  {remedy.action}{at}"))
        return [line.rstrip() for line in _with_text_last(rows)]


def _with_text_last(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligns all columns but the last, which is text of any length."""
    aligned = align_columns([row[:-1] for row in rows], left=1)
    return [line + row[-1] for line, row in zip(aligned, rows, strict=True)]


def line_of(source: Source) -> str:
    """Returns "file.py:12 function", as short as it can be; "no line known" without one."""
    if not source.line:
        return "no line known"
    function = source.function.rpartition("<locals>.")[2]
    return f"{PurePath(source.file).name}:{source.line} {function}".rstrip()


def short_name(op_name: str) -> str:
    """Returns the end of jax's op name without its transformations: "_one_hot/eq" of "jit(f)/jvp(jit(_one_hot))/eq"."""
    words = (word.rpartition("(")[2].rstrip(")") for word in op_name.split(";")[0].split("/")[1:])
    kept = [word for word in words if word and word not in _STRUCTURE]
    return shortened("/".join(kept[-2:])) if kept else "an instruction of XLA's"


def _figure(explanation: Explanation) -> "Figure":
    from graphrl.plan.plot import DPI, WIDTH, Picture, clean

    figure = Picture(figsize=(WIDTH, 5.4), dpi=DPI, layout="constrained")
    ax = figure.subplots()
    fixed = explanation.argument_bytes + explanation.result_bytes
    scale, unit = byte_unit(max(explanation.total_bytes, 1))
    times, series = _columns(explanation)
    top = np.zeros(len(times))
    largest = sorted(series, key=lambda key: (key not in (ARGUMENTS, RESULTS), -series[key].max(initial=0)))
    for key in largest:
        if not series[key].max(initial=0):
            continue
        label = f"{TITLES[key]} ({format_bytes(series[key][_peak_column(explanation, times)])} at the peak)"
        above = top + series[key] / scale
        ax.fill_between(times, top, above, color=_COLOUR_OF.get(key, GREY), label=label, step="mid", linewidth=0)
        top = above
    _mark(ax, explanation, fixed, scale, times)
    ax.set_xlim(times[0] - 0.5, times[-1] + 0.5)
    ax.set_ylim(0, 1.18 * explanation.total_bytes / scale)
    ax.set_ylabel(unit)
    ax.set_xlabel("instructions of XLA's schedule, those of a loop once")
    ax.grid(axis="y", color=GRID)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    title = f"{clean(explanation.program)}: {format_bytes(explanation.total_bytes)} at the peak, by cause"
    ax.set_title(title, loc="left", color=TEXT, fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    return figure


def _columns(explanation: Explanation) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the times to draw, and bytes by cause there: of many times, those with most bytes, in equal parts."""
    total = np.sum(list(explanation.timeline.values()), axis=0)
    parts = np.array_split(np.arange(len(total)), min(_COLUMNS, max(1, len(total))))
    times = np.array([part[total[part].argmax()] for part in parts])
    fixed = {ARGUMENTS: explanation.argument_bytes, RESULTS: explanation.result_bytes}
    series = {key: np.full(len(times), size) for key, size in fixed.items()}
    return times, {**series, **{key: values[times] for key, values in explanation.timeline.items()}}


def _peak_column(explanation: Explanation, times: np.ndarray) -> int:
    return int(np.abs(times - explanation.peak_time).argmin())


def _mark(ax: "Axes", explanation: Explanation, fixed: int, scale: float, times: np.ndarray) -> None:
    """Marks the peak, what XLA allocates, the best order, the device's memory and the start of the backward pass."""
    total = explanation.total_bytes / scale
    at_peak = (fixed + explanation.live_bytes) / scale
    holes = max(0, explanation.temp_bytes - explanation.live_bytes)
    share = f", {format_bytes(holes)} of it holes" if holes > 0.01 * explanation.total_bytes else ""
    ax.axhline(total, color=TEXT, linewidth=1, label=f"allocated: {format_bytes(explanation.total_bytes)}{share}")
    if explanation.best_bytes < 0.99 * explanation.predicted_bytes:
        best = fixed + explanation.best_bytes
        label = f"allocated in the best order found: {format_bytes(best)}"
        ax.axhline(best / scale, color=COLOURS[2], linewidth=1.2, linestyle="--", label=label)
    if explanation.limit_bytes and explanation.limit_bytes < 1.15 * explanation.total_bytes:
        label = f"the device's memory: {format_bytes(explanation.limit_bytes)}"
        ax.axhline(explanation.limit_bytes / scale, color=LIMIT, linewidth=1.2, linestyle=":", label=label)
    if explanation.backward_time is not None:
        ax.axvline(explanation.backward_time - 0.5, color=FAINT, linewidth=0.8, linestyle=":")
        ax.annotate(
            "backward pass ", (explanation.backward_time, 1), xycoords=("data", "axes fraction"), color=FAINT,
            fontsize=8.5, va="top", xytext=(4, 0), textcoords="offset points",
        )  # fmt: skip
    ax.plot([explanation.peak_time], [at_peak], "v", color=WORSE, markersize=7, clip_on=False, zorder=5)
    is_late = explanation.peak_time > times[len(times) // 2]
    ax.annotate(
        f"peak: {short_name(explanation.peak.op_name)}, {line_of(explanation.peak)}", (explanation.peak_time, at_peak),
        xytext=(-8 if is_late else 8, 10), textcoords="offset points", color=WORSE, fontsize=9,
        ha="right" if is_late else "left", parse_math=False,
    )  # fmt: skip
