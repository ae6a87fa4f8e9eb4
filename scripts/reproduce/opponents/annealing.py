"""Peak memory of layered graphs in equal time: annealing against a compiled yardstick, auto against approximate DP.

The yardstick is one C++ file with a function `anneal2` (single chain, single random moves), given by
--yardstick; it is compiled here, starts from the best of 100 random priority orders, whose time it is not charged, and
runs on one core. "yardstick x 2" is the better of two such runs with different seeds: what two cores would give it.
"""

import ctypes
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from graphrl.compare.report import markdown, percent
from graphrl.compare.runs import Row
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders.random_orders import Drawing
from reproduce.opponents.cpp import load_cpp
from reproduce.opponents.settings import Settings
from reproduce.results import Table, of_rows

# start and end temperature (parts of the first peak), band below the best peak, weight of the mean excess
YARDSTICK = (0.01, 0.0005, 0.15, 1.0)
HEADINGS = ("ops", "a run", "graphs", "anneal / yardstick", "anneal / yardstick x 2", "not worse", "better")
DP_HEADINGS = ("ops", "graphs", "auto, mean gap to DP", "at or below DP", "auto", "DP (K = 10,000)")


def annealing(settings: Settings) -> Iterator[Table]:
    """Two tables: at every time against the yardstick (if there is one), and at 10 s against approximate DP."""
    sizes = (30, 40) if settings.quick else (500, 1000)
    sets = {ops: [sample("layered", ops, seed)[0] for seed in settings.graph_seeds] for ops in sizes}
    if settings.yardstick is not None:
        lines, rows = _against_yardstick(settings, sets, settings.yardstick)
        how = (
            "Mean ratios of peaks: below 100% graphrl is better. The yardstick has one core, and so has annealing with "
            "--processes 2 or more on two cores."
        )
        yield Table("Annealing against compiled code", of_rows(rows), (how, markdown(HEADINGS, lines)))
    lines, rows = _against_dp(settings, sets)
    yield Table("auto against approximate dynamic programming", of_rows(rows), [markdown(DP_HEADINGS, lines)])


def _against_yardstick(
    settings: Settings, sets: dict[int, list[ComputationGraph]], source: Path
) -> tuple[list[list[str]], list[Row]]:
    lines, everything = [], []
    yardstick = load_cpp(source).anneal2
    yardstick.restype = ctypes.c_int64
    for ops, graphs in sets.items():
        for seconds in settings.times:
            rows = settings.at_time(graphs, Problem(), ("anneal",), seconds).rows
            ours = np.array([row.value for row in rows if row.seed == 0], float)
            # two at once, as ctypes lets go of the interpreter: a core each
            with ThreadPoolExecutor(2) as both:
                runs = [list(both.map(partial(_run, yardstick, graph, seconds), (1, 2))) for graph in graphs]
            theirs = np.array(runs, float)
            one, two = theirs[:, 0], theirs.min(1)
            lines.append(
                [
                    f"{ops:,}",
                    f"{seconds:g} s",
                    f"{len(graphs)}",
                    f"{100 * np.mean(ours / one):.2f}%",
                    f"{100 * np.mean(ours / two):.2f}%",
                    f"{np.sum(ours <= one)}",
                    f"{np.sum(ours < one)}",
                ]
            )
            everything += rows
    return lines, everything


def _run(yardstick: "ctypes._NamedFuncPointer", graph: ComputationGraph, seconds: float, seed: int) -> int:
    """Its peak, bytes. Ops of these graphs write one tensor each."""
    flow, a = Flow(graph), graph.arrays
    edges = sorted(set(zip(a.producer[a.use_tensor].tolist(), a.use_op.tolist(), strict=True)))
    orders = Drawing(flow).draw(np.random.default_rng(seed), 100, by_priority=True)
    assert orders is not None
    order = orders[Usage(flow).peaks(orders).argmin()].astype(np.int32)
    num_bytes = np.zeros(a.num_ops, np.int64)
    np.add.at(num_bytes, a.producer, a.tensor_bytes)
    workspace, counts = a.workspace_bytes.astype(np.int64), np.zeros(2, np.int64)
    lists = (*_lists(a.num_ops, [(v, u) for u, v in edges]), *_lists(a.num_ops, edges))
    arrays = [x.ctypes.data_as(ctypes.c_void_p) for x in (num_bytes, workspace, *lists, order)]
    parameters = [ctypes.c_double(x) for x in YARDSTICK]
    return yardstick(
        a.num_ops,
        *arrays,
        ctypes.c_double(seconds),
        ctypes.c_uint64(seed),
        *parameters,
        counts.ctypes.data_as(ctypes.c_void_p),
    )


def _lists(n: int, pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """The second of each pair, grouped by the first: where groups begin `[n + 1]`, and the members, int32."""
    ordered = np.array(sorted(pairs), np.int32).reshape(-1, 2)
    begin = np.searchsorted(ordered[:, 0], np.arange(n + 1)).astype(np.int32)
    return begin, np.ascontiguousarray(ordered[:, 1])


def _against_dp(settings: Settings, sets: dict[int, list[ComputationGraph]]) -> tuple[list[list[str]], list[Row]]:
    seconds = 0.5 if settings.quick else 10.0
    lines, everything = [], []
    for ops, graphs in sets.items():
        auto = settings.at_time(graphs, Problem(), ("auto",), seconds).rows
        exact = settings.at_time(graphs, Problem(), ("approximate-dp:width=10000",), 600.0).rows
        ours, theirs = (np.array([row.value for row in rows], float) for rows in (auto, exact))
        took = [float(np.mean([row.seconds for row in rows])) for rows in (auto, exact)]
        share = f"{np.sum(ours <= theirs)} of {len(ours)}"
        mean = percent(float(np.mean(ours / theirs - 1)))
        lines.append([f"{ops:,}", f"{len(graphs)}", mean, share, *(f"{s:.1f} s" for s in took)])
        everything += [*auto, *exact]
    return lines, everything
