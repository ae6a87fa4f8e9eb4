"""A run (one method on one graph with one seed and budget), and the row that it leaves.

A row's file format is "graphrl-run", version 1: one JSON object a line (`comparison.py`), bytes and seconds as numbers,
null where there is none. The curve is a list of [seconds, evaluations, value] for every improvement that the method
reported; its last point is the plan's exact value at the end.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, shared_sizes
from graphrl.graphs.readers.json import graph_to_dict
from graphrl.methods import digest
from graphrl.solvers.base import Budget

FORMAT, VERSION = "graphrl-run", 1

Case = tuple[str, Problem]  # one graph (its fingerprint) under one problem: what values are compared within
Point = tuple[float, int, float]  # seconds, evaluations, value


def fingerprint(graph: ComputationGraph) -> str:
    """16 hexadecimal digits of what the graph holds, names of ops and tensors included, its own name not.

    Methods may break ties by name or by the order of ops, so that equal fingerprints mean equal results.
    """
    value = graph_to_dict(graph)
    del value["name"]
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One thing to do.

    Attributes:
      graph, fingerprint: the graph, and what `fingerprint` says of it.
      problem, method, seed, budget: as a solver takes them; the method may carry options ("approximate-dp:width=1000").
      cores: that the run may use.
      warm_up: whether programs are compiled before the clock starts; only under a budget in seconds.
      trained: digest of the policy that the method plays, "" for one that is not trained (`methods.digest`).
      sizes: to pad the graph to, for methods whose results do not depend on that; None is its own bucket.
    """

    graph: ComputationGraph
    fingerprint: str
    problem: Problem
    method: str
    seed: int
    budget: Budget
    cores: int
    warm_up: bool = True
    trained: str = ""
    sizes: Sizes | None = None

    @functools.cached_property
    def key(self) -> str:
        """32 hexadecimal digits that are equal for equal runs: of the graph's content and of every setting that can
        change the result. How many cores there are and whether they were warm counts only where time does.
        """
        settings: dict[str, Any] = {
            "version": VERSION,
            "graph": self.fingerprint,
            "problem": _problem_to_dict(self.problem),
            "method": self.method,
            "seed": self.seed,
            "budget": dataclasses.asdict(self.budget),
        }
        if self.trained:
            settings["trained"] = self.trained
        if self.budget.seconds is not None:
            settings |= {"cores": self.cores, "warm_up": self.warm_up}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Row:
    """What came of a run.

    Attributes:
      key: of the run.
      graph, fingerprint, ops: the graph's name, content and size.
      method, problem, seed, budget, cores, warm_up: of the run.
      value: the objective, exact; None if the run failed.
      bound: the best lower bound that the method or `costs/bounds` gives.
      excess: bytes above the memory limit.
      makespan, peak_memory: seconds, and bytes by device.
      seconds: of wall clock, measured around the method.
      compile_seconds: of these, what JAX spent on compiling.
      evaluations: as the method counts them.
      error: why there is no plan, one line, or None.
      note: what the method warned of, one line, or None.
      curve: improvements as (seconds, evaluations, value).
      machine, graphrl, date: where, with which version and when (UTC, ISO 8601) it ran.
    """

    key: str
    graph: str
    fingerprint: str
    ops: int
    method: str
    problem: Problem
    seed: int
    budget: Budget
    cores: int
    warm_up: bool
    value: float | None = None
    bound: float | None = None
    excess: int | None = None
    makespan: float | None = None
    peak_memory: tuple[int, ...] | None = None
    seconds: float = 0.0
    compile_seconds: float = 0.0
    evaluations: int = 0
    error: str | None = None
    note: str | None = None
    curve: tuple[Point, ...] = ()
    machine: str = ""
    graphrl: str = ""
    date: str = ""

    @property
    def case(self) -> Case:
        """What the value may be compared within."""
        return self.fingerprint, self.problem

    @property
    def feasible(self) -> bool:
        """Whether there is a plan, within the memory limit."""
        return self.value is not None and self.excess == 0

    def to_dict(self) -> dict[str, Any]:
        """As the file holds it."""
        value: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        for field in dataclasses.fields(self):
            value[field.name] = getattr(self, field.name)
        model = _problem_to_dict(value.pop("problem"))
        return {**value, "objective": model.pop("objective"), "model": model, "budget": dataclasses.asdict(self.budget)}

    @staticmethod
    def from_dict(value: object) -> "Row":
        """The row of such a dict.

        Raises:
          GraphrlError: it is none.
        """
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise GraphrlError(f'it is no run: a run says "format": "{FORMAT}"')
        if value.get("version") != VERSION:
            raise GraphrlError(f'version is {value.get("version")!r}: this graphrl reads "version": {VERSION}')
        fields = {key: item for key, item in value.items() if key not in ("format", "version", "objective", "model")}
        try:
            model = {"objective": value["objective"], **value["model"]}
            model["bandwidth"] = math.inf if model["bandwidth"] is None else model["bandwidth"]
            fields |= {"problem": Problem(**model), "budget": Budget(**value["budget"])}
            fields["curve"] = tuple((float(s), int(e), v) for s, e, v in value["curve"])
            fields["peak_memory"] = None if value["peak_memory"] is None else tuple(value["peak_memory"])
            return Row(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise GraphrlError(f"a field of the run is missing, unknown or wrong: {error}") from None


def make_runs(
    graphs: Iterable[ComputationGraph],
    problem: Problem,
    methods: Sequence[str],
    seeds: Sequence[int],
    budget: Budget,
    *,
    cores: int,
    warm_up: bool = True,
) -> list[Run]:
    """All runs, graph by graph and method by method; of graphs with equal content only the first takes part.

    Where the budget is in evaluations alone, graphs of similar sizes share compiled programs. Under one in seconds
    padding would cost a method some of its time, and programs are compiled before the clock starts.
    """
    distinct: dict[str, ComputationGraph] = {}
    for graph in graphs:
        distinct.setdefault(fingerprint(graph), graph)
    trained = {method: digest(method, problem) for method in methods}
    once = list(distinct.values())
    shared: Sequence[Sizes | None] = shared_sizes(once) if budget.seconds is None else [None] * len(once)
    return [
        Run(graph, content, problem, method, seed, budget, cores, warm_up, trained[method], sizes)
        for (content, graph), sizes in zip(distinct.items(), shared, strict=True)
        for method in methods
        for seed in seeds
    ]


def _problem_to_dict(problem: Problem) -> dict[str, Any]:
    value = dataclasses.asdict(problem)
    return {**value, "bandwidth": None if math.isinf(problem.bandwidth) else problem.bandwidth}
