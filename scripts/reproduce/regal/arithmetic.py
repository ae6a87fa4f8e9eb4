"""The two metrics of the papers, by seed, with 95% intervals over seeds.

A seed is that of the search and, for learned methods, of training: with seed i every method searches with seed i, and
a learned one plays the policy that was trained with seed i. A method that has one seed only (it draws no numbers, or
is too slow for more) is compared with each seed of the baseline.

- Improvement over BRKGA 5K (ICLR paper, section 4.2): the arithmetic mean over graphs of 1 - o / o_BRKGA.
- Gap from best known (workshop paper, section 5: "geometric averages"): the geometric mean over graphs of o / best,
  less 1. Best known is the lowest value of all methods, seeds and budgets that the file has; not only CP-SAT's.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.compare.runs import Case, Row
from graphrl.compare.table import TIE, Best, Estimate, estimate


class Score(NamedTuple):
    """What a method's rows come to. All are fractions but `seconds`.

    Attributes:
      improvement: over the baseline, arithmetic mean over graphs.
      gap: from the best known, geometric mean over graphs.
      matched: share of graphs on which it is as good as the baseline or better.
      highest, lowest: improvement of a single graph and seed.
      bound: gap from the best known lower bound, geometric mean over graphs and seeds.
      seconds: mean of wall clock, compiling left out.
      failed, runs: how many runs gave no plan, of how many.
    """

    improvement: Estimate
    gap: Estimate
    matched: Estimate
    highest: float
    lowest: float
    bound: float
    seconds: float
    failed: int
    runs: int


def score(rows: Sequence[Row], baseline: Sequence[Row], best: Mapping[Case, Best]) -> Score:
    """A method's figures; graphs on which it or the baseline has failed are left out of what they are needed for.

    Args:
      rows: of the method, one a graph and seed.
      baseline: of BRKGA, likewise.
      best: `table.best_known` of all rows at hand.
    """
    ours, theirs = _by_seed(rows), _by_seed(baseline)
    improved = [gains for seed, base in theirs.items() if len(gains := _gains(ours, seed, base))]
    gaps = [ratios - 1 for values in ours.values() if (ratios := _geometric_ratio(values, best, "value")) > 0]
    everything = np.concatenate([*improved, np.zeros(0)])
    bounds = [ratio for values in ours.values() if (ratio := _geometric_ratio(values, best, "bound")) > 0]
    good = [row for row in rows if row.feasible]
    return Score(
        improvement=estimate([float(gains.mean()) for gains in improved]),
        gap=estimate(gaps),
        matched=estimate([float((gains >= -TIE).mean()) for gains in improved]),
        highest=float(everything.max(initial=-math.inf)),
        lowest=float(everything.min(initial=math.inf)),
        bound=float(np.mean(bounds)) - 1 if bounds else math.nan,
        seconds=float(np.mean([row.seconds - row.compile_seconds for row in good])) if good else math.nan,
        failed=len(rows) - len(good),
        runs=len(rows),
    )


def _by_seed(rows: Sequence[Row]) -> dict[int, dict[Case, float]]:
    by_seed: dict[int, dict[Case, float]] = {}
    for row in rows:
        values = by_seed.setdefault(row.seed, {})
        if row.feasible and row.value is not None:
            values[row.case] = row.value
    return by_seed


def _gains(ours: dict[int, dict[Case, float]], seed: int, base: dict[Case, float]) -> np.ndarray:
    """Improvements by graph with one seed: `[g]` float64."""
    values = next(iter(ours.values())) if len(ours) == 1 else ours.get(seed, {})
    return np.array([1 - values[case] / base[case] for case in values if case in base and base[case] > 0])


def _geometric_ratio(values: dict[Case, float], best: Mapping[Case, Best], to: str) -> float:
    """Geometric mean of values over the best known "value" or "bound" where that is above 0; 0 if there is none."""
    pairs = [(value, getattr(best[case], to)) for case, value in values.items()]
    logs = [math.log(value / reference) for value, reference in pairs if reference > 0 and value > 0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 0.0
