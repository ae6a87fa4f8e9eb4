"""Which heavy values to keep: a knapsack of their bytes and of the seconds that computing them again takes.

As PyTorch's activation memory budget does it, by branch and bound. It takes values for independent, and prices decide
how much room the knapsack needs to reach the goal.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from graphrl.solvers.budgets.alike import alike_values
from graphrl.solvers.budgets.choice import Pricing
from graphrl.solvers.budgets.found import Found, best_of
from graphrl.solvers.budgets.goal import Goal
from graphrl.solvers.budgets.level import Gradient
from graphrl.solvers.budgets.min_cut import minimum_cut
from graphrl.solvers.budgets.starts import again, cuts
from graphrl.solvers.budgets.state import State
from graphrl.solvers.budgets.units import unit_of

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
