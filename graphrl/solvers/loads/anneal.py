"""Simulated annealing of placements for `max_load`, compiled: `moves.py` has the chain."""

import functools
import math

import numpy as np

from graphrl.compiled import announced
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.loads.blocks import Blocks
from graphrl.solvers.loads.groups import Groups, placed_plan
from graphrl.solvers.loads.moves import anneal, chain
from graphrl.solvers.loads.stages import equal_placement
from graphrl.solvers.solver import solver

HOT, COLD = 0.02, 2e-5  # temperatures, as parts of the first largest load
ROUNDS = 5
CHUNK_MOVES, CHUNKS = 10_000, 100  # moves between two looks at the clock at most; how often it looks at least


@functools.cache
def prepare() -> None:
    """Compiles the chain, or loads it, once in a process."""
    groups = Groups.of_ops(ComputationGraph("one", (Op("a"),)), Problem("max_load"))
    with announced(anneal, "anneal-load", seconds=6):
        chain(groups, np.zeros(1, np.int64), np.random.SeedSequence(0))


@solver(
    "anneal-load",
    "max_load: simulated annealing of placements, compiled for the host",
    objectives=("max_load",),
    prepare=prepare,
)
def solve(task: Task, *, rounds: int = ROUNDS, hot: float = HOT, cold: float = COLD, hint: Plan | None = None) -> Plan:
    """From equal stages, or the hint; an evaluation is a move.

    Moves take a group of colocated ops to the device of a neighbour or to any, exchange two, or take some that hang
    together. The energy is the largest load, some of the norm of order 8 of all loads, and a penalty for bytes over the
    limit.

    Args:
      rounds: how often the temperature falls, each time from where the chain stands: which devices have the few largest
        groups is settled early in each.
      hot, cold: the first and the last temperature of a round, as parts of the first largest load.
      hint: a plan to start from.

    Raises:
      ProblemError: an option is out of range, or an op can run nowhere.
    """
    if not 0 < cold <= hot < math.inf:
        raise ProblemError(f"hot is {hot!r} and cold {cold!r}: must be numbers above 0, cold the lower one")
    if type(rounds) is not int or rounds < 1:
        raise ProblemError(f"rounds is {rounds!r}: must be an integer of at least 1")
    if hint is None:
        first = placed_plan(task, equal_placement(Blocks.of_graph(task.graph, task.problem)), evaluations=1)
    else:
        first = task.known(hint)
    task.best = lambda: first
    search = _Search(task, first)
    task.best = search.plan
    search.run(rounds, hot * first.value, cold * first.value)
    return search.plan()


class _Search:
    """A chain, and how many moves it made."""

    def __init__(self, task: Task, first: Plan) -> None:
        self._task, self._first, self._evaluations = task, first, 1
        self._groups = Groups.of_ops(task.graph, task.problem)
        device = np.zeros(len(self._groups.weight), np.int64)
        device[self._groups.of] = first.decisions(task.graph)[0]
        self._chain = chain(self._groups, device, np.random.SeedSequence(task.seed))

    def plan(self) -> Plan:
        """The best so far."""
        plan = placed_plan(self._task, self._chain.best[self._groups.of], evaluations=self._evaluations)
        return plan if plan.rank <= self._first.rank else self._task.known(self._first, self._evaluations)

    def run(self, rounds: int, hot: float, cold: float) -> None:
        """Anneals from one temperature to the other, seconds, some times, until the budget is spent."""
        task, evaluations = self._task, self._task.budget.evaluations
        moves, total, steps = CHUNK_MOVES, None, 0
        if evaluations is not None:
            moves = max(1, min(moves, (evaluations - 1) // CHUNKS))
            total = (evaluations - 1) // moves
        while hot > 0 and not task.over(self._evaluations):
            share, step = task.share(steps, total)
            part = rounds * share % 1.0
            begin, end = (hot * (cold / hot) ** min(1.0, each) for each in (part, part + rounds * step))
            count = moves if evaluations is None else min(moves, evaluations - self._evaluations)
            anneal(self._chain, count, begin, end)
            self._evaluations += count
            steps += 1
            task.report(self._evaluations, float(self._chain.rank[1]))
