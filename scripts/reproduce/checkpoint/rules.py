"""Sections `rules` and `curve`: memory and estimated time of jax's rules, XLA's rematerialisation and graphrl."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graphrl.colours import FAINT, GRID, colour
from graphrl.compare.report import markdown
from graphrl.errors import GraphrlError
from graphrl.plan.plot import write_figure
from reproduce.checkpoint.measured import (
    METHODS,
    NONE,
    OURS,
    RULES,
    SLOWDOWNS,
    XLA,
    Point,
    Settings,
    best,
    compiled_slowdown,
    least,
    memory,
    points,
    slowdown,
)
from reproduce.gpu_compile import missing
from reproduce.measurements import mebibytes, ratio
from reproduce.results import Table

_COLUMNS = 4  # of panels
_SHOWN = -40, 50  # percent of slowdown; slower points are not drawn


def rules(settings: Settings) -> Iterator[Table]:
    """Yields the table of means, and one for each program.

    Raises:
      GraphrlError: the packages are missing.
    """
    if reason := missing():
        raise GraphrlError(reason)
    yield from tables(settings)


def tables(settings: Settings) -> list[Table]:
    """Returns tables of `rules` without a check for the packages: missing measurements fail."""
    methods = settings.among((*METHODS, *XLA))
    by_program = [_of_program(settings, program, methods) for program in settings.selected]
    return [_mean_table(settings, methods), *by_program]


def _of_program(settings: Settings, program: str, methods: tuple[str, ...]) -> Table:
    whole = memory(settings, program, NONE)
    lines = []
    for method in methods:
        figures = memory(settings, program, method)
        cells = [mebibytes((figures or {}).get(column)) for column in ("temporaries", "on_host")]
        share = figures["temporaries"] / whole["temporaries"] if figures and whole else None
        times = [slowdown(settings, program, method), compiled_slowdown(settings, program, method)]
        lines.append([method, *cells, ratio(share), *map(ratio, times)])
    headings = ["rule", "temporaries", "on the host", "/ none", "slowdown", "compiled"]
    how = (
        ""
        if whole is None
        else f"Arguments {mebibytes(whole['arguments'])} MiB, results {mebibytes(whole['results'])}."
    )
    return settings.measurements.table(program, how, markdown(headings, lines))


def _mean_table(settings: Settings, methods: tuple[str, ...]) -> Table:
    """Returns the geometric mean of shares of the undecorated gradient's temporaries, and mean of slowdowns."""
    lines, shares = [], dict[str, float]()
    for method in methods:
        some = [point for name in settings.selected for point in points(settings, name, [method])]
        compiled = [compiled_slowdown(settings, name, method) for name in settings.selected]
        times = [[point.slowdown for point in some], [time for time in compiled if time is not None]]
        share = statistics.geometric_mean([point.share for point in some]) if some else None
        shares |= {} if share is None else {method: share}
        means = [statistics.fmean(each) if each else None for each in times]
        lines.append([method, str(len(some)), ratio(share), *map(ratio, means)])
    how = (
        "Temporaries of `value_and_grad` by XLA's compiler for an H200, in MiB, and estimated seconds on "
        f"{settings.chip} over those of the undecorated gradient, less 1: of the traced function "
        "(`graphrl.xla.checkpoint.seconds`), and of the compiled module's instructions, each by roofline. Means are of "
        "shares of the undecorated gradient's temporaries (geometric) and of slowdowns. XLA's own is its "
        "rematerialisation on a GPU with room for that share of the temporaries; it is in no traced function."
    )
    table = markdown(["rule", "programs", "/ none", "slowdown", "compiled"], lines)
    ranked = sorted(shares, key=lambda method: shares[method])
    parts = [
        f"the best of {whose}, `{one}`, leaves {ratio(shares[one])}"
        for whose, some in (("rules", RULES), ("plans", OURS))
        for one in [method for method in ranked if method in some][:1]
    ]
    summary = f"Of the temporaries of the undecorated gradient, {' and '.join(parts)}."
    return settings.measurements.table("Rules, on the mean of the programs", how, table, summary=summary)


class Curves(NamedTuple):
    """Points of a program, by kind of method."""

    rules: list[Point]
    xla: list[Point]
    ours: list[Point]


def curve(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each program, and the targets; writes a picture to --out."""
    by_name = {
        name: Curves(*(points(settings, name, settings.among(tuple(methods))) for methods in (RULES, XLA, OURS)))
        for name in settings.selected
    }
    write_figure(figure(by_name, "estimated slowdown [%]"), settings.out / "curve.png")
    lines = [[name, *_cells(curves)] for name, curves in by_name.items()]
    headings = ["program", "best rule", "its share", "its slowdown", "ours", *(f"at {s:.0%}" for s in SLOWDOWNS)]
    how = (
        "Temporaries by XLA's compiler for an H200, as shares of the undecorated gradient's. The best rule has the "
        f"least; ours is the least of graphrl's plans that are estimated to be no slower on {settings.chip}. Then "
        "the least share within a slowdown: of the rules / of XLA's own / ours."
    )
    summary, *notes = targets(by_name) or [""]
    table = markdown(headings, lines)
    yield settings.measurements.table("Memory against slowdown", how, table, notes=notes, summary=summary)


def _cells(curves: Curves) -> list[str]:
    rule = best(curves.rules)
    if rule is None:
        return ["-"] * (4 + len(SLOWDOWNS))
    within = [" / ".join(_share(least(some, limit)) for some in curves) for limit in SLOWDOWNS]
    return [rule.method, _share(rule), ratio(rule.slowdown), _share(least(curves.ours, rule.slowdown)), *within]


def _share(point: Point | None) -> str:
    return "-" if point is None else ratio(point.share)


def targets(by_name: Mapping[str, Curves]) -> list[str]:
    """Summarises graphrl against the best rule at its slowdown, and counts the rules that graphrl equals at theirs."""
    beaten, rules, quotients = 0, 0, []
    for curves in by_name.values():
        for rule in curves.rules[1:]:  # the first is none
            own = least(curves.ours, rule.slowdown)
            rules += 1
            beaten += own is not None and own.temporaries <= rule.temporaries
        smallest = best(curves.rules)
        own = None if smallest is None else least(curves.ours, smallest.slowdown)
        if smallest is not None and own is not None:
            quotients.append(own.temporaries / smallest.temporaries)
    if not quotients:
        return []
    return [
        f"At the slowdown of jax's best rule graphrl needs {ratio(statistics.geometric_mean(quotients))} of its "
        f"temporaries (geometric mean of {len(quotients)} programs).",
        f"ours needs no more than a rule at its slowdown: {beaten} of {rules}",
    ]


def figure(by_name: Mapping[str, Curves], label: str) -> Figure:
    """Draws a panel for each program; the label describes the slowdown axis."""
    rows = math.ceil(len(by_name) / _COLUMNS)
    picture = Figure(figsize=(1 + 3.2 * _COLUMNS, 0.8 + 2.6 * rows), layout="constrained")
    panels = picture.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for panel, (name, curves) in zip(panels, by_name.items(), strict=False):
        _draw(panel, name, curves)
    for panel in panels[len(by_name) :]:
        panel.set_visible(False)
    picture.supxlabel(label)
    picture.supylabel("temporaries, of the undecorated gradient's [%]")
    picture.legend(*picture.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return picture


def _draw(panel: Axes, name: str, curves: Curves) -> None:
    panel.set_title(name, fontsize=10)
    panel.grid(color=GRID)
    panel.set_ylim(0, 125)
    panel.set_xlim(_SHOWN)
    panel.tick_params(labelsize=8, labelcolor=FAINT)
    _plot(panel, curves.rules, "jax.checkpoint_policies", colour(0), marker="o", linestyle="none")
    if curves.xla:
        _plot(panel, curves.xla, "XLA's rematerialisation", colour(3), marker="^", linestyle="none")
    _plot(panel, sorted(curves.ours, key=lambda point: point.slowdown), "graphrl", colour(1), marker="s", linestyle="-")


def _plot(panel: Axes, some: Sequence[Point], label: str, color: str, marker: str, linestyle: str) -> None:
    xs, ys = [100 * point.slowdown for point in some], [100 * point.share for point in some]
    panel.plot(xs, ys, label=label, color=color, marker=marker, linestyle=linestyle, markersize=4)
