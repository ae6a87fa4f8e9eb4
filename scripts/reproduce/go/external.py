"""The graphs of Tarnawski et al. (2020) under their objective, the largest load: experts, their dynamic program, ours.

Each graph on the accelerators, CPUs and memory that its file names. The expert's split is that of human-experts; a
training step without one has that of its forward pass, as in the authors' program.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import graphrl
from graphrl.compare.report import markdown, percent
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.readers import read_graph
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from reproduce.go.settings import Settings
from reproduce.measurements import Figures
from reproduce.results import Table

GRAPHS = "throughput-inputs"
HEADINGS = (
    "graph", "ops", "devices", "one", "expert", "equal stages", "greedy", "`stage-dp`", "s", "`anneal-load`", "`auto`",
    "bound", "theirs: local search", "their DP",
)  # fmt: skip
DP_SECONDS = 300.0
# Milliseconds that the authors' program gave us (commit b207b6a of their repository): its local search with 10 starts,
# which does not look at memory, and its dynamic program.
THEIRS: dict[str, tuple[float | None, float | None]] = {
    "LayerGraphs/bert24_inference": (17.78, 17.79),
    "LayerGraphs/bert24_training": (39.94, 41.75),
    "LayerGraphs/gnmt_inference": (31.78, 32.91),
    "LayerGraphs/gnmt_training": (90.95, 107.00),
    "LayerGraphs/inceptionv3_inference": (54.04, None),
    "LayerGraphs/inceptionv3_training": (122.68, None),
    "LayerGraphs/resnet50_inference": (35.89, 33.77),
    "LayerGraphs/resnet50_training": (81.60, 78.63),
    "OperatorGraphs/bert_L-12_training": (None, 438.00),
    "OperatorGraphs/bert_l-12_inference": (None, 147.48),
    "OperatorGraphs/bert_l-3_inference": (27.57, 27.92),
    "OperatorGraphs/bert_l-3_training": (68.06, 65.30),
    "OperatorGraphs/bert_l-6_inference": (39.99, 29.58),
    "OperatorGraphs/bert_l-6_training": (98.88, 72.86),
    "OperatorGraphs/resnet50_inference": (228.53, 124.35),
    "OperatorGraphs/resnet50_training": (None, 255.19),
}


class Row(NamedTuple):
    """A graph, and the figures of each method."""

    name: str
    figures: dict[str, Figures | None]


def external(settings: Settings) -> Iterator[Table]:
    """One table, a line a graph.

    Raises:
      GraphrlError: --data is not given, or has no such graphs.
    """
    if settings.data is None:
        raise graphrl.GraphrlError("section external needs --data, a checkout of msr-fiddle/dnn-partitioning")
    paths = sorted((settings.data / GRAPHS).glob("*/*.json"), key=lambda path: path.stat().st_size)[: settings.graphs]
    if not paths:
        raise graphrl.GraphrlError(f"{settings.data} has no {GRAPHS}: --data is a checkout of dnn-partitioning")
    seconds = settings.times[-1]
    lines, rows = list[list[str]](), list[Row]()
    for path in sorted(paths):
        name = f"{path.parent.name}/{path.stem}"
        methods = _methods(settings.data, path, seconds)
        row = {label: _measured(settings, path, name, label, method) for label, method in methods.items()}
        rows.append(Row(name, row))
        lines.append(_line(name, path, row))
    how = (
        f"The largest load of a device, ms a sample; `anneal-load` and `auto` in {seconds:g} s, `stage-dp` in at most "
        f"{DP_SECONDS:g} s. `one` is all on one accelerator, which may be more than its memory; a `*` marks a load "
        "that needs more memory than there is."
    )
    yield settings.measurements.table("Graphs of Tarnawski et al.", how, markdown(HEADINGS, lines), notes=_means(rows))


def _methods(data: Path, path: Path, seconds: float) -> dict[str, tuple[str, float]]:
    """Method and seconds by label."""
    methods = {
        "equal stages": ("equal-stages", seconds),
        "greedy": ("greedy-load", seconds),
        "stage-dp": ("stage-dp", DP_SECONDS),
        "anneal-load": ("anneal-load", seconds),
        "auto": ("auto", seconds),
    }
    if path.parent.name == "LayerGraphs":
        names = path.stem, path.stem.replace("training", "inference")
        files = [data / "human-experts" / f"{name}_expert.json" for name in names]
        if file := next((file for file in files if file.exists()), None):
            methods["expert"] = f"split:file={file}", seconds
    return methods


def _measured(settings: Settings, path: Path, name: str, label: str, method: tuple[str, float]) -> Figures | None:
    key = {"graph": name, "method": label, "seconds": method[1]}
    return settings.measurements.get(key, functools.partial(_run, path, *method))


def _run(path: Path, method: str, seconds: float) -> Figures:
    graph = read_graph(path)
    problem = Problem.on(graph.machine, objective="max_load")
    plan = find_solver(method)(Task(graph, problem, Budget(seconds=seconds)))
    plan.check(graph)
    bound = lower_bound(graph, problem) if plan.bound is None else plan.bound
    return {"value": plan.value, "bound": bound, "seconds": plan.seconds, "excess": plan.excess}


def _line(name: str, path: Path, row: dict[str, Figures | None]) -> list[str]:
    graph = read_graph(path)
    machine, total = graph.machine, float(graph.arrays.runtime.sum())
    devices = "-" if machine is None else f"{machine.accelerators} + {machine.cpus}"
    limit = math.inf if machine is None or machine.memory_bytes is None else machine.memory_bytes
    one = _milliseconds(total) + "*" * (int(graph.arrays.weight_bytes.sum()) > limit)
    bounds = [figures["bound"] for figures in row.values() if figures]
    dp = row["stage-dp"]
    return [
        name, f"{len(graph.ops):,}", devices, one,
        *(_cell(row.get(label)) for label in ("expert", "equal stages", "greedy", "stage-dp")),
        "-" if dp is None else f"{dp['seconds']:.1f}",
        *(_cell(row.get(label)) for label in ("anneal-load", "auto")),
        _milliseconds(max(bounds)) if bounds else "-",
        *("-" if value is None else f"{value:.2f}" for value in THEIRS.get(name, (None, None))),
    ]  # fmt: skip


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _cell(figures: Figures | None) -> str:
    return "-" if figures is None else _milliseconds(figures["value"]) + "*" * (figures["excess"] > 0)


def _means(rows: Sequence[Row]) -> Iterator[str]:
    """How much lower auto's loads are, by the geometric mean, than those of others that keep memory."""
    for label in ("expert", "equal stages", "greedy", "stage-dp", "anneal-load"):
        pairs = [(_value(row, "auto"), _value(row, label)) for row in rows]
        yield from _mean(label, [(ours, other) for ours, other in pairs if ours and other])
    for place, label in enumerate(("their local search", "their DP")):
        theirs = [THEIRS.get(row.name, (None, None))[place] for row in rows]
        pairs = [(_value(row, "auto"), other / 1e3 if other else None) for row, other in zip(rows, theirs, strict=True)]
        yield from _mean(label, [(ours, other) for ours, other in pairs if ours and other])


def _value(row: Row, label: str) -> float | None:
    figures = row.figures.get(label)
    return figures["value"] if figures and not figures["excess"] else None


def _mean(label: str, pairs: Sequence[tuple[float, float]]) -> Iterator[str]:
    if pairs:
        mean = math.exp(sum(math.log(ours / other) for ours, other in pairs) / len(pairs))
        worst = max(ours / other for ours, other in pairs)
        yield f"`auto` against {label}: {percent(mean - 1)} on {len(pairs)} graphs, at worst {percent(worst - 1)}"
