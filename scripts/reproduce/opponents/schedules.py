"""`anneal-schedule` and `auto` against a compiled yardstick, the value of each move, and gaps to the best known.

The yardstick is that of --schedule-yardstick (see `annealing.py`); without it, list scheduling is the reference. The
yardstick and `anneal-schedule` run one chain and start from the same list schedule, whose time is not counted. For
`auto` the time of its plans without search is not counted; that list schedule is one of them. All run on one core each
and stop by the CPU time of their process, so that other load on the machine matters little.
"""

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from graphrl.compare.report import markdown, percent
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets import zoo
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.auto import solve as auto
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.rules.list_scheduling import schedule as list_schedule
from graphrl.solvers.schedules.moves import KINDS
from graphrl.solvers.schedules.solver import MIX
from reproduce.chain import anneal
from reproduce.measurements import Figures, Key
from reproduce.opponents.annealing import least_makespan
from reproduce.opponents.settings import TRANSFERS, Settings, dag
from reproduce.regal.settings import BANDWIDTH, LATENCY
from reproduce.results import Table


class Case(NamedTuple):
    """A graph under a problem."""

    graph: str  # "ops@seed" of a random DAG, "@seed" for one of 50 to 200 ops, "zoo:program"
    transfer: str
    devices: int


class Entrant(NamedTuple):
    """A search and its budget; 0 is no limit."""

    name: str  # "list", "auto", "yardstick", "anneal-schedule", or the last "without" a kind of move
    seconds: float = 0.0
    evaluations: int = 0


LIST = Entrant("list")
MOVE_HEADINGS = ("move", "share", "accepted", "walked", "makespan without it")
LEAST_OPS, MOST_OPS = 100, 3_000  # of programs of the zoo
EVALUATIONS = 5_000  # REGAL's

Cells = dict[tuple[str, str, int], list[Case]]  # by kind of graphs, transfer model and devices


def schedules(settings: Settings) -> Iterator[Table]:
    """Yields a table for each time."""
    cells = _dags(settings) | _programs(settings)
    by_time = {time: [*_yardsticks(settings, time), Entrant("auto", time)] for time in settings.times}
    by_time[settings.times[0]].insert(-1, Entrant("anneal-schedule", settings.times[0]))  # the later ones take hours
    by_case = _figures(settings, cells, [LIST, *itertools.chain(*by_time.values())])
    for seconds, searches in by_time.items():
        entrants = [LIST, *searches]
        names = [entrant.name for entrant in entrants]
        headings = ["ops", "transfer", "devices", "graphs", f"{names[1]} / list"]
        headings += [f"{name} / {names[1]}" for name in names[2:]] + [f"{name}, moves/s" for name in names[1:-1]]
        lines, of_transfer = [], dict[str, list[np.ndarray]]()
        for cell, cases in cells.items():
            complete = [by_case[case] for case in cases if case in by_case]
            if complete:
                values = _values(complete, entrants)
                of_transfer.setdefault(cell[1], []).append(values)
                speeds = [np.mean([some[one]["moves_per_second"] for some in complete]) for one in entrants[1:-1]]
                lines.append([*_ratios(*cell, values), *(f"{speed:,.0f}" for speed in speeds)])
        for transfer, some in of_transfer.items():
            lines.append([*_ratios("all", transfer, "", np.concatenate(some)), *[""] * (len(names) - 2)])
        title = f"Annealing of schedules against compiled code, {seconds:g} s"
        how = f"Geometric means of makespans after {seconds:g} s on one core."
        last = headings.index("auto / yardstick") if "auto / yardstick" in headings else 4
        ratios = " and ".join(f"{line[last]} ({line[1]})" for line in lines if line[0] == "all")
        summary = f"Makespans after {seconds:g} s, {headings[last]}, over all graphs: {ratios}."
        yield settings.measurements.table(title, how, markdown(headings, lines), summary=summary)


def moves(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each kind of move, on the first graph of each cell."""
    cells, seconds = {cell: cases[:1] for cell, cases in _dags(settings).items()}, settings.times[0]
    whole, *others = [Entrant(f"anneal-schedule{kind}", seconds) for kind in ("", *(f" without {k}" for k in KINDS))]
    complete = list(_figures(settings, cells, [LIST, whole, *others]).values())
    values = _values(complete, [whole, *others])
    counts = np.array([some[whole]["counts"] for some in complete])  # [cases, kinds, 3]
    sizes = np.array([some[LIST]["ops"] for some in complete])
    of_kind = np.maximum(1, counts[..., 0])
    share = (counts[..., 0] / counts[..., 0].sum(1, keepdims=True)).mean(0)
    accepted, walked = (counts[..., 1] / of_kind).mean(0), (counts[..., 2] / of_kind / sizes[:, None]).mean(0)
    without = _means(values[:, 1:] / values[:, :1])
    lines = [
        [kind, *(f"{100 * figure[i]:.1f}%" for figure in (share, accepted, walked)), f"{without[i]:.4f}"]
        for i, kind in enumerate(KINDS)
    ]
    how = (
        f"Moves in {seconds:g} s: share of each kind, the accepted share of these, and the fraction of the order "
        "that a walk covers; and the geometric mean of makespans without the kind, relative to those with all kinds."
    )
    best = KINDS[int(without.argmax())]
    summary = f"`{best}` is the most valuable kind of move: without it makespans are {without.max():.4f} times as long."
    title, table = "Gain of each move of a schedule", markdown(MOVE_HEADINGS, lines)
    yield settings.measurements.table(title, how, table, summary=summary)


def gaps(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each kind of graphs."""
    first = settings.times[0]
    entrants = [LIST, Entrant("auto", evaluations=EVALUATIONS), *(Entrant("auto", time) for time in settings.times)]
    entrants += _yardsticks(settings, first)
    cells = _programs(settings)
    for ops, devices in ((40, 2),) if settings.quick else ((503, 8), (1007, 2), (2004, 4)):
        cells[f"random, {ops:,}", "rendezvous", devices] = [
            Case(f"{ops - 2}@{seed}", "rendezvous", devices) for seed in settings.graph_seeds
        ]
    cells["REGAL-like, 52 to 202", "rendezvous", 2] = [
        Case(f"@{seed}", "rendezvous", 2) for seed in settings.graph_seeds
    ]
    by_case = _figures(settings, cells, entrants)
    lines, rows = [], list[list[float]]()
    for cell, cases in cells.items():
        complete = [by_case[case] for case in cases if case in by_case]
        if complete:
            values = _values(complete, entrants)
            rows.append((_means(values / values.min(1, keepdims=True)) - 1).tolist())
            lines.append([*map(str, cell), f"{len(complete)}", *map(percent, rows[-1])])
    names = ["list", f"auto, {EVALUATIONS:,} evaluations", *(f"auto, {time:g} s" for time in settings.times)]
    names += [f"{one.name}, {one.seconds:g} s" for one in entrants[len(names) :]]
    how = "Geometric mean gaps to the best makespan that any of them has, on one core each."
    headings = ["ops", "transfer", "devices", "graphs", *names]
    means = np.mean(rows, 0).tolist() if rows else []
    texts = [f"{name} {percent(mean)}" for name, mean in zip(names, means, strict=False)]
    summary = f"Mean gap to the best makespan over the rows: {', '.join(texts)}."
    yield settings.measurements.table("Gaps to the best", how, markdown(headings, lines), summary=summary)


def _yardsticks(settings: Settings, seconds: float) -> list[Entrant]:
    return [] if settings.schedule_yardstick is None else [Entrant("yardstick", seconds)]


def _dags(settings: Settings) -> Cells:
    """Generates random DAGs, grouped by number of ops."""
    devices = (2,) if settings.quick else (2, 4, 8)
    return {
        (f"{ops:,}", transfer, d): [Case(f"{ops}@{seed}", transfer, d) for seed in settings.graph_seeds]
        for ops, transfer, d in itertools.product(settings.sizes, ("rendezvous", "link"), devices)
    }


def _programs(settings: Settings) -> Cells:
    """Loads programs of the model zoo, from small to large, on two of the devices of its run times."""
    entries = sorted((entry.ops, entry.name) for entry in zoo.select("*") if LEAST_OPS <= entry.ops <= MOST_OPS)
    places = np.linspace(0, len(entries) - 1, settings.programs).astype(int)
    names = [zoo.PREFIX + entries[i][1] for i in places]
    return {("zoo", transfer, 2): [Case(name, transfer, 2) for name in names] for transfer in ("rendezvous", "link")}


def _figures(settings: Settings, cells: Cells, entrants: Sequence[Entrant]) -> dict[Case, dict[Entrant, Figures]]:
    """Runs all entrants; returns the cases without failures: makespan (s), annealing's moves per second and counts."""
    cases = [case for some in cells.values() for case in some]
    groups = [[{**case._asdict(), **entrant._asdict()} for entrant in entrants] for case in cases]
    work = functools.partial(_measure, source=settings.schedule_yardstick)
    by_case = zip(cases, settings.measurements.get_groups(groups, work, settings.processes), strict=True)
    return {
        case: {entrant: one for entrant, one in zip(entrants, some, strict=True) if one}
        for case, some in by_case
        if None not in some
    }


def _values(complete: Sequence[dict[Entrant, Figures]], entrants: Sequence[Entrant]) -> np.ndarray:
    """Returns makespans `[cases, entrants]`."""
    return np.array([[some[entrant]["makespan"] for entrant in entrants] for some in complete])


def _ratios(what: str, transfer: str, devices: int | str, values: np.ndarray) -> list[str]:
    """Formats a row's first cells: ratio of the second entrant to the first, and of the others to the second."""
    ratios = values[:, 1] / values[:, 0], *(values[:, 2:] / values[:, 1:2]).T
    return [what, transfer, f"{devices}", f"{len(values)}", *(f"{_means(ratio):.4f}" for ratio in ratios)]


def _means(ratios: np.ndarray) -> np.ndarray:
    """Computes geometric means over the first axis."""
    return np.exp(np.log(ratios).mean(0))


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
        return least_makespan(source, start.graph, start.problem, start.plan, seconds)
    ended = anneal(start.graph, start.problem, start.plan, {**MIX, **({kind: 0.0} if kind else {})}, seconds, 1)
    counts, makespan = ended.chain.counts.reshape(-1, 3).tolist(), float(ended.chain.best.makespan[0])
    return {"makespan": makespan, "moves_per_second": ended.rate, "counts": counts}


class _Start(NamedTuple):
    graph: ComputationGraph
    problem: Problem
    plan: PlacedOrder
    makespan: float  # of the plan, seconds


@functools.lru_cache(maxsize=1)
def _start(name: str, transfer: str, devices: int) -> _Start:
    """Loads a case and computes its list schedule."""
    if name.startswith(zoo.PREFIX):  # two of the devices of its run times
        graph, costs = zoo.load(name).graph, {"latency": LATENCY, "bandwidth": BANDWIDTH}
    else:
        ops, _, seed = name.partition("@")
        graph, costs = dag(int(seed), int(ops) if ops else None), TRANSFERS[transfer]
    problem = Problem("makespan", devices, transfer, **costs)  # type: ignore[arg-type]
    plan = list_schedule(graph, problem)
    return _Start(graph, problem, plan, evaluate(graph, problem, *plan).makespan)
