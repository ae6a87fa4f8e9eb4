"""Methods at equal time on a task's graphs: whether proposals and known solutions together win."""

import sys
from collections.abc import Iterator

from opponents.settings import origin

from graphrl.compare.pictures import quality_figure
from graphrl.compare.report import markdown, problem_line
from graphrl.plan.plot import write_figure
from graphrl.solvers.base import Budget
from regal.settings import Settings
from regal.tables import BASELINE, ahead, scores
from regal.tasks import TASKS

METHODS = (BASELINE, "brkga+", "list", "anneal-keys", "auto", "regal", "regal+")


def timed(settings: Settings) -> Iterator[str]:
    """One table, improvements over BRKGA with the evaluations of the task's own table and gaps at each time; and the
    picture of quality against time.
    """
    task, labels = settings.task, settings.among(METHODS)
    known = TASKS[task]
    reference = settings.compared(task, [settings.entrant(task, BASELINE, Budget(settings.evaluations))])
    headings, columns, drawn, told = ["method"], [], [], []
    for seconds in settings.times:
        print(f"{known.title}: {seconds:g} s", file=sys.stderr)
        found = settings.compared(task, [settings.entrant(task, label, Budget(None, seconds)) for label in labels])
        by_label = scores(found, reference.rows[BASELINE])
        columns.append(by_label)
        headings += [f"{seconds:g} s: {what}" for what in ("improvement", "gap")]
        drawn += found.asked
        told += [f"- at {seconds:g} s {line}\n" for line in ahead(by_label, "regal+")]
    write_figure(quality_figure(drawn, found.known), settings.out / f"{task}-time.png")
    cells = [
        [label, *(text for one in columns for text in (one[label].improvement.percent(True), one[label].gap.percent()))]
        for label in labels
    ]
    yield (
        f"## {known.title}, equal time: {problem_line(known.problem)}\n\n{len(settings.unseen(task))} unseen graphs. "
        f"Improvement is over BRKGA with {settings.evaluations:,} evaluations, of the same seed.\n\n"
        f"{markdown(headings, cells)}\n{''.join(told)}\n{origin(drawn)}"
    )
