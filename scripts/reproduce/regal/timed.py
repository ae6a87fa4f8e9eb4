"""Methods at equal time on a task's graphs: whether proposals and known solutions together win."""

import sys
from collections.abc import Iterator

from graphrl.compare.pictures import quality_figure
from graphrl.compare.report import markdown, problem_line
from graphrl.plan.plot import write_figure
from graphrl.solvers.base import Budget
from reproduce.regal.settings import BASELINE, TIMED, Settings
from reproduce.regal.tables import ahead, scores
from reproduce.regal.tasks import TASKS
from reproduce.results import Table, bullets, of_rows


def timed(settings: Settings) -> Iterator[Table]:
    """One table, improvements over BRKGA with the evaluations of the task's own table and gaps at each time; and the
    picture of quality against time.
    """
    task, labels = settings.task, settings.among(TIMED)
    title, problem = TASKS[task].title, TASKS[task].problem
    reference = settings.on_task(task, [settings.entrant(task, BASELINE, Budget(settings.evaluations))])
    headings, columns, drawn, notes = ["method"], [], [], []
    for seconds in settings.times:
        print(f"{title}: {seconds:g} s", file=sys.stderr)
        contest = settings.on_task(task, [settings.entrant(task, label, Budget(None, seconds)) for label in labels])
        by_label = scores(contest, reference.by_label[BASELINE])
        columns.append(by_label)
        headings += [f"{seconds:g} s: {what}" for what in ("improvement", "gap")]
        drawn += contest.rows
        notes += [f"at {seconds:g} s {line}" for line in ahead(by_label, "regal+")]
    write_figure(quality_figure(drawn, contest.others), settings.out / f"{task}-time.png")
    cells = [
        [label, *(text for one in columns for text in (one[label].improvement.percent(True), one[label].gap.percent()))]
        for label in labels
    ]
    how = (
        f"{len(settings.unseen(task))} unseen graphs. Improvement is over BRKGA with {settings.evaluations:,} "
        "evaluations, of the same seed."
    )
    parts = how, markdown(headings, cells), bullets(notes)
    yield Table(f"{title}, equal time: {problem_line(problem)}", of_rows(drawn), parts)
