"""Figure 5's form: a policy on workloads that it has not seen, before and after further training on each.

Workloads are the smallest of each architecture, under table 2's problem. In the paper a policy is pre-trained on the
other architectures' workloads; the policy that ships has seen none of them (`scripts/go.toml`). Further training draws
plans, and so does more of the same policy without it: `more draws` has as many plans as the fine-tuned policy.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.agents.go.network import Policy
from graphrl.compare.report import markdown
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.datasets.workloads import go
from graphrl.graphs.graph import ComputationGraph
from reproduce.go.methods import NEAR, Entry, policy_notes, search, with_policy
from reproduce.go.settings import Settings, against
from reproduce.measurements import Figures
from reproduce.results import Table
from reproduce.workloads import OVER, problem

SMALLEST = {  # workload of each architecture
    "rnnlm": "rnnlm-2",
    "gnmt": "gnmt-2",
    "transformer-xl": "transformer-xl-2",
    "inception": "inception-b32",
    "amoebanet": "amoebanet",
    "wavenet": "wavenet-2x18",
}
PLANS, TUNING, FEW_TUNING = 64, 50, 2  # plans drawn; updates
SECONDS = 3600.0  # no limit but for the quick plans at the start, which take a share


class Column(NamedTuple):
    """A column of the table: a method by its name in `methods.KINDS`, or another one, and its options."""

    heading: str
    name: str
    options: str = ""


def columns(updates: int) -> tuple[Column, ...]:
    """Returns the columns, with this number of updates on a workload."""
    plans = Policy.default(Problem("makespan")).config.ppo.environments * updates
    draws, tuned = f"rounds=1,tries=0,samples={PLANS}", f"finetune={updates}"
    return (
        Column("expert", "expert"),
        Column("start", "go", "rounds=0"),
        Column("untrained", "untrained", draws),
        Column("zero-shot", "go", draws),
        Column("more draws", "go", f"rounds=1,tries=0,samples={PLANS + plans}"),
        Column("fine-tuned", "go", f"{draws},{tuned}"),
        Column("untrained, fine-tuned", "untrained", f"{draws},{tuned}"),
    )


class Row(NamedTuple):
    """An architecture, and figures of the seeds by column heading."""

    architecture: str
    ops: int
    figures: dict[str, list[Figures]]


def figure5(settings: Settings) -> Iterator[Table]:
    """Yields a table for each transfer model, with a row for each architecture."""
    updates = FEW_TUNING if settings.quick else TUNING
    every = columns(updates)
    headings = [
        "workload",
        "ops",
        "devices",
        *(column.heading for column in every),
        "search, s: zero-shot",
        "fine-tuned",
    ]
    for transfer in settings.transfers:
        names = [name for name, workload in SMALLEST.items() if workload in settings.workloads]
        rows = [_measured(settings, name, transfer, every) for name in names]
        how = (
            f"Seconds of a training step, means over the seeds. `start` is the plan that `go` starts from; the "
            f"next two are the best of it and of {PLANS} plans drawn by an untrained policy and by the one that ships; "
            f"`fine-tuned`: {PLANS} plans after {updates} updates on the workload itself, or the best plan of those; "
            "`more draws`: as many plans by the policy that ships, without the updates."
        )
        notes = [*policy_notes([_entry(settings, column) for column in every], None), *_notes(rows, every)]
        summary = next((note for note in notes if note.startswith("fine-tuned against zero-shot")), "fine-tuned: none")
        table = markdown(headings, [_line(row, every) for row in rows])
        yield settings.measurements.table(
            f"Figure 5: {transfer}", how, table, notes=notes, summary=f"Plans, {summary}."
        )


def _entry(settings: Settings, column: Column) -> Entry:
    """Returns the method of a column with its policy."""
    name = f"{column.name}:{column.options}" if column.options else column.name
    method = f"go:{column.options}" if column.options else column.name
    return with_policy(Entry(method, SECONDS, name), None, settings.out)


def _measured(settings: Settings, architecture: str, transfer: Transfer, every: Sequence[Column]) -> Row:
    figures: dict[str, list[Figures]] = {}
    for column in every:
        entry = _entry(settings, column)
        key = {"workload": SMALLEST[architecture], "transfer": transfer, **entry.key}
        run = functools.partial(_run, architecture, transfer, entry)
        figures[column.heading] = settings.of_seeds(key, run, 1 if "samples" not in column.options else None)
    return Row(architecture, len(_workload(SMALLEST[architecture], transfer)[0].ops), figures)


def _run(architecture: str, transfer: Transfer, entry: Entry, seed: int) -> Figures:
    graph, task = _workload(SMALLEST[architecture], transfer)
    return search(graph, task, entry, seed)


@functools.lru_cache(maxsize=1)
def _workload(name: str, transfer: Transfer) -> tuple[ComputationGraph, Problem]:
    workload = go.load(name)
    return workload.colocated, problem(workload, transfer, OVER[transfer])


def _line(row: Row, every: Sequence[Column]) -> list[str]:
    workload = SMALLEST[row.architecture]
    head = [workload, f"{row.ops:,}", str(go.WORKLOADS[workload].devices)]
    values = [_cell(row.figures[column.heading], "makespan", 4) for column in every]
    return head + values + [_cell(row.figures[heading], "seconds", 1) for heading in ("zero-shot", "fine-tuned")]


def _cell(figures: Sequence[Figures], what: str, digits: int) -> str:
    if any(one["excess"] for one in figures):
        return "OOM"
    return f"{np.mean([one[what] for one in figures]):.{digits}f}" if figures else "-"


def _notes(rows: Sequence[Row], every: Sequence[Column]) -> Iterator[str]:
    """Yields geometric means of columns against others, and on how many workloads fine-tuning is ahead."""

    def mean(row: Row, heading: str) -> float | None:
        figures = row.figures[heading]
        return float(np.mean([one["makespan"] for one in figures])) if figures else None

    pairs = [(column.heading, "start") for column in every[2:]]
    for one, other in [*pairs, ("fine-tuned", "zero-shot"), ("fine-tuned", "more draws"), ("zero-shot", "untrained")]:
        both = [(mean(row, one), mean(row, other)) for row in rows]
        ahead = sum(mine is not None and theirs is not None and mine < theirs * (1 - NEAR) for mine, theirs in both)
        yield from (f"{note}, ahead on {ahead}" for note in against(f"{one} against {other}", both))
