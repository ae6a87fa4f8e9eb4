"""What `graphrl optimize --fuse` gains on training steps of the model zoo, by the roofline of one device."""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphrl.compare.report import markdown
from graphrl.costs.exact import evaluate
from graphrl.costs.fusion.exact import fused_graph
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets import zoo
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.roofline import DEFAULT_CHIP
from graphrl.solvers.fusion.flips import prepare
from graphrl.solvers.fusion.rules import DEFAULT_RULE, fuse_by
from graphrl.solvers.rules.list_scheduling import schedule
from reproduce.go.settings import Settings
from reproduce.measurements import Figures
from reproduce.results import Table
from reproduce.timing import spent

PROGRAMS = "training/jaxpr"
INLINING = ("single", "xla", "all", "flips")
COUNT = 20
DEVICES = 2
LATENCY, BANDWIDTH = 5e-6, 300e9  # seconds, bytes a second: NVLink 3, as the chip's data sheet has it
HEADINGS = ("program", "ops", "none, ms", *INLINING, "rule, s", "two devices", "fused")
HOW = (
    f"Kernels of each rule on an {DEFAULT_CHIP}, one after the other: ms without fusion, and the parts of it that the "
    f"rules leave; then the seconds that `{DEFAULT_RULE}` takes. Two devices: the best list schedule of single ops "
    f"over NVLink, which is the plan without --fuse, and of the kernels of `{DEFAULT_RULE}`, as parts of the same."
)


class Row(NamedTuple):
    """A program and its figures."""

    name: str
    figures: Figures

    def part(self, what: str) -> float:
        """Seconds of something, over those of single ops on one device."""
        return float(self.figures[what] / self.figures["none"])


def fuse(settings: Settings) -> Iterator[Table]:
    """One table, a line a program."""
    rows = []
    for name in _programs(min(settings.graphs, COUNT), small=settings.quick):
        figures = settings.measurements.get({"program": name, "fuse": "rules"}, functools.partial(_measure, name))
        if figures is not None:
            rows.append(Row(name, figures))
    parts = [*INLINING, "two", "two fused"]
    lines = [_line(row) for row in rows]
    means = {what: math.exp(np.mean([math.log(row.part(what)) for row in rows])) for what in parts if rows}
    notes = [f"geometric mean of {what}: {mean:.3f}" for what, mean in means.items()]
    if rows:
        notes.append(f"kernels on two devices, over single ops there: {means['two fused'] / means['two']:.3f}")
    yield settings.measurements.table(
        "Fusion on training steps of the zoo", HOW, markdown(HEADINGS, lines), notes=notes
    )


def _programs(count: int, *, small: bool) -> list[str]:
    """One of each architecture, spread evenly from small to large; or the smallest."""
    largest = {entry.architecture: entry for entry in zoo.select(PROGRAMS)}
    entries = sorted(largest.values(), key=lambda entry: (entry.ops, entry.name))
    last = count - 1 if small else len(entries) - 1
    return [entries[i].name for i in np.linspace(0, last, count).astype(int)]


def _measure(name: str) -> Figures:
    prepare()
    graph = zoo.load(name).graph
    problem = fusion_problem(graph)
    fusions = {rule: fuse_by(rule, problem) for rule in ("none", *INLINING)}
    seconds = spent(lambda: fuse_by(DEFAULT_RULE, problem))
    two = Problem("makespan", DEVICES, "link", LATENCY, BANDWIDTH)
    plans = {"two": fused_graph(fusions["none"]), "two fused": fused_graph(fusions[DEFAULT_RULE])}
    makespans = {what: _makespan(kernels, two) for what, kernels in plans.items()}
    return {
        "ops": len(graph.ops),
        "search": seconds,
        **{rule: fusion.seconds for rule, fusion in fusions.items()},
        **makespans,
    }


def _makespan(graph: ComputationGraph, problem: Problem) -> float:
    return evaluate(graph, problem, *schedule(graph, problem)).makespan


def _line(row: Row) -> list[str]:
    parts = (f"{row.part(what):.3f}" for what in INLINING)
    two = (f"{row.part(what):.3f}" for what in ("two", "two fused"))
    first = [row.name, f"{row.figures['ops']:,}", f"{1e3 * row.figures['none']:.2f}"]
    return [*first, *parts, f"{row.figures['search']:.2f}", *two]
