"""Depth-first dynamic programming: exact where it finishes, in time where it does not."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optima import optimum
from random_graphs import graphs
from search_graphs import random_dag

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import OpStep, Plan
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.orders.dfs_dp import solve

LONG = Budget(seconds=600)


def ops(plan: Plan) -> list[str]:
    return [step.op for step in plan.order if isinstance(step, OpStep)]


@settings(max_examples=60)
@given(graphs(max_ops=9), st.booleans(), st.integers(0, 3), st.booleans(), st.sampled_from([0, 3, 1000]))
def test_it_is_the_optimum(graph: ComputationGraph, paper: bool, seed: int, weights: bool, states: int) -> None:
    problem = Problem(resident_weights=weights)
    plan = solve(Task(graph, problem, LONG, seed), paper=paper, states=states)
    plan.check(graph)
    assert plan.value == plan.bound == optimum(graph, problem)


@pytest.mark.parametrize("seed", range(2))
def test_both_forms_agree_on_larger_graphs(seed: int) -> None:
    graph = random_dag(seed, 45)
    plans = [solve(Task(graph, Problem(), LONG, seed), paper=paper) for paper in (False, True)]
    assert plans[0].value == plans[0].bound == plans[1].value == plans[1].bound


def test_an_output_that_takes_over_a_buffer_makes_two_states_of_one_set() -> None:
    """y takes over x's 9 bytes if z has read x, else it has its own 1 byte and x is freed.

    Equal sets of ops have run, with different bytes live while `big` runs.
    """
    graph = ComputationGraph(
        "sets",
        (
            Op("x", outputs=(Tensor("x0", 9),)),
            Op("y", inputs=("x0",), outputs=(Tensor("y0", 1, reuses="x0"),)),
            Op("z", inputs=("x0",), outputs=(Tensor("z0", 1),)),
            Op("big", inputs=("z0",), after=("y",), outputs=(Tensor("big0", 20),)),
            Op("end", inputs=("y0", "big0")),
        ),
    )
    for paper in (False, True):
        for seed in range(5):
            plan = solve(Task(graph, Problem(), LONG, seed), paper=paper)
            assert plan.value == plan.bound == 22
            assert ops(plan)[1] == "y"


@pytest.mark.parametrize("budget", [Budget(seconds=0.5), Budget(seconds=1e-6), Budget(evaluations=1)], ids=str)
def test_a_budget_is_kept_and_there_is_an_order(budget: Budget) -> None:
    graph = layered(500, 0)
    for paper in (False, True):
        started = time.perf_counter()
        plan = solve(Task(graph, Problem(), budget, 0), paper=paper)
        assert time.perf_counter() - started < 2.0
        assert plan.bound is None
        assert plan.value >= lower_bound(graph, Problem())
        plan.check(graph)


def test_a_search_that_was_cut_short_proves_nothing() -> None:
    graph = random_dag(3, 12)
    best = solve(Task(graph, Problem(), LONG, 0)).value
    for seed in range(20):
        plan = solve(Task(graph, Problem(), Budget(seconds=1e-9), seed))
        assert plan.bound is None or plan.value == best


def test_the_seed_decides() -> None:
    graph = layered(80, 2)
    for paper in (False, True):
        runs = [solve(Task(graph, Problem(), Budget(evaluations=200), seed), paper=paper) for seed in (1, 1, 2, 3)]
        assert runs[0].order == runs[1].order
        assert runs[0].evaluations == runs[1].evaluations
        assert len({run.order for run in runs}) > 1


def test_it_reports_and_can_be_interrupted() -> None:
    graph = layered(300, 0)
    seen: list[tuple[int, float]] = []

    def progress(evaluations: int, seconds: float, plan: Any, value: float) -> None:
        assert plan().value == value
        seen.append((evaluations, value))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stop:
        solve(Task(graph, Problem(), LONG, 0, progress))
    assert isinstance(stop.value.plan, Plan)
    assert stop.value.plan.value == seen[-1][1] <= seen[0][1]
