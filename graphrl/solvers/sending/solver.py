"""Annealing of placement and order where sends follow by the rule, as a `Solver`."""

import math
from contextlib import AbstractContextManager

import numpy as np

from graphrl.compiled.beside import beside
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.rules.plan_builder.build import prepare as prepare_lists
from graphrl.solvers.sending.hints import hint as quick_plan
from graphrl.solvers.sending.search import NAME, anneal, best_plan, chain, prepare
from graphrl.solvers.solver import solver

HOT, COLD = 0.002, 0.00003  # first and last temperature, parts of the first makespan
TYPICAL = 30.0  # moves for each op from which a search begins at HOT
CHUNKS, CHUNK_MOVES = 50, 2_000  # at least so many, and at most so long
CHUNK_TIMED, CHUNK_WALKED = 100, 4_000_000  # moves where seconds count, and ops and uses in them, some 0.01 s


def prepare_with_lists() -> None:
    """Compiles annealing and list scheduling, or loads them."""
    prepare_lists()
    prepare()


def prepared_beside() -> AbstractContextManager[None]:
    """Another process does that while this one compiles something else."""
    return beside(anneal, NAME, prepare_with_lists)


@solver(
    "anneal-bundled",
    "rendezvous: annealing of placement and order; what two devices have for one another goes together",
    colocates=True,
    objectives=("makespan",),
    prepare=prepare_with_lists,
)
def solve(task: Task, *, hot: float = HOT, cold: float = COLD, hint: Plan | None = None) -> Plan:
    """One chain, from the best of a few list schedules; an evaluation is a move.

    Args:
      hot, cold: first and last temperature: a rise of the makespan by that share is accepted with chance 1/e. The first
        is for 30 moves an op or more: see `first_heat`.
      hint: a plan to start from in place of these; its transfers go by the rule.

    Raises:
      ProblemError: the problem is another than makespan under `rendezvous` without a memory limit, or an option is out
        of range.
    """
    check(task.problem)
    if not 0 < cold <= hot:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be above 0, and cold at most hot")
    first = task.plan(*quick_plan(task.graph, task.problem), evaluations=1) if hint is None else task.known(hint)
    task.best = lambda: first
    search = chain(task.graph, task.problem, first.decisions(task.graph), np.random.SeedSequence(task.seed))
    unit, evaluations, limit = float(search.score[1]), 1, task.budget.evaluations

    def best() -> Plan:
        plan = task.plan(*best_plan(task.graph, task.problem, search), evaluations=evaluations)
        return plan if plan.rank <= first.rank else task.known(first, evaluations)

    task.best = best
    moves = CHUNK_MOVES if limit is None else max(1, min(CHUNK_MOVES, (limit - 1) // CHUNKS))
    if task.budget.seconds is not None:
        walked = len(task.graph.ops) + len(task.graph.arrays.use_op)
        moves = min(moves, max(1, min(CHUNK_TIMED, CHUNK_WALKED // max(1, walked))))
    steps, total = 0, None if limit is None else (limit - 1) // moves
    while unit > 0 and not task.over(evaluations):
        share, step = task.share(steps, total)
        expected = evaluations / share if share else evaluations
        first_hot = first_heat(expected / len(task.graph.ops), hot, cold)
        begin, end = (unit * first_hot * (cold / first_hot) ** min(1.0, each) for each in (share, share + step))
        count = moves if limit is None else min(moves, limit - evaluations)
        anneal(search, count, begin, end)
        evaluations += count
        steps += 1
        task.report(evaluations, float(search.score[1]))
    return best()


def first_heat(moves_per_op: float, hot: float, cold: float) -> float:
    """The first temperature of a search that is too short for more than so many moves an op: lower by the square root,
    as in `schedules.solver.temperature`. At `hot` it would only leave its start.
    """
    return max(cold, hot * min(1.0, math.sqrt(moves_per_op / TYPICAL)))


def takes(problem: Problem) -> bool:
    """Whether the search is for such problems."""
    return (problem.objective, problem.transfer, problem.memory_limit) == ("makespan", "rendezvous", None)


def check(problem: Problem) -> None:
    """
    Raises:
      ProblemError: it is not.
    """
    if not takes(problem):
        what = "must be the objective makespan, under rendezvous, without a memory limit"
        raise ProblemError(f"the problem of 'anneal-bundled' {what}")
