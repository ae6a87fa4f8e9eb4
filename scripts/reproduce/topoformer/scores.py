"""The figures of a method on a set of graphs, and how two methods compare."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphrl.compare.table import Estimate, estimate, improvements
from reproduce.contest import Contest
from reproduce.topoformer.settings import DP, RANDOM


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
    if values := gaps(contest, label, reference):
        yield (
            f"{label} against {reference}: {estimate(values).percent(True)} on the mean of {len(values)} graphs, "
            f"lower on {100 * np.mean([value < 0 for value in values]):.0f}% of them"
        )


def seconds_text(one: Estimate) -> str:
    """As a table has it."""
    if np.isnan(one.mean):
        return "-"
    return f"{one.mean:.3g}" + ("" if one.half is None else f" ± {one.half:.1g}")


def _score(contest: Contest, label: str) -> Score:
    rows = contest.by_label[label]
    from_dp = gaps(contest, label, DP)
    return Score(
        gap=Estimate(0.0, None) if label == DP else estimate(from_dp),
        random=Estimate(0.0, None) if label == RANDOM else estimate(gaps(contest, label, RANDOM)),
        seconds=estimate([row.seconds - row.compile_seconds for row in rows if row.feasible]),
        graphs=len({row.fingerprint for row in rows}),
        compared=len(from_dp),
        failed=sum(not row.feasible for row in rows),
    )
