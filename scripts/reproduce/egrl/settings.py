"""Settings of the command line, and runs of methods on EGRL's workloads, for all sections.

Runs are kept in measured.jsonl: sections that need the same run share it.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphrl.costs.maps.chip import find_chip
from graphrl.costs.maps.drawn import draw_chip
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.graphs.datasets.sets import layers_of
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.methods import MAP_METHODS, find_map_solver
from graphrl.solvers.base import Budget
from graphrl.solvers.maps.task import MapTask
from reproduce import launcher
from reproduce.launcher import check_known, names, option, seconds
from reproduce.measurements import Figures, Key

CHIP, DRAWN = "nnp-i", "drawn-"
FIGURES = ("latency", "compiler_latency", "bound", "seconds", "evaluations")
ONCE = ("all-slowest", "compiler", "benefit", "greedy-dp")  # methods that give the same map for every seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/egrl"), "folder of measurements and pictures")
    workloads: tuple[str, ...] = option(tuple(WORKLOADS), "that maps are for", quick=("resnet50",), parse=names)
    evaluations: int = option(4000, "of a run", quick=200)
    times: tuple[float, ...] = option((1.0, 60.0), "seconds of a run", quick=(0.2,), parse=seconds, metavar="S,...")
    seeds: int = option(5, "of each method on each workload", quick=2)
    policies: tuple[str, ...] = option(
        (), "further checkpoints of graphrl train egrl, for the section transfer", parse=names, metavar="PATH,..."
    )

    def check(self) -> None:
        """Checks methods and workloads.

        Raises:
          GraphrlError: a method or a workload is unknown.
        """
        check_known("method", [method.partition(":")[0] for method in self.methods or ()], MAP_METHODS)
        check_known("workload", self.workloads, WORKLOADS)


class Entrant(NamedTuple):
    """Row of a table: a method, the budget of a run (0 is no limit), and the number of runs."""

    method: str
    evaluations: int
    seconds: float
    runs: int

    @property
    def budget(self) -> str:
        return f"{self.evaluations:,} evaluations" if self.evaluations else f"{self.seconds:g} s"


class Runs(NamedTuple):
    """Measurements of all entrants on one workload."""

    workload: str
    by_entrant: dict[Entrant, list[Figures]]  # those that did not fail
    best: float  # seconds, the least latency of all
    bound: float | None  # seconds, the highest of those proved


def at_evaluations(settings: Settings, methods: Sequence[str]) -> list[Entrant]:
    """Returns entrants with the evaluations of the command line."""
    return [
        Entrant(method, settings.evaluations, 0.0, 1 if method in ONCE else settings.seeds)
        for method in settings.among(methods)
    ]


def in_time(settings: Settings, methods: Sequence[str]) -> list[Entrant]:
    """Returns entrants with each of the times of the command line; beyond 10 s one run is enough to show a bound."""
    return [
        Entrant(method, 0, time, settings.seeds if time <= 10 else 1)
        for time in settings.times
        for method in settings.among(methods)
    ]


def runs_of(settings: Settings, workload: str, entrants: Sequence[Entrant]) -> Runs:
    """Returns all runs of the entrants; missing runs are executed now, each on one core."""
    keys = [
        {
            "workload": workload,
            "chip": CHIP,
            "method": entrant.method,
            "evaluations": entrant.evaluations,
            "seconds": entrant.seconds,
            "seed": seed,
        }
        for entrant in entrants
        for seed in range(entrant.runs)
    ]
    # groups of one: each run is kept as soon as it is done
    measured = iter(settings.measurements.get_groups([[key] for key in keys], _measure, settings.processes))
    by_entrant = {
        entrant: [run for _ in range(entrant.runs) if (run := next(measured)[0]) is not None] for entrant in entrants
    }
    by_entrant = {entrant: runs for entrant, runs in by_entrant.items() if runs}
    everything = [run for runs in by_entrant.values() for run in runs]
    best = min((run["latency"] for run in everything), default=0.0)
    bound = max((run["bound"] for run in everything if run["bound"]), default=None)
    return Runs(workload, by_entrant, best, bound)


@functools.lru_cache(maxsize=32)
def problem_of(workload: str, chip: str = CHIP) -> MapProblem:
    """Loads a workload, or a model file as for `graphrl.read_graph`; returns its map problem on a chip: a name, or
    `DRAWN` and a seed.
    """
    graph = WORKLOADS[workload]() if workload in WORKLOADS else layers_of(workload)
    seed = chip.removeprefix(DRAWN)
    return map_problem(graph, find_chip(chip) if seed == chip else draw_chip(graph, int(seed)))


class _Traced(MapTask):
    """A task that records each improved latency, and the number of evaluations at that point."""

    def __init__(self, *arguments: Any) -> None:
        self.curve: list[tuple[int, float]] = []
        super().__init__(*arguments)

    def keep(self, row: np.ndarray, seconds: float) -> None:
        if seconds < self.latency:
            self.curve.append((self.evaluations, seconds))
        super().keep(row, seconds)


def _measure(key: Key) -> Figures:
    """Runs a method; returns latencies, bound, seconds, curve `[[evaluations, latency], ...]`, and memories by step."""
    problem = problem_of(key["workload"])
    task = _Traced(problem, Budget(key["evaluations"] or None, key["seconds"] or None), key["seed"])
    memory_map = find_map_solver(key["method"])(task)
    memory_map.check(problem.graph)
    weights, outputs = (memories.tolist() for memories in memory_map.memories(problem))
    figures = {name: getattr(memory_map, name) for name in FIGURES}
    return {**figures, "curve": task.curve, "weights": weights, "outputs": outputs}
