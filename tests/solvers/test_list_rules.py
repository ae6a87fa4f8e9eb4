"""HLFET and ETF: valid under every problem, the textbook rule on hand instances, near the bound where that is known."""

import numpy as np
import pytest
from hypothesis import given
from random_graphs import graphs, problems
from search_graphs import random_dag

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.rules.list_scheduling import etf, hlfet, solve_etf, solve_hlfet
from graphrl.solvers.solver import Solver

BUDGET = Budget(evaluations=1)
RULES = pytest.mark.parametrize("solve", [solve_hlfet, solve_etf], ids=["hlfet", "etf"])
FREE = Problem("makespan", 2, "free")


@RULES
@given(graph=graphs(max_ops=10), problem=problems())
def test_plans_are_valid_and_not_below_the_bound(solve: Solver, graph: ComputationGraph, problem: Problem) -> None:
    plan = solve(Task(graph, problem, BUDGET, 0))
    plan.check(graph)
    assert plan.value >= lower_bound(graph, problem)


def chains(*lengths: float) -> ComputationGraph:
    """An op of each length, and after each of them one of 1 s that reads its tensor."""
    ops = []
    for i, length in enumerate(lengths):
        ops.append(Op(f"a{i}", runtime=length, outputs=(Tensor(f"t{i}", 4),)))
        ops.append(Op(f"b{i}", runtime=1.0, inputs=(f"t{i}",)))
    return ComputationGraph("chains", tuple(ops))


@RULES
def test_known_optima(solve: Solver) -> None:
    assert solve(Task(chains(5, 5), FREE, BUDGET, 0)).value == 6
    slow = Problem("makespan", 2, "rendezvous", latency=9.0)
    assert solve(Task(chains(5, 5), slow, BUDGET, 0)).value == 6  # transfers cost more than they gain: a chain a device
    assert solve(Task(chains(4, 3, 2, 1), FREE, BUDGET, 0)).value == 7  # 14 s of work on two devices


def test_hlfet_goes_by_level_and_etf_by_start() -> None:
    # x goes to device 0 and its tensor takes 4 s to device 1. y has the higher level; z can start at once on device 1.
    ops = (
        Op("x", runtime=1.0, outputs=(Tensor("x0", 4),)),
        Op("y", runtime=5.0, inputs=("x0",)),
        Op("z", runtime=2.0),
    )
    graph, problem = ComputationGraph("g", ops), Problem("makespan", 2, "free", latency=4.0)
    for rule, names in ((hlfet, ["x", "y", "z"]), (etf, ["x", "z", "y"])):
        placement, order = rule(graph, problem)
        assert [ops[op].name for op in order] == names
        assert placement.tolist() == [0, 0, 1]


@RULES
@pytest.mark.parametrize("devices", [2, 4])
def test_free_transfers_are_near_the_bound(solve: Solver, devices: int) -> None:
    problem = Problem("makespan", devices, "free")
    dags = [random_dag(seed) for seed in range(8)]
    gaps = [solve(Task(graph, problem, BUDGET, 0)).value / lower_bound(graph, problem) - 1 for graph in dags]
    assert np.mean(gaps) < 0.06
