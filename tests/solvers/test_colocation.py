"""Colocated ops: methods that keep them together under makespan and peak memory, and methods that refuse them."""

import numpy as np
import pytest
from random_graphs import grouped
from search_graphs import random_dag

from graphrl.costs import exact
from graphrl.costs.fusion.exact import fused_graph
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError, ProblemError
from graphrl.graphs.datasets.workloads import go
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.fusion.rules import everything
from graphrl.solvers.rules.placements import partition
from graphrl.solvers.transfer_rules.solver import quick_plan

METHODS = ("given", "list", "hlfet", "etf", "metis", "expert", "anneal-schedule", "auto")
PROBLEMS = (
    Problem("makespan", 3, "rendezvous", latency=0.1, bandwidth=100.0),
    Problem("makespan", 2, "link", latency=0.1, bandwidth=100.0, memory_limit=500, resident_weights=True),
    Problem("peak_memory", 3),
)


GROUPED = grouped(random_dag(0, 60), {f"op{i}": i % 7 for i in range(0, 60, 2)})


def test_groups_are_numbered_by_their_first_ops() -> None:
    graph = grouped(random_dag(0, 6), {"op1": 9, "op4": 9, "op5": 3})
    assert graph.colocation is not None
    assert graph.colocation.tolist() == [0, 1, 2, 3, 1, 4]
    assert graph.next_colocated.tolist() == [0, 4, 2, 3, 1, 5]
    assert random_dag(0, 6).colocation is None
    assert grouped(random_dag(0, 6), {"op1": 9}).colocation is None


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_plans_keep_groups_together(method: str, problem: Problem) -> None:
    plan = find_solver(method)(Task(GROUPED, problem, Budget(evaluations=400), 1))
    plan.check(GROUPED)
    assert GROUPED.colocation is not None
    placement = plan.decisions(GROUPED)[0]
    assert len(set(zip(GROUPED.colocation.tolist(), placement.tolist(), strict=True))) == GROUPED.colocation.max() + 1


def test_bundled_sends_keep_groups_together_and_gain() -> None:
    """Also in `auto`, which runs it where it leads."""
    problem = PROBLEMS[0]
    first = exact.evaluate(GROUPED, problem, *quick_plan(GROUPED, problem)).makespan
    for method in ("anneal-ops", "auto"):
        plan = find_solver(method)(Task(GROUPED, problem, Budget(evaluations=20_000), 1))
        plan.check(GROUPED)
        assert plan.makespan < 0.98 * first


def test_under_link_auto_moves_groups_where_that_leads() -> None:
    """Groups are large here: `anneal-schedule` hardly leaves its start."""
    workload = go.load("transformer-xl-4")
    problem = Problem("makespan", workload.devices, "link", latency=2e-6, bandwidth=16e9)
    makespans = {}
    for method in ("anneal-schedule", "anneal-ops", "auto"):
        plan = find_solver(method)(Task(workload.colocated, problem, Budget(evaluations=3_000), 0))
        plan.check(workload.colocated)
        makespans[method] = plan.makespan
    assert max(makespans["anneal-ops"], makespans["auto"]) < 0.9 * makespans["anneal-schedule"]


def test_what_is_apart_has_no_costs() -> None:
    graph = grouped(random_dag(0, 4), {"op0": 1, "op3": 1})
    with pytest.raises(PlanError, match="colocated ops 'op0' and 'op3' are on devices 0 and 1"):
        exact.evaluate(graph, Problem("makespan", 2), [0, 0, 0, 1], np.arange(4))


@pytest.mark.parametrize("method", ["brkga", "local-search", "multilevel", "cp-sat"])
def test_methods_that_place_ops_one_by_one_reject_colocation(method: str) -> None:
    with pytest.raises(ProblemError, match=f"{method!r} cannot keep ops together: graph 'dag0' has colocated"):
        find_solver(method)(Task(GROUPED, PROBLEMS[0], Budget(evaluations=10)))
    find_solver("depth-first")(Task(GROUPED, Problem(), Budget(evaluations=10)))


def test_the_only_plan_is_found() -> None:
    """Two chains, and a group of all ops but a long one: this op alone can move, and should."""
    ops = [Op("a", runtime=1.0, outputs=(Tensor("x", 1),)), Op("b", runtime=1.0, inputs=("x",)), Op("c", runtime=2.0)]
    graph = grouped(ComputationGraph("pair", tuple(ops)), {"a": 0, "b": 0})
    for method in ("list", "etf", "anneal-schedule"):
        plan = find_solver(method)(Task(graph, Problem("makespan", 2, "link"), Budget(evaluations=200)))
        assert plan.makespan == 2.0
    alone = grouped(graph, {"a": 0, "b": 0, "c": 0})
    assert find_solver("auto")(Task(alone, Problem("makespan", 2), Budget(evaluations=50))).makespan == 4.0


def test_metis_weighs_groups_as_one() -> None:
    parts = partition(GROUPED, PROBLEMS[0], 0)
    loads = np.bincount(parts, GROUPED.arrays.runtime)
    assert loads.max() < 1.3 * loads.mean()


def test_kernels_keep_the_groups_of_their_roots() -> None:
    workload = go.load("transformer-xl-2")
    kernels = fused_graph(everything(fusion_problem(workload.colocated, "p100-fp32")))
    groups = {op.name: group for op, group in zip(workload.graph.ops, workload.colocation.tolist(), strict=True)}
    assert kernels.colocation is not None
    together: dict[int, set[int]] = {}
    for op, group in zip(kernels.ops, kernels.colocation.tolist(), strict=True):
        together.setdefault(group, set()).add(groups[op.name])
    assert all(len(names) == 1 for names in together.values())
