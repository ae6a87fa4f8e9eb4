"""What REGAL's proposals cost: wall clock beside standard BRKGA's, and the network's part.

Both methods have run on graphs of the same padded size before, and what is compiled all the same is left out.
"""

import functools
import statistics
from collections.abc import Iterator

import jax

from graphrl.agents.regal.network import Policy
from graphrl.compare.report import markdown, problem_line
from graphrl.compare.runs import Row
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.base import Budget
from reproduce.regal.settings import BASELINE, LEARNED, Settings
from reproduce.regal.tasks import TASKS
from reproduce.results import Table, bullets, of_rows
from reproduce.timing import median_seconds

METHODS = (BASELINE, "regal", "regal-hint", "gas")
GOAL = 0.15  # of BRKGA's time
_LONG = 3600.0  # seconds: under a limit, though it is never met, `graphrl.compare` compiles before the clock starts


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


def _seconds(rows: list[Row]) -> dict[tuple[str, int], float]:
    """By graph and seed, compiling left out."""
    return {(row.fingerprint, row.seed): row.seconds - row.compile_seconds for row in rows if row.feasible}


def _proposing(policy: Policy, graph: ComputationGraph) -> float:
    """Median seconds from a graph to its proposals, features and network."""
    sizes = common_sizes([graph])
    return median_seconds(lambda: jax.block_until_ready(policy.propose(graph, sizes)))
