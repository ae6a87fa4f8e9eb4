"""Minimum cuts and knapsacks: the choices of PyTorch's partitioner, in segments.

`minimum_cut` finds the fewest bytes that must be kept so that no heavy value that can be kept is computed again. It
follows PyTorch's "min-cut rematerialisation": values are nodes that cost their bytes, what may not be computed again is
the source, what the backward pass reads is the sink.

`states` keeps heavy values by a knapsack of their bytes and of the seconds that computing them again takes, by branch
and bound, as PyTorch's activation memory budget does. It takes values for independent. Exact prices then decide how
much room the knapsack needs to reach the goal.

`unit_of` gives units in which bytes and seconds are the integers that OR-Tools and SciPy take: both abort or wrap where
sums or products leave 32 or 64 bits.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphrl.xla.checkpoint.solvers.choice import Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Found, Goal, best_of
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, Gradient, Level, alike_values
from graphrl.xla.checkpoint.solvers.starts import again, cuts


def unit_of(amounts: np.ndarray, most: int) -> float:
    """A unit of which all amounts together have fewer than `most`, and half of that or more: a power of two, by which
    floats are divided exactly; 1 where all amounts are 0.

    Args:
      amounts: `[...]` float64, finite and at least 0.
      most: units, of all amounts together; rounding up adds at most one unit to each.
    """
    return math.ldexp(1.0, math.frexp(float(amounts.sum()) / most)[1])


UNIT = 2**12  # bytes at least: capacities are int32
MOST = 2**29  # units of all values together: more with one for each, yet less than a single cut that may never be
NEVER = 2**30  # units


def solve_min_cut(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Found:
    """The cut in the segments that suit it best; it takes no time to speak of."""
    del seed, seconds
    return best_of(pricing, goal, min_cut_states(pricing.gradient))


def min_cut_states(gradient: Gradient) -> Iterator[State]:
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


ROOMS = 12  # sizes of the knapsack
SECONDS = 0.03  # for each
# Units of all bytes and of all seconds. OR-Tools multiplies rooms by worths, and aborts where that leaves 64 bits: here
# it is about 2^62 at most. Each value's seconds are rounded up by less than 2^-29 of all, bytes below 4 GiB by nothing.
BYTES, WORTHS = 2**32, 2**30
KINDS = 7  # of segments that are tried with each


def solve(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Found:
    """The best of knapsacks of several sizes; it takes no time to speak of."""
    del seed, seconds
    return best_of(pricing, goal, states(pricing.gradient))


def states(gradient: Gradient) -> Iterator[State]:
    """What jax does by itself, and knapsacks of several sizes in segments of several kinds."""
    yield State.plain(gradient)
    groups = [(number, group) for number, level in enumerate(gradient.levels) for group in alike_values(level)]
    sizes = np.array([gradient.trips(n) * gradient.levels[n].bytes[group].sum() for n, group in groups])
    saved = np.array([gradient.trips(n) * _seconds(gradient, n, group) for n, group in groups])
    light = [minimum_cut(level) & ~level.heavy for level in gradient.levels]  # what the cut keeps beside heavy values
    kinds = list(itertools.islice(cuts(gradient.levels[0]), KINDS))
    for part in np.linspace(0.0, 1.0, ROOMS):
        chosen = _knapsack(sizes, saved, part)
        kept = [mask.copy() for mask in light] if part == 1.0 else [np.zeros_like(mask) for mask in light]
        for (number, group), is_chosen in zip(groups, chosen, strict=True):
            kept[number][group] |= is_chosen
        yield from (again(gradient, begins, kept) for begins in kinds)


def _seconds(gradient: Gradient, number: int, group: np.ndarray) -> float:
    level = gradient.levels[number]
    return float(level.seconds[group[level.solid[group]]].sum())


def _knapsack(sizes: np.ndarray, worth: np.ndarray, part: float) -> np.ndarray:
    """`[k]` bool: things of the largest worth that fit into a part of the bytes of all that are worth something."""
    from ortools.algorithms.python import knapsack_solver

    chosen = np.zeros(len(sizes), bool)
    some = np.flatnonzero(worth > 0)
    if len(some) and part > 0:
        kind = knapsack_solver.SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER
        solver = knapsack_solver.KnapsackSolver(kind, "")
        solver.set_time_limit(SECONDS)
        weights = np.ceil(sizes[some] / max(1.0, unit_of(sizes[some], BYTES))).astype(np.int64)
        worths = np.ceil(worth[some] / unit_of(worth[some], WORTHS)).astype(np.int64)
        solver.init(worths.tolist(), [weights.tolist()], [int(part * weights.sum())])
        solver.solve()
        chosen[some] = [solver.best_solution_contains(k) for k in range(len(some))]
    return chosen
