"""Section `parts`: the same search without its reduction, its messages, its moves of trees, or its exact search."""

import statistics
from collections.abc import Iterator

from graphrl.compare.report import markdown
from reproduce.results import Table
from reproduce.sharding.settings import PARTS, RESULTS, Settings

INSTANCES = ("A", "C", "D", "K", "P")


def parts(settings: Settings) -> Iterator[Table]:
    """Yields the table with a row for each instance and a column for each search."""
    instances = [name for name in settings.instances if name in INSTANCES or settings.quick]
    lines = []
    for name in instances:
        cells = []
        for part in PARTS:
            runs = [settings.run(name, part, seed) for seed in range(settings.seeds)]
            costs = [run["cost"] for run in runs if run is not None]
            cells.append(
                f"{statistics.fmean(costs) / RESULTS[name].best:.4f}" if len(costs) == len(runs) else "no plan"
            )
        lines.append([name, *cells])
    how = "Cost over the best team's, mean over the seeds. `no messages`: without the dual's labels and multipliers."
    summary = "Cost over the best team's by instance, without one part at a time."
    yield settings.measurements.table("Parts", how, markdown(["instance", *PARTS], lines), summary=summary)
