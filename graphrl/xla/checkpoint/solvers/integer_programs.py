"""Integer programs for the values that a gradient keeps: minimum cuts, knapsacks and constraint programs.

| method | program | not modelled |
|---|---|---|
| min-cut | the fewest bytes to keep such that no heavy value that can be kept is computed again | time, the limit |
| knapsack | the values that take longest to compute again, within some bytes, by branch and bound | readers |
| cp-sat | all values to keep and to compute again, of small gradients; and a bound | segments, a step's own bytes |

- `minimum_cut` follows PyTorch's "min-cut rematerialisation": values are nodes that cost their bytes, values that may
  not be computed again are the source, reads of the backward pass are the sink.
- The knapsack is that of PyTorch's activation memory budget, which treats values as independent. Exact prices then
  decide which capacity reaches the goal.
- The constraint program ignores the bytes that a step of the backward pass needs in addition to kept values. It also
  ignores segments and the gradients that they wait for. So its bound is below all choices.
- `unit_of` chooses units in which bytes and seconds become integers for OR-Tools and SciPy, both of which abort or
  overflow where sums or products exceed 32 or 64 bits.

All solutions are priced in segments of several kinds afterwards.
"""

import itertools
import math
import time
from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphrl.errors import ProblemError
from graphrl.solvers.exact.engine import Expression, Literal, or_tools
from graphrl.xla.checkpoint.solvers.choice import Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Goal, Solution, best_of
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, Gradient, Level, alike_values
from graphrl.xla.checkpoint.solvers.starts import cuts, recompute_state

# Minimum cuts.
UNIT = 2**12  # least unit in bytes: capacities are int32
CUT_UNITS = 2**29  # capacity of all values together: with one more for each, still less than a single forbidden cut
NEVER = 2**30  # capacity of edges that must not be cut
# Knapsacks.
ROOMS = 12  # number of capacities that are tried
SECONDS = 0.03  # time limit for each
# Units of all bytes and of all seconds. OR-Tools multiplies weights by profits, and aborts above 64 bits: here products
# are about 2^62 at most. Each value's seconds are rounded up by less than 2^-29 of all; bytes below 4 GiB are exact.
ROOM_UNITS, WORTH_UNITS = 2**32, 2**30
KINDS = 9  # number of cuts into segments that are tried with each
# Constraint programs.
MOST_VALUES = 3_000
PARTS = (1.0, 0.85, 0.7, 0.5)  # shares of the limit: the program ignores the bytes that a step needs in addition
# Units of all bytes and ticks of all seconds: their sums are far below 2^63. Both are rounded down, so that bounds
# remain bounds: all seconds by less than 6e-6 of them; bytes below a pebibyte are exact.
BYTES, TICKS = 2**50, 2**31


def min_cut_states(gradient: Gradient) -> Iterator[State]:
    """Yields jax's default, and the values of a minimum cut with several cuts into segments. The time is negligible."""
    yield State.plain(gradient)
    kept = [minimum_cut(level) for level in gradient.levels]
    for begins in cuts(gradient.levels[0]):
        yield recompute_state(gradient, begins, kept)


def minimum_cut(level: Level) -> np.ndarray:
    """Returns `[n]` bool: the named values of fewest bytes that separate heavy values from the backward pass."""
    n = len(level.bytes)
    source, sink = 2 * n, 2 * n + 1
    keepable = level.named | (level.place == ARGUMENT)
    begins = (level.heavy & level.named) | (level.place == ARGUMENT)
    inside = np.flatnonzero(~level.free)
    readers = np.repeat(np.arange(n), np.diff(level.reads_from))
    follows = ~(begins[readers] | level.free[readers] | level.free[level.reads])
    ends = np.unique(level.kernel_reads)
    first = np.flatnonzero(begins)
    costs = np.where(keepable[inside], level.bytes[inside], 0.0)
    sizes = np.where(keepable[inside], np.ceil(costs / max(UNIT, unit_of(costs, CUT_UNITS))) + 1, NEVER)
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


def knapsack_states(gradient: Gradient) -> Iterator[State]:
    """Yields jax's default, and knapsacks of several capacities with several cuts into segments, in negligible time."""
    yield State.plain(gradient)
    groups = [(number, group) for number, level in enumerate(gradient.levels) for group in alike_values(level)]
    sizes = np.array([gradient.trips(n) * gradient.levels[n].bytes[group].sum() for n, group in groups])
    saved = np.array([gradient.trips(n) * _seconds(gradient, n, group) for n, group in groups])
    light = [minimum_cut(level) & ~level.heavy for level in gradient.levels]  # kept by the cut, apart from heavy values
    kinds = list(itertools.islice(cuts(gradient.levels[0]), KINDS))
    for part in np.linspace(0.0, 1.0, ROOMS):
        chosen = _knapsack(sizes, saved, part)
        kept = [mask.copy() for mask in light] if part == 1.0 else [np.zeros_like(mask) for mask in light]
        for (number, group), is_chosen in zip(groups, chosen, strict=True):
            kept[number][group] |= is_chosen
        yield from (recompute_state(gradient, begins, kept) for begins in kinds)


def _seconds(gradient: Gradient, number: int, group: np.ndarray) -> float:
    level = gradient.levels[number]
    return float(level.seconds[group[level.materialized[group]]].sum())


def _knapsack(sizes: np.ndarray, worth: np.ndarray, part: float) -> np.ndarray:
    """Solves a knapsack problem of k items for the largest total worth; returns `[k]` bool, the chosen items. The
    capacity is the given part, 0 to 1, of the bytes of all items with positive worth.
    """
    from ortools.algorithms.python import knapsack_solver

    chosen = np.zeros(len(sizes), bool)
    positive = np.flatnonzero(worth > 0)
    if len(positive) and part > 0:
        kind = knapsack_solver.SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER
        solver = knapsack_solver.KnapsackSolver(kind, "")
        solver.set_time_limit(SECONDS)
        weights = np.ceil(sizes[positive] / max(1.0, unit_of(sizes[positive], ROOM_UNITS))).astype(np.int64)
        worths = np.ceil(worth[positive] / unit_of(worth[positive], WORTH_UNITS)).astype(np.int64)
        solver.init(worths.tolist(), [weights.tolist()], [int(part * weights.sum())])
        solver.solve()
        chosen[positive] = [solver.best_solution_contains(k) for k in range(len(positive))]
    return chosen


def solve_cp_sat(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Solution:
    """Solves the constraint program, and returns its choice with the cut into segments that has the best rank.

    Raises:
      ProblemError: the gradient is too large.
    """
    states, bound = cp_sat_states(pricing, goal, seed=seed, seconds=seconds)
    return best_of(pricing, goal, states)._replace(bound=bound)


def cp_sat_states(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> tuple[list[State], float | None]:
    """Returns jax's default, and optima for the goal and for stricter ones with several cuts into segments; and the
    bound of `Solution`.

    Raises:
      ProblemError: the gradient is too large.
    """
    gradient, begin = pricing.gradient, time.monotonic()
    states, bounds = [State.plain(gradient)], []
    kinds, model = list(cuts(gradient.levels[0])), Model(gradient)
    for number, part in enumerate(PARTS):
        left = seconds - (time.monotonic() - begin)
        if left <= 0:
            break
        kept, bound = model.solve(pricing, goal.stricter(part), seed, left / (len(PARTS) - number))
        bounds.append(bound)
        if kept is not None:
            named = [mask & level.named for mask, level in zip(kept, gradient.levels, strict=True)]
            states += [recompute_state(gradient, begins, named) for begins in kinds]
    # loops in stretches keep less than a step's choices imply, so there is no bound for them
    return states, bounds[0] if bounds and not gradient.stretchable() else None


class Model:
    """The constraint program of one gradient, which decides for each value whether it is kept.

    Attributes:
      bytes: expression for the bytes kept in total, in multiples of `unit`.
      ticks: expression for the seconds of recomputing and of keeping values, in multiples of `tick`.
      unit, tick: units in bytes and in seconds, powers of two.
    """

    def __init__(self, gradient: Gradient) -> None:
        count = sum(len(level.bytes) for level in gradient.levels)
        if count > MOST_VALUES:
            raise ProblemError(f"cp-sat takes gradients of at most {MOST_VALUES:,} values: this one has {count:,}")
        self._model = or_tools().CpModel()
        self._stored: list[list[Literal]] = []
        self.bytes: Expression = 0
        self.ticks: Expression = 0
        self.unit = max(1.0, unit_of(_in_all(gradient, "bytes"), BYTES))
        self.tick = unit_of(np.append(_in_all(gradient, "seconds"), _in_all(gradient, "keep_seconds")), TICKS)
        for number in range(len(gradient.levels)):
            self._add(gradient, number)

    def _add(self, gradient: Gradient, number: int) -> None:
        level, model, runs = gradient.levels[number], self._model, gradient.trips(number)
        stored = [model.new_bool_var("") for _ in level.bytes]
        recomputed = [model.new_bool_var("") for _ in level.bytes]
        run = {op: model.new_bool_var("") for op in set(level.op.tolist())}
        for v in range(len(level.bytes)):
            model.add_implication(recomputed[v], run[level.op[v]] if level.materialized[v] else recomputed[v])
            if level.place[v] == ARGUMENT:
                model.add(recomputed[v] == 0)
            for read in level.reads[level.reads_from[v] : level.reads_from[v + 1]].tolist():
                model.add_bool_or(stored[read], recomputed[read], ~recomputed[v])
        for v in np.unique(level.kernel_reads).tolist():
            model.add_bool_or(stored[v], recomputed[v])
        kept = {loop.kept[0] for loop in gradient.loops[number].values()}
        sizes = [0 if v in kept else int(size * runs / self.unit) for v, size in enumerate(level.bytes)]
        self.bytes += sum(size * var for size, var in zip(sizes, stored, strict=True))
        once = dict(zip(level.op.tolist(), level.seconds.tolist(), strict=True))
        self.ticks += sum(int(once[op] * runs / self.tick) * var for op, var in run.items())
        keep_seconds = [int(seconds * runs / self.tick) for seconds in level.keep_seconds]
        self.ticks += sum(ticks * var for ticks, var in zip(keep_seconds, stored, strict=True))
        self._stored.append(stored)

    def solve(
        self, pricing: Pricing, goal: Goal, seed: int, seconds: float
    ) -> tuple[list[np.ndarray] | None, float | None]:
        """Solves the program; returns kept values, `[n]` bool for each level (or None), and the bound of `Solution`.

        Moved values count as kept here, so there is no bound if values may be moved.
        """
        model = self._model.clone()
        if goal.slowdown is not None:
            model.add(self.ticks <= _units(goal.slowdown * pricing.step_seconds + pricing.plain.seconds, self.tick))
            model.minimize(self.bytes)
        else:
            limit = goal.kept if goal.kept is not None else goal.peak
            assert limit is not None
            model.add(self.bytes <= _units(limit, self.unit))
            model.minimize(self.ticks)
        cp_model = or_tools()
        solver = cp_model.CpSolver()
        solver.parameters.random_seed = seed
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = 1
        status = solver.solve(model)
        solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        bounded = not goal.moves and (solved or status == cp_model.UNKNOWN)
        unit = self.tick if goal.slowdown is None else self.unit
        bound = solver.best_objective_bound * unit if bounded else None
        if not solved:
            return None, bound
        return [np.array([solver.boolean_value(var) for var in level], bool) for level in self._stored], bound


def _in_all(gradient: Gradient, name: str) -> np.ndarray:
    """Returns `[n]` float64: the field `name` of the values of all levels, multiplied by the number of loop steps."""
    return np.concatenate([gradient.trips(k) * getattr(level, name) for k, level in enumerate(gradient.levels)])


def _units(limit: float, unit: float) -> int:
    """Converts a limit to whole units, clipped to [-1, 2^53] so that sums fit into 64 bits; no plan is beyond these."""
    return int(max(-1.0, min(limit / unit, 2.0**53)))


def unit_of(amounts: np.ndarray, most: int) -> float:
    """Returns a power of two as unit, such that the sum of amounts is from `most` / 2 to `most` units; 1 if all are 0.

    Division of floats by it is exact.

    Args:
      amounts: `[...]` float64, finite and at least 0.
      most: upper limit of the sum in units, not reached; rounding each amount up adds at most one unit for it.
    """
    return math.ldexp(1.0, math.frexp(float(amounts.sum()) / most)[1])
