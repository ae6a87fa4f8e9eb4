"""Annealing of lists as a `Solver`."""

import functools
import math
from contextlib import AbstractContextManager

import numpy as np

from graphrl.compiled import announced
from graphrl.compiled.beside import beside
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.lists.search import Lists, anneal, lists
from graphrl.solvers.portfolio import SECONDS_ROUNDING
from graphrl.solvers.rules.plan_builder.build import placed
from graphrl.solvers.rules.plan_builder.build import prepare as prepare_lists
from graphrl.solvers.rules.plan_builder.state import builder
from graphrl.solvers.solver import solver

NAME = "anneal-list"
HOT, COLD = 0.02, 0.0004  # first and last temperature of a round, parts of the mean run time
FIRST = 100  # lists for each op in the first round; each has twice as many as the one before
CHUNK = 200_000  # ops that are played before the clock is looked at


@functools.cache
def prepare_with_lists() -> None:
    """Compiles annealing and list scheduling, or loads them, once in a process."""
    prepare_lists()
    with announced(anneal, NAME, seconds=2):
        anneal(lists(ComputationGraph("one", (Op("a"),)), 2, np.random.SeedSequence(0)), 1, 1.0, 1.0, 0.0)


def prepared_beside() -> AbstractContextManager[None]:
    """Another process does that while this one compiles something else."""
    return beside(anneal, NAME, prepare_with_lists)


@solver(
    NAME,
    "free transfers: annealing of a list, whose ops run as soon as a device is free",
    objectives=("makespan",),
    prepare=prepare_with_lists,
)
def solve(task: Task, *, hot: float = HOT, cold: float = COLD) -> Plan:
    """Rounds from the list by levels, each twice as long as the one before, until the bound is reached. An evaluation
    is a list that is played.

    Args:
      hot, cold: first and last temperature of a round, parts of the mean run time: so many more seconds of devices
        beyond the bound are accepted with chance 1/e.

    Raises:
      ProblemError: the problem is another than makespan under `free` without a memory limit, or an option is out of
        range.
    """
    if not takes(task.problem):
        what = "must be the objective makespan, under free, without a memory limit"
        raise ProblemError(f"the problem of {NAME!r} {what}")
    if not 0 < cold <= hot < math.inf:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be numbers above 0, and cold at most hot")
    graph, limit = task.graph, task.budget.evaluations
    bound, unit = lower_bound(graph, task.problem), float(graph.arrays.runtime.mean())
    search = lists(graph, task.problem.devices, np.random.SeedSequence(task.seed))
    first, step = search.listed.copy(), max(1, CHUNK // len(graph.ops))
    evaluations = done = anneal(search, 1, 1.0, 1.0, bound)

    def best() -> Plan:
        return task.plan(*_plan(graph, task.problem, search, bound), evaluations=evaluations, bound=bound)

    task.best, length = best, FIRST * len(graph.ops)
    while not task.over(evaluations) and search.score[1] > bound * (1 + SECONDS_ROUNDING):
        if done == length:
            done, length = 0, 2 * length
            search.restart(first)
        moves = min(step, length - done, step if limit is None else limit - evaluations)
        cooling = (cold / hot) ** (1 / length)
        made = anneal(search, moves, unit * hot * cooling**done, cooling, bound)
        evaluations, done = evaluations + made, done + made
        task.report(evaluations, float(search.score[1]))
    return best()


def takes(problem: Problem) -> bool:
    """Whether the search is for such problems."""
    return (problem.objective, problem.transfer, problem.memory_limit) == ("makespan", "free", None)


def _plan(graph: ComputationGraph, problem: Problem, search: Lists, bound: float) -> PlacedOrder:
    """Plays the best list, for its schedule; the search stays as it is."""
    best = Lists(*(part.copy() for part in search))
    best.restart(search.best)
    anneal(best, 1, 1.0, 1.0, bound)
    return placed(builder(graph, problem), best.played.astype(np.int64), best.ops["device"][:-1].astype(np.int64))
