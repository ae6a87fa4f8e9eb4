"""Rows of comparisons: hand-written ones, and rows of files."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from graphrl.compare.comparison import RUNS, open_store
from graphrl.compare.runs import Row, make_runs, row_of
from graphrl.costs.problem import Objective, Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import Budget

MEMORY = Problem()


def row(
    graph: str,
    method: str,
    value: float | None,
    *,
    seed: int = 0,
    bound: float = 0,
    excess: int = 0,
    seconds: float = 1.0,
    compile_seconds: float = 0.0,
    objective: Objective = "peak_memory",
    curve: tuple[tuple[float, int, float], ...] | None = None,
) -> Row:
    """A row of a run that ended with `value`, or failed."""
    ended = () if value is None else ((seconds, 1, value),)
    return Row(
        key=f"{graph}/{method}/{seed}",
        graph=graph,
        fingerprint=graph,
        ops=4,
        method=method,
        problem=MEMORY if objective == "peak_memory" else Problem("makespan", 2),
        seed=seed,
        budget=Budget(100),
        cores=1,
        warm_up=True,
        value=value,
        bound=None if value is None else bound,
        excess=None if value is None else excess,
        seconds=seconds,
        compile_seconds=compile_seconds,
        error="it broke" if value is None else None,
        curve=ended if curve is None else curve,
        machine="abacus",
        graphrl="1.0",
        date="2026-01-02T03:04:05+00:00",
    )


# Two graphs, two seeds. Best known: g 100 (by a), h 50 (by b); bounds: g 80, h 50.
ROWS = [
    row("g", "a", 100, bound=80, seconds=1),
    row("g", "a", 120, seed=1, bound=80, seconds=3, compile_seconds=1),
    row("g", "b", 110, bound=64, seconds=5),
    row("g", "b", 110, seed=1, bound=64, seconds=5),
    row("h", "a", 60, bound=40, seconds=2),
    row("h", "a", 70, seed=1, bound=40, seconds=2),
    row("h", "b", 50, bound=50, seconds=5),
    row("h", "b", 52, seed=1, bound=40, seconds=5),
]


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a file; an incomplete last line is removed from it."""
    with open_store(path, RUNS) as store:
        return list(store.rows.values())


def json_lines(rows: Sequence[Row]) -> str:
    """The rows in the format of files."""
    return "".join(json.dumps(row.to_dict(), allow_nan=False) + "\n" for row in rows)


def read_again(value: dict) -> Row:
    """The row after a round trip through JSON."""
    return Row.from_dict(json.loads(json.dumps(value)))


def rows_by_seed(
    graphs: Sequence[ComputationGraph], problem: Problem, label: str, by_seed: Sequence[Sequence[float | None]]
) -> list[Row]:
    """Rows with these values, by seed and by graph, for the first graphs; None is a failed run."""
    return [
        dataclasses.replace(
            row_of(run, value=value, excess=None if value is None else 0, bound=1.0, seconds=2.0, compile_seconds=0.5),
            method=label,
            seed=seed,
        )
        for seed, values in enumerate(by_seed)
        for run, value in zip(
            make_runs(graphs[: len(values)], problem, ["list"], [seed], Budget(10), cores=1), values, strict=True
        )
    ]
