"""Lists of ops under free transfers: how one is played, and the search over them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs
from search_graphs import random_dag

import graphrl
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.lists import search
from graphrl.solvers.lists.solver import prepare_with_lists


def played_slowly(graph: ComputationGraph, listed: np.ndarray, devices: int) -> list[float]:
    """When each device is free in the end, by the rule alone: the first device that is free takes the first op of the
    list that could run by then, or waits for the next one that can.
    """
    a, free, ends = graph.arrays, [0.0] * devices, dict[int, float]()
    while len(ends) < a.num_ops:
        device = min(range(devices), key=free.__getitem__)
        ready = {
            op: max((ends[before] for before in a.predecessors[op]), default=0.0)
            for op in listed.tolist()
            if op not in ends and all(before in ends for before in a.predecessors[op])
        }
        now = [op for op, when in ready.items() if when <= free[device]]
        if now:
            free[device] += float(a.runtime[now[0]])
            ends[now[0]] = free[device]
        else:
            free[device] = min(ready.values())
    return free


@given(graphs(), st.integers(1, 3), st.integers(0, 99))
def test_a_list_is_played_as_the_rule_says(graph: ComputationGraph, devices: int, seed: int) -> None:
    prepare_with_lists()
    lists = search.lists(graph, devices, np.random.SeedSequence(seed))
    np.random.default_rng(seed).shuffle(lists.listed)
    free = played_slowly(graph, lists.listed, devices)
    for bound in (0.0, 2.5, max(free)):
        assert search.anneal(lists, 1, 1.0, 1.0, bound) == 1
        assert lists.score.tolist() == [sum(max(0.0, each - bound) for each in free), max(free)]
    assert lists.best.tolist() == lists.listed.tolist()


@given(graphs(), st.integers(1, 3))
def test_its_plans_are_between_the_bound_and_the_first_list(graph: ComputationGraph, devices: int) -> None:
    found = [
        graphrl.optimize(
            graph, objective="makespan", devices=devices, transfer="free", method="anneal-list", evaluations=count
        )
        for count in (1, 60)
    ]
    for plan in found:
        plan.check(graph)
        assert plan.bound == lower_bound(graph, Problem("makespan", devices, "free"))
    assert found[0].bound <= found[1].value <= found[0].value


def test_it_reaches_optima_that_lists_by_levels_do_not() -> None:
    """Two devices and ops of 3, 3, 2, 2, 2 s: longest first ends at 7 s, but 3 + 3 = 2 + 2 + 2."""
    graph = ComputationGraph("five", tuple(Op(f"op{i}", runtime=seconds) for i, seconds in enumerate((3, 3, 2, 2, 2))))
    problem = {"objective": "makespan", "devices": 2, "transfer": "free", "method": "anneal-list"}
    assert graphrl.optimize(graph, **problem, evaluations=1).value == 7
    best = graphrl.optimize(graph, **problem, evaluations=500)
    assert best.value == best.bound == 6
    assert best.evaluations < 500  # it ends at the bound


def test_it_is_ahead_of_annealing_of_schedules_on_many_devices() -> None:
    problem = {"objective": "makespan", "devices": 6, "transfer": "free", "evaluations": 20_000}
    plans = [
        [graphrl.optimize(random_dag(seed, 90), **problem, method=method) for seed in range(6)]
        for method in ("anneal-list", "anneal-schedule")
    ]
    seconds = [sum(plan.value for plan in row) for row in plans]
    assert seconds[0] <= seconds[1]
    again = graphrl.optimize(random_dag(0, 90), **problem, method="anneal-list")
    assert again.order == plans[0][0].order


def test_a_round_begins_from_the_first_list_again_and_the_best_stays() -> None:
    graph = random_dag(1, 12)
    few, many = (
        graphrl.optimize(
            graph, objective="makespan", devices=3, transfer="free", method="anneal-list:hot=100", evaluations=count
        )
        for count in (1200, 3600)
    )
    assert many.value <= few.value


def test_what_it_refuses() -> None:
    graph = random_dag(0)
    with pytest.raises(ProblemError, match="must be the objective makespan, under free, without a memory limit"):
        graphrl.optimize(graph, objective="makespan", devices=2, transfer="link", method="anneal-list", evaluations=9)
    with pytest.raises(ProblemError, match="must be the objective makespan, under free, without a memory limit"):
        graphrl.optimize(
            graph, objective="makespan", devices=2, transfer="free", memory_limit=9, method="anneal-list", evaluations=9
        )
    with pytest.raises(ProblemError, match=r"hot is 0.1 and cold is 0.2: must be above 0, and cold at most hot"):
        graphrl.optimize(
            graph,
            objective="makespan",
            devices=2,
            transfer="free",
            method="anneal-list:hot=0.1,cold=0.2",
            evaluations=9,
        )
