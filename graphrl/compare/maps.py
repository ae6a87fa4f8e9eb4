"""Comparison of methods for memory maps on many graphs: sequential runs, and their table.

A method's result on a graph is the mean latency over its seeds; its result in the table is the mean over graphs.
"""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from graphrl.compare.report import finite_fields, group_faults, percent, print_table
from graphrl.compare.runs import fault_of
from graphrl.compare.table import TIE, gap, mean
from graphrl.costs.maps.problem import MapProblem
from graphrl.methods import find_map_solver
from graphrl.progress import compile_clock
from graphrl.solvers.base import Budget
from graphrl.solvers.maps.task import MapTask
from graphrl.units import format_seconds

HEADINGS = ("method", "speed-up", "least", "mean gap", "won or tied", "evaluations", "seconds", "compile s")
_MAX_GRAPHS = 24  # up to which latencies are printed in a separate table


@dataclasses.dataclass(frozen=True)
class MapRow:
    """Result of one search for a memory map: a method on a graph with a seed.

    Attributes:
      graph, ops: graph name, and number of ops.
      method, seed: method and seed of the run.
      latency, speedup: latency in seconds, and speedup over the compiler's own map; infinite and 0 if the run failed.
      evaluations: number of evaluations, as the method counts them.
      seconds, compile_seconds: wall-clock time of the run, and the part that JAX spent on compiling.
      error: one line on why there is no map, or None.
    """

    graph: str
    ops: int
    method: str
    seed: int
    latency: float = math.inf
    speedup: float = 0.0
    evaluations: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class MapSummary:
    """A method's line in the table of memory maps.

    Attributes:
      method: method name with options.
      speedup, least: speedup over the compiler's own map, mean and minimum over graphs.
      mean_gap: mean relative gap to the best latency of each graph, a fraction.
      won_or_tied: share of the graphs on which no other method of the table is better.
      evaluations, seconds, compile_seconds: means over the runs.
      failed: number of runs without a map.
    """

    method: str
    speedup: float
    least: float
    mean_gap: float
    won_or_tied: float
    evaluations: float
    seconds: float
    compile_seconds: float
    failed: int


def run_maps(
    problems: Sequence[MapProblem], methods: Sequence[str], seeds: Sequence[int], budget: Budget
) -> Iterator[MapRow]:
    """Yields a row for every method on every problem with every seed; every map is checked."""
    for problem in problems:
        for method in methods:
            for seed in seeds:
                yield _row(problem, method, seed, budget)


def summarise(rows: Sequence[MapRow]) -> list[MapSummary]:
    """Summarises each method of the rows, in their order; all must have run on the same graphs with the same seeds."""
    latency = {method: _by_graph(rows, method, "latency") for method in _names(rows, "method")}
    best = {graph: min(each[graph] for each in latency.values()) for graph in _names(rows, "graph")}
    return [_summary(rows, method, each, best) for method, each in latency.items()]


def print_tables(rows: Sequence[MapRow], chip: str, budget: str) -> None:
    """Prints the latencies per graph (if there are few graphs), the table, and the errors.

    Args:
      rows: rows from `run_maps`.
      chip: chip name.
      budget: budget of a run, in words.
    """
    graphs, seeds = _names(rows, "graph"), len({row.seed for row in rows})
    if len(graphs) <= _MAX_GRAPHS:
        print_table("Latency, means over seeds", *latencies(rows))
    counts = f"{len(graphs)} graph{'s' * (len(graphs) > 1)}, {seeds} seed{'s' * (seeds > 1)}"
    print_table(f"memory maps on {chip}\n{counts}, {budget}", HEADINGS, [cells(one) for one in summarise(rows)])
    for line in notes(rows):
        print(line)


def latencies(rows: Sequence[MapRow]) -> tuple[list[str], list[list[str]]]:
    """Builds a table of mean latencies over seeds, one line per graph and one column per method: headings, lines."""
    by_method = {method: _by_graph(rows, method, "latency") for method in _names(rows, "method")}
    ops = {row.graph: f"{row.ops:,}" for row in rows}
    lines = [
        [graph, ops[graph], *(_seconds(each[graph]) for each in by_method.values())] for graph in _names(rows, "graph")
    ]
    return ["graph", "layers", *by_method], lines


def cells(summary: MapSummary) -> list[str]:
    """Formats a method's line of the table: one cell for each of `HEADINGS`."""
    return [
        summary.method,
        f"{summary.speedup:.4f}",
        f"{summary.least:.4f}",
        percent(summary.mean_gap),
        f"{100 * summary.won_or_tied:.0f}%",
        f"{summary.evaluations:,.0f}",
        f"{summary.seconds:.3g}",
        f"{summary.compile_seconds:.3g}",
    ]


def notes(rows: Sequence[MapRow]) -> list[str]:
    """Returns the reasons of failed runs, one line each."""
    return group_faults((row.method, row.error) for row in rows if row.error is not None)


def as_dict(rows: Sequence[MapRow]) -> dict[str, Any]:
    """Converts the tables to a JSON object: seconds and fractions, null for missing values."""
    return {
        "methods": [finite_fields(summary) for summary in summarise(rows)],
        "runs": [finite_fields(row) for row in rows],
        "notes": notes(rows),
    }


def _row(problem: MapProblem, method: str, seed: int, budget: Budget) -> MapRow:
    row = MapRow(problem.graph.name, problem.steps, method, seed)
    with compile_clock() as compiling:
        started = time.perf_counter()
        try:
            memory_map = find_map_solver(method)(MapTask(problem, budget, seed))
            seconds = time.perf_counter() - started
            memory_map.check(problem.graph)
        except Exception as error:  # an error in a method, also one of graphrl, must not end the table
            return dataclasses.replace(row, seconds=time.perf_counter() - started, error=fault_of(error))
    return dataclasses.replace(
        row,
        latency=memory_map.latency,
        speedup=memory_map.speedup,
        evaluations=memory_map.evaluations,
        seconds=seconds,
        compile_seconds=compiling(),
    )


def _summary(rows: Sequence[MapRow], method: str, latency: dict[str, float], best: dict[str, float]) -> MapSummary:
    own = [row for row in rows if row.method == method]
    speedup = _by_graph(rows, method, "speedup")
    finite = [graph for graph in latency if math.isfinite(latency[graph])]
    won = [graph for graph in finite if latency[graph] <= best[graph] * (1 + TIE)]
    return MapSummary(
        method=method,
        speedup=mean(list(speedup.values())),
        least=min(speedup.values()),
        mean_gap=mean([gap(latency[graph], best[graph]) for graph in finite]) if finite else math.inf,
        won_or_tied=len(won) / len(latency),
        **{name: mean([getattr(row, name) for row in own]) for name in ("evaluations", "seconds", "compile_seconds")},
        failed=sum(row.error is not None for row in own),
    )


def _names(rows: Sequence[MapRow], field: str) -> list[str]:
    return list(dict.fromkeys(getattr(row, field) for row in rows))


def _by_graph(rows: Sequence[MapRow], method: str, field: str) -> dict[str, float]:
    """Returns a field's mean over the seeds of a method, by graph."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.method == method:
            values.setdefault(row.graph, []).append(getattr(row, field))
    return {graph: mean(each) for graph, each in values.items()}


def _seconds(value: float) -> str:
    return format_seconds(value) if math.isfinite(value) else "-"
