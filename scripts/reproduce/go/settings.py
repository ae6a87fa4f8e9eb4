"""Settings of GO's tables, and their means of ratios and differences with 95% intervals from resampled graphs."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from graphrl.compare.report import percent
from graphrl.costs.problem import Transfer
from graphrl.graphs.datasets.workloads import go
from graphrl.methods import find_solver
from reproduce import launcher
from reproduce.go.methods import Entry, entry_of, with_policy
from reproduce.launcher import check_known, names, option, seconds
from reproduce.measurements import Figures, Key, Measurements
from reproduce.workloads import OVER

RESAMPLES = 10_000

Pairs = Iterable[tuple[float | None, float | None]]


def against(what: str, pairs: Pairs, cases: str = "workloads", *, worst: bool = False) -> Iterator[str]:
    """Yields a line with the geometric mean of ratios, and optionally the largest one; nothing without pairs.

    Args:
      what: "NAME against OTHER".
      pairs: values of both, of each case; None if a run failed or was not made.
      cases: plural noun for the cases.
      worst: True to include the largest ratio.
    """
    logs = [math.log(ours / theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    if logs:
        largest = f", at worst {percent(math.expm1(max(logs)))}" if worst else ""
        yield f"{what}: {percent(math.expm1(math.fsum(logs) / len(logs)))} on {len(logs)} {cases}{largest}"


def percent_interval(values: np.ndarray, graphs: np.ndarray) -> str:
    """Returns the mean of fractions, and its interval."""
    mean, low, high = map(percent, (float(values.mean()), *interval(values, graphs)))
    return f"{mean} [{low}, {high}]"


def ratio_interval(logs: Sequence[float] | np.ndarray, graphs: np.ndarray | None = None) -> str:
    """Returns the geometric mean of ratios less 1, given their logarithms, and its interval."""
    logs = np.asarray(logs)
    graphs = np.arange(len(logs)) if graphs is None else graphs
    mean, low, high = (percent(math.expm1(log)) for log in (float(logs.mean()), *interval(logs, graphs)))
    return f"{mean} [{low}, {high}]"


def difference_interval(differences: np.ndarray) -> str:
    """Returns the mean of differences, one for each graph, and its interval."""
    low, high = interval(differences, np.arange(len(differences)))
    return f"{differences.mean():+.2f} [{low:+.2f}, {high:+.2f}]"


def interval(values: np.ndarray, graphs: np.ndarray) -> tuple[float, float]:
    """Computes a 95% interval of the mean by resampling graphs; the cases `[m]` of one graph are resampled together."""
    rng, (_, graph) = np.random.default_rng(0), np.unique(graphs, return_inverse=True)
    sums, counts = np.bincount(graph, values), np.bincount(graph)
    samples = rng.integers(len(counts), size=(RESAMPLES, len(counts)))
    low, high = np.quantile(sums[samples].sum(1) / counts[samples].sum(1), (0.025, 0.975)).tolist()
    return low, high


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(launcher.Settings):
    """Settings of the command line."""

    out: Path = option(Path("out/go"), "folder of measurements")
    times: tuple[float, ...] = option((10.0,), "seconds of a search", quick=(0.2,), parse=seconds)
    methods: tuple[str, ...] | None = option(
        None, "in place of a section's own; NAME@S has seconds of its own", parse=launcher.methods, metavar="M,..."
    )
    seeds: int = option(3, "of each search", quick=1)
    data: Path | None = option(None, "checkout of msr-fiddle/dnn-partitioning", parse=Path, metavar="FOLDER")
    graphs: int = option(1000, "of the folder, or of each kind of graphs, at most", quick=2)
    gdp: Path | None = option(None, "of gdp: a file or a run of graphrl train gdp (default: untrained)")
    workloads: tuple[str, ...] = option(
        tuple(go.WORKLOADS), "of tables 2 and 3", quick=("transformer-xl-2",), parse=names, metavar="NAME,..."
    )
    transfers: tuple[Transfer, ...] = option(tuple(OVER), "transfer models", parse=names, metavar="NAME,...")
    stored: bool = option(False, "measure nothing: tables of the figures in --out, with a dash for missing ones")

    def check(self) -> None:
        """Checks workloads, transfer models and methods.

        Raises:
          GraphrlError: a workload, a transfer model or a method is unknown.
        """
        check_known("workload", self.workloads, go.WORKLOADS)
        check_known("transfer model", self.transfers, OVER)
        for method in self.methods or ():
            find_solver(entry_of(method, 1.0).method)

    def entries(self, methods: tuple[str, ...]) -> list[Entry]:
        """Returns methods of a section, or those of the command line; methods of GO and GDP with their policies."""
        entries = [entry_of(method, self.times[-1]) for method in self.methods or methods]
        return [with_policy(entry, self.gdp, self.out) for entry in entries]

    @functools.cached_property
    def measurements(self) -> Measurements:
        """File of measurements."""
        return Measurements(self.out / "measured.jsonl", retry=self.retry, stored=self.stored)

    def of_seeds(self, key: Key, run: Callable[[int], Figures], seeds: int | None = None) -> list[Figures]:
        """Returns figures of each seed, by default of all seeds; failed runs are left out."""
        numbers = range(self.seeds if seeds is None else seeds)
        runs = self.measurements.get_all([({**key, "seed": seed}, functools.partial(run, seed)) for seed in numbers])
        return [figures for figures in runs if figures is not None]
