"""Graphs of Tarnawski et al. (2020) under their objective, the largest load: experts, their dynamic program, graphrl.

Each graph is split over the accelerators, CPUs and memory that its file names. The expert's split is that of
human-experts. A training step without one takes that of its forward pass, as in the authors' program. GO plays the
policy that ships for `max_load`; the same network before any training is included for comparison.
"""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import graphrl
from graphrl.agents.go.network import Policy
from graphrl.compare.report import markdown
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.readers import read_graph
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from reproduce.go.settings import Settings, against
from reproduce.measurements import Figures
from reproduce.policies import copy_policy, untrained
from reproduce.results import Table

DP_SECONDS = 300.0
UPDATES, EVALUATIONS, TUNED = 50, 4353, 1600  # of PPO; evaluations of `go`, and additional ones of the updates
GRAPHS = "throughput-inputs"
SOLVERS = ("expert", "equal stages", "greedy", "stage-dp", "anneal-load", "auto")
GO = "start", "plans", "untrained plans", "go"
HEADINGS = (
    "graph", "ops", "devices", "one", "expert", "equal stages", "greedy", "`stage-dp`", "s", "`go`", "`go:finetune=50`",
    "`anneal-load`", "`auto`", "bound", "authors' local search", "authors' DP",
)  # fmt: skip
GO_HEADINGS = (
    "graph", "start", "257 plans", "untrained", "`go`", "s", "untrained", "`go:finetune=50`", "s", "untrained",
    "`anneal-load`, equal moves", "`auto`",
)  # fmt: skip


# Milliseconds from the authors' program (commit b207b6a of their repository): its local search with 10 starts, which
# ignores memory, and its dynamic program.
THEIRS: dict[str, tuple[float | None, float | None]] = {
    "LayerGraphs/bert24_inference": (17.78, 17.79), "LayerGraphs/bert24_training": (39.94, 41.75),
    "LayerGraphs/gnmt_inference": (31.78, 32.91), "LayerGraphs/gnmt_training": (90.95, 107.00),
    "LayerGraphs/inceptionv3_inference": (54.04, None), "LayerGraphs/inceptionv3_training": (122.68, None),
    "LayerGraphs/resnet50_inference": (35.89, 33.77), "LayerGraphs/resnet50_training": (81.60, 78.63),
    "OperatorGraphs/bert_L-12_training": (None, 438.00), "OperatorGraphs/bert_l-12_inference": (None, 147.48),
    "OperatorGraphs/bert_l-3_inference": (27.57, 27.92), "OperatorGraphs/bert_l-3_training": (68.06, 65.30),
    "OperatorGraphs/bert_l-6_inference": (39.99, 29.58), "OperatorGraphs/bert_l-6_training": (98.88, 72.86),
    "OperatorGraphs/resnet50_inference": (228.53, 124.35), "OperatorGraphs/resnet50_training": (None, 255.19),
}  # fmt: skip


class Entry(NamedTuple):
    """A method with its budget and number of seeds."""

    method: str
    seeds: int = 1
    seconds: float | None = None
    evaluations: int | None = None


class Row(NamedTuple):
    """A graph, and the figures of each method by seed; empty for methods that failed or do not apply."""

    name: str
    path: Path
    figures: dict[str, list[Figures]]

    def value(self, label: str) -> float | None:
        """Returns the mean load of a method, seconds; None without runs or if a plan exceeds memory."""
        some = self.figures.get(label)
        return statistics.mean(one["value"] for one in some) if some and not self.exceeds(label) else None

    def exceeds(self, label: str) -> bool:
        """True if a plan of the method needs more memory than there is."""
        return any(one["excess"] for one in self.figures[label])

    def cell(self, label: str) -> str:
        """Returns the mean load of a method, in a table."""
        if not (some := self.figures.get(label)):
            return "-"
        return _milliseconds(statistics.mean(one["value"] for one in some)) + "*" * self.exceeds(label)

    def seconds(self, label: str) -> str:
        """Returns the median seconds of a method, in a table."""
        some = self.figures.get(label)
        return f"{statistics.median(one['seconds'] for one in some):.1f}" if some else "-"


def external(settings: Settings) -> Iterator[Table]:
    """Yields two tables with a row for each graph: all methods, and the parts of GO.

    Raises:
      GraphrlError: --data is not given, or has no such graphs.
    """
    if settings.data is None:
        raise graphrl.GraphrlError("section external needs --data, a checkout of msr-fiddle/dnn-partitioning")
    paths = sorted((settings.data / GRAPHS).glob("*/*.json"), key=lambda path: path.stat().st_size)[: settings.graphs]
    if not paths:
        raise graphrl.GraphrlError(f"{settings.data} has no {GRAPHS}: --data is a checkout of dnn-partitioning")
    policy, rows = Policy.default(Problem("max_load")), list[Row]()
    for path in sorted(paths):
        entries = _solvers(settings, path) | _players(settings, policy)
        name = f"{path.parent.name}/{path.stem}"
        figures = {
            label: settings.of_seeds(
                {"graph": name, "method": entry.method, "seconds": entry.seconds, "evaluations": entry.evaluations},
                functools.partial(_measure, path, entry),
                entry.seeds,
            )
            for label, entry in entries.items()
        }
        rows.append(Row(name, path, figures))
    seeds = f"means of {settings.seeds} seeds" if settings.seeds > 1 else "one seed"
    how = (
        f"The largest load of a device, ms a sample; `anneal-load` and `auto` in {settings.times[-1]:g} s, `stage-dp` "
        f"in at most {DP_SECONDS:g} s, of randomised methods {seeds}. `one` is all on one accelerator; a `*` marks "
        "a load that exceeds the memory."
    )
    counts = {row.name: len(row.figures["finetuned"]) for row in rows if not settings.quick}
    fewer = [f"{name}: {count} of {settings.seeds} seeds" for name, count in counts.items() if count < settings.seeds]
    notes = (*fewer, *_means(rows, "auto", [*SOLVERS[:-1], "go", "finetuned"]), *_of_theirs(rows))
    table = markdown(HEADINGS, [_line(row) for row in rows])
    summary = f"Largest load, {next((note for note in notes if note.startswith('`auto` against')), 'not run')}."
    yield settings.measurements.table("Graphs of Tarnawski et al.", how, table, notes=notes, summary=summary)
    how = (
        f"The same loads, {seeds}. GO starts from `start`, the best of equal stages, of the best splits of some "
        "orders (`stage-dp:ideals=0`) and of `greedy-load`. 257 plans are four rounds without moves of single ops, "
        f"`go` has at most {EVALUATIONS:,} evaluations with these, and before them `finetune` has {TUNED:,} in "
        f"{UPDATES} updates of PPO, compiling included. The policy before any training draws nearly by chance."
    )
    notes = (
        f"policy of go: {policy.note}",
        *(one for ours in ("plans", "go", "finetuned") for one in _compared(rows, ours)),
    )
    lines = [_go_line(row) for row in rows]
    yield settings.measurements.table("Parts of GO on the same graphs", how, markdown(GO_HEADINGS, lines), notes=notes)


def _solvers(settings: Settings, path: Path) -> dict[str, Entry]:
    """Returns methods without a policy, by label."""
    seconds, seeds, folder = settings.times[-1], settings.seeds, path.parents[2]
    entries = {
        "equal stages": Entry("equal-stages", seconds=seconds),
        "greedy": Entry("greedy-load", seconds=seconds),
        "stage-dp": Entry("stage-dp", seconds=DP_SECONDS),
        "anneal-load": Entry("anneal-load", seeds, seconds),
        "auto": Entry("auto", seeds, seconds),
        "equal moves": Entry("anneal-load", seeds, evaluations=EVALUATIONS),
    }
    if path.parent.name == "LayerGraphs":
        names = path.stem, path.stem.replace("training", "inference")
        files = [folder / "human-experts" / f"{name}_expert.json" for name in names]
        if file := next((file for file in files if file.exists()), None):
            entries["expert"] = Entry(f"split:file={file}", seconds=seconds)
    return entries


def _players(settings: Settings, policy: Policy) -> dict[str, Entry]:
    """Returns methods that play a policy, by label."""
    entries = {"start": Entry(f"go:rounds=0,checkpoint={copy_policy(policy, settings.out)}", evaluations=1)}
    for prefix, one in (("", policy), ("untrained ", untrained(Policy, policy.config))):
        file = f"checkpoint={copy_policy(one, settings.out)}"
        entries[f"{prefix}plans"] = Entry(f"go:tries=0,{file}", settings.seeds, evaluations=EVALUATIONS)
        entries[f"{prefix}go"] = Entry(f"go:{file}", settings.seeds, evaluations=EVALUATIONS)
        if not settings.quick:  # it would compile for a minute
            tuned = f"go:finetune={UPDATES},{file}"
            entries[f"{prefix}finetuned"] = Entry(tuned, settings.seeds, evaluations=EVALUATIONS + TUNED)
    return entries


def _measure(path: Path, entry: Entry, seed: int) -> Figures:
    """Runs a method on the graph of a file, on the machine that the file names."""
    graph = read_graph(path)
    problem = Problem.on(graph.machine, objective="max_load")
    plan = find_solver(entry.method)(Task(graph, problem, Budget(entry.evaluations, entry.seconds), seed))
    plan.check(graph)
    bound = lower_bound(graph, problem) if plan.bound is None else plan.bound
    figures = {"value": plan.value, "bound": bound, "seconds": plan.seconds, "excess": plan.excess}
    return figures | {"evaluations": plan.evaluations}


def _line(row: Row) -> list[str]:
    graph = read_graph(row.path)
    machine, total = graph.machine, float(graph.arrays.runtime.sum())
    devices = "-" if machine is None else f"{machine.accelerators} + {machine.cpus}"
    limit = math.inf if machine is None or machine.memory_bytes is None else machine.memory_bytes
    one = _milliseconds(total) + "*" * (int(graph.arrays.weight_bytes.sum()) > limit)
    bounds = [one["bound"] for some in row.figures.values() for one in some]
    return [
        row.name, f"{len(graph.ops):,}", devices, one,
        *map(row.cell, SOLVERS[:4]), row.seconds("stage-dp"), row.cell("go"), row.cell("finetuned"),
        row.cell("anneal-load"), row.cell("auto"), _milliseconds(max(bounds)) if bounds else "-",
        *("-" if value is None else f"{value:.2f}" for value in THEIRS.get(row.name, (None, None))),
    ]  # fmt: skip


def _go_line(row: Row) -> list[str]:
    return [
        row.name, *map(row.cell, GO), row.seconds("go"), row.cell("untrained go"), row.cell("finetuned"),
        row.seconds("finetuned"), row.cell("untrained finetuned"), row.cell("equal moves"), row.cell("auto"),
    ]  # fmt: skip


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _means(rows: Sequence[Row], ours: str, labels: Sequence[str]) -> Iterator[str]:
    """Yields the geometric means of the loads of one method against others, on graphs where both keep within memory."""
    for label in labels:
        pairs = ((row.value(ours), row.value(label)) for row in rows)
        yield from against(f"`{ours}` against {label}", pairs, "graphs", worst=True)


def _of_theirs(rows: Sequence[Row]) -> Iterator[str]:
    for place, label in enumerate(("the authors' local search", "the authors' DP")):
        theirs = [THEIRS.get(row.name, (None, None))[place] for row in rows]
        pairs = ((row.value("auto"), other and other / 1e3) for row, other in zip(rows, theirs, strict=True))
        yield from against(f"`auto` against {label}", pairs, "graphs", worst=True)


def _compared(rows: Sequence[Row], ours: str) -> Iterator[str]:
    return _means(rows, ours, ["start", f"untrained {ours}", "equal moves", "stage-dp", "auto"])
