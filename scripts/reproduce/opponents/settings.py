"""Settings and graphs of the tables of classical methods, and their main tables.

Every method runs on the same graphs for the same times: makespan of random DAGs, peak memory of layered graphs.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphrl.compare.pictures import histogram_figure, quality_figure
from graphrl.compare.report import percent, problem_line
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan.plot import write_figure
from reproduce import launcher
from reproduce.contest import Contest, all_rows, mean_gaps, times_markdown
from reproduce.launcher import check_known, numbers, option, seconds, whole_number
from reproduce.results import Table, markdown, of_rows

MODELS = ("er", "ba", "ws", "sbm")
# A transfer that no op waits for costs nothing under "free" and, as in REGAL, under "rendezvous", which still
# synchronises the two devices. Under "link" only its time counts: 1 s + bytes / (5 B/s) is 11 s for a tensor of 50
# bytes, where an op takes 50 s.
TRANSFERS: dict[str, dict[str, float]] = {"free": {}, "rendezvous": {}, "link": {"latency": 1.0, "bandwidth": 5.0}}
PLACERS = (
    "auto", "list", "hlfet", "etf", "metis", "local-search", "anneal-schedule", "brkga", "brkga-tuned", "brkga+",
    "random", "cp-sat",
)  # fmt: skip
ORDERERS = (
    "auto", "list", "xla-list", "xla-dfs", "xla-postorder", "xla", "inductor-lpmf", "inductor-bfs", "inductor-dfs",
    "inductor", "alap", "depth-first", "breadth-first", "random-ready", "random-priorities", "dfs-dp", "min-cut",
    "approximate-dp:width=1000", "approximate-dp:width=10000", "approximate-dp:width=100000", "anneal", "brkga",
    "brkga-tuned", "brkga+", "cp-sat",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/opponents"), "folder of measurements and pictures")
    times: tuple[float, ...] = option((1.0, 10.0, 60.0), "seconds of a run", quick=(0.1, 0.2), parse=seconds)
    graphs: int = option(20, "in each table", quick=2)
    sizes: tuple[int, ...] = option(
        (200, 500, 1000, 2000, 5000), "ops of random DAGs (schedules, moves)", quick=(30,), parse=numbers
    )
    programs: int = option(30, "of the model zoo", quick=1)
    first: int = option(0, "seed of the first graph; 0-3 chose auto's rule", parse=lambda text: whole_number(text, 0))
    seeds: int = option(1, "of each method on each graph")
    yardstick: Path | None = option(None, "C++ source of an annealing to compare with", parse=Path, metavar="CPP")
    schedule_yardstick: Path | None = option(None, "C++ source of one for makespan", parse=Path, metavar="CPP")

    def check(self) -> None:
        """Checks the methods.

        Raises:
          GraphrlError: a method is unknown.
        """
        check_known("method", self.methods or (), dict.fromkeys((*PLACERS, *ORDERERS)))

    @property
    def graph_seeds(self) -> range:
        """Seeds of the graphs in a table."""
        return range(self.first, self.first + self.graphs)


def dag(seed: int, num_ops: int | None = None) -> ComputationGraph:
    """Generates a random DAG as REGAL describes them (`datasets/regal_like.py`); the four models take turns.

    `num_ops` counts neither the source nor the sink; by default it is drawn from 50 to 200.
    """
    return sample("regal-like", num_ops, seed, {"model": MODELS[seed % len(MODELS)]})[0]


BASELINE = "brkga"


def dags(settings: Settings) -> Iterator[Table]:
    """Yields the table of mean gaps, then a table for each transfer model and number of devices."""
    graphs = [dag(seed, 20 if settings.quick else None) for seed in settings.graph_seeds]
    problems = {
        f"{transfer}, {devices}": Problem("makespan", devices, transfer, **costs)  # type: ignore[arg-type]
        for (transfer, costs), devices in itertools.product(TRANSFERS.items(), (2, 4))
    }
    titles = [f"Random DAGs: {problem_line(problem)}" for problem in problems.values()]
    runs = {
        column: _runs(settings, title, f"dags-{column.replace(', ', '-')}", graphs, problem, PLACERS)
        for (column, problem), title in zip(problems.items(), titles, strict=True)
    }
    yield from _tables(settings, titles, runs)


def layered(settings: Settings) -> Iterator[Table]:
    """Yields the table of mean gaps, then a table for each size."""
    sizes = (30, 40) if settings.quick else (500, 1000, 2000)
    titles = [f"Layered graphs of {ops:,} ops: peak memory on 1 device" for ops in sizes]
    runs = {}
    for ops, title in zip(sizes, titles, strict=True):
        graphs = [sample("layered", ops, seed)[0] for seed in settings.graph_seeds]
        runs[f"{ops:,} ops"] = _runs(settings, title, f"layered-{ops}", graphs, Problem(), ORDERERS)
    yield from _tables(settings, titles, runs)


def _runs(
    settings: Settings,
    title: str,
    name: str,
    graphs: Sequence[ComputationGraph],
    problem: Problem,
    candidates: Sequence[str],
) -> list[Contest]:
    """Runs the selected methods at each time; writes the pictures.

    Raises:
      GraphrlError: no method is selected.
    """
    methods = settings.among(candidates)
    if not methods:
        raise GraphrlError(f"{title}: none of --methods takes part: leave out its section")
    print(title, file=sys.stderr)
    contests = [settings.at_time(graphs, problem, methods, seconds) for seconds in settings.times]
    rows = all_rows(contests)
    write_figure(quality_figure(rows, contests[-1].others), settings.out / f"{name}.png")
    if BASELINE in methods:
        write_figure(histogram_figure(contests[-1].rows, BASELINE), settings.out / f"{name}-improvements.png")
    return contests


def _tables(settings: Settings, titles: Sequence[str], runs: Mapping[str, Sequence[Contest]]) -> Iterator[Table]:
    """Yields a table of mean gaps with a column per problem, then a table per problem with a column for each time."""
    columns = [mean_gaps(contests) for contests in runs.values()]
    lines = [[f"`{name}`", *(_joined(column.get(name, ())) for column in columns)] for name in columns[0]]
    means = {name: float(np.mean([column[name][-1] for column in columns])) for name in columns[0]}
    best = min(means, key=lambda name: means[name])
    times = " / ".join(f"{seconds:g}" for seconds in settings.times)
    counts = f"{settings.graphs} graph{'s' * (settings.graphs > 1)} (seeds from {settings.first})"
    how = f"{counts}. Gap after {times} s, one figure where all times give it."
    every = [row for contests in runs.values() for row in all_rows(contests)]
    summary = (
        f"`{best}` has the least mean gap to the best known after {settings.times[-1]:g} s: {percent(means[best])}."
    )
    yield Table("Mean gap to the best known", of_rows(every), (how, markdown(["method", *runs], lines)), summary)
    how = f"{counts}. Under the times: mean gaps to the best known; the other columns are of the longest time."
    for title, contests in zip(titles, runs.values(), strict=True):
        yield Table(title, of_rows(all_rows(contests)), (how, *times_markdown(settings.times, contests)))


def _joined(gaps: Sequence[float]) -> str:
    """Formats the gaps at each time, as a single one if all are equal."""
    texts = [percent(each) for each in gaps]
    return " / ".join(texts if len(set(texts)) > 1 else texts[:1])
