"""Makespan of programs on several devices, with the run times of a chip and transfers over a real link.

Graphs are the programs' jaxprs (one op for each equation, `graphrl.from_jax`), as a framework would place them. Run
times are the roofline's. Transfers occupy the sender's link ("link"), with the figures of `LINKS`.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphrl.compare.report import markdown, problem_line
from graphrl.compare.runs import Row
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers.jaxpr.reader import from_jax
from graphrl.units import format_seconds
from reproduce.contest import all_rows, mean_gaps, times_markdown
from reproduce.real_programs.programs import Settings, build
from reproduce.results import Table, of_rows

PROGRAMS = (
    "resnet50/training/b32", "inceptionv3/training/b32", "efficientnetb0/training/b32", "nasnetmobile/inference/b16",
    "bert_base/training/b8", "clip_vit_b32/inference/b8", "lstm2_unrolled/training/b8",
)  # fmt: skip
METHODS = ("auto", "list", "hlfet", "etf", "metis", "local-search", "anneal-schedule", "brkga", "brkga+")
CHIP = "a100-80gb"


class Link(NamedTuple):
    """Link between devices.

    Attributes:
      name: link name.
      latency: seconds of a copy between two devices, launch included; a round figure, as data sheets have none.
      bandwidth: bytes per second, one direction.
      source: source of the bandwidth.
      devices: numbers of devices, one for each table.
    """

    name: str
    latency: float
    bandwidth: float
    source: str
    devices: tuple[int, ...]


LINKS = (
    Link("NVLink 3", 5e-6, 300e9, "NVIDIA A100 data sheet: 600 GB/s, both directions together", (2, 4, 8)),
    Link("PCIe 4.0 x16", 10e-6, 31.5e9, "PCI Express 4.0: 16 GT/s, 16 lanes, 128b/130b", (4,)),
)


def placement(settings: Settings) -> Iterator[Table]:
    """Yields a table of the programs for each link and number of devices."""
    graphs = [_graph(name) for name in settings.names_of(PROGRAMS)]
    methods = settings.among(METHODS)
    for link in LINKS:
        for devices in (2,) if settings.quick else link.devices:
            problem = Problem("makespan", devices, "link", link.latency, link.bandwidth)
            print(f"placement: {link.name}, {devices} devices", file=sys.stderr, flush=True)
            yield _table(settings, graphs, problem, methods, link)


def _graph(name: str) -> ComputationGraph:
    program = build(name)
    return from_jax(program.fn, *program.args, chip=CHIP, name=name, weights_argnums=program.weights)


def _table(
    settings: Settings, graphs: Sequence[ComputationGraph], problem: Problem, methods: Sequence[str], link: Link
) -> Table:
    """Returns the mean gaps to the best known at every time, and each program's best makespan against one device."""
    contests = [settings.at_time(graphs, problem, methods, seconds) for seconds in settings.times]
    gaps, notes = times_markdown(settings.times, contests)
    headings = ["program", "ops", "one device", *methods, "bound", "speed-up"]
    makespans = markdown(headings, [_line(graph, contests[-1].rows, methods) for graph in graphs])
    how = f"{len(graphs)} programs on {CHIP}s. Under the times: mean gaps to the best known."
    parts = how, gaps, f"Makespans after {settings.times[-1]:g} s:", makespans, notes
    best = min((gaps[-1], method) for method, gaps in mean_gaps(contests).items())[1]
    summary = (
        f"`{best}` has the least mean gap to the best known makespan, on {problem.devices} devices over {link.name}."
    )
    title = f"{link.name} ({link.source}): {problem_line(problem)}"
    return Table(title, of_rows(all_rows(contests)), parts, summary)


def _line(graph: ComputationGraph, rows: Sequence[Row], methods: Sequence[str]) -> list[str]:
    here = {row.method: row for row in rows if row.graph == graph.name}
    values = {method: row.value for method, row in here.items() if row.value is not None}
    alone = float(graph.arrays.runtime.sum())
    cells = [format_seconds(values[method]) if method in values else "-" for method in methods]
    bound = max((row.bound or 0 for row in here.values()), default=0)
    speed_up = f"{alone / min(values.values()):.2f}" if values else "-"
    return [graph.name, f"{len(graph.ops):,}", format_seconds(alone), *cells, format_seconds(bound), speed_up]
