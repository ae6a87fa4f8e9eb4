"""Peak memory of layered graphs in equal time: annealing against a compiled yardstick, `auto` against approximate DP.

Yardsticks are C++ sources given on the command line, which run on one core each:

- `anneal2`, of --yardstick, orders the ops of layered graphs for the least peak (single random moves). It starts from
  the best of 100 random priority orders, whose time is not counted.
- `mkanneal`, of --schedule-yardstick, anneals schedules (order, placement and a bit for each tensor). Every move is
  costed from scratch.

"yardstick x 2" is the better of two such runs with different seeds: the result of two cores.
"""

import ctypes
import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphrl.compare.report import percent
from graphrl.compare.runs import Row
from graphrl.costs.host.clocks import TRANSFERS as NUMBERS
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders.random_orders import Drawing
from reproduce.measurements import Figures
from reproduce.opponents.settings import Settings
from reproduce.results import Table, markdown, of_rows

# start and end temperature (parts of the first peak), band below the best peak, weight of the mean excess
ORDERS = (0.01, 0.0005, 0.15, 1.0)
SCHEDULES = (0.004, 2e-5, 0.02)  # first and last temperature, and weight of a mean clock: parts of the start
FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-o")


@functools.cache
def compiled(source: Path, function: str, result: Any) -> "ctypes._NamedFuncPointer":
    """Compiles a C++ file for this machine by $CXX or c++; returns one of its functions.

    Raises:
      GraphrlError: there is no such compiler, or it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        built, compiler = Path(folder) / "compiled.so", os.environ.get("CXX", "c++")
        command = [compiler, str(source), *FLAGS, str(built)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise GraphrlError(f"{compiler} cannot be started: {error.strerror}") from None
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
            raise GraphrlError(f"{compiler} failed on {source.name}: {lines[0]}")
        pointer = getattr(ctypes.CDLL(str(built)), function)
    pointer.restype = result
    return pointer


def least_peak(source: Path, graph: ComputationGraph, seconds: float, seed: int) -> int:
    """Runs `anneal2`; returns the peak that it reaches, in bytes. Ops of the graph must write one tensor each."""
    flow, a = Flow(graph), graph.arrays
    orders = Drawing(flow).draw(np.random.default_rng(seed), 100, by_priority=True)
    assert orders is not None
    order = orders[Usage(flow).peaks(orders).argmin()].astype(np.int32)
    num_bytes = np.zeros(a.num_ops, np.int64)
    np.add.at(num_bytes, a.producer, a.tensor_bytes)
    before, after = np.unique([a.producer[a.use_tensor], a.use_op], axis=1)
    lists = (*_rows(after, before, a.num_ops), *_rows(before, after, a.num_ops))
    arrays, counts = (num_bytes, a.workspace_bytes.astype(np.int64), *lists, order), np.zeros(2, np.int64)
    numbers = ctypes.c_double(seconds), ctypes.c_uint64(seed), *map(ctypes.c_double, ORDERS)
    run = compiled(source, "anneal2", ctypes.c_int64)
    return int(run(a.num_ops, *map(_pointer, arrays), *numbers, _pointer(counts)))


def least_makespan(
    source: Path, graph: ComputationGraph, problem: Problem, plan: PlacedOrder, seconds: float
) -> Figures:
    """Runs `mkanneal` from a plan. Returns the makespan that it reaches, seconds, and its moves per CPU second."""
    a, (placement, nodes) = graph.arrays, plan
    n, t = a.num_ops, a.num_tensors
    before, after = a.dependencies()
    times = np.array([problem.transfer_seconds(size) for size in a.tensor_bytes.tolist()])
    rows = [(a.use_op, a.use_tensor, n), (a.control_target, a.control_source, n), (a.producer, np.arange(t), n)]
    rows += [(a.use_tensor, a.use_op, t), (after, before, n), (before, after, n)]
    state = nodes[nodes < n].astype(np.int32), placement.astype(np.int32), np.ones(t, np.int8)
    trace, lengths, moves = np.zeros(2 * t * problem.devices + n, np.int32), np.zeros(1, np.int32), np.zeros(1, int)
    arrays = a.runtime.astype(float), times, a.producer.astype(np.int32), *(x for row in rows for x in _rows(*row))
    numbers = ctypes.c_double(seconds), ctypes.c_uint64(1), *map(ctypes.c_double, SCHEDULES)
    run, started = compiled(source, "mkanneal", ctypes.c_double), time.process_time()
    makespan = run(
        *(n, t, problem.devices, NUMBERS[problem.transfer]),
        *(*map(_pointer, (*arrays, *state)), *numbers, *map(_pointer, (trace, lengths, moves))),
    )
    return {"makespan": makespan, "moves_per_second": int(moves[0]) / (time.process_time() - started)}


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _rows(keys: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups values by key in compressed rows: row starts `[count + 1]`, and all values, int32."""
    by_key = np.argsort(keys, kind="stable")
    begin = np.searchsorted(keys[by_key], np.arange(count + 1)).astype(np.int32)
    return begin, values[by_key].astype(np.int32)


HEADINGS = ("ops", "a run", "graphs", "anneal / yardstick", "anneal / yardstick x 2", "not worse", "better")
DP_HEADINGS = ("ops", "graphs", "auto, mean gap to DP", "at or below DP", "auto", "DP (K = 10,000)")


def annealing(settings: Settings) -> Iterator[Table]:
    """Yields the table against the yardstick (if given) at every time, and the one against approximate DP at 10 s."""
    sizes = (30, 40) if settings.quick else (500, 1000)
    sets = {ops: [sample("layered", ops, seed)[0] for seed in settings.graph_seeds] for ops in sizes}
    if settings.yardstick is not None:
        lines, rows = _against_yardstick(settings, sets, settings.yardstick)
        how = (
            "Mean ratios of peaks: below 100% graphrl is better. The yardstick has one core, and so has annealing with "
            "--processes 2 or more on two cores."
        )
        summary = f"After {lines[-1][1]} on {lines[-1][0]} ops peaks of `anneal` are {lines[-1][3]} of the yardstick's."
        yield Table("Annealing against compiled code", of_rows(rows), (how, markdown(HEADINGS, lines)), summary)
    lines, rows = _against_dp(settings, sets)
    ops, _, mean, *_ = lines[-1]
    summary = f"The peak of `auto` is {mean} from that of approximate dynamic programming on graphs of {ops} ops."
    yield Table("auto against approximate dynamic programming", of_rows(rows), [markdown(DP_HEADINGS, lines)], summary)


def _against_yardstick(
    settings: Settings, sets: dict[int, list[ComputationGraph]], source: Path
) -> tuple[list[list[str]], list[Row]]:
    lines, everything = [], []
    for ops, graphs in sets.items():
        for seconds in settings.times:
            rows = settings.at_time(graphs, Problem(), ("anneal",), seconds).rows
            ours = np.array([row.value for row in rows if row.seed == 0], float)
            # two in parallel on a core each: ctypes releases the interpreter lock
            with ThreadPoolExecutor(2) as both:
                runs = [list(both.map(partial(least_peak, source, graph, seconds), (1, 2))) for graph in graphs]
            theirs = np.array(runs, float)
            one, two = theirs[:, 0], theirs.min(1)
            ratios = (f"{100 * np.mean(ours / other):.2f}%" for other in (one, two))
            counts = (f"{np.sum(each)}" for each in (ours <= one, ours < one))
            lines.append([f"{ops:,}", f"{seconds:g} s", f"{len(graphs)}", *ratios, *counts])
            everything += rows
    return lines, everything


def _against_dp(settings: Settings, sets: dict[int, list[ComputationGraph]]) -> tuple[list[list[str]], list[Row]]:
    seconds = 0.5 if settings.quick else 10.0
    lines, everything = [], []
    for ops, graphs in sets.items():
        auto = settings.at_time(graphs, Problem(), ("auto",), seconds).rows
        exact = settings.at_time(graphs, Problem(), ("approximate-dp:width=10000",), 600.0).rows
        ours, theirs = (np.array([row.value for row in rows], float) for rows in (auto, exact))
        times = [float(np.mean([row.seconds for row in rows])) for rows in (auto, exact)]
        share = f"{np.sum(ours <= theirs)} of {len(ours)}"
        mean = percent(float(np.mean(ours / theirs - 1)))
        lines.append([f"{ops:,}", f"{len(graphs)}", mean, share, *(f"{s:.1f} s" for s in times)])
        everything += [*auto, *exact]
    return lines, everything
