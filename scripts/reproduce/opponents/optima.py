"""Known optima and large graphs: shares of optima found and proved, and the cost of large graphs end to end.

Large graphs are layered graphs of growing size and edge density 0.01, with 2 to 4 uses for each op. Each is read,
planned and written by `graphrl optimize` in a separate process. "Whole" is the wall clock of the process, "planning"
the method's part of it, memory the process's maximum.
"""

import dataclasses
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import graphrl
from graphrl.compare.report import markdown, percent
from graphrl.compare.runs import Case, Row
from graphrl.compare.table import gap
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from reproduce.opponents.settings import Settings, dag
from reproduce.results import Table, here, of_rows

_SECONDS, _PROOF_SECONDS, _SMALL_SECONDS = 10.0, 60.0, 1.0
_HINTED_SECONDS = 90.0  # auto gives CP-SAT a minute of these, from its best plan at that point
_DAG_HEADINGS = (
    "ops", "devices", "graphs", "auto at the best known", "proven", "mean gap", "largest", "best proven", "a run"
)  # fmt: skip
_CLOSED_GRAPHS, _KNOWN_GRAPHS, _SMALL_GRAPHS = 40, 100, 1000  # --graphs is the number for the costly row
_ROUNDING = 1e-9  # relative, of makespans
METHODS = ("list", "anneal", "auto")
HEADINGS = ("ops", "objective", "method", "value", "planning [s]", "whole [s]", "whole [ms/op]", "memory [GB]")
_SCALE_SECONDS = 45.0  # with reading, exact costs and writing a minute at 100,000 ops
_DEVICES = 8  # for makespan
_EDGE_DENSITY = 0.01
# A small parent measures the process: a child's peak includes the memory of its parent at the fork.
_MEASURE = """
import resource, subprocess, sys
with open(sys.argv[1], "wb") as output:
    code = subprocess.call(sys.argv[2:], stdout=output)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(code)
"""


def optima(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each question."""
    closed = _closed(settings)
    share = _share([_proved(row) for row in closed])
    lines = [
        ["CP-SAT closes DAGs of 50 ops: makespan, 2 devices, free", *share, _time(settings)],
        _gap_to_proven(settings),
        *(_known_peaks(settings, family) for family in ("in-tree", "out-tree", "series-parallel")),
        _against_exact(settings),
    ]
    summary = (
        f"CP-SAT closes {share[0]} random DAGs of 50 ops, and `auto` is {lines[1][2]} above proven optima on the mean."
    )
    table = markdown(["question", "runs", "share or gap", "a run"], lines)
    yield Table("Known optima", of_rows(closed), [table], summary)


def random_dags(settings: Settings) -> Iterator[Table]:
    """Yields the table of `auto` against the best known plans of random DAGs.

    `auto` has its share of cores under --processes. CP-SAT on all cores runs only on graphs where `auto` proves no
    optimum.
    """
    lines, everything = [], []
    for ops, devices in itertools.product(*(((12,), (2,)) if settings.quick else ((50, 100), (2, 4, 8)))):
        graphs, problem = [dag(seed, ops - 2) for seed in settings.graph_seeds], Problem("makespan", devices, "free")
        rows = settings.at_time(graphs, problem, ("auto",), _seconds(settings)).rows
        proved = {row.graph for row in rows if _proved(row)}
        references = _references(settings, [graph for graph in graphs if graph.name not in proved], problem)
        best = dict[Case, float]()
        for row in (*rows, *references):
            best[row.case] = min(best.get(row.case, math.inf), _value(row))
        gaps = [gap(_value(row), best[row.case]) for row in rows]
        at_best, proven = [each <= _ROUNDING for each in gaps], [_proved(row) for row in rows]
        closed = {row.case for row in (*rows, *references) if _proved(row)}
        shares = [f"{100 * sum(some) / len(rows):.0f}%" for some in (at_best, proven)]
        mean, largest = (percent(value) for value in (sum(gaps) / len(gaps), max(gaps)))
        run = f"{sum(row.seconds for row in rows) / len(rows):.1f} s"
        lines.append(
            [f"{ops}", f"{devices}", f"{len(graphs)}", *shares, mean, largest, f"{len(closed)} of {len(best)}", run]
        )
        everything += [*rows, *references]
    how = (
        f"`auto` in {_time(settings)}; whole run times, free transfers. Where it proves no optimum, the best known "
        f"is the least of its plan, of CP-SAT's on all cores in {_PROOF_SECONDS:g} s and, without a proof, of "
        "CP-SAT's in equal time from `auto`'s plan."
    )
    complete = sum(line[3] == "100%" for line in lines)
    summary = f"`auto` finds the best known plan of all graphs in {complete} of {len(lines)} rows."
    table = markdown(_DAG_HEADINGS, lines)
    yield Table("Random DAGs of 50 and 100 ops", of_rows(everything), (how, table), summary)


def scale(settings: Settings) -> Iterator[Table]:
    """Yields the table of large graphs. A method's row has no numbers if it fails or does not take the objective."""
    folder = settings.out / "scale"
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for ops in (300, 1000) if settings.quick else (1000, 10_000, 100_000):
        model = folder / f"layered-{ops}.json"
        graphrl.write_json(sample("layered", ops, 0, {"edge_density": _EDGE_DENSITY})[0], model)
        for objective in ("peak_memory", "makespan"):
            for method in settings.among(METHODS):
                try:
                    measured = _measure(model, method, objective, 1.0 if settings.quick else _SCALE_SECONDS)
                    lines.append([f"{ops:,}", objective, method, *_cells(measured, ops)])
                except graphrl.GraphrlError as error:
                    print(error, file=sys.stderr)
                    lines.append([f"{ops:,}", objective, method, *["-"] * 5])
                print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    how = (
        f"Peak memory on 1 device, makespan on {_DEVICES}, `rendezvous`, at no cost of a transfer's own; methods that "
        f"search have {_SCALE_SECONDS:g} s. Each is one process of `graphrl optimize`: whole is its wall clock, memory "
        "its peak; `-` where a method does not take the objective."
    )
    whole, memory = (max((float(line[i]) for line in lines if line[i] != "-"), default=0.0) for i in (5, 7))
    summary = f"Graphs of {lines[-1][0]} ops are read, planned and written in at most {whole:g} s and {memory:g} GB."
    table = markdown(HEADINGS, lines)
    yield Table("Scale: layered graphs, read, planned and written", here(), [how, table], summary)


def _closed(settings: Settings) -> list[Row]:
    """Runs CP-SAT on DAGs of 50 ops, including the source and the sink."""
    graphs = [dag(seed, 48) for seed in range(2 if settings.quick else _CLOSED_GRAPHS)]
    return settings.at_time(graphs, Problem("makespan", 2, "free"), ("cp-sat",), _seconds(settings)).rows


def _share(answers: Sequence[bool]) -> list[str]:
    return [f"{sum(answers)} of {len(answers)}", f"{100 * sum(answers) / len(answers):.1f}%" if answers else "-"]


def _proved(row: Row) -> bool:
    return row.feasible and gap(row.value or 0, row.bound or 0) <= _ROUNDING


def _time(settings: Settings) -> str:
    return f"{_seconds(settings):g} s"


def _gap_to_proven(settings: Settings) -> list[str]:
    """Computes the mean gap of `auto` where CP-SAT, with more time, proves the optimum."""
    proof = _seconds(settings) if settings.quick else _PROOF_SECONDS
    gaps: list[float] = []
    for ops, devices in itertools.product((48, 73, 98), (2, 3, 4)):
        graphs, problem = [dag(seed, ops) for seed in settings.graph_seeds], Problem("makespan", devices, "free")
        proofs = {row.case: row for row in settings.at_time(graphs, problem, ("cp-sat",), proof).rows}
        rows = settings.at_time(graphs, problem, ("auto",), _seconds(settings)).rows
        gaps += [_gap(row, proofs[row.case]) for row in rows if _proved(proofs[row.case])]
    mean = percent(sum(gaps) / len(gaps)) if gaps else "-"
    runs = f"{len(gaps)} of {9 * settings.graphs * settings.seeds}"
    question = (
        f"auto's mean gap to optima that CP-SAT proves in {proof:g} s: DAGs of 50, 75, 100 ops, 2 to 4 devices, free"
    )
    return [question, runs, mean, _time(settings)]


def _known_peaks(settings: Settings, family: str) -> list[str]:
    """Computes the share of graphs, generated with a known least peak, on which `auto` finds it."""
    sizes = (20, 40, 60) if settings.quick else (20, 100, 300)
    count = 2 if settings.quick else _KNOWN_GRAPHS
    samples = [sample(family, sizes[seed % len(sizes)], seed) for seed in range(count)]
    peaks = {graph.name: facts["optimal_peak_memory"] for graph, facts in samples}
    graphs = [graph for graph, _ in samples]
    rows = settings.at_time(graphs, Problem(), ("auto",), _seconds(settings)).rows
    least = [row.value == peaks[row.graph] for row in rows]
    return [f"auto finds the least peak: {family}, {', '.join(map(str, sizes))} ops", *_share(least), _time(settings)]


def _against_exact(settings: Settings) -> list[str]:
    """Computes the share of layered graphs of 10 to 25 ops on which `auto` equals dynamic programming's optimum."""
    seconds = min(_seconds(settings), _SMALL_SECONDS)
    count = 8 if settings.quick else _SMALL_GRAPHS
    graphs = [sample("layered", 10 + seed % 16, seed)[0] for seed in range(count)]
    exact = {row.case: row for row in settings.at_time(graphs, Problem(), ("dfs-dp",), seconds).rows}
    rows = settings.at_time(graphs, Problem(), ("auto",), seconds).rows
    equal = [row.value == exact[row.case].value for row in rows if _proved(exact[row.case])]
    return ["auto equals dynamic programming: layered, 10 to 25 ops", *_share(equal), f"{seconds:g} s"]


def _seconds(settings: Settings) -> float:
    return 0.5 if settings.quick else _SECONDS


def _references(settings: Settings, graphs: Sequence[ComputationGraph], problem: Problem) -> list[Row]:
    """Runs CP-SAT on all cores and, where it proves nothing, again from the plan of `auto`."""
    alone, rows = dataclasses.replace(settings, processes=1, seeds=1), list[Row]()
    for method, seconds in (("cp-sat", _PROOF_SECONDS), ("auto", _HINTED_SECONDS)):
        if graphs:
            rows += alone.at_time(graphs, problem, (method,), 0.5 if settings.quick else seconds).rows
            proved = {row.graph for row in rows if _proved(row)}
            graphs = [graph for graph in graphs if graph.name not in proved]
    return rows


def _value(row: Row) -> float:
    return math.inf if row.value is None else row.value


class Measured(NamedTuple):
    """Figures of one `graphrl optimize` process."""

    value: float  # bytes or seconds
    planning: float  # seconds
    whole: float  # seconds
    memory: int  # bytes


def _measure(model: Path, method: str, objective: str, seconds: float) -> Measured:
    """Optimises a graph file in a new process, on 1 device for peak memory and on 8 for makespan.

    Raises:
      GraphrlError: the process fails.
    """
    stem = f"{model.with_suffix('')}-{method}-{objective}"
    devices = 1 if objective == "peak_memory" else _DEVICES
    arguments = [sys.executable, "-m", "graphrl", "optimize", str(model), "--method", method, "--objective", objective]
    arguments += ["--devices", str(devices), "--seconds", str(seconds), "--output", f"{stem}.plan.json", "--json"]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, f"{stem}.summary.json", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    whole = time.perf_counter() - started
    if done.returncode != 0:
        raise graphrl.GraphrlError(f"{method} on {model}: {(done.stderr.strip().splitlines() or ['it died'])[-1]}")
    summary = json.loads(Path(f"{stem}.summary.json").read_text(encoding="utf-8"))
    return Measured(summary["value"], summary["seconds"], whole, int(done.stdout))


def _cells(measured: Measured, ops: int) -> list[str]:
    times = f"{measured.planning:.3g}", f"{measured.whole:.3g}", f"{1000 * measured.whole / ops:.3g}"
    return [f"{measured.value:,.6g}", *times, f"{measured.memory / 1e9:.2f}"]


def _gap(row: Row, reference: Row) -> float:
    return gap(_value(row), reference.value or 0)
