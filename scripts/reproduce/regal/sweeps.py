"""Methods under several budgets.

- limits: quality against the evaluation limit, with the policy of one limit (ICLR paper, figure 3);
- timed: methods at equal time: whether proposals and known solutions together win;
- overhead: what REGAL's proposals cost: wall clock beside standard BRKGA's, and the network's part. Both methods have
  run on graphs of the same padded size before, and what is compiled all the same is left out.
"""

import functools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax

from graphrl.agents.regal.network import Policy
from graphrl.compare.pictures import quality_figure
from graphrl.compare.report import markdown, problem_line
from graphrl.compare.runs import Row
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes
from graphrl.plan.plot import write_figure
from graphrl.solvers.base import Budget
from reproduce.regal.settings import BASELINE, LEARNED, TIMED, Settings
from reproduce.regal.tables import Score, ahead, scores
from reproduce.regal.tasks import TASKS
from reproduce.results import Table, bullets, of_rows
from reproduce.timing import median_seconds

LIMITED = ("brkga", "gas", "idrs", "regal", "regal-hint")
METHODS = (BASELINE, "regal", "regal-hint", "gas")
GOAL = 0.15  # of BRKGA's time
_LONG = 3600.0  # seconds: under a limit, though it is never met, `graphrl.compare` compiles before the clock starts


class _Sweep(NamedTuple):
    """What methods came to under each budget, and the rows that this is of."""

    by_budget: dict[str, dict[str, Score]]
    rows: list[Row]
    others: list[Row]


def limits(settings: Settings) -> Iterator[Table]:
    """One table, a line a method."""
    sweep = _sweep(settings, LIMITED, {f"{limit:,} evaluations": Budget(limit) for limit in settings.limits})
    by_limit = dict(zip(settings.limits, sweep.by_budget.values(), strict=True))
    yield _table(settings, "Evaluation limits", sweep, _reached(by_limit, settings.evaluations))


def timed(settings: Settings) -> Iterator[Table]:
    """One table, a line a method, and the picture of quality against time."""
    sweep = _sweep(settings, TIMED, {f"{seconds:g} s": Budget(None, seconds) for seconds in settings.times})
    write_figure(quality_figure(sweep.rows, sweep.others), settings.out / f"{settings.task}-time.png")
    notes = (f"at {name} {line}" for name, by_label in sweep.by_budget.items() for line in ahead(by_label, "regal+"))
    yield _table(settings, f"{TASKS[settings.task].title}, equal time", sweep, notes)


def overhead(settings: Settings) -> Iterator[Table]:
    """One table: seconds of each method at equal evaluations, and its time over BRKGA's."""
    task, budget = settings.task, Budget(settings.evaluations, _LONG)
    labels = dict.fromkeys([BASELINE, *settings.among(METHODS)])
    contest = settings.on_task(task, [settings.entrant(task, label, budget) for label in labels])
    seconds = {label: _seconds(rows) for label, rows in contest.by_label.items()}
    lines, notes = [], []
    for label, own in seconds.items():
        both = [(own[key], base) for key, base in seconds[BASELINE].items() if key in own]
        ratio = sum(ours for ours, _ in both) / sum(base for _, base in both) - 1
        parts = ["-", "-"]
        if label in LEARNED:
            file = settings.trained(task, LEARNED[label][1])[0]
            policy = Policy.load(file)
            proposing = statistics.mean(_proposing(policy, graph) for graph in settings.unseen(task))
            parts = [f"{1000 * part:.1f}" for part in (median_seconds(functools.partial(Policy.load, file)), proposing)]
        mean = statistics.mean(own.values())
        lines.append([label, f"{mean:.3f}", f"{100 * ratio:+.1f}%", *parts])
        if label in ("regal", "regal-hint"):
            verdict = "met" if ratio < GOAL else "missed"
            notes.append(f"{label} takes {100 * ratio:.1f}% more time (goal: under {100 * GOAL:.0f}%: {verdict})")
    headings = ["method", "mean seconds", "over BRKGA's", "ms to read the policy", "ms to propose"]
    how = (
        f"{len(settings.unseen(task))} unseen graphs, {settings.evaluations:,} evaluations. The ratio is of sums over "
        "graphs and seeds."
    )
    title = f"Time of the proposals: {problem_line(TASKS[task].problem)}"
    yield Table(title, of_rows(contest.rows), (how, markdown(headings, lines), bullets(notes)))


def _sweep(settings: Settings, labels: Sequence[str], budgets: Mapping[str, Budget]) -> _Sweep:
    """Of the methods that take part, over the baseline with the evaluations of the task's own table."""
    task, labels = settings.task, settings.among(labels)
    reference = settings.on_task(task, [settings.entrant(task, BASELINE, Budget(settings.evaluations))])
    sweep = _Sweep({}, [], [])
    for name, budget in budgets.items():
        print(f"{TASKS[task].title}: {name}", file=sys.stderr)
        contest = settings.on_task(task, [settings.entrant(task, label, budget) for label in labels])
        sweep.by_budget[name] = scores(contest, reference.by_label[BASELINE])
        sweep.rows.extend(contest.rows)
        sweep.others[:] = contest.others
    return sweep


def _table(settings: Settings, what: str, sweep: _Sweep, notes: Iterator[str]) -> Table:
    headings = ["method", *(f"{name}: {figure}" for name in sweep.by_budget for figure in ("improvement", "gap"))]
    columns = list(sweep.by_budget.values())
    lines = [
        [label, *(text for one in columns for text in (one[label].improvement.percent(True), one[label].gap.percent()))]
        for label in columns[0]
    ]
    how = (
        f"{len(settings.unseen(settings.task))} unseen graphs. Improvement is over BRKGA with "
        f"{settings.evaluations:,} evaluations, of the same seed."
    )
    title = f"{what}: {problem_line(TASKS[settings.task].problem)}"
    return Table(title, of_rows(sweep.rows), (how, markdown(headings, lines), bullets(notes)))


def _reached(by_limit: Mapping[int, Mapping[str, Score]], evaluations: int) -> Iterator[str]:
    """Whether BRKGA with the most evaluations reaches REGAL, with and without the hint, with those of the table."""
    most, usual = max(by_limit), by_limit.get(evaluations, {})
    for label in (label for label in ("regal", "regal-hint") if label in usual and BASELINE in by_limit[most]):
        ours, theirs = usual[label].improvement, by_limit[most][BASELINE].improvement
        word = "reaches" if theirs.mean >= ours.mean else "does not reach"
        yield (
            f"BRKGA with {most:,} evaluations ({theirs.percent(True)}) {word} {label} with {evaluations:,} "
            f"({ours.percent(True)})"
        )


def _seconds(rows: list[Row]) -> dict[tuple[str, int], float]:
    """By graph and seed, compiling left out."""
    return {(row.fingerprint, row.seed): row.seconds - row.compile_seconds for row in rows if row.feasible}


def _proposing(policy: Policy, graph: ComputationGraph) -> float:
    """Median seconds from a graph to its proposals, features and network."""
    sizes = common_sizes([graph])
    return median_seconds(lambda: jax.block_until_ready(policy.propose(graph, sizes)))
