"""A plan as a picture: device lanes over memory curves, on one axis of time, the peak marked.

The upper half has a lane of ops for each device, the transfers between them, and the legend. The picture is readable
for 5 ops and for 5,000: ops are one collection of polygons, with names only where they fit.
"""

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from graphrl.colours import BRIGHT, COLOURS, FAINT, GREY, GRID, LANE, LIMIT, PALE, TEXT, WORSE
from graphrl.errors import GraphrlError
from graphrl.files import PICTURES, check_path, quote_path, write_atomically
from graphrl.plan.trace import Timeline
from graphrl.units import byte_unit, format_bytes, format_seconds, time_unit

_AXIS_WIDTH = 10.1  # inches, about: width of the figure without margins
_OP_HEIGHT = 0.62  # of a lane; the strip of its transfers is below it
_STRIP_TOP, _STRIP_BOTTOM = -0.36, -0.46  # from the lane's middle
_MAX_LABELS, _MAX_LINES, _MAX_NAME = 250, 400, 34
_CHARACTER = 0.066  # inches, width of a character of an op's label


def clean(text: str, longest: int = _MAX_NAME) -> str:
    """Cuts a name to one printable line of at most `longest` characters."""
    line = "".join(character if character.isprintable() else "?" for character in text)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def draw_lanes(axes: Axes, timeline: Timeline, scale: float) -> None:
    """Draws all lanes; `scale` is the length of one unit of the axis in the timeline's unit."""
    devices = timeline.problem.devices
    ops = np.flatnonzero(timeline.op >= 0)
    start, end, row = timeline.start[ops] / scale, timeline.end[ops] / scale, timeline.device[ops]
    for device in range(devices):
        axes.axhspan(device - _OP_HEIGHT / 2, device + _OP_HEIGHT / 2, color=LANE, linewidth=0, zorder=0)
    types = [timeline.graph.ops[op].type or "op" for op in timeline.op[ops].tolist()]
    colours, legend = _type_colours(types, end - start)
    corners = _boxes(start, end, row - _OP_HEIGHT / 2, row + _OP_HEIGHT / 2)
    outline = 0.5 if len(ops) <= 300 else 0.0
    axes.add_collection(
        PolyCollection(
            list(corners),
            facecolors=[colours[kind] for kind in types],
            edgecolors="white",
            linewidths=outline,
            zorder=2,
            rasterized=len(ops) > 2000,
        ),
        autolim=False,
    )
    _label_ops(axes, timeline, ops, colours, scale)
    if devices > 1:
        _draw_transfers(axes, timeline, scale)
        legend.append(Patch(color=TEXT, label=f"transfer ({len(timeline.op) - len(ops):,})"))
    _finish_lanes(axes, timeline, legend)


def _finish_lanes(axes: Axes, timeline: Timeline, legend: list[Patch]) -> None:
    """Adds names and busy shares of the devices and the legend, and removes the frame."""
    devices = timeline.problem.devices
    axes.set_ylim(devices - 0.5, -0.55)  # device 0 on top
    size = 9 if devices <= 16 else 6
    axes.set_yticks(range(devices), [f"device {device}" for device in range(devices)], fontsize=size, color=TEXT)
    ops = timeline.op >= 0
    busy = np.bincount(timeline.device[ops], (timeline.end - timeline.start)[ops], devices) / (timeline.length or 1.0)
    if not timeline.by_position:
        for device, share in enumerate(busy):
            axes.annotate(
                f"{100 * share:.0f}% busy", (1, device), xycoords=("axes fraction", "data"), xytext=(5, 0),
                textcoords="offset points", va="center", fontsize=size - 1, color=FAINT, annotation_clip=False,
            )  # fmt: skip
    axes.tick_params(axis="both", length=0, labelbottom=False)
    for side in axes.spines.values():
        side.set_visible(False)
    box = axes.figure.legend(
        handles=legend, loc="outside lower left", ncols=len(legend), frameon=False, fontsize=8.5, handlelength=1.0,
        handleheight=1.0, columnspacing=1.4, handletextpad=0.5,
    )  # fmt: skip
    for text in box.get_texts():
        text.set_parse_math(False)


def _type_colours(types: list[str], seconds: np.ndarray) -> tuple[dict[str, str], list[Patch]]:
    """Chooses a colour for every op type, and the legend; types with most time (or most ops) get their own colours."""
    count = Counter(types)
    weight: Counter[str] = Counter()
    for kind, time in zip(types, seconds.tolist(), strict=True):
        weight[kind] += time
    ranked = sorted(count, key=lambda kind: (-weight[kind], -count[kind], kind))
    named = ranked if len(ranked) <= len(BRIGHT) else ranked[: len(BRIGHT) - 1]
    colours = dict.fromkeys(ranked, PALE) | dict(zip(named, BRIGHT, strict=False))
    legend = [Patch(color=colours[kind], label=f"{clean(kind, 18)} ({count[kind]:,})") for kind in named]
    rest = ranked[len(named) :]
    if rest:
        total = sum(count[kind] for kind in rest)
        legend.append(Patch(color=PALE, label=f"{len(rest)} other types ({total:,})"))
    return colours, legend


def _label_ops(axes: Axes, timeline: Timeline, ops: np.ndarray, colours: dict[str, str], scale: float) -> None:
    """Writes the name, or else the type, into boxes that are wide enough for it; the widest boxes first.

    Args:
      ops: order entries that are ops.
      scale: length of one unit of the axis in the timeline's unit.
    """
    if timeline.problem.devices > 12:
        return
    inches = (timeline.end[ops] - timeline.start[ops]) / (timeline.length or 1.0) * _AXIS_WIDTH
    for entry, room in sorted(zip(ops.tolist(), inches.tolist(), strict=True), key=lambda box: -box[1])[:_MAX_LABELS]:
        op = timeline.graph.ops[timeline.op[entry]]
        text = next((text for text in (op.name, op.type) if text and len(text) * _CHARACTER + 0.06 <= room), None)
        if text is not None:
            middle = (timeline.start[entry] + timeline.end[entry]) / 2 / scale
            axes.text(
                middle, timeline.device[entry], clean(text), ha="center", va="center", fontsize=7,
                color=_ink(colours[op.type or "op"]), zorder=3, parse_math=False, clip_on=True,
            )  # fmt: skip


def _draw_transfers(axes: Axes, timeline: Timeline, scale: float) -> None:
    """Draws thin marks below both lanes of every transfer and, if there are few, lines between the lanes."""
    moved = np.flatnonzero(timeline.op < 0)
    if not len(moved):
        return
    start, end = timeline.start[moved] / scale, timeline.end[moved] / scale
    source, target = timeline.device[moved], timeline.to[moved]
    end = np.maximum(end, start + timeline.length / scale * 0.0008)  # a transfer without duration stays visible
    rows = np.concatenate([source, target]).astype(float)
    corners = _boxes(np.tile(start, 2), np.tile(end, 2), rows - _STRIP_BOTTOM, rows - _STRIP_TOP)
    axes.add_collection(PolyCollection(list(corners), facecolors=TEXT, linewidths=0, zorder=3), autolim=False)
    if len(moved) <= _MAX_LINES:
        strip = -(_STRIP_TOP + _STRIP_BOTTOM) / 2
        lines = np.stack(
            [np.stack([start, source + strip], axis=1), np.stack([end, target + strip], axis=1)], axis=1
        )  # [k, 2, 2]
        alpha = float(np.clip(12 / len(moved), 0.08, 0.5))
        axes.add_collection(
            LineCollection(list(lines), colors=TEXT, linewidths=0.7, alpha=alpha, zorder=1), autolim=False
        )


def _ink(colour: str) -> str:
    """Chooses a text colour, white or dark, that is legible on `colour` ("#RRGGBB")."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 150 else TEXT


def _boxes(left: np.ndarray, right: np.ndarray, bottom: np.ndarray, top: np.ndarray) -> np.ndarray:
    """Converts the sides of k rectangles to polygons: `[k, 4, 2]`."""
    x = np.stack([left, right, right, left], axis=1)
    y = np.stack([bottom, bottom, top, top], axis=1)
    return np.stack([x, y], axis=2)


WIDTH, DPI = 12.0, 150  # inches; dots per inch
_DEVICE_COLOURS = COLOURS[:8]
_BACKGROUND = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0}  # of labels over curves


class Picture(Figure):
    """A matplotlib figure that notebooks display although pyplot does not manage it."""

    def _repr_png_(self) -> bytes:
        import io

        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture atomically; the path's ending selects the format: .png, .svg or .pdf.

        Raises:
          GraphrlError: the ending selects no supported format, or the file cannot be written.
        """
        write_figure(self, path)

    def savefig(self, fname: Any, **options: Any) -> None:
        with warnings.catch_warnings():  # names may be in any script, which the font may lack
            warnings.filterwarnings("ignore", message="Glyph")
            super().savefig(fname, **{"dpi": DPI, **options})


def image_format(path: str | os.PathLike[str]) -> str:
    """Returns the image format that a path's ending selects.

    Raises:
      GraphrlError: the format is not supported; the message lists the supported ones.
    """
    check_path(path)
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in PICTURES:
        raise GraphrlError(f"cannot draw {quote_path(path)}: its ending must be one of .{', .'.join(PICTURES)}")
    return ending


def write_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Writes the picture atomically, in the format that the path's ending selects.

    Raises:
      GraphrlError: the ending selects no supported format, or the file cannot be written.
    """
    ending = image_format(path)
    write_atomically(path, lambda file: figure.savefig(file, format=ending), binary=True)


def plan_figure(
    timeline: Timeline, graph: str, method: str, facts: Sequence[str], bound: float | None = None
) -> Picture:
    """Draws the picture of a plan.

    Args:
      timeline: timeline of the plan.
      graph, method, facts: texts of the heading, see `draw_heading`.
      bound: lower bound of the objective, seconds or bytes.

    Raises:
      GraphrlError: the plan's times are not finite.
    """
    if not np.isfinite(timeline.length):
        raise GraphrlError(f"the plan takes {timeline.length} seconds: only a finite one can be drawn")
    devices = timeline.problem.devices
    lanes_height, memory_height = min(0.62 * devices + 0.25, 7.0), 2.9
    figure = Picture(figsize=(WIDTH, lanes_height + memory_height + 1.55), dpi=DPI, layout="constrained")
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=[lanes_height, memory_height])
    scale, unit = (1.0, "position in the order") if timeline.by_position else time_unit(timeline.length)
    right = timeline.length / scale or 1.0
    draw_lanes(lanes, timeline, scale)
    _draw_memory(memory, bound, timeline, scale, right)
    if timeline.problem.objective == "makespan" and bound and not timeline.by_position:
        _draw_time_bound(lanes, memory, bound, scale, right)
    memory.set_xlim(0, right)
    memory.set_xlabel(unit if timeline.by_position else f"time [{unit}]", color=TEXT)
    draw_heading(lanes, graph, method, facts)
    return figure


def draw_heading(axes: Axes, graph: str, method: str, facts: Sequence[str], *, above: float = 0.0) -> None:
    """Draws a heading of two lines, graph and method over facts, `above` points higher over the topmost axes."""
    name = f"{clean(graph, 70)}  ·  {clean(method)}"
    axes.set_title(name, loc="left", weight="bold", color=TEXT, pad=26 + above, parse_math=False)
    axes.annotate(
        "   ·   ".join(facts), (0, 1), xycoords="axes fraction", xytext=(0, 9 + above), textcoords="offset points",
        fontsize=9.5, color=FAINT, parse_math=False,
    )  # fmt: skip


def _draw_memory(axes: Axes, bound: float | None, timeline: Timeline, scale: float, right: float) -> None:
    devices, problem = timeline.problem.devices, timeline.problem
    top = max([1, *(curve.peak for curve in timeline.memory)])
    limit = problem.memory_limit
    reference = limit if limit is not None and top < limit < 2 * top else top  # a far limit would flatten the curves
    unit_bytes, unit = byte_unit(reference)
    highest = max(range(devices), key=lambda device: timeline.memory[device].peak)
    few = devices <= len(_DEVICE_COLOURS)
    for device in sorted(range(devices), key=lambda device: device == highest and not few):
        coloured = few or device == highest
        label = f"device {device}" if coloured else f"{devices - 1} others" if device == (highest == 0) else None
        # beyond this number of devices only the fullest has a colour
        colour = _DEVICE_COLOURS[device % len(_DEVICE_COLOURS)] if coloured else PALE
        _draw_curve(axes, timeline, device, scale, unit_bytes, colour=colour, label=label)
    _mark_peak(axes, timeline, highest, scale, right, unit_bytes)
    if problem.objective == "peak_memory" and bound:
        _level(axes, bound / unit_bytes, f"bound {format_bytes(bound)}", GREY, "--")
    height = reference / unit_bytes * 1.22
    if limit is not None:
        text = f"limit {format_bytes(limit)}"
        if limit / unit_bytes <= height:
            _level(axes, limit / unit_bytes, text, LIMIT, "-")
        else:
            axes.set_title(f"{text}, far above", loc="right", fontsize=8.5, color=LIMIT, pad=3)
    axes.set_ylim(0, height)
    axes.set_ylabel(f"live memory [{unit}]", color=TEXT)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT, labelsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if devices > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, handlelength=1.2)


def _draw_curve(
    axes: Axes, timeline: Timeline, device: int, scale: float, unit_bytes: float, *, colour: str, label: str | None
) -> None:
    curve = timeline.memory[device]
    x, y = _without_dips(curve.time / scale, curve.bytes / unit_bytes)
    alone = timeline.problem.devices == 1
    if colour != PALE:
        alpha = 0.22 if alone else 0.10
        axes.fill_between(x, y, step="post", color=colour, alpha=alpha, linewidth=0, rasterized=len(x) > 4000, zorder=1)
    width = 1.3 if len(x) < 2000 and colour != PALE else 0.7
    axes.plot(x, y, drawstyle="steps-post", color=colour, linewidth=width, zorder=2, label=label)


def _mark_peak(axes: Axes, timeline: Timeline, device: int, scale: float, right: float, unit_bytes: float) -> None:
    """Marks the highest peak by a dot, with its size, its device and the entry that reaches it."""
    curve = timeline.memory[device]
    x, y = curve.peak_time / scale, curve.peak / unit_bytes
    if timeline.by_position and curve.peak_entry >= 0:
        x += 0.5  # the middle of its place
    where = f" on device {device}" if timeline.problem.devices > 1 else ""
    at = "from the start (weights)" if curve.peak_entry < 0 else f"at {clean(timeline.name(curve.peak_entry), 60)}"
    # Long labels are on the side with most room, in the middle on both sides: else they would leave the picture.
    side, shift = ("left", 8) if x < right / 3 else ("right", -8) if x > right * 2 / 3 else ("center", 0)
    axes.plot([x], [y], "o", color=WORSE, markersize=7, markeredgecolor="white", zorder=6, clip_on=False)
    axes.annotate(
        f"peak {format_bytes(curve.peak)}{where}, {at}", (x, y), xytext=(shift, 7),
        textcoords="offset points", ha=side, va="bottom", fontsize=9, weight="bold",
        color=WORSE, zorder=7, parse_math=False, bbox=_BACKGROUND,
    )  # fmt: skip


def _draw_time_bound(lanes: Axes, memory: Axes, bound: float, scale: float, right: float) -> None:
    """Draws the bound of the makespan as a line through both axes; its label is at the top of the memory axes."""
    for axes in (lanes, memory):
        axes.axvline(bound / scale, color=GREY, linestyle="--", linewidth=1.2, zorder=4)
    to_left = bound / scale > 0.2 * right
    memory.annotate(
        f"bound {format_seconds(bound)}", (bound / scale, 1), xycoords=("data", "axes fraction"),
        xytext=(-4 if to_left else 4, -2), textcoords="offset points", ha="right" if to_left else "left",
        va="top", fontsize=8.5, color=GREY, zorder=7, bbox=_BACKGROUND,
    )  # fmt: skip


def _level(axes: Axes, y: float, text: str, colour: str, style: str) -> None:
    """Draws a labelled horizontal line; the label is under it, at the right end."""
    axes.axhline(y, color=colour, linestyle=style, linewidth=1.2, zorder=4)
    axes.annotate(
        text, (1, y), xycoords=("axes fraction", "data"), xytext=(-3, -2), textcoords="offset points", ha="right",
        va="top", fontsize=8.5, color=colour, zorder=7,
        bbox=_BACKGROUND,
    )  # fmt: skip


def _without_dips(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Removes dips of no duration from a step curve: of the points at one time it keeps the highest and the last."""
    first = np.flatnonzero(np.concatenate([[True], x[1:] > x[:-1]]))
    last = np.concatenate([first[1:], [len(x)]]) - 1
    levels = np.stack([np.maximum.reduceat(y, first), y[last]], axis=1)
    return np.repeat(x[first], 2), levels.reshape(-1)
