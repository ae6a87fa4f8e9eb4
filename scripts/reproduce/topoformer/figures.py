"""The figures of a method on a set of graphs, and the picture that Topoformer's tables have: gap against seconds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from graphrl.colours import COLOURS, GREY, GRID, MARKERS
from graphrl.compare.runs import Row
from graphrl.compare.table import Estimate, estimate, improvements
from graphrl.plan.plot import DPI
from reproduce.contest import Contest
from reproduce.topoformer.settings import DECODED, DP, RANDOM, TIMED

LEARNED = (*DECODED, "topoformer+")
_SEARCH, _FAST, _LEARNED = COLOURS[:3]


class Score(NamedTuple):
    """What a method's rows come to, over graphs, with 95% intervals; fractions but `seconds`.

    Attributes:
      gap: from approximate DP, where that has run.
      random: from the best of 100 random orders.
      seconds: of wall clock, compiling left out.
      graphs, compared: how many it has run on; of these, how many with approximate DP.
      failed: runs without a plan.
    """

    gap: Estimate
    random: Estimate
    seconds: Estimate
    graphs: int
    compared: int
    failed: int


def scores(contest: Contest) -> dict[str, Score]:
    """The figures of every label."""
    return {label: _score(contest, label) for label in contest.by_label}


def gaps(contest: Contest, label: str, reference: str) -> list[float]:
    """By what fraction a method is above another, by graph, means over seeds; graphs that either lacks are left out."""
    rows = [*contest.by_label.get(label, ()), *(contest.by_label.get(reference, ()) if label != reference else ())]
    return [-gain for gain in improvements(rows, label, reference)]


def paired(contest: Contest, label: str, reference: str) -> tuple[Estimate, float, int] | None:
    """How far a method is above another: mean and interval over graphs, the share of graphs on which it is lower,
    and how many graphs there are; None without any.
    """
    values = gaps(contest, label, reference)
    return (estimate(values), float(np.mean([value < 0 for value in values])), len(values)) if values else None


def spread(contest: Contest, label: str) -> str:
    """The least and the largest mean gap from approximate DP of a seed; nothing if there is one seed."""
    rows, reference = contest.by_label[label], contest.by_label[DP]
    seeds = sorted({row.seed for row in rows})
    means = [
        float(np.mean(some))
        for seed in seeds
        if (some := gaps(Contest({label: [row for row in rows if row.seed == seed], DP: reference}, []), label, DP))
    ]
    return f"{100 * min(means):+.2f}% to {100 * max(means):+.2f}%" if len(means) > 1 else ""


def verdict(contest: Contest, label: str, reference: str) -> Iterator[str]:
    """A line that says how a method compares with another, graph by graph."""
    if (both := paired(contest, label, reference)) is not None:
        mean, lower, graphs = both
        yield (
            f"{label} against {reference}: {mean.percent(True)} on the mean of {graphs} graphs, "
            f"lower on {100 * lower:.0f}% of them"
        )


def seconds_of(rows: Sequence[Row]) -> list[float]:
    """Of the runs that gave a plan, compiling left out."""
    return [row.seconds - row.compile_seconds for row in rows if row.feasible]


def seconds_text(one: Estimate) -> str:
    """As a table has it."""
    if np.isnan(one.mean):
        return "-"
    return f"{one.mean:.3g}" + ("" if one.half is None else f" ± {one.half:.1g}")


def picture(by_title: Mapping[str, Mapping[str, Score]]) -> Figure:
    """Mean gap from approximate DP against mean seconds, a panel a set of graphs (the paper's figures 2 and 3)."""
    figure = Figure(figsize=(1.5 + 4.2 * len(by_title), 4.4), dpi=DPI, layout="constrained")
    panels = figure.subplots(1, len(by_title), squeeze=False)[0]
    marks: dict[str, str] = {}
    for axes, (title, by_label) in zip(panels, by_title.items(), strict=True):
        for label, one in by_label.items():
            if one.compared and np.isfinite(one.seconds.mean):
                marks.setdefault(label, MARKERS[len(marks) % len(MARKERS)])
                half = 100 * (one.gap.half or 0.0)
                axes.errorbar(
                    max(one.seconds.mean, 1e-5), 100 * one.gap.mean, half, fmt=marks[label], color=_colour(label),
                    label=label, markersize=6, capsize=2, elinewidth=0.8,
                )  # fmt: skip
        means = [100 * one.gap.mean for one in by_label.values() if one.compared]
        room = 0.15 * (max(means, default=1.0) - min(means, default=0.0)) + 0.5
        axes.set_ylim(min(means, default=0.0) - room, max(means, default=1.0) + room)  # intervals may leave it
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.axhline(0, color=GREY, linewidth=0.6)
        axes.set_xlabel("seconds")
        axes.set_title(title, fontsize=10)
        axes.grid(True, which="major", color=GRID, linewidth=0.6)
    panels[0].set_ylabel("mean gap from approximate DP [%]")
    if marks:
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)
    return figure


def _score(contest: Contest, label: str) -> Score:
    rows = contest.by_label[label]
    from_dp = gaps(contest, label, DP)
    return Score(
        gap=Estimate(0.0, None) if label == DP else estimate(from_dp),
        random=Estimate(0.0, None) if label == RANDOM else estimate(gaps(contest, label, RANDOM)),
        seconds=estimate(seconds_of(rows)),
        graphs=len({row.fingerprint for row in rows}),
        compared=len(from_dp),
        failed=sum(not row.feasible for row in rows),
    )


def _colour(label: str) -> str:
    if label.startswith(LEARNED):
        return _LEARNED
    return _SEARCH if label.startswith((DP, "dfs-dp", *TIMED)) else _FAST
