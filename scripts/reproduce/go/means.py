"""Means of ratios and of differences, with 95% intervals from resampled graphs."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from graphrl.compare.report import percent

RESAMPLES = 10_000

Pairs = Iterable[tuple[float | None, float | None]]


def against(what: str, pairs: Pairs, cases: str = "workloads", *, worst: bool = False) -> Iterator[str]:
    """A line with the geometric mean of ratios, perhaps the largest one too; nothing without any pair.

    Args:
      what: "NAME against OTHER".
      pairs: values of both, of each case; None where a run failed, or was not made.
      cases: what there are pairs of.
      worst: whether the largest ratio is in the line.
    """
    logs = [math.log(ours / theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    if logs:
        largest = f", at worst {percent(math.expm1(max(logs)))}" if worst else ""
        yield f"{what}: {percent(math.expm1(math.fsum(logs) / len(logs)))} on {len(logs)} {cases}{largest}"


def percent_interval(values: np.ndarray, graphs: np.ndarray) -> str:
    """The mean of fractions, and its interval."""
    mean, low, high = map(percent, (float(values.mean()), *interval(values, graphs)))
    return f"{mean} [{low}, {high}]"


def ratio_interval(logs: Sequence[float] | np.ndarray, graphs: np.ndarray | None = None) -> str:
    """The geometric mean of ratios less 1, given their logarithms, and its interval."""
    logs = np.asarray(logs)
    graphs = np.arange(len(logs)) if graphs is None else graphs
    mean, low, high = (percent(math.expm1(log)) for log in (float(logs.mean()), *interval(logs, graphs)))
    return f"{mean} [{low}, {high}]"


def ahead(differences: np.ndarray) -> str:
    """The mean of differences, one a graph, and its interval."""
    low, high = interval(differences, np.arange(len(differences)))
    return f"{differences.mean():+.2f} [{low:+.2f}, {high:+.2f}]"


def interval(values: np.ndarray, graphs: np.ndarray) -> tuple[float, float]:
    """Where 95% of the means lie if the graphs are resampled: the cases `[m]` of one graph are alike."""
    rng, (_, graph) = np.random.default_rng(0), np.unique(graphs, return_inverse=True)
    sums, counts = np.bincount(graph, values), np.bincount(graph)
    drawn = rng.integers(len(counts), size=(RESAMPLES, len(counts)))
    low, high = np.quantile(sums[drawn].sum(1) / counts[drawn].sum(1), (0.025, 0.975)).tolist()
    return low, high
