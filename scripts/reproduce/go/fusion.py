"""What `graphrl optimize --fuse` gains on training steps of the model zoo, by the roofline of one device."""

import functools
from collections.abc import Iterator

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
PARTS = (*INLINING, "two", "two fused")
COUNT = 20
DEVICES = 2
LATENCY, BANDWIDTH = 5e-6, 300e9  # seconds, bytes a second: NVLink 3, as the chip's data sheet has it
HEADINGS = ("program", "ops", "none, ms", *INLINING, "rule, s", "two devices", "fused")
HOW = (
    f"Kernels of each rule on an {DEFAULT_CHIP}, one after the other: ms without fusion, and the parts of it that the "
    f"rules leave; then the seconds that `{DEFAULT_RULE}` takes. Two devices: the best list schedule of single ops "
    f"over NVLink, which is the plan without --fuse, and of the kernels of `{DEFAULT_RULE}`, as parts of the same."
)


def fusion(settings: Settings) -> Iterator[Table]:
    """One table, a line a program."""
    rows = dict[str, Figures]()
    for name in _programs(min(settings.graphs, COUNT), small=settings.quick):
        figures = settings.measurements.get({"program": name, "fuse": "rules"}, functools.partial(_measure, name))
        if figures is not None:
            rows[name] = figures
    lines = [_line(name, figures) for name, figures in rows.items()]
    parts = np.array([[figures[what] / figures["none"] for what in PARTS] for figures in rows.values()])
    notes = list[str]()
    if rows:
        means = dict(zip(PARTS, np.exp(np.log(parts).mean(0)), strict=True))
        notes = [f"geometric mean of {what}: {mean:.3f}" for what, mean in means.items()]
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


def _line(name: str, figures: Figures) -> list[str]:
    """Under `HEADINGS`: seconds of something are parts of those of single ops on one device."""
    *rules, two, both = (f"{figures[what] / figures['none']:.3f}" for what in PARTS)
    return [name, f"{figures['ops']:,}", f"{1e3 * figures['none']:.2f}", *rules, f"{figures['search']:.2f}", two, both]
