"""When tensors are sent, once it is decided where ops run and in which order.

A list schedule sends a tensor right before the op that waits for it. Under `rendezvous` both devices wait for one
another then, each time. "Bundled" sends wait as often as an order of ops makes necessary: where an op cannot do without
a tensor from some device, all that these two devices have for one another by then goes along, so that no op that comes
later makes them wait for it again. For each pair of devices these are the fewest points of the order that suffice
(intervals from a tensor's producer to its first reader, stabbed greedily).
"""

import bisect

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph


def with_sends(graph: ComputationGraph, problem: Problem, placement: np.ndarray, ops: np.ndarray) -> np.ndarray:
    """The order `[m] int64` of node ids: ops `[n]` in a topological order, and between them the transfers.

    They are bundled under `rendezvous`, else right before the first op that waits for them. Those that go before the
    same op go pair of devices by pair; of a pair what is written first goes first. O((n + e) log (n + e)).
    """
    a, n, devices = graph.arrays, len(ops), problem.devices
    rank = np.empty(n, np.int64)
    rank[ops] = np.arange(n)
    placement = np.asarray(placement, np.int64)
    source, target = placement[a.producer[a.use_tensor]], placement[a.use_op]
    uses = np.flatnonzero(source != target)
    uses = uses[np.lexsort((a.use_tensor[uses], rank[a.use_op[uses]]))]
    place, written = rank[a.use_op[uses]], rank[a.producer[a.use_tensor[uses]]]
    cause = np.zeros(len(uses), np.int64)  # of the transfers before an op those of one cause go together
    if problem.transfer == "rendezvous":
        pair = np.minimum(source, target) * devices + np.maximum(source, target)
        cause = _bundled(pair[uses], written, place, devices * devices)
        place = place[cause]
    node = n + a.use_tensor[uses].astype(np.int64) * devices + target[uses]
    by_node = np.lexsort((place, node))
    first = by_node[np.flatnonzero(np.diff(node[by_node], prepend=-1))]  # of the uses of one transfer
    none = np.zeros(n, np.int64)
    keys = [(none, written[first]), (none, cause[first]), (2 * np.arange(n) + 1, 2 * place[first])]
    return np.concatenate([ops, node[first]])[np.lexsort([np.concatenate(key) for key in keys])]


def _bundled(pair: np.ndarray, written: np.ndarray, needed: np.ndarray, pairs: int) -> np.ndarray:
    """Of uses by their places `needed`, the use that makes its transfer go, before its own op: `[k] int64`."""
    places: list[list[int]] = [[] for _ in range(pairs)]  # of the ops that made devices wait for one another
    uses: list[list[int]] = [[] for _ in range(pairs)]
    cause = []
    for use, (which, begin, end) in enumerate(zip(pair.tolist(), written.tolist(), needed.tolist(), strict=True)):
        first = bisect.bisect_right(places[which], begin)
        if first == len(places[which]):  # nothing was sent since it was written
            places[which].append(end)
            uses[which].append(use)
        cause.append(uses[which][first])
    return np.array(cause, np.int64)
