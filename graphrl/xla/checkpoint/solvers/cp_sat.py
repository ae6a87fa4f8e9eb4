"""Small gradients as a constraint program: what is kept at most, what is computed again, and a bound.

What a step of the backward pass holds beside kept values is left out, and so are segments, with the gradients that
they wait for: the choice is priced in segments of several kinds afterwards, and the bound is below all choices.
"""

import time

import numpy as np

from graphrl.errors import ProblemError
from graphrl.solvers.exact.engine import Expression, Literal, or_tools
from graphrl.xla.checkpoint.solvers.choice import Pricing, State
from graphrl.xla.checkpoint.solvers.goal import Found, Goal, best_of
from graphrl.xla.checkpoint.solvers.knapsack import unit_of
from graphrl.xla.checkpoint.solvers.level import ARGUMENT, Gradient
from graphrl.xla.checkpoint.solvers.starts import again, cuts

MOST = 3_000  # values
PARTS = (1.0, 0.85, 0.7, 0.5)  # of the limit: what a step holds beside is not in the program
# Units of all bytes and ticks of all seconds: their sums are far below 2^63. Both are rounded down, so that bounds stay
# bounds: all seconds by less than 6e-6 of them, and bytes below a pebibyte by nothing.
BYTES, TICKS = 2**50, 2**31


class Model:
    """The program of one gradient.

    Args:
      gradient: it is.

    Attributes:
      bytes: an expression, units kept in all.
      ticks: an expression, of computing again and of keeping.
      unit, tick: bytes and seconds, powers of two.
    """

    def __init__(self, gradient: Gradient) -> None:
        count = sum(len(level.bytes) for level in gradient.levels)
        if count > MOST:
            raise ProblemError(f"cp-sat takes gradients of at most {MOST:,} values: this one has {count:,}")
        self._model = or_tools().CpModel()
        self._stored: list[list[Literal]] = []
        self.bytes: Expression = 0
        self.ticks: Expression = 0
        self.unit = max(1.0, unit_of(_in_all(gradient, "bytes"), BYTES))
        self.tick = unit_of(np.append(_in_all(gradient, "seconds"), _in_all(gradient, "keeping")), TICKS)
        for number in range(len(gradient.levels)):
            self._add(gradient, number)

    def _add(self, gradient: Gradient, number: int) -> None:
        level, model, runs = gradient.levels[number], self._model, gradient.trips(number)
        stored = [model.new_bool_var("") for _ in level.bytes]
        again = [model.new_bool_var("") for _ in level.bytes]
        ran = {op: model.new_bool_var("") for op in set(level.op.tolist())}
        for v in range(len(level.bytes)):
            model.add_implication(again[v], ran[level.op[v]] if level.solid[v] else again[v])
            if level.place[v] == ARGUMENT:
                model.add(again[v] == 0)
            for read in level.reads[level.reads_from[v] : level.reads_from[v + 1]].tolist():
                model.add_bool_or(stored[read], again[read], ~again[v])
        for v in np.unique(level.kernel_reads).tolist():
            model.add_bool_or(stored[v], again[v])
        kept = {loop.kept[0] for loop in gradient.loops[number].values()}
        sizes = [0 if v in kept else int(size * runs / self.unit) for v, size in enumerate(level.bytes)]
        self.bytes += sum(size * var for size, var in zip(sizes, stored, strict=True))
        once = dict(zip(level.op.tolist(), level.seconds.tolist(), strict=True))
        self.ticks += sum(int(once[op] * runs / self.tick) * var for op, var in ran.items())
        keeping = [int(seconds * runs / self.tick) for seconds in level.keeping]
        self.ticks += sum(ticks * var for ticks, var in zip(keeping, stored, strict=True))
        self._stored.append(stored)

    def solve(
        self, pricing: Pricing, goal: Goal, seed: int, seconds: float
    ) -> tuple[list[np.ndarray] | None, float | None]:
        """What is kept, `[n]` bool of each level, None if nothing was found; and the bound of `Found`. What is moved
        counts as kept here: there is no bound where something may be.
        """
        model = self._model.clone()
        if goal.slowdown is not None:
            model.add(self.ticks <= _whole(goal.slowdown * pricing.step_seconds + pricing.plain.seconds, self.tick))
            model.minimize(self.bytes)
        else:
            limit = goal.kept if goal.kept is not None else goal.peak
            assert limit is not None
            model.add(self.bytes <= _whole(limit, self.unit))
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
    """`[n]` float64: bytes or seconds of the values of all levels, in all runs of loops' bodies."""
    return np.concatenate([gradient.trips(k) * getattr(level, name) for k, level in enumerate(gradient.levels)])


def _whole(limit: float, unit: float) -> int:
    """Whole units within a limit, clipped to -1 and 2^53 so that sums stay in 64 bits; no plan is beyond either."""
    return int(max(-1.0, min(limit / unit, 2.0**53)))


def solve(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> Found:
    """What the constraint program keeps, in the segments that suit it best.

    Raises:
      ProblemError: the gradient is too large.
    """
    found, bound = states(pricing, goal, seed=seed, seconds=seconds)
    return best_of(pricing, goal, found)._replace(bound=bound)


def states(pricing: Pricing, goal: Goal, *, seed: int, seconds: float) -> tuple[list[State], float | None]:
    """What jax does by itself, and optima for the goal and for stricter ones, in segments of several kinds; and the
    bound of `Found`.

    Raises:
      ProblemError: the gradient is too large.
    """
    gradient, begin = pricing.gradient, time.monotonic()
    found, bounds = [State.plain(gradient)], []
    kinds, model = list(cuts(gradient.levels[0])), Model(gradient)
    for number, part in enumerate(PARTS):
        left = seconds - (time.monotonic() - begin)
        if left <= 0:
            break
        kept, bound = model.solve(pricing, goal.stricter(part), seed, left / (len(PARTS) - number))
        bounds.append(bound)
        if kept is not None:
            named = [mask & level.named for mask, level in zip(kept, gradient.levels, strict=True)]
            found += [again(gradient, begins, named) for begins in kinds]
    # loops in stretches keep less than a step's choices say, so that they have no bound
    return found, bounds[0] if bounds and not gradient.stretched() else None
