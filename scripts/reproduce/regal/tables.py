"""The paper's table of a task: every method at equal evaluations, with its picture and the goals."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence

from graphrl.compare.pictures import histogram_figure
from graphrl.compare.report import markdown, problem_line
from graphrl.compare.runs import Row
from graphrl.compare.table import best_known
from graphrl.plan.plot import write_figure
from reproduce.contest import Contest
from reproduce.regal.arithmetic import Score, score
from reproduce.regal.settings import BASELINE, LEARNED, LONGER, METHODS, UNTRAINED, Settings
from reproduce.regal.tasks import TASKS
from reproduce.results import Table, bullets, of_rows

HEADINGS = (
    "method", "improvement over BRKGA", "gap from best known", "matches or beats", "best", "worst", "to bound",
    "seconds", "failed",
)  # fmt: skip
_LEARNED = {False: "and training", True: "with the policies that ship"}
# share of BRKGA's gap that REGAL closes, share of graphs on which it is as good: our goals
GOALS = {
    "synthetic": (0.25, 0.87),
    "synthetic-memory": (0.40, None),
    "zoo-makespan": (None, None),
    "zoo-memory": (0.40, None),
}


def table(settings: Settings, task: str, *, shipped: bool = False) -> Iterator[Table]:
    """One table and the histogram of improvements."""
    title, problem = TASKS[task].title, TASKS[task].problem
    labels = {BASELINE, *settings.among(METHODS)} - ({"gas", "gas-hint"} if shipped else set())  # none ships
    order = [label for label in METHODS if label in labels]
    entrants = [settings.entrant(task, label, settings.budget(label), shipped=shipped) for label in order]
    print(f"{title}: {settings.evaluations:,} evaluations", file=sys.stderr)
    contest = settings.on_task(task, entrants)
    by_label = scores(contest, contest.by_label[BASELINE])
    drawn = [row for label in order if label in (BASELINE, *LEARNED) for row in contest.by_label[label]]
    picture = f"{task}-{'shipped' if shipped else 'improvements'}.png"
    write_figure(histogram_figure(drawn, BASELINE), settings.out / picture)
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
    yield Table(f"{title}: {problem_line(problem)}", of_rows(contest.rows), (how, lines, notes))


def scores(contest: Contest, baseline: Sequence[Row]) -> dict[str, Score]:
    """The figures of every method."""
    best = best_known([*contest.rows, *contest.others])
    return {label: score(rows, baseline, best) for label, rows in contest.by_label.items()}


def cells(label: str, one: Score) -> list[str]:
    """A method's line, under `HEADINGS`."""
    extremes = [f"{100 * value:+.1f}%" if math.isfinite(value) else "-" for value in (one.highest, one.lowest)]
    bound = "-" if math.isnan(one.bound) else f"{100 * one.bound:.2f}%"
    seconds = "-" if math.isnan(one.seconds) else f"{one.seconds:.3g}"
    failed = f"{one.failed} of {one.runs}" if one.failed else ""
    means = one.improvement.percent(True), one.gap.percent(), one.matched.percent()
    return [label, *means, *extremes, bound, seconds, failed]


def _goals(task: str, by_label: Mapping[str, Score]) -> Iterator[str]:
    """What the figures say of the goals, of what the hint is worth, and of what training adds to it."""
    brkga, (closing, matching) = by_label[BASELINE], GOALS[task]
    for label in (label for label in ("regal", UNTRAINED, "regal-hint") if label in by_label):
        ours = by_label[label]
        if brkga.gap.mean > 0:
            closed = 1 - ours.gap.mean / brkga.gap.mean
            yield f"{label} closes {100 * closed:.1f}% of BRKGA's gap{_wanted(closed, closing)}"
        share = ours.matched.mean
        yield f"{label} matches or beats BRKGA on {100 * share:.1f}% of the graphs{_wanted(share, matching)}"
    yield from ahead(by_label, "regal", ("brkga-tuned", "gas", "idrs"))
    yield from ahead(
        by_label,
        "regal-hint",
        (UNTRAINED, "brkga+", "gas-hint", "idrs-hint", "list", "local-search", "anneal-schedule"),
    )
    yield from ahead(by_label, "regal+")


def ahead(
    by_label: Mapping[str, Score],
    label: str,
    others: Sequence[str] = ("list", "anneal-schedule", "auto"),
) -> Iterator[str]:
    """Whether a method's mean gap is below those of others, and by how much."""
    for other in others:
        if other in by_label and label in by_label:
            ours, theirs = by_label[label].gap.mean, by_label[other].gap.mean
            word = "beats" if ours < theirs else "does not beat"
            yield f"{label} {word} {other}: gaps {100 * ours:.2f}% and {100 * theirs:.2f}%"


def _wanted(value: float, least: float | None) -> str:
    if least is None:
        return ""
    return f" (goal: at least {100 * least:.0f}%: {'met' if value >= least else 'missed'})"
