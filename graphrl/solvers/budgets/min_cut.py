"""The fewest bytes that must be kept so that no heavy value that can be kept is computed again: a minimum cut.

As PyTorch's partitioner does ("min-cut rematerialisation"): values are nodes that cost their bytes, what may not be
computed again is the source, what the backward pass reads is the sink.
"""

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphrl.solvers.budgets.choice import Pricing
from graphrl.solvers.budgets.found import Found, best_of
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.level import ARGUMENT, Gradient, Level
from graphrl.solvers.budgets.starts import again, cuts
from graphrl.solvers.budgets.state import State
from graphrl.solvers.budgets.units import unit_of

UNIT = 2**12  # bytes at least: capacities are int32
MOST = 2**29  # units of all values together: more with one for each, yet less than a single cut that may never be
NEVER = 2**30  # units


def solve(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Found:
    """The cut in the segments that suit it best; it takes no time to speak of."""
    del seed, seconds
    return best_of(pricing, goal, states(pricing.gradient))


def states(gradient: Gradient) -> Iterator[State]:
    """What jax does by itself, and a minimum cut in segments of several kinds."""
    yield State.plain(gradient)
    kept = [minimum_cut(level) for level in gradient.levels]
    for begins in cuts(gradient.levels[0]):
        yield again(gradient, begins, kept)


def minimum_cut(level: Level) -> np.ndarray:
    """`[n]` bool: the named values of fewest bytes between heavy ones and the backward pass."""
    n = len(level.bytes)
    source, sink = 2 * n, 2 * n + 1
    keepable = level.named | (level.place == ARGUMENT)
    begins = (level.heavy & level.named) | (level.place == ARGUMENT)
    inside = np.flatnonzero(~level.free)
    readers = np.repeat(np.arange(n), np.diff(level.reads_from))
    follows = ~(begins[readers] | level.free[readers] | level.free[level.reads])
    ends = np.unique(level.kernel_reads)
    first = np.flatnonzero(begins)
    own = np.where(keepable[inside], level.bytes[inside], 0.0)
    sizes = np.where(keepable[inside], np.ceil(own / max(UNIT, unit_of(own, MOST))) + 1, NEVER)
    tails = np.concatenate([inside, np.full(len(first), source), level.reads[follows] + n, ends + n])
    heads = np.concatenate([inside + n, first, readers[follows], np.full(len(ends), sink)])
    room = np.concatenate([sizes, np.full(len(tails) - len(inside), NEVER)]).astype(np.int32)
    graph = csr_array((room, (tails, heads)), shape=(2 * n + 2, 2 * n + 2))
    left = graph - maximum_flow(graph, source, sink).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    side = np.zeros(2 * n + 2, bool)
    side[breadth_first_order(left, source, return_predecessors=False)] = True
    return side[:n] & ~side[n : 2 * n] & level.named
