"""Annealing in levels: graphs of segments, plans that come back from them, and what the solver makes of both."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, problems
from search_graphs import random_dag

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.rules.list_scheduling import quick_schedule, schedule
from graphrl.solvers.rules.simple import depth_first
from graphrl.solvers.schedules.multilevel import coarse_graph, expanded, segments, solve

RENDEZVOUS = Problem("makespan", 2, latency=0.5, bandwidth=20.0)


def chains(count: int, length: int) -> ComputationGraph:
    """Chains of ops whose transfers are dear, that meet in one op."""
    ops = [
        Op(
            f"{chain}.{i}",
            runtime=1.0,
            inputs=(f"t{chain}.{i - 1}",) if i else (),
            outputs=(Tensor(f"t{chain}.{i}", 100),),
        )
        for chain in range(count)
        for i in range(length)
    ]
    last = Op("end", runtime=1.0, inputs=tuple(f"t{chain}.{length - 1}" for chain in range(count)))
    return ComputationGraph("chains", (*ops, last))


@settings(max_examples=60)
@given(st.data())
def test_a_coarse_plan_is_a_plan_of_the_graph(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=25))
    problem = dataclasses.replace(data.draw(problems()), objective="makespan", memory_limit=None)
    order = np.array(depth_first(graph.arrays.waiting()), np.int64)
    count = data.draw(st.integers(1, len(graph.ops)))
    segment = segments(graph, problem, order, count)
    assert np.array_equal(np.unique(segment), np.arange(count))
    assert (np.diff(segment[order]) >= 0).all()
    coarse = coarse_graph(graph, segment)
    assert coarse.arrays.runtime.sum() == pytest.approx(graph.arrays.runtime.sum())
    placement, nodes = expanded(graph, problem.devices, order, segment, schedule(coarse, problem))
    exact.evaluate(graph, problem, placement, nodes)  # or it is no order
    assert all(len(set(placement[segment == i].tolist())) == 1 for i in range(count))


def test_one_segment_an_op_keeps_the_makespan() -> None:
    graph = random_dag(3, 50)
    order = graph.arrays.topological.astype(np.int64)
    segment = segments(graph, RENDEZVOUS, order, len(graph.ops))
    coarse = coarse_graph(graph, segment)
    plan = schedule(coarse, RENDEZVOUS)
    fine = expanded(graph, 2, order, segment, plan)
    same_order = expanded(coarse, 2, np.arange(len(coarse.ops)), np.arange(len(coarse.ops)), plan)
    makespans = [exact.evaluate(graph, RENDEZVOUS, *fine), exact.evaluate(coarse, RENDEZVOUS, *same_order)]
    assert makespans[0].makespan == makespans[1].makespan


def test_chains_are_not_cut() -> None:
    graph = chains(4, 30)
    segment = segments(graph, RENDEZVOUS, np.array(depth_first(graph.arrays.waiting()), np.int64), 12)
    assert all(len(set(segment[30 * i : 30 * i + 5].tolist())) <= 2 for i in range(4))


@pytest.mark.parametrize(
    "problem", [RENDEZVOUS, Problem("makespan", 3, "link", latency=0.5), Problem("makespan", 2, memory_limit=2000)]
)
def test_it_is_repeatable_and_better_than_its_start(problem: Problem) -> None:
    graph = random_dag(0, 150)
    plan, again = (solve(Task(graph, problem, Budget(evaluations=6000), 3), coarse=20) for _ in range(2))
    plan.check(graph)
    start = exact.evaluate(graph, problem, *quick_schedule(graph, problem)).rank(problem)
    assert plan.rank < start if problem == RENDEZVOUS else plan.rank <= start
    assert (plan.order, plan.evaluations) == (again.order, again.evaluations)
    assert plan.evaluations <= 6000


def test_a_hint_is_never_lost() -> None:
    graph = random_dag(1, 80)
    task = Task(graph, RENDEZVOUS, Budget(evaluations=1))
    hint = task.plan(*schedule(graph, RENDEZVOUS), evaluations=1)
    assert solve(task, coarse=20, hint=hint).value <= hint.value


def test_coarse_out_of_range_is_refused() -> None:
    with pytest.raises(ProblemError, match="coarse is 0: must be at least 1"):
        solve(Task(random_dag(0), RENDEZVOUS, Budget(evaluations=10)), coarse=0)
