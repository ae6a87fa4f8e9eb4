"""Generalisation: graphs of 2,000 to 10,000 ops that no policy was trained on, against rules and searches.

The random DAGs are of one kind (`stochastic-block`) that the default sets of `graphrl train go` leave out. The set
`regal-like` would draw it for a quarter of its seeds. The programs are those of the zoo's test split, whose families
are not in training (`datasets.zoo.SPLITS`). A gap is to the best of all runs in the file of measurements, whichever
command made them.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from graphrl.compare.report import markdown, percent
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from reproduce.go.methods import Entry, policy_notes, search
from reproduce.go.settings import Settings, percent_interval, ratio_interval
from reproduce.measurements import Figures
from reproduce.regal.settings import BANDWIDTH, LATENCY
from reproduce.results import Table

METHODS = ("list", "etf", "go:rounds=1@1", "go+@1", "go+@10", "auto@1", "auto@10", "anneal-schedule@10")
LEAST, MOST = 2_000, 10_000  # ops
MODEL = "sbm"
FIRST = 1_000_000  # seed of the first random DAG, far from those of training
SLOWNESS = 0.2  # of random DAGs: transfer time of the mean tensor, in run times of the mean op
LATENCY_SHARE = 0.2  # of that
GRAPHS = 8  # of each kind
DEVICES = (4, 8)
HOW = (
    "Mean gaps to the best makespan known of each case, with 95% intervals from resampled graphs, each with all its "
    "cases; a case's gap is the mean over the seeds of a search. In brackets the largest gap."
)


class Case(NamedTuple):
    """A graph under a problem."""

    graph: str  # "sbm:OPS@SEED" of a random DAG, "zoo:program"
    transfer: Transfer
    devices: int


def unseen(settings: Settings) -> Iterator[Table]:
    """Yields a table with a row for each method and a column for each kind of cases; notes compare methods."""
    entries = settings.entries(METHODS)
    cases = _cases(settings)
    values = np.array([_values(settings, case, entries) for case in cases])  # [cases, entries]; NaN where a run failed
    best = np.array([_best(settings, case) for case in cases])
    gaps, graphs = values / best[:, None] - 1, np.array([case.graph for case in cases])
    kinds: dict[str, np.ndarray] = {
        "all": np.ones(len(cases), bool),
        **{kind: np.array([case.graph.startswith(kind) for case in cases]) for kind in (MODEL, "zoo")},
        **{model: np.array([case.transfer == model for case in cases]) for model in settings.transfers},
        **{f"{d} devices": np.array([case.devices == d for case in cases]) for d in sorted({c.devices for c in cases})},
    }
    lines = [
        [entry.label, *(_cell(gaps[chosen, column], graphs[chosen]) for chosen in kinds.values())]
        for column, entry in enumerate(entries)
    ]
    headings = ["method", *(f"{kind} ({int(chosen.sum())})" for kind, chosen in kinds.items())]
    notes = [*policy_notes(entries, settings.gdp), *_notes(entries, values, graphs)]
    notes.extend(_times(settings, cases, entries))
    notes.append(f"graphs: {', '.join(dict.fromkeys(graphs.tolist()))}")
    least, winner = min(zip(gaps.mean(0).tolist(), (entry.label for entry in entries), strict=True))
    summary = f"{winner} has the least mean gap to the best known makespan of {len(cases)} cases: {percent(least)}."
    yield settings.measurements.table("Unseen graphs", HOW, markdown(headings, lines), notes=notes, summary=summary)


def _cases(settings: Settings) -> list[Case]:
    count = min(settings.graphs, GRAPHS)
    sizes = np.geomspace(LEAST, MOST, count).astype(int) if not settings.quick else [40] * count
    graphs = [f"{MODEL}:{ops}@{FIRST + number}" for number, ops in enumerate(sizes)]
    graphs += [zoo.PREFIX + name for name in programs(0 if settings.quick else LEAST)[:count]]
    return [
        Case(graph, transfer, devices)
        for graph in graphs
        for transfer in settings.transfers
        for devices in ((2,) if settings.quick else DEVICES)
    ]


def programs(least: int = 0, most: int = MOST) -> list[str]:
    """Returns the smallest program within these numbers of ops of each family of the zoo's test split."""
    entries = sorted(zoo.select("test-split"), key=lambda entry: (-entry.ops, entry.name))
    of_family = {entry.family: entry for entry in entries if least <= entry.ops <= most}
    return [of_family[family].name for family in sorted(of_family)]


@functools.lru_cache(maxsize=1)
def _graph(name: str) -> ComputationGraph:
    if name.startswith(zoo.PREFIX):
        return zoo.load(name).graph
    ops, _, seed = name.partition(":")[2].partition("@")
    return sample("regal-like", int(ops), int(seed), {"model": MODEL})[0]


def of_programs(devices: int, transfer: Transfer) -> Problem:
    """Returns the problem of the programs."""
    return Problem("makespan", devices, transfer, LATENCY, BANDWIDTH)


def _problem(case: Case) -> Problem:
    if case.graph.startswith(zoo.PREFIX):
        return of_programs(case.devices, case.transfer)
    a = _graph(case.graph).arrays
    seconds = SLOWNESS * float(a.runtime.mean())
    bandwidth = float(a.tensor_bytes.mean()) / ((1 - LATENCY_SHARE) * seconds)
    return Problem("makespan", case.devices, case.transfer, LATENCY_SHARE * seconds, bandwidth)


def _values(settings: Settings, case: Case, entries: Sequence[Entry]) -> list[float]:
    """Returns the mean makespan of each method; NaN if a run failed."""

    def run(entry: Entry, seed: int) -> Figures:
        return search(_graph(case.graph), _problem(case), entry, seed)

    values = []
    for entry in entries:
        seeds = 1 if entry.is_rule else settings.seeds
        runs = settings.of_seeds({**case._asdict(), **entry.key}, functools.partial(run, entry), seeds)
        values.append(float(np.mean([one["makespan"] for one in runs])) if len(runs) == seeds else float("nan"))
    return values


def _times(settings: Settings, cases: Sequence[Case], entries: Sequence[Entry]) -> Iterator[str]:
    """Yields median and largest seconds of each method. They can exceed the limit: a first plan is never cut short."""
    for entry in entries:
        runs = [run for case in cases for run in settings.measurements.all_of({**case._asdict(), **entry.key})]
        seconds = [float(run["seconds"]) for run in runs]
        if seconds:
            yield f"{entry.label}: {np.median(seconds):.2f} s by the median, at most {max(seconds):.2f}"


def _best(settings: Settings, case: Case) -> float:
    """Returns the least makespan of all runs in the file; NaN without runs."""
    runs = settings.measurements.all_of(case._asdict())
    return min((float(one["makespan"]) for one in runs), default=float("nan"))


def _cell(gaps: np.ndarray, graphs: np.ndarray) -> str:
    gaps, graphs = gaps[np.isfinite(gaps)], graphs[np.isfinite(gaps)]
    if not len(gaps):
        return "-"
    return f"{percent_interval(gaps, graphs)} ({percent(float(gaps.max()))})"


def _notes(entries: Sequence[Entry], values: np.ndarray, graphs: np.ndarray) -> Iterator[str]:
    """Yields a line with the makespan ratio of every other method to `auto`."""
    for (mine, entry), (place, auto) in itertools.product(enumerate(entries), enumerate(entries)):
        logs = np.log(values[:, mine] / values[:, place])
        finite = np.isfinite(logs)
        if auto.method == "auto" != entry.method and finite.any():
            worst = percent(float(np.expm1(logs[finite].max())))
            what = f"{entry.label} against {auto.label}"
            yield f"{what}: {ratio_interval(logs[finite], graphs[finite])}, at worst {worst}"
