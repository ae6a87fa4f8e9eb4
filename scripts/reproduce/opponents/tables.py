"""Every method on the same graphs at the same times: makespan of random DAGs, peak memory of layered graphs."""

import itertools
import sys
from collections.abc import Iterator, Sequence

from graphrl.compare.pictures import histogram_figure, quality_figure
from graphrl.compare.report import problem_line
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan.plot import write_figure
from reproduce.contest import all_rows, times_markdown
from reproduce.opponents.settings import ORDERERS, PLACERS, TRANSFERS, Settings, dag
from reproduce.results import Table, of_rows

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
    """One table with a column a time; its pictures are written.

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
