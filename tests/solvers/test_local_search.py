"""Local search: climbs, restarts, finds tiny optima."""

import dataclasses

import numpy as np
import pytest
from keyed_searches import PROBLEMS
from optima import optimum
from search_graphs import random_dag
from worked_example import TINY

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes.brkga_solver import solve_random
from graphrl.solvers.schedules.solver import solve_local_search


def test_plans_are_valid_and_mostly_better_than_random_ones() -> None:
    graph, budget = random_dag(0), Budget(evaluations=3000)
    ratios = []
    for problem in PROBLEMS:
        plan = solve_local_search(Task(graph, problem, budget, 0))
        plan.check(graph)
        assert plan.value >= lower_bound(graph, problem)
        assert plan.evaluations == budget.evaluations
        if problem in (PROBLEMS[0], PROBLEMS[3]):  # each compiles a program
            ratios.append(plan.value / solve_random(Task(graph, problem, budget, 0)).value)
    assert np.mean(ratios) < 0.9


@pytest.mark.parametrize(
    "problem", [Problem("makespan", 2, latency=0.25), Problem("makespan", 2, "free"), Problem(devices=2)]
)
def test_tiny_optima_are_found(problem: Problem) -> None:
    plan = solve_local_search(Task(TINY, problem, Budget(evaluations=4000), 0), patience=50)
    assert plan.value == pytest.approx(optimum(TINY, problem), rel=1e-6)


def test_it_starts_anew_when_it_is_stuck() -> None:
    """Without restarts more time changes nothing once it is stuck; with them it does on some graph."""
    problem, budget = PROBLEMS[0], Budget(evaluations=20_000)
    gains = []
    for seed in range(3):
        graph = random_dag(seed)
        stuck, restarted = (
            solve_local_search(Task(graph, problem, budget, 0), patience=patience).value for patience in (10**6, 400)
        )
        gains.append(stuck - restarted)
    assert max(gains) > 0


@pytest.mark.parametrize("problem", PROBLEMS[:3], ids=str)
def test_memory_limits_are_kept_where_they_can_be(problem: Problem) -> None:
    graph, budget = random_dag(0), Budget(evaluations=5000)
    least = int(solve_local_search(Task(graph, Problem(devices=problem.devices), budget, 0)).value)
    for limit in (2 * least, 1):
        plan = solve_local_search(Task(graph, dataclasses.replace(problem, memory_limit=limit), budget, 0))
        plan.check(graph)
        assert (plan.excess == 0) == (limit > 1)


def test_without_moves_it_ends() -> None:
    graph = ComputationGraph("one", (Op("a", runtime=1),))
    assert solve_local_search(Task(graph, Problem("makespan", 1), Budget(seconds=60.0))).seconds < 10


def test_bad_options_are_refused() -> None:
    with pytest.raises(ProblemError, match="must be at least 1"):
        solve_local_search(Task(TINY, PROBLEMS[0], Budget(evaluations=100), 0), patience=0)
