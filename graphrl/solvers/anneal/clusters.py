"""Clusters of ops that a search moves as one: ops of one device with the longest transfers between them.

A graph of thousands of ops has too many single moves for a second. Most of them are for the worse, because an op's
neighbours stay behind. Clusters start large and become smaller during the search, as in multilevel graph partitioning
(Karypis & Kumar 1998). The costs stay those of the whole graph, and no cluster spans two devices, so that forming
clusters changes no plan.
"""

import numpy as np

from graphrl.compiled import late_entry
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import rings

MIN_CLUSTERS = 100  # number of clusters at the start of a search
MOVES_PER_CLUSTER = 20.0  # minimum of a search's moves per cluster at the last level
LEVELS = 8  # number of times that clusters are formed
MAX_RUNTIME = 3.0  # largest run time of a cluster, in multiples of the mean
MIN_OPS, MAX_USES = 500, 20  # with fewer ops, or more uses per op (no separable parts), a graph needs no clusters


class Clusters:
    """Forms clusters of one graph: ops join along the dependencies, those with the longest transfers first."""

    def __init__(self, graph: ComputationGraph, problem: Problem) -> None:
        a, uses = graph.arrays, graph.arrays.use_tensor
        seconds = problem.latency + a.tensor_bytes[uses] / problem.bandwidth
        order = np.argsort(-seconds, kind="stable")
        self._source, self._target = a.producer[uses][order].astype(np.int64), a.use_op[order].astype(np.int64)
        self._leaders, self._runtime = graph.leaders, np.bincount(graph.leaders, a.runtime, len(graph.ops))
        self._colocated, self._total = graph.next_colocated, float(a.runtime.sum())

    def of(self, placement: np.ndarray, count: int) -> np.ndarray:
        """Returns the cluster of each op, `[n]` int64, named by one of its ops; about `count` clusters, or more if some
        may not join. All ops of a cluster are on one device of `placement` `[n]`, and colocated groups stay whole.
        """
        cluster = self._leaders.copy()
        max_runtime = MAX_RUNTIME * self._total / count
        _join(self._source, self._target, placement.astype(np.int64), cluster, self._runtime.copy(), max_runtime, count)
        return cluster

    def next_members(self, placement: np.ndarray, count: int) -> np.ndarray:
        """Returns the next op of each op's cluster, in the form of `ComputationGraph.next_colocated`; that itself if
        there are fewer than two ops for each cluster.
        """
        return self._colocated if 2 * count > len(self._colocated) else rings(self.of(placement, count))


def make_clusters(graph: ComputationGraph, problem: Problem) -> Clusters | None:
    """Returns the `Clusters` of a graph that a search should move in clusters (`moves_clusters`), else None."""
    return Clusters(graph, problem) if moves_clusters(graph, problem) else None


def moves_clusters(graph: ComputationGraph, problem: Problem) -> bool:
    """True if `anneal-schedule` should move clusters, for a makespan. The gain is large under `rendezvous`, where two
    devices wait for each other at each transfer; under other models there is none.
    """
    suits = problem.objective == "makespan" and problem.transfer == "rendezvous" and problem.devices > 1
    return suits and has_parts(graph)


def has_parts(graph: ComputationGraph) -> bool:
    """True if a graph is large, and not so dense that it has no separable parts."""
    n = len(graph.ops)
    return n >= MIN_OPS and len(graph.arrays.use_op) <= MAX_USES * n


def count_at(level: int, moves: float, ops: int) -> int:
    """Returns the target number of clusters at a level, 0 to `LEVELS` - 1, of a search with a given number of moves. It
    grows by a constant factor from level to level.
    """
    last = min(max(moves / MOVES_PER_CLUSTER, MIN_CLUSTERS), float(ops))
    return int(MIN_CLUSTERS * (last / MIN_CLUSTERS) ** (level / (LEVELS - 1)))


@late_entry
def _join(
    source: np.ndarray,
    target: np.ndarray,
    device: np.ndarray,
    cluster: np.ndarray,
    runtime: np.ndarray,
    max_runtime: float,
    count: int,
) -> None:
    """Joins groups of ops along the dependencies `[m]`, one after the other, until `count` groups are left.

    Args:
      cluster: `[n]`, the first op of each op's group; the result is written here.
      runtime: `[n]` float64, seconds of each group; overwritten.
      max_runtime: largest run time of a cluster, seconds.
    """
    remaining = 0
    for op in range(len(cluster)):
        remaining += cluster[op] == op
    for use in range(len(source)):
        if remaining <= count:
            break
        one, other = source[use], target[use]
        if device[one] != device[other]:
            continue
        while cluster[one] != one:
            cluster[one] = cluster[cluster[one]]
            one = cluster[one]
        while cluster[other] != other:
            cluster[other] = cluster[cluster[other]]
            other = cluster[other]
        if one != other and runtime[one] + runtime[other] <= max_runtime:
            cluster[other] = one
            runtime[one] += runtime[other]
            remaining -= 1
    for op in range(len(cluster)):
        first = cluster[op]
        while cluster[first] != first:
            first = cluster[first]
        cluster[op] = first
