"""METIS + depth first: valid, few bytes cross, balanced."""

import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import graphs, problems
from search_graphs import random_dag

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.known_optima import in_tree
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.rules.placements import partition, solve_metis

BUDGET = Budget(evaluations=1)


@settings(max_examples=60)
@given(graph=graphs(max_ops=12), problem=problems())
def test_plans_are_valid_and_not_below_the_bound(graph: ComputationGraph, problem: Problem) -> None:
    plan = solve_metis(Task(graph, problem, BUDGET, 0))
    plan.check(graph)
    assert plan.value >= lower_bound(graph, problem)


def bridge(cheap: int) -> ComputationGraph:
    """Two chains of ten ops with tensors of 100 bytes, joined by one tensor of `cheap` bytes."""
    ops = []
    for chain in "xy":
        for i in range(10):
            inputs = (f"{chain}{i - 1}",) if i else (("bridge",) if chain == "y" else ())
            outputs = (Tensor(f"{chain}{i}", 100), *((Tensor("bridge", cheap),) if chain == "x" and i == 5 else ()))
            ops.append(Op(f"{chain}{i}", "", 1.0, inputs, outputs))
    return ComputationGraph("bridge", tuple(ops))


@pytest.mark.parametrize("objective", ["makespan", "peak_memory"])
def test_the_cheap_tensor_is_what_crosses(objective: str) -> None:
    graph = bridge(cheap=1)
    placement = partition(graph, Problem(objective, 2), 0)  # type: ignore[arg-type]
    assert len(set(placement[:10])) == len(set(placement[10:])) == 1
    assert placement[0] != placement[10]


def test_parts_are_balanced_by_what_the_objective_counts() -> None:
    for seed in range(3):
        graph = random_dag(seed)
        a = graph.arrays
        for objective, weight in (("makespan", a.runtime), ("peak_memory", a.tensor_bytes)):
            placement = partition(graph, Problem(objective, 2), 0)  # type: ignore[arg-type]
            assert 0.4 < np.bincount(placement, weight, minlength=2)[0] / weight.sum() < 0.6


def test_equal_seeds_give_equal_plans() -> None:
    graph, problem = random_dag(0), Problem("makespan", 4)
    assert solve_metis(Task(graph, problem, BUDGET, 3)).order == solve_metis(Task(graph, problem, BUDGET, 3)).order


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_few_ops_are_shared_out_in_silence(devices: int, capfd: pytest.CaptureFixture[str]) -> None:
    for num_ops in range(1, 3 * devices):
        placement = partition(in_tree(num_ops, 0).graph, Problem("makespan", devices), 0)
        assert placement.max() < devices
        if num_ops < 2 * devices:
            assert np.bincount(placement, minlength=devices).min() == num_ops // devices
    assert capfd.readouterr().out == ""  # METIS itself writes there
