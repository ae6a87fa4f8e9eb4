"""When tensors are sent, once it is decided where ops run and in which order.

A list schedule sends a tensor right before the op that waits for it. Under `rendezvous` both devices wait for one
another then, each time. "Bundled" sends wait as often as an order of ops makes necessary: where an op cannot do without
a tensor from some device, all that these two devices have for one another by then goes along, so that no op that comes
later makes them wait for it again. For each pair of devices these are the fewest points of the order that suffice
(intervals from a tensor's producer to its first reader, stabbed greedily).
"""

import numpy as np

from graphrl.compiled import entry, integer
from graphrl.compiled.records import rows_by
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import numbered


def with_sends(graph: ComputationGraph, problem: Problem, placement: np.ndarray, ops: np.ndarray) -> np.ndarray:
    """The order `[m] int64` of node ids: ops `[n]` in a topological order, and between them the transfers.

    They are bundled under `rendezvous`, else right before the first op that waits for them. Of those that go before the
    same op what is written first goes first, under `rendezvous` pair of devices by pair. O((n + e) log (n + e)).
    """
    a, n, devices = graph.arrays, len(ops), problem.devices
    rank = np.empty(n, np.int64)
    rank[ops] = np.arange(n)
    placement = np.asarray(placement, np.int64)
    source, target = placement[a.producer[a.use_tensor]], placement[a.use_op]
    uses = np.flatnonzero(source != target)  # of one op by tensor
    uses = rows_by(rank[a.use_op[uses]], uses, n)[1]
    place, written = rank[a.use_op[uses]], rank[a.producer[a.use_tensor[uses]]]
    cause = np.zeros(len(uses), np.int64)  # of the transfers before an op those of one cause go together
    if problem.transfer == "rendezvous":
        pair = np.minimum(source, target) * devices + np.maximum(source, target)
        cause = _bundled(pair[uses], written, place, devices * devices)
        place = place[cause]
    transfer = a.use_tensor[uses].astype(np.int64) * devices + target[uses]
    _, first, _ = numbered(transfer, a.num_tensors * devices)  # of the uses of one transfer, which have one cause
    none = np.zeros(n, np.int64)
    keys = [(none, written[first]), (none, cause[first]), (2 * np.arange(n) + 1, 2 * place[first])]
    return np.concatenate([ops, n + transfer[first]])[np.lexsort([np.concatenate(key) for key in keys])]


def _bundled(pair: np.ndarray, written: np.ndarray, needed: np.ndarray, pairs: int) -> np.ndarray:
    """Of uses by their places `needed`, the use that makes its transfer go, before its own op: `[k] int64`."""
    begins = np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=pairs))])  # of each pair's rows in `causes`
    causes, cause = np.zeros((2, len(pair)), np.int64)
    bundle(pair, written, needed, begins, np.zeros(pairs, np.int64), causes, cause)
    return cause


@entry
def bundle(
    pair: np.ndarray,
    written: np.ndarray,
    needed: np.ndarray,
    begins: np.ndarray,
    counts: np.ndarray,
    causes: np.ndarray,
    cause: np.ndarray,
) -> None:
    """Writes `cause`, and in the rows of each pair the uses that made its devices wait for one another.

    Args:
      pair, written, needed: `[k]` int64, of each use its pair of devices, and the places of its writer and its op.
      begins, counts: `[pairs + 1]` and `[pairs]` int64, where rows begin, and 0.
      causes, cause: `[k]` int64 each.
    """
    for use in range(len(pair)):
        which, low = pair[use], integer(0)
        first, high = begins[which], counts[which]
        while low < high:  # the first that waited after it was written
            middle = (low + high) // 2
            if needed[causes[first + middle]] <= written[use]:
                low = middle + 1
            else:
                high = middle
        if low == counts[which]:  # nothing was sent since it was written
            causes[first + low] = use
            counts[which] += 1
        cause[use] = causes[first + low]
