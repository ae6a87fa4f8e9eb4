"""Figure 5's form: a policy pre-trained without one architecture, then played and fine-tuned on it.

Workloads are the smallest of each architecture, under table 2's problem. Pre-training imitates the gains of single
changes of a plan, as `graphrl train go --config scripts/go.toml` does. It starts from the policy's initial weights, and
takes one workload a step, in turn. It ignores the memory limit, which the played plans keep.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.decode import Decoder, hint_instance
from graphrl.agents.go.learner import Batch, ImitationTarget, imitation_target
from graphrl.agents.go.network import Policy
from graphrl.compare.report import markdown
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.datasets.workloads import go
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import octave_sizes
from reproduce.go.methods import Entry, imitated, search
from reproduce.go.settings import Settings, against
from reproduce.measurements import Figures
from reproduce.policies import cached_policy, copy_policy
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
STEPS, FEW_STEPS = 300, 2
TUNING = 50  # updates
SECONDS = 10.0  # total, of which quick plans at the start and the evaluation of drawn plans take shares
SHIPS, NOTHING, OTHERS = "the one that ships", "none", "trained on the others"  # policies
DRAWN, MOVED, TUNED = "go:rounds=1,tries=0", "go:rounds=1", f"go:rounds=1,tries=0,finetune={TUNING}"


class Column(NamedTuple):
    """A column of the table: a method, and its policy ("" without one)."""

    heading: str
    method: str
    policy: str


COLUMNS = (
    Column("expert", "expert", ""),
    Column("start", "go:rounds=0", SHIPS),
    Column("ships", DRAWN, SHIPS),
    Column("untrained", DRAWN, NOTHING),
    Column("zero-shot", DRAWN, OTHERS),
    Column("untrained, moves", MOVED, NOTHING),
    Column("zero-shot, moves", MOVED, OTHERS),
    Column("fine-tuned", TUNED, OTHERS),
    Column("untrained, fine-tuned", TUNED, NOTHING),
)
HEADINGS = (
    "without", "workload", "ops", "devices", *(column.heading for column in COLUMNS), "search, s: zero-shot",
    "fine-tuned",
)  # fmt: skip


class Row(NamedTuple):
    """An architecture left out of pre-training.

    Attributes:
      architecture: architecture name.
      ops: number of ops of its workload.
      changes: single changes of the initial plan: their number, the number with a gain, and the largest gain, percent.
      figures: figures of the seeds by column heading, None where nothing was run.
    """

    architecture: str
    ops: int
    changes: Figures | None
    figures: dict[str, list[Figures] | None]


def figure5(settings: Settings) -> Iterator[Table]:
    """Yields a table for each transfer model, with a row for each architecture."""
    for transfer in settings.transfers:
        names = [name for name, workload in SMALLEST.items() if workload in settings.workloads]
        rows = [_measured(settings, name, transfer) for name in names]
        how = (
            "Seconds of a training step, means over the seeds. `start` is the plan that `go` starts from; 64 plans are "
            "drawn by the policy that ships, by an untrained one, and by one trained for "
            f"{_steps(settings)} steps on the other architectures' workloads; `moves`: and then moves of single "
            "ops; `fine-tuned`: 64 "
            f"plans after {TUNING} updates of PPO on the workload itself."
        )
        table, notes = markdown(HEADINGS, [_line(row) for row in rows]), list(_notes(rows))
        zero_shot = next((note for note in notes if note.startswith("zero-shot against")), "zero-shot: none")
        yield settings.measurements.table(
            f"Figure 5: {transfer}", how, table, notes=notes, summary=f"Plans, {zero_shot}."
        )


def _steps(settings: Settings) -> int:
    """Returns the number of pre-training steps."""
    return FEW_STEPS if settings.quick else STEPS


def _measured(settings: Settings, architecture: str, transfer: Transfer) -> Row:
    ops = len(_workload(SMALLEST[architecture], transfer)[0].ops)
    figures: dict[str, list[Figures] | None] = {}
    for column in COLUMNS:
        left_out = column.method == TUNED and settings.quick
        figures[column.heading] = None if left_out else _runs(settings, architecture, transfer, column)
    key = {"architecture": architecture, "transfer": transfer, "column": "changes"}
    changes = settings.measurements.get(key, functools.partial(_changes, SMALLEST[architecture], transfer))
    return Row(architecture, ops, changes, figures)


def _changes(workload: str, transfer: Transfer) -> Figures:
    graph, task = _without_limit(workload, transfer)
    config, n = Policy.default(Problem("makespan")).config, len(graph.ops)
    instance = hint_instance(graph, task, octave_sizes(graph), config)
    gains = Decoder(graph, task, instance).gains(*(np.asarray(choice, np.int64)[:n] for choice in instance.start[:2]))
    movable = int((np.asarray(instance.leader)[:n] == np.arange(n)).sum())
    return {"all": movable * (gains.shape[1] - 1), "gain": int((gains > 0).sum()), "most": float(gains.max())}


def _runs(settings: Settings, architecture: str, transfer: Transfer, column: Column) -> list[Figures]:
    """Returns figures of each seed. Methods that draw nothing get one seed."""
    key = {"architecture": architecture, "transfer": transfer, "column": column.heading}
    run = functools.partial(_run, settings, architecture, transfer, column)
    return settings.of_seeds(key, run, None if column.method in (DRAWN, MOVED, TUNED) else 1)


def _run(settings: Settings, architecture: str, transfer: Transfer, column: Column, seed: int) -> Figures:
    graph, task = _workload(SMALLEST[architecture], transfer)
    method = column.method
    if column.policy:
        method += f",checkpoint={_policy(settings, architecture, transfer, column.policy, seed)}"
    return search(graph, task, Entry(method, SECONDS, method), seed)


@functools.lru_cache(maxsize=1)
def _workload(name: str, transfer: Transfer) -> tuple[ComputationGraph, Problem]:
    workload = go.load(name)
    return workload.colocated, problem(workload, transfer, OVER[transfer])


def _policy(settings: Settings, architecture: str, transfer: Transfer, policy: str, seed: int) -> Path:
    """Returns the file of a policy: the shipped one, or one that is trained here unless the file exists."""
    ships = Policy.default(Problem("makespan"))
    if policy == SHIPS:
        return copy_policy(ships, settings.out)
    without = architecture if policy == OTHERS else NOTHING
    config = dataclasses.replace(ships.config, transfers=(transfer,))
    names = ("wavenet",) if settings.quick else SMALLEST
    others = [SMALLEST[name] for name in names if policy == OTHERS and name != architecture]
    steps = _steps(settings) if others else 0
    file = settings.out / "policies" / f"without-{without}-{transfer}-{seed}.msgpack"
    return cached_policy(file, lambda: _trained(config, others, transfer, steps, seed))


def _trained(config: GoSettings, workloads: Sequence[str], transfer: Transfer, steps: int, seed: int) -> Policy:
    lessons = [_lesson(config, name, transfer) for name in workloads]
    batches: Iterator[Batch] = (
        {transfer: jax.tree.map(lambda leaf: leaf[None], lessons[step % len(lessons)])} for step in range(steps)
    )
    return imitated(config, batches, seed, ", ".join(workloads) or "nothing")


@functools.lru_cache(maxsize=len(SMALLEST))
def _lesson(config: GoSettings, name: str, transfer: Transfer) -> ImitationTarget:
    graph, task = _without_limit(name, transfer)
    instance = hint_instance(graph, task, octave_sizes(graph), config)
    return imitation_target(graph, task, instance, config.stops, config.network.tasks)


def _without_limit(name: str, transfer: Transfer) -> tuple[ComputationGraph, Problem]:
    graph, task = _workload(name, transfer)
    return graph, dataclasses.replace(task, memory_limit=None)


def _line(row: Row) -> list[str]:
    workload = SMALLEST[row.architecture]
    head = [row.architecture, workload, f"{row.ops:,}", str(go.WORKLOADS[workload].devices)]
    values = [_cell(row.figures[column.heading], "makespan", 4) for column in COLUMNS]
    return head + values + [_cell(row.figures[heading], "seconds", 1) for heading in ("zero-shot", "fine-tuned")]


def _cell(figures: Sequence[Figures] | None, what: str, digits: int) -> str:
    if figures is None:
        return "not run"
    if any(one["excess"] for one in figures):
        return "OOM"
    return f"{np.mean([one[what] for one in figures]):.{digits}f}" if figures else "-"


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yields gains of single changes at the start, and the geometric mean of each column against the start."""
    for row in rows:
        if row.changes:
            every, gain, most = (row.changes[name] for name in ("all", "gain", "most"))
            yield f"{SMALLEST[row.architecture]}: {gain:,} of {every:,} changes of one op gain, at most {most:.2f}%"
    for heading in (column.heading for column in COLUMNS[2:]):
        pairs = [
            (float(np.mean([one["makespan"] for one in mine])), start[0]["makespan"])
            for row in rows
            if (mine := row.figures[heading]) and (start := row.figures["start"])
        ]
        yield from against(f"{heading} against the start", pairs)
