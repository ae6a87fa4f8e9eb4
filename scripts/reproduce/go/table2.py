"""Table 2's form: the workloads of GO on their devices of 16 GiB each, run time and search time of each method.

All methods must keep a workload's groups on one device, and count resident parameters.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from graphrl.compare.report import markdown
from graphrl.costs.problem import Transfer
from graphrl.graphs.datasets.workloads import go
from graphrl.graphs.graph import ComputationGraph
from reproduce.go.methods import Entry, policy_notes, search, time_to
from reproduce.go.settings import Settings, against
from reproduce.measurements import Figures
from reproduce.results import Table
from reproduce.workloads import OVER, problem

METHODS = (
    "given", "expert", "expert:order=level", "metis", "etf", "list", "anneal-schedule", "hdp@600",
    "gdp:finetune=50", "go:finetune=50", "go+", "auto",
)  # fmt: skip
# Baselines of the paper: the expert's placement as frameworks run it, first in, first out, and with an order; HDP
REFERENCES = ("expert", "expert:order=level", "hdp")
HOW = (
    "Seconds of a training step on a P100's roofline: means over the seeds, those of searches; OOM where no plan "
    "within 16 GiB a device was found. Ops of a group share a device. `given` is one device."
)


class Row(NamedTuple):
    """A workload, and the figures of each method by seed; failed runs are left out."""

    name: str
    figures: list[list[Figures]]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return go.WORKLOADS[self.name].devices


def table2(settings: Settings) -> Iterator[Table]:
    """Yields two tables for each transfer model: run times, and search times."""
    entries = settings.entries(METHODS)
    for transfer in settings.transfers:
        rows = [Row(name, _measured(settings, name, transfer, entries)) for name in settings.workloads]
        headings = ["workload", "devices", *(entry.label for entry in entries)]
        texts = [
            markdown(
                headings, [[row.name, f"{go.WORKLOADS[row.name].devices}", *map(text, row.figures)] for row in rows]
            )
            for text in (run_time, search_time)
        ]
        parts = [HOW, texts[0], "Seconds of search: total, and in brackets until its best plan.", texts[1]]
        notes = [*policy_notes(entries, settings.gdp), *_notes(entries, rows)]
        yield settings.measurements.table(f"Table 2: {transfer}", *parts, notes=notes, summary=_summary(entries, rows))


def _measured(settings: Settings, name: str, transfer: Transfer, entries: Sequence[Entry]) -> list[list[Figures]]:
    def run(entry: Entry, seed: int) -> Figures:
        workload, graph = _workload(name)
        return search(graph, problem(workload, transfer, OVER[transfer]), entry, seed)

    return [
        settings.of_seeds(
            {"workload": name, "transfer": transfer, **entry.key},
            functools.partial(run, entry),
            1 if entry.is_rule else None,
        )
        for entry in entries
    ]


@functools.lru_cache(maxsize=1)
def _workload(name: str) -> tuple[go.Workload, ComputationGraph]:
    """Returns a workload, and its graph with colocation groups."""
    workload = go.load(name)
    return workload, workload.colocated


def run_time(figures: Sequence[Figures]) -> str:
    """Formats the mean run time over the seeds, as in GO's paper."""
    value = _value(figures)
    return "-" if not figures else "OOM" if value is None else f"{value:.3f}"


def search_time(figures: Sequence[Figures]) -> str:
    """Formats the mean seconds of the search, and until it was near its best plan."""
    if not figures:
        return "-"
    whole = statistics.mean(one["seconds"] for one in figures)
    best = [spent for one in figures if (spent := time_to(one, one["makespan"])) is not None]
    return f"{whole:.1f}" + (f" ({statistics.mean(best):.1f})" if best else "")


def _value(figures: Sequence[Figures]) -> float | None:
    """Returns the mean run time; None without runs or if a plan exceeds memory."""
    if not figures or any(one["excess"] for one in figures):
        return None
    return statistics.mean(one["makespan"] for one in figures)


def _summary(entries: Sequence[Entry], rows: Sequence[Row]) -> str:
    """Returns the least run time of all workloads together, and that of the expert's placement."""
    sums = {entry.label: sum(_value(row.figures[i]) or math.inf for row in rows) for i, entry in enumerate(entries)}
    labels = dict.fromkeys((min(sums, key=lambda label: sums[label]), "`expert`"))
    texts = [f"{label} {sums[label]:.2f} s" for label in labels if label in sums]
    return f"Run time of a step, summed over the workloads: {', '.join(texts)}."


def _notes(entries: Sequence[Entry], rows: Sequence[Row]) -> Iterator[str]:
    """Yields lines with each method's mean run time (geometric) against the baselines of GO's paper."""
    for (place, other), (mine, entry) in itertools.product(enumerate(entries), enumerate(entries)):
        if other.method in REFERENCES and mine != place:
            pairs = ((_value(row.figures[mine]), _value(row.figures[place])) for row in rows)
            yield from against(f"{entry.label} against {other.label}", pairs)
