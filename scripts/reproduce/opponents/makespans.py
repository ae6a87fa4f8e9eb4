"""Makespans that searches come to on one core each, kept in a file: list scheduling, annealing, `auto`, a yardstick.

The yardstick is one C++ file with a function `mkanneal` (explicit order, placement and a bit a tensor, every move
costed whole), given by --schedule-yardstick; it is compiled here. It and `anneal-schedule` have one chain and start at
the same list schedule, which they are not charged. `auto` is not charged for its plans without search, of which that
list schedule is one. All stop by the CPU time of their process, so that other work on the machine matters little.
"""

import ctypes
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from graphrl.costs.exact import evaluate
from graphrl.costs.host.clocks import TRANSFERS as NUMBERS
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets import zoo
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.auto import solve as auto
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.rules.list_scheduling import schedule as list_schedule
from graphrl.solvers.schedules.solver import (
    MIX,
    effective_ops,
    first_heat,
    least_heat,
    run_chain,
    start_chain,
    temperature,
)
from reproduce.measurements import Figures, Key
from reproduce.opponents.cpp import load_cpp
from reproduce.opponents.settings import TRANSFERS, Settings, dag
from reproduce.regal.tasks import BANDWIDTH, LATENCY

YARDSTICK = (0.004, 2e-5, 0.02)  # its first and last temperature, and what a mean clock weighs: parts of the start
CHUNK = 0.02  # of the time, between two looks at the clock


class Case(NamedTuple):
    """A graph under a problem."""

    graph: str  # "ops@seed" of a random DAG, "@seed" for one of 50 to 200 ops, "zoo:program"
    transfer: str
    devices: int


class Entrant(NamedTuple):
    """A search and what it may spend; 0 is no limit."""

    name: str  # "list", "auto", "yardstick", "anneal-schedule", this "without" a kind of move
    seconds: float = 0.0
    evaluations: int = 0


def makespans(
    settings: Settings, cases: Sequence[Case], entrants: Sequence[Entrant]
) -> list[dict[Entrant, Figures] | None]:
    """The figures of each case, or None where something failed: makespan in seconds, and of annealing moves a second
    and counts.
    """
    groups = [[{**case._asdict(), **entrant._asdict()} for entrant in entrants] for case in cases]
    work = functools.partial(_measure, source=settings.schedule_yardstick)
    by_case = settings.measurements.get_groups(groups, work, settings.processes)
    return [
        None if None in some else {entrant: figures for entrant, figures in zip(entrants, some, strict=True) if figures}
        for some in by_case
    ]


def _measure(key: Key, source: Path | None) -> Figures:
    start = _start(key["graph"], key["transfer"], key["devices"])
    name, _, kind = key["name"].partition(" without ")
    seconds = key["seconds"]
    if name == "list":
        return {"makespan": start.makespan, "ops": len(start.graph.ops)}
    if name == "auto":
        budget = Budget(key["evaluations"] or None, seconds or None)
        with mock.patch("time.perf_counter", time.process_time):
            return {"makespan": auto(Task(start.graph, start.problem, budget, 1)).makespan}
    if name == "yardstick":
        assert source is not None
        return _run_yardstick(start, source, seconds)
    return _anneal(start, seconds, {**MIX, **({kind: 0.0} if kind else {})})


class _Start(NamedTuple):
    graph: ComputationGraph
    problem: Problem
    plan: PlacedOrder
    makespan: float  # of the plan, seconds


@functools.lru_cache(maxsize=1)
def _start(name: str, transfer: str, devices: int) -> _Start:
    """A case with its list schedule."""
    if name.startswith(zoo.PREFIX):  # two of the devices that its times are of
        graph, costs = zoo.load(name).graph, {"latency": LATENCY, "bandwidth": BANDWIDTH}
    else:
        ops, _, seed = name.partition("@")
        graph, costs = dag(int(seed), int(ops) if ops else None), TRANSFERS[transfer]
    problem = Problem("makespan", devices, transfer, **costs)  # type: ignore[arg-type]
    plan = list_schedule(graph, problem)
    return _Start(graph, problem, plan, evaluate(graph, problem, *plan).makespan)


def _anneal(start: _Start, seconds: float, mix: Mapping[str, float]) -> Figures:
    """One chain of `anneal-schedule`."""
    chain = start_chain(start.graph, start.problem, start.plan, np.random.SeedSequence(1))
    run_chain(chain, 0, 1.0, 1.0, mix)  # loads what is compiled
    ops, least = effective_ops(start.graph), least_heat(start.problem, start.plan)
    first = first_heat(start.problem)
    total, spent, moves = 0, 0.0, 100
    began = time.process_time()
    while spent < 1:
        end = min(1.0, spent + (CHUNK if total else 0.0))
        each = total / spent / len(start.graph.ops) if total else 0.0
        hot, cold = (start.makespan * temperature(share, each, ops, first, least=least) for share in (spent, end))
        total += run_chain(chain, moves, hot, cold, mix)
        spent = (time.process_time() - began) / seconds
        moves = max(1, int(total / spent * CHUNK))
    counts = chain.counts.reshape(-1, 3).tolist()
    makespan = float(chain.best.makespan[0])
    return {"makespan": makespan, "moves_per_second": total / (spent * seconds), "counts": counts}


@functools.cache
def _yardstick(source: Path) -> "ctypes._NamedFuncPointer":
    function = load_cpp(source).mkanneal
    function.restype = ctypes.c_double
    return function


def _run_yardstick(start: _Start, source: Path, seconds: float) -> Figures:
    a, problem = start.graph.arrays, start.problem
    n, t = a.num_ops, a.num_tensors
    before, after = a.dependencies()
    placement, nodes = start.plan
    times = np.array([problem.transfer_seconds(size) for size in a.tensor_bytes.tolist()])
    rows = [(a.use_op, a.use_tensor, n), (a.control_target, a.control_source, n), (a.producer, np.arange(t), n)]
    rows += [(a.use_tensor, a.use_op, t), (after, before, n), (before, after, n)]
    state = nodes[nodes < n].astype(np.int32), placement.astype(np.int32), np.ones(t, np.int8)
    trace, lengths, moves = np.zeros(2 * t * problem.devices + n, np.int32), np.zeros(1, np.int32), np.zeros(1, int)
    arrays = a.runtime.astype(float), times, a.producer.astype(np.int32), *(x for row in rows for x in _rows(*row))
    function = _yardstick(source)
    began = time.process_time()
    makespan = function(
        *(n, t, problem.devices, NUMBERS[problem.transfer]),
        *(ctypes.c_void_p(array.ctypes.data) for array in (*arrays, *state)),
        *(ctypes.c_double(seconds), ctypes.c_uint64(1), *map(ctypes.c_double, YARDSTICK)),
        *(ctypes.c_void_p(array.ctypes.data) for array in (trace, lengths, moves)),
    )
    return {"makespan": makespan, "moves_per_second": int(moves[0]) / (time.process_time() - began)}


def _rows(keys: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Values by key: where rows begin `[count + 1]`, and all rows, int32."""
    by_key = np.argsort(keys, kind="stable")
    begin = np.searchsorted(keys[by_key], np.arange(count + 1)).astype(np.int32)
    return begin, values[by_key].astype(np.int32)
