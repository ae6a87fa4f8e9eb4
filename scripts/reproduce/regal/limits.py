"""Quality against the evaluation limit, with the policy of one limit (ICLR paper, figure 3)."""

import sys
from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from graphrl.colours import COLOURS, GREY
from graphrl.compare.report import markdown, problem_line
from graphrl.plan.plot import DPI, write_figure
from graphrl.solvers.base import Budget
from reproduce.regal.arithmetic import Score
from reproduce.regal.settings import BASELINE, Settings
from reproduce.regal.tables import scores
from reproduce.regal.tasks import TASKS
from reproduce.results import Table, bullets, of_rows

METHODS = ("brkga", "gas", "idrs", "regal", "regal-hint")


def limits(settings: Settings) -> Iterator[Table]:
    """One table, a line a limit, and the picture."""
    task = settings.task
    labels = settings.among(METHODS)
    reference = settings.on_task(task, [settings.entrant(task, BASELINE, Budget(settings.evaluations))])
    by_limit: dict[int, dict[str, Score]] = {}
    rows = []
    for limit in settings.limits:
        print(f"limits: {limit:,} evaluations", file=sys.stderr)
        contest = settings.on_task(task, [settings.entrant(task, label, Budget(limit)) for label in labels])
        by_limit[limit] = scores(contest, reference.by_label[BASELINE])
        rows += contest.rows
    write_figure(_figure(by_limit, settings), settings.out / f"{task}-limits.png")
    headings = ["evaluations", *(f"{label}: {what}" for label in labels for what in ("improvement", "gap"))]
    lines = [
        [
            f"{limit:,}",
            *(text for one in by_label.values() for text in (one.improvement.percent(True), one.gap.percent())),
        ]
        for limit, by_label in by_limit.items()
    ]
    how = (
        f"{len(settings.unseen(task))} unseen graphs. Improvement is over BRKGA with {settings.evaluations:,} "
        "evaluations, of the same seed."
    )
    parts = how, markdown(headings, lines), bullets(_reached(by_limit, settings.evaluations))
    yield Table(f"Evaluation limits: {problem_line(TASKS[task].problem)}", of_rows(rows), parts)


def _reached(by_limit: dict[int, dict[str, Score]], evaluations: int) -> Iterator[str]:
    """Whether BRKGA with the most evaluations reaches REGAL, with and without the hint, with those of the table."""
    most, usual = max(by_limit), by_limit.get(evaluations, {})
    for label in (label for label in ("regal", "regal-hint") if label in usual and BASELINE in by_limit[most]):
        ours, theirs = usual[label].improvement, by_limit[most][BASELINE].improvement
        word = "reaches" if theirs.mean >= ours.mean else "does not reach"
        yield (
            f"BRKGA with {most:,} evaluations ({theirs.percent(True)}) {word} {label} with {evaluations:,} "
            f"({ours.percent(True)})"
        )


def _figure(by_limit: dict[int, dict[str, Score]], settings: Settings) -> Figure:
    """Improvement over the reference against the limit, with the intervals over seeds as bars."""
    figure = Figure(figsize=(7, 4.5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for label, colour in zip(METHODS, COLOURS, strict=False):
        points = [(limit, some[label].improvement) for limit, some in by_limit.items() if label in some]
        if points:
            means, halves = (
                [100 * (value or 0.0) for value in part] for part in zip(*(e for _, e in points), strict=True)
            )
            axes.errorbar(
                [limit for limit, _ in points], means, halves, label=label, color=colour, marker="o", capsize=3
            )
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("evaluations")
    axes.set_ylabel(f"improvement over BRKGA with {settings.evaluations:,} [%]")
    axes.set_title(problem_line(TASKS[settings.task].problem), fontsize=10, loc="left")
    axes.legend(frameon=False)
    return figure
