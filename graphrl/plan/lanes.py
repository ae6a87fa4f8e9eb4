"""The upper half of a plan's picture: a lane of ops for each device, the transfers between them, and the legend."""

from collections import Counter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch

from graphrl.colours import BRIGHT, FAINT, LANE, PALE, TEXT
from graphrl.plan.timeline import Timeline

_AXIS_WIDTH = 10.1  # inches, about: what the margins leave of the figure
_OP_HEIGHT = 0.62  # of a lane; the strip of its transfers stands below it
_STRIP_TOP, _STRIP_BOTTOM = -0.36, -0.46  # from the lane's middle
_MAX_LABELS, _MAX_LINES, _MAX_NAME = 250, 400, 34
_CHARACTER = 0.066  # inches that a character of an op's label takes


def clean(text: str, longest: int = _MAX_NAME) -> str:
    """A name as one printable line of at most `longest` characters."""
    line = "".join(character if character.isprintable() else "?" for character in text)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def draw_lanes(axes: Axes, timeline: Timeline, scale: float) -> None:
    """Draws all lanes; `scale` is what one unit of the axis is in the timeline's unit."""
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
    """Names and busy shares of the devices, the legend, and no frame."""
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
    """A colour for every type and the legend: the types that take most time (or are most ops) have their own."""
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
    """Writes the name, or else the type, into the boxes that are wide enough for it; the widest first.

    Args:
      ops: order entries that are ops.
      scale: of the time axis.
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
    """Thin marks below both lanes of every transfer and, while they can be told apart, lines between the lanes."""
    moved = np.flatnonzero(timeline.op < 0)
    if not len(moved):
        return
    start, end = timeline.start[moved] / scale, timeline.end[moved] / scale
    source, target = timeline.device[moved], timeline.to[moved]
    end = np.maximum(end, start + timeline.length / scale * 0.0008)  # a transfer of no duration is still there
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
    """White or dark, whichever can be read on `colour` ("#RRGGBB")."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 150 else TEXT


def _boxes(left: np.ndarray, right: np.ndarray, bottom: np.ndarray, top: np.ndarray) -> np.ndarray:
    """Rectangles as polygons: `[k, 4, 2]`."""
    x = np.stack([left, right, right, left], axis=1)
    y = np.stack([bottom, bottom, top, top], axis=1)
    return np.stack([x, y], axis=2)
