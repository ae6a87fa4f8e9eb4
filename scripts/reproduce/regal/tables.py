"""The paper's table of a task: every method at equal evaluations, by the two metrics of the papers.

`table` yields the table, the histogram of improvements and a comparison with the goals. `scores` computes the figures
of every method, with 95% intervals over seeds:

- Improvement over BRKGA 5K (ICLR paper, section 4.2): the arithmetic mean over graphs of 1 - o / o_BRKGA.
- Gap from best known (workshop paper, section 5: "geometric averages"): the geometric mean over graphs of o / best,
  less 1. Best known is the lowest value of all methods, seeds and budgets in the file; not only CP-SAT's.

A seed is that of the search and, for learned methods, of training. With seed i every method searches with seed i, and a
learned one plays the policy that was trained with seed i. A method with only one seed (it draws no numbers, or is too
slow for more) is compared with each seed of the baseline.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.compare.pictures import histogram_figure
from graphrl.compare.report import problem_line
from graphrl.compare.runs import Case, Row
from graphrl.compare.table import TIE, Best, Estimate, best_known, estimate
from graphrl.plan.plot import write_figure
from reproduce.contest import Contest
from reproduce.regal.settings import BASELINE, LEARNED, LONGER, METHODS, TASKS, UNTRAINED, Settings
from reproduce.results import Table, bullets, markdown, of_rows

HEADINGS = (
    "method", "improvement over BRKGA", "gap from best known", "matches or beats", "best", "worst", "to bound",
    "seconds", "failed",
)  # fmt: skip
_LEARNED = {False: "and training", True: "with the policies that ship"}
# our goals: share of BRKGA's gap that REGAL closes; share of graphs on which it is at least as good
GOALS = {
    "synthetic": (0.25, 0.87),
    "synthetic-memory": (0.40, None),
    "zoo-makespan": (None, None),
    "zoo-memory": (0.40, None),
}


class Score(NamedTuple):
    """Scores of a method. All are fractions but `seconds`.

    Attributes:
      improvement: improvement over the baseline, arithmetic mean over graphs.
      gap: gap from the best known value, geometric mean over graphs.
      matched: share of graphs on which it is as good as the baseline or better.
      highest, lowest: largest and least improvement of a single graph and seed.
      bound: gap from the best known lower bound, geometric mean over graphs, mean over seeds.
      seconds: mean wall-clock time, without compilation.
      failed, runs: number of runs without a plan, and of all runs.
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


def table(settings: Settings, task: str, *, shipped: bool = False) -> Iterator[Table]:
    """Yields the table of a task; writes the histogram of improvements."""
    title, problem = TASKS[task].title, TASKS[task].problem
    labels = {BASELINE, *settings.among(METHODS)} - ({"gas"} if shipped else set())  # does not ship
    order = [label for label in METHODS if label in labels]
    entrants = [settings.entrant(task, label, settings.budget(label), shipped=shipped) for label in order]
    print(f"{title}: {settings.evaluations:,} evaluations", file=sys.stderr)
    contest = settings.on_task(task, entrants)
    by_label = scores(contest, contest.by_label[BASELINE])
    learned = [row for label in order if label in (BASELINE, *LEARNED) for row in contest.by_label[label]]
    picture = f"{task}-{'shipped' if shipped else 'improvements'}.png"
    write_figure(histogram_figure(learned, BASELINE), settings.out / picture)
    others = "".join(
        f"; {label} {settings.budget(label).seconds:g} s" for label in ("cp-sat", LONGER) if label in by_label
    )
    how = (
        f"{len(settings.unseen(task))} unseen graphs, {settings.evaluations:,} evaluations a run{others}. "
        "Improvement: arithmetic mean over graphs; gap: geometric mean. Means over "
        f"{settings.seeds} seed{'s' * (settings.seeds > 1)} of search {_LEARNED[shipped]}, with 95% intervals if there "
        "are several. Seconds without compiling."
    )
    lines = markdown(HEADINGS, [cells(label, one) for label, one in by_label.items()])
    notes = bullets([*_goals(task, by_label), *contest.faults()])
    yield Table(f"{title}: {problem_line(problem)}", of_rows(contest.rows), (how, lines, notes), gap_summary(by_label))


def scores(contest: Contest, baseline: Sequence[Row]) -> dict[str, Score]:
    """Computes the scores of every method."""
    best = best_known([*contest.rows, *contest.others])
    return {label: score(rows, baseline, best) for label, rows in contest.by_label.items()}


def score(rows: Sequence[Row], baseline: Sequence[Row], best: Mapping[Case, Best]) -> Score:
    """Computes a method's scores. Graphs on which it or the baseline failed are left out of the figures that need them.

    Args:
      rows: rows of the method, one for each graph and seed.
      baseline: rows of BRKGA, likewise.
      best: `table.best_known` of all rows at hand.
    """
    ours, theirs = _by_seed(rows), _by_seed(baseline)
    improved = [gains for seed, base in theirs.items() if len(gains := _gains(ours, seed, base))]
    gaps = [ratios - 1 for values in ours.values() if (ratios := _geometric_ratio(values, best, "value")) > 0]
    everything = np.concatenate([*improved, np.zeros(0)])
    bounds = [ratio for values in ours.values() if (ratio := _geometric_ratio(values, best, "bound")) > 0]
    feasible = [row for row in rows if row.feasible]
    return Score(
        improvement=estimate([float(gains.mean()) for gains in improved]),
        gap=estimate(gaps),
        matched=estimate([float((gains >= -TIE).mean()) for gains in improved]),
        highest=float(everything.max(initial=-math.inf)),
        lowest=float(everything.min(initial=math.inf)),
        bound=float(np.mean(bounds)) - 1 if bounds else math.nan,
        seconds=float(np.mean([row.seconds - row.compile_seconds for row in feasible])) if feasible else math.nan,
        failed=len(rows) - len(feasible),
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
    """Computes the improvement on each graph with one seed: `[g]` float64."""
    values = next(iter(ours.values())) if len(ours) == 1 else ours.get(seed, {})
    return np.array([1 - values[case] / base[case] for case in values if case in base and base[case] > 0])


def _geometric_ratio(values: dict[Case, float], best: Mapping[Case, Best], to: str) -> float:
    """Computes the geometric mean ratio to the best known "value" or "bound" (if above 0); 0 without such graphs."""
    pairs = [(value, getattr(best[case], to)) for case, value in values.items()]
    logs = [math.log(value / reference) for value, reference in pairs if reference > 0 and value > 0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 0.0


def cells(label: str, one: Score) -> list[str]:
    """Returns a method's row, under `HEADINGS`."""
    extremes = [f"{100 * value:+.1f}%" if math.isfinite(value) else "-" for value in (one.highest, one.lowest)]
    bound = "-" if math.isnan(one.bound) else f"{100 * one.bound:.2f}%"
    seconds = "-" if math.isnan(one.seconds) else f"{one.seconds:.3g}"
    failed = f"{one.failed} of {one.runs}" if one.failed else ""
    means = one.improvement.percent(True), one.gap.percent(), one.matched.percent()
    return [label, *means, *extremes, bound, seconds, failed]


def _goals(task: str, by_label: Mapping[str, Score]) -> Iterator[str]:
    """Yields lines on the goals, on the gain of training, and on other methods."""
    brkga, (closing, matching) = by_label[BASELINE], GOALS[task]
    for label in (label for label in (UNTRAINED, "regal") if label in by_label):
        ours = by_label[label]
        if brkga.gap.mean > 0:
            closed = 1 - ours.gap.mean / brkga.gap.mean
            yield f"{label} closes {100 * closed:.1f}% of BRKGA's gap{_goal(closed, closing)}"
        share = ours.matched.mean
        yield f"{label} matches or beats BRKGA on {100 * share:.1f}% of the graphs{_goal(share, matching)}"
    others = (UNTRAINED, "brkga-tuned", "gas", "idrs", "brkga+", "list", "local-search", "anneal-schedule")
    yield from compare_gaps(by_label, "regal", others)
    yield from compare_gaps(by_label, "regal+")


def gap_summary(by_label: Mapping[str, Score]) -> str:
    """Returns the mean gaps of REGAL and of BRKGA, in a sentence."""
    labels = ("regal", BASELINE)
    gaps = [f"`{label}` {100 * by_label[label].gap.mean:.1f}%" for label in labels if label in by_label]
    return f"Mean gap from the best known: {', '.join(gaps)}."


def compare_gaps(
    by_label: Mapping[str, Score], label: str, others: Sequence[str] = ("list", "anneal-schedule", "auto")
) -> Iterator[str]:
    """Compares a method's mean gap with those of others."""
    for other in others:
        if other in by_label and label in by_label:
            ours, theirs = by_label[label].gap.mean, by_label[other].gap.mean
            word = "beats" if ours < theirs else "does not beat"
            yield f"{label} {word} {other}: gaps {100 * ours:.2f}% and {100 * theirs:.2f}%"


def _goal(value: float, least: float | None) -> str:
    if least is None:
        return ""
    return f" (goal: at least {100 * least:.0f}%: {'met' if value >= least else 'missed'})"
