"""`anneal-schedule` and `auto` against a compiled yardstick, and what each move earns.

The yardstick is one C++ file with a function `mkanneal` (explicit order, placement and a bit a tensor, every move
costed whole), given by --schedule-yardstick; it is compiled here. It and `anneal-schedule` have one chain, start at the
same list schedule, which they are not charged, and stop by the CPU time of this process; they take turns. `auto` gets
one core and as much time on it, and is not charged for its plans without search, of which that list schedule is one.
"""

import ctypes
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphrl.compare.report import markdown
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets import zoo
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.auto import solve as auto
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.rules.list_scheduling import schedule as list_schedule
from graphrl.solvers.schedules.moves import KINDS
from graphrl.solvers.schedules.solver import MIX, effective_ops, run_chain, start_chain, temperature
from graphrl.solvers.schedules.state import TRANSFERS as NUMBERS
from reproduce.opponents.cpp import load_cpp
from reproduce.opponents.settings import Settings, dag
from reproduce.opponents.tables import TRANSFERS
from reproduce.regal.tasks import BANDWIDTH, LATENCY
from reproduce.results import Table, here

YARDSTICK = (0.004, 2e-5, 0.02)  # its first and last temperature, and what a mean clock weighs: parts of the start
HEADINGS = (
    "ops", "transfer", "devices", "graphs", "yardstick", "anneal-schedule / it", "auto / it", "moves/s", "its moves/s",
)  # fmt: skip
MOVE_HEADINGS = ("move", "drawn", "kept", "walked", "makespan without it")
PROGRAMS, LEAST_OPS, MOST_OPS = 30, 100, 3_000  # of the zoo
_CHUNK = 0.02  # of the time, between two looks at the clock


class Case(NamedTuple):
    """A graph under a problem, and the plan from which all start."""

    graph: ComputationGraph
    problem: Problem
    plan: PlacedOrder
    makespan: float  # of the plan, seconds


class Run(NamedTuple):
    """What an annealing came to."""

    makespan: float  # seconds
    moves_per_second: float
    counts: np.ndarray  # [kinds, 3]: moves, those that were kept, places walked


Annealing = Callable[[Case, float], Run]  # in so many seconds of CPU time


def schedules(settings: Settings) -> Iterator[Table]:
    """Two tables a time: against the yardstick, if there is one, and without one of the kinds of moves."""
    if settings.schedule_yardstick is not None:
        yardstick = _yardstick(settings.schedule_yardstick)
        cells = {**_dags(settings), **_programs(settings)}
        for seconds in settings.times:
            lines = _against(cells, yardstick, seconds)
            yield Table(
                f"Annealing of schedules against compiled code, {seconds:g} s",
                here(),
                ("Mean makespans of the yardstick, parts of the list schedule's.", markdown(HEADINGS, lines)),
            )
    seconds = settings.times[0]
    lines = _moves([case for cases in _dags(settings).values() for case in cases[:1]], seconds)
    how = (
        f"Of the moves in {seconds:g} s: how many are of a kind, how many of these are kept, and what part of the "
        "order a walk goes over; and the geometric mean of makespans without it, parts of those with all."
    )
    yield Table("What each move of a schedule earns", here(), (how, markdown(MOVE_HEADINGS, lines)))


Cells = dict[tuple[str, str, int], list[Case]]  # by what the graphs are, transfer model and devices


def _dags(settings: Settings) -> Cells:
    """Random DAGs by their number of ops."""
    sizes, devices = ((30, 40), (2,)) if settings.quick else ((200, 500, 1000, 2000, 5000), (2, 4, 8))
    return {
        (f"{ops:,}", transfer, d): [
            _case(dag(seed, ops), transfer, d, **TRANSFERS[transfer]) for seed in settings.graph_seeds
        ]
        for ops, transfer, d in itertools.product(sizes, ("rendezvous", "link"), devices)
    }


def _programs(settings: Settings) -> Cells:
    """Programs of the model zoo, from small to large, on two of the devices that its times are of."""
    entries = sorted((entry.ops, entry.name) for entry in zoo.select("*") if LEAST_OPS <= entry.ops <= MOST_OPS)
    chosen = np.linspace(0, len(entries) - 1, 2 if settings.quick else PROGRAMS).astype(int)
    graphs = [zoo.load(entries[i][1]).graph for i in chosen]
    transfers = {name: {"latency": LATENCY, "bandwidth": BANDWIDTH} for name in ("rendezvous", "link")}
    return {("zoo", name, 2): [_case(graph, name, 2, **model) for graph in graphs] for name, model in transfers.items()}


def _case(graph: ComputationGraph, transfer: str, devices: int, **model: float) -> Case:
    problem = Problem("makespan", devices, transfer, **model)  # type: ignore[arg-type]
    plan = list_schedule(graph, problem)
    return Case(graph, problem, plan, evaluate(graph, problem, *plan).makespan)


def _against(
    cells: Mapping[tuple[str, str, int], Sequence[Case]], yardstick: Annealing, seconds: float
) -> list[list[str]]:
    """A line a cell, and one for each transfer model over all. The ratios are geometric means."""
    lines, ratios = [], dict[str, list[np.ndarray]]()
    for (what, transfer, devices), cases in cells.items():
        runs = [(yardstick(case, seconds), ours(case, seconds)) for case in cases]
        makespans = [[theirs.makespan, mine.makespan] for theirs, mine in runs]
        values = np.array([[*pair, _auto(case, seconds)] for case, pair in zip(cases, makespans, strict=True)])
        starts = np.array([case.makespan for case in cases])
        ratios.setdefault(transfer, []).extend(values[:, 1:] / values[:, :1])
        means = (values[:, 0] / starts).mean(), *_means(values[:, 1:] / values[:, :1])
        speeds = (f"{np.mean([run[i].moves_per_second for run in runs]):,.0f}" for i in (1, 0))
        line = [what, transfer, f"{devices}", f"{len(cases)}", *(f"{value:.4f}" for value in means), *speeds]
        print("  ".join(line), file=sys.stderr, flush=True)
        lines.append(line)
    for transfer, of_all in ratios.items():
        of_transfer = [f"{value:.4f}" for value in _means(np.array(of_all))]
        lines.append(["all", transfer, "", f"{len(of_all)}", "", *of_transfer, "", ""])
    return lines


def _auto(case: Case, seconds: float) -> float:
    """The makespan of `auto` on one core, seconds."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return auto(Task(case.graph, case.problem, Budget(seconds=seconds), 1)).makespan
    finally:
        os.sched_setaffinity(0, cores)


def _moves(cases: Sequence[Case], seconds: float) -> list[list[str]]:
    """A line a kind."""
    whole = [ours(case, seconds) for case in cases]
    sizes = np.array([len(case.graph.ops) for case in cases])
    lines = []
    for number, kind in enumerate(KINDS):
        without = {name: share for name, share in MIX.items() if name != kind} | {kind: 0.0}
        runs = [ours(case, seconds, without) for case in cases]
        counts = np.array([run.counts[number] for run in whole])  # [cases, 3]
        of_all = counts[:, 0] / np.array([run.counts[:, 0].sum() for run in whole])
        made = np.maximum(1, counts[:, 0])
        shares = of_all.mean(), (counts[:, 1] / made).mean(), (counts[:, 2] / made / sizes).mean()
        ratio = _means(np.array([run.makespan for run in runs]) / np.array([run.makespan for run in whole]))
        lines.append([kind, *(f"{100 * share:.1f}%" for share in shares), f"{ratio:.4f}"])
        print("  ".join(lines[-1]), file=sys.stderr, flush=True)
    return lines


def _means(ratios: np.ndarray) -> np.ndarray:
    """Geometric means over the first axis."""
    return np.exp(np.log(ratios).mean(0))


def ours(case: Case, seconds: float, mix: Mapping[str, float] = MIX) -> Run:
    """One chain of `anneal-schedule`."""
    chain = start_chain(case.graph, case.problem, case.plan, np.random.SeedSequence(1))
    run_chain(chain, 0, 1.0, 1.0, mix)  # loads what is compiled
    made, spent, moves = 0, 0.0, 100
    began = time.process_time()
    while spent < 1:
        end = min(1.0, spent + (_CHUNK if made else 0.0))
        each = made / spent / len(case.graph.ops) if made else 0.0
        hot, cold = (case.makespan * temperature(share, each, effective_ops(case.graph)) for share in (spent, end))
        made += run_chain(chain, moves, hot, cold, mix)
        spent = (time.process_time() - began) / seconds
        moves = max(1, int(made / spent * _CHUNK))
    return Run(float(chain.best.makespan[0]), made / (spent * seconds), chain.counts.reshape(-1, 3))


def _yardstick(source: Path) -> Annealing:
    function = load_cpp(source).mkanneal
    function.restype = ctypes.c_double

    def run(case: Case, seconds: float) -> Run:
        a, problem = case.graph.arrays, case.problem
        n, t = a.num_ops, a.num_tensors
        source, target = a.dependencies()
        placement, nodes = case.plan
        times = np.array([problem.transfer_seconds(size) for size in a.tensor_bytes.tolist()])
        rows = [(a.use_op, a.use_tensor, n), (a.control_target, a.control_source, n), (a.producer, np.arange(t), n)]
        rows += [(a.use_tensor, a.use_op, t), (target, source, n), (source, target, n)]
        state = nodes[nodes < n].astype(np.int32), placement.astype(np.int32), np.ones(t, np.int8)
        trace, lengths, moves = np.zeros(2 * t * problem.devices + n, np.int32), np.zeros(1, np.int32), np.zeros(1, int)
        arrays = (
            a.runtime.astype(float),
            times,
            a.producer.astype(np.int32),
            *(x for row in rows for x in _rows(*row)),
        )
        began = time.process_time()
        makespan = function(
            *(n, t, problem.devices, NUMBERS[problem.transfer]),
            *(ctypes.c_void_p(array.ctypes.data) for array in (*arrays, *state)),
            *(ctypes.c_double(seconds), ctypes.c_uint64(1), *map(ctypes.c_double, YARDSTICK)),
            *(ctypes.c_void_p(array.ctypes.data) for array in (trace, lengths, moves)),
        )
        return Run(makespan, int(moves[0]) / (time.process_time() - began), np.zeros((0, 3)))

    return run


def _rows(keys: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Values by key: where rows begin `[count + 1]`, and all rows, int32."""
    by_key = np.argsort(keys, kind="stable")
    begin = np.searchsorted(keys[by_key], np.arange(count + 1)).astype(np.int32)
    return begin, values[by_key].astype(np.int32)
