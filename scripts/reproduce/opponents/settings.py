"""Settings and graphs of the tables of classical methods, and their main tables.

Every method runs on the same graphs for the same times: makespan of random DAGs, peak memory of layered graphs.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphrl.compare.pictures import histogram_figure, quality_figure
from graphrl.compare.report import problem_line
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan.plot import write_figure
from reproduce import launcher
from reproduce.contest import all_rows, times_markdown
from reproduce.launcher import check_known, numbers, option, seconds, whole_number
from reproduce.measurements import Measurements
from reproduce.results import Table, of_rows

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

    @functools.cached_property
    def measurements(self) -> Measurements:
        """File of figures that are no rows of comparisons."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry)

    @property
    def graph_seeds(self) -> range:
        """Seeds of the graphs in a table."""
        return range(self.first, self.first + self.graphs)


def dag(seed: int, num_ops: int | None = None) -> ComputationGraph:
    """Random DAG of REGAL's description (`datasets/regal_like.py`); its four models take turns.

    `num_ops` counts neither the source nor the sink; by default it is drawn from 50 to 200.
    """
    return sample("regal-like", num_ops, seed, {"model": MODELS[seed % len(MODELS)]})[0]


BASELINE = "brkga"


def dags(settings: Settings) -> Iterator[Table]:
    """A table for each transfer model and number of devices."""
    graphs = [dag(seed, 20 if settings.quick else None) for seed in settings.graph_seeds]
    for transfer, devices in itertools.product(TRANSFERS, (2, 4)):
        problem = Problem("makespan", devices, transfer, **TRANSFERS[transfer])  # type: ignore[arg-type]
        title = f"Random DAGs: {problem_line(problem)}"
        yield _table(settings, title, f"dags-{transfer}-{devices}", graphs, problem, settings.among(PLACERS))


def layered(settings: Settings) -> Iterator[Table]:
    """A table for each size."""
    for ops in (30, 40) if settings.quick else (500, 1000, 2000):
        graphs = [sample("layered", ops, seed)[0] for seed in settings.graph_seeds]
        title = f"Layered graphs of {ops:,} ops: peak memory on 1 device"
        yield _table(settings, title, f"layered-{ops}", graphs, Problem(), settings.among(ORDERERS))


def _table(
    settings: Settings,
    title: str,
    name: str,
    graphs: Sequence[ComputationGraph],
    problem: Problem,
    methods: Sequence[str],
) -> Table:
    """Table with a column for each time; writes its pictures.

    Raises:
      GraphrlError: there are no methods.
    """
    if not methods:
        raise GraphrlError(f"{title}: none of --methods takes part: leave out its section")
    print(title, file=sys.stderr)
    contests = [settings.at_time(graphs, problem, methods, seconds) for seconds in settings.times]
    rows = all_rows(contests)
    write_figure(quality_figure(rows, contests[-1].others), settings.out / f"{name}.png")
    if BASELINE in methods:
        write_figure(histogram_figure(contests[-1].rows, BASELINE), settings.out / f"{name}-improvements.png")
    how = (
        f"{len(graphs)} graphs (seeds from {settings.first}). Under the times: mean gaps to the best known; the other "
        "columns are of the longest time."
    )
    return Table(title, of_rows(rows), (how, *times_markdown(settings.times, contests)))
