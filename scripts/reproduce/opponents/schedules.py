"""`anneal-schedule` and `auto` against a compiled yardstick, what each move earns, and how far from the best all are.

Without --schedule-yardstick list scheduling takes its place. See makespans.py.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.compare.report import markdown, percent
from graphrl.graphs.datasets import zoo
from graphrl.solvers.schedules.moves import KINDS
from reproduce.measurements import Figures
from reproduce.opponents.makespans import Case, Entrant, makespans
from reproduce.opponents.settings import Settings
from reproduce.results import Table

LIST = Entrant("list")
MOVE_HEADINGS = ("move", "drawn", "kept", "walked", "makespan without it")
LEAST_OPS, MOST_OPS = 100, 3_000  # of programs of the zoo
EVALUATIONS = 5_000  # REGAL's

Cells = dict[tuple[str, str, int], list[Case]]  # by what the graphs are, transfer model and devices


def schedules(settings: Settings) -> Iterator[Table]:
    """A table a time."""
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
        yield settings.measurements.table(title, how, markdown(headings, lines))


def moves(settings: Settings) -> Iterator[Table]:
    """A line a kind, on the first graph of each cell."""
    cells, seconds = {cell: cases[:1] for cell, cases in _dags(settings).items()}, settings.times[0]
    whole, *others = [Entrant(f"anneal-schedule{kind}", seconds) for kind in ("", *(f" without {k}" for k in KINDS))]
    complete = list(_figures(settings, cells, [LIST, whole, *others]).values())
    values = _values(complete, [whole, *others])
    counts = np.array([some[whole]["counts"] for some in complete])  # [cases, kinds, 3]
    sizes = np.array([some[LIST]["ops"] for some in complete])
    of_kind = np.maximum(1, counts[..., 0])
    drawn = (counts[..., 0] / counts[..., 0].sum(1, keepdims=True)).mean(0)
    kept, walked = (counts[..., 1] / of_kind).mean(0), (counts[..., 2] / of_kind / sizes[:, None]).mean(0)
    without = _means(values[:, 1:] / values[:, :1])
    lines = [
        [kind, *(f"{100 * share[i]:.1f}%" for share in (drawn, kept, walked)), f"{without[i]:.4f}"]
        for i, kind in enumerate(KINDS)
    ]
    how = (
        f"Of the moves in {seconds:g} s: how many are of a kind, how many of these are kept, and what part of the "
        "order a walk goes over; and the geometric mean of makespans without it, parts of those with all."
    )
    yield settings.measurements.table("What each move of a schedule earns", how, markdown(MOVE_HEADINGS, lines))


def gaps(settings: Settings) -> Iterator[Table]:
    """One table, a line for each kind of graphs."""
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
    lines = []
    for cell, cases in cells.items():
        complete = [by_case[case] for case in cases if case in by_case]
        if complete:
            values = _values(complete, entrants)
            over = _means(values / values.min(1, keepdims=True)) - 1
            lines.append([*map(str, cell), f"{len(complete)}", *map(percent, over.tolist())])
    names = ["list", f"auto, {EVALUATIONS:,} evaluations", *(f"auto, {time:g} s" for time in settings.times)]
    names += [f"{one.name}, {one.seconds:g} s" for one in entrants[len(names) :]]
    how = "Geometric mean gaps to the best makespan that any of them has, on one core each."
    headings = ["ops", "transfer", "devices", "graphs", *names]
    yield settings.measurements.table("How far from the best", how, markdown(headings, lines))


def _yardsticks(settings: Settings, seconds: float) -> list[Entrant]:
    return [] if settings.schedule_yardstick is None else [Entrant("yardstick", seconds)]


def _dags(settings: Settings) -> Cells:
    """Random DAGs by their number of ops."""
    devices = (2,) if settings.quick else (2, 4, 8)
    return {
        (f"{ops:,}", transfer, d): [Case(f"{ops}@{seed}", transfer, d) for seed in settings.graph_seeds]
        for ops, transfer, d in itertools.product(settings.sizes, ("rendezvous", "link"), devices)
    }


def _programs(settings: Settings) -> Cells:
    """Programs of the model zoo, from small to large, on two of the devices that its times are of."""
    entries = sorted((entry.ops, entry.name) for entry in zoo.select("*") if LEAST_OPS <= entry.ops <= MOST_OPS)
    chosen = np.linspace(0, len(entries) - 1, settings.programs).astype(int)
    names = [zoo.PREFIX + entries[i][1] for i in chosen]
    return {("zoo", transfer, 2): [Case(name, transfer, 2) for name in names] for transfer in ("rendezvous", "link")}


def _figures(settings: Settings, cells: Cells, entrants: Sequence[Entrant]) -> dict[Case, dict[Entrant, Figures]]:
    """Of all cases in which nothing failed."""
    cases = [case for some in cells.values() for case in some]
    measured = makespans(settings, cases, entrants)
    return {case: figures for case, figures in zip(cases, measured, strict=True) if figures is not None}


def _values(complete: Sequence[dict[Entrant, Figures]], entrants: Sequence[Entrant]) -> np.ndarray:
    """Makespans `[cases, entrants]`."""
    return np.array([[some[entrant]["makespan"] for entrant in entrants] for some in complete])


def _ratios(what: str, transfer: str, devices: int | str, values: np.ndarray) -> list[str]:
    """The first cells of a line: the second entrant by the first, and the others by the second."""
    ratios = values[:, 1] / values[:, 0], *(values[:, 2:] / values[:, 1:2]).T
    return [what, transfer, f"{devices}", f"{len(values)}", *(f"{_means(ratio):.4f}" for ratio in ratios)]


def _means(ratios: np.ndarray) -> np.ndarray:
    """Geometric means over the first axis."""
    return np.exp(np.log(ratios).mean(0))
