"""Every method without learning on EGRL's workloads: how fast its maps are, and how far from the best and the bound."""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.compare.report import markdown, percent
from graphrl.costs.maps.chips import find_chip
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.graphs.datasets.workloads import WORKLOADS
from graphrl.methods import find_map_solver
from graphrl.solvers.base import Budget
from graphrl.solvers.maps.task import MapTask
from graphrl.units import format_seconds
from reproduce.egrl.settings import Settings
from reproduce.measurements import Figures, Key
from reproduce.results import Table

ONCE = ("all-slowest", "compiler", "benefit", "greedy-dp")  # whatever the seed
SEARCHES = ("random", "local-search", "anneal", "brkga")
TIMED = ("anneal", "cp-sat")
HEADINGS = ("method", "budget", "runs", "latency", "speed-up, mean", "spread", "to best known", "to bound", "seconds")


class Entrant(NamedTuple):
    """A line: a method and what a run of it may spend; 0 is no limit."""

    method: str
    evaluations: int
    seconds: float

    @property
    def budget(self) -> str:
        return f"{self.evaluations:,} evaluations" if self.evaluations else f"{self.seconds:g} s"


def opponents(settings: Settings) -> Iterator[Table]:
    """A table for each workload."""
    entrants = [Entrant(method, settings.evaluations, 0.0) for method in settings.among((*ONCE, *SEARCHES))]
    entrants += [Entrant(method, 0, time) for time in settings.times for method in settings.among(TIMED)]
    for workload in settings.workloads:
        yield table_of(settings, workload, entrants)


def table_of(settings: Settings, workload: str, entrants: Sequence[Entrant]) -> Table:
    """A line for each entrant."""
    groups = [
        [
            {"workload": workload, "chip": settings.chip, **entrant._asdict(), "seed": seed}
            for seed in range(1 if entrant.method in ONCE else settings.seeds)
        ]
        for entrant in entrants
    ]
    measured = settings.measurements.get_groups(groups, _measure, settings.processes)
    by_entrant = {
        entrant: [run for run in runs if run is not None] for entrant, runs in zip(entrants, measured, strict=True)
    }
    everything = [run for runs in by_entrant.values() for run in runs]
    best = min((run["latency"] for run in everything), default=0.0)
    bound = max((run["bound"] for run in everything if run["bound"]), default=None)
    lines = [_line(entrant, runs, best, bound) for entrant, runs in by_entrant.items() if runs]
    known = f"Best known {format_seconds(best)}" + (f", bound {format_seconds(bound)}." if bound else ", no bound.")
    how = (
        "Speed-up is over the compiler's own map, spread its least and greatest. Gaps are of mean latencies. A run has "
        "one core."
    )
    table = settings.measurements.table(f"{workload} on {settings.chip}", f"{known} {how}", markdown(HEADINGS, lines))
    return table._replace(origin=table.origin._replace(seeds=frozenset(range(settings.seeds))))


def _line(entrant: Entrant, runs: Sequence[Figures], best: float, bound: float | None) -> list[str]:
    latency, seconds = (np.array([run[key] for run in runs]) for key in ("latency", "seconds"))
    speedup = np.array([run["compiler_latency"] for run in runs]) / latency
    mean = float(latency.mean())
    return [
        entrant.method,
        entrant.budget,
        f"{len(runs)}",
        format_seconds(mean),
        f"{speedup.mean():.3f}",
        f"{speedup.min():.3f} to {speedup.max():.3f}",
        percent(mean / best - 1),
        percent(mean / bound - 1 if bound else None),
        f"{seconds.mean():.3g}",
    ]


def _measure(key: Key) -> Figures:
    problem = _problem(key["workload"], key["chip"])
    method = find_map_solver(key["method"])
    task = MapTask(problem, Budget(key["evaluations"] or None, key["seconds"] or None), key["seed"])
    memory_map = method(task)
    memory_map.check(problem.graph)
    names = "latency", "compiler_latency", "bound", "seconds", "evaluations"
    return {name: getattr(memory_map, name) for name in names}


@functools.lru_cache(maxsize=1)
def _problem(workload: str, chip: str) -> MapProblem:
    return map_problem(WORKLOADS[workload](), find_chip(chip))
