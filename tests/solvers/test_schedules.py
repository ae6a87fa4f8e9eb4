"""Searches over schedules: annealing, whose costs are exact for all moves; local search; levels."""

import dataclasses
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optima import optimum
from random_graphs import colocated, graphs, plans, problems
from search_graphs import random_dag
from worked_example import TINY

from graphrl.compiled import entry
from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Objective, Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes.brkga_solver import solve_random
from graphrl.solvers.rules.list_scheduling import quick_schedule
from graphrl.solvers.rules.list_scheduling import schedule as list_schedule
from graphrl.solvers.rules.simple import depth_first
from graphrl.solvers.schedules.memory import write_nodes
from graphrl.solvers.schedules.moves import KINDS
from graphrl.solvers.schedules.multilevel import coarse_graph, expand, segments
from graphrl.solvers.schedules.multilevel import solve as solve_multilevel
from graphrl.solvers.schedules.solver import WEIGHT, Chain, run_chain, solve, solve_local_search, start_chain
from graphrl.solvers.schedules.state import ABSENT, Schedule

PROBLEMS = [
    Problem("makespan", 2, "rendezvous", latency=0.5, bandwidth=20.0),
    Problem("makespan", 3, "link", latency=0.5, bandwidth=20.0),
    Problem("makespan", 2, "free"),
    Problem("makespan", 3, "rendezvous", memory_limit=400, resident_weights=True),
    Problem("makespan", 1, memory_limit=100),
    Problem("peak_memory", 3, resident_weights=True),
]


def walk(chain: Chain, moves: int, heat: float, kind: str | None = None) -> None:
    """Runs moves of one kind, or of all kinds."""
    run_chain(chain, moves, heat, heat, {name: float(kind in (None, name)) for name in KINDS})


@entry
def compiled_nodes(s: Schedule, nodes: np.ndarray) -> int:
    return write_nodes(s, nodes)


def current(chain: Chain) -> np.ndarray:
    """The nodes of the chain's current schedule, in their order."""
    nodes = np.zeros_like(chain.best.nodes)
    return nodes[: compiled_nodes(chain.schedule, nodes)]


def check_exact(graph: ComputationGraph, problem: Problem, chain: Chain) -> None:
    """Checks clocks and score against the exact costs of the schedule's order and placement; the best is not worse."""
    s = chain.schedule
    placement, nodes = s.ops["device"], current(chain)
    costs = exact.evaluate(graph, problem, placement, nodes)
    excess = costs.excess(problem)
    ends = dict(zip(nodes.tolist(), costs.end.tolist(), strict=True))
    n = len(graph.ops)
    best = exact.evaluate(graph, problem, *chain.best.plan)
    if problem.objective == "peak_memory":
        assert s.score[2] == max(costs.peak_memory)
        assert chain.best.rank == (max(best.peak_memory), 0.0) <= (s.score[2], 0.0)
        return
    assert s.score[0] == costs.makespan
    assert chain.best.rank == best.rank(problem) <= costs.rank(problem)
    assert s.score[2] == pytest.approx(costs.makespan + WEIGHT * s.score[1] + chain.penalty * excess)
    assert s.ops["end"].tolist() == [ends[op] for op in range(n)]
    assert set(np.flatnonzero(s.copies["first"] != ABSENT) + n) == {node for node in ends if node >= n}
    if problem.transfer != "rendezvous":
        assert all(s.copies["arrival"][node - n] == end for node, end in ends.items() if node >= n)
    assert s.ops["place"][s.order].tolist() == list(range(n))


@st.composite
def cases(draw: st.DrawFn) -> tuple[ComputationGraph, Problem]:
    limit = draw(st.sampled_from([None, 1, 10, 20, 40]))
    objective: Objective = draw(st.sampled_from(["makespan", "makespan", "peak_memory"]))
    limit = None if objective == "peak_memory" else limit
    problem = dataclasses.replace(draw(problems()), objective=objective, memory_limit=limit)
    graph = draw(graphs(max_ops=draw(st.sampled_from([4, 12, 40]))))
    return draw(st.sampled_from([st.just(graph), colocated(graph)]).flatmap(lambda either: either)), problem


@settings(max_examples=100)
@given(st.data())
def test_costs_are_exact_after_any_moves(data: st.DataObject) -> None:
    graph, problem = data.draw(cases())
    plan = data.draw(plans(graph, problem))
    chain = start_chain(graph, problem, plan, np.random.SeedSequence(data.draw(st.integers(0, 9))))
    check_exact(graph, problem, chain)
    for heat in (10.0, 1.0, 0.1):
        walk(chain, 50, heat, data.draw(st.sampled_from([None, *KINDS])))
        check_exact(graph, problem, chain)


@settings(max_examples=30)
@given(st.data())
def test_plans_whose_transfers_are_late_or_early_are_kept(data: st.DataObject) -> None:
    graph, problem = data.draw(cases())
    placement, order = data.draw(plans(graph, problem))
    first, second = (start_chain(graph, problem, (placement, order), np.random.SeedSequence(0)) for _ in range(2))
    walk(first, 20, 1e9)
    placement, nodes = first.schedule.ops["device"], current(first)
    second = start_chain(graph, problem, (placement, nodes), np.random.SeedSequence(0))
    costs = [exact.evaluate(graph, problem, placement, order) for order in (nodes, current(second))]
    assert costs[0].makespan == costs[1].makespan
    assert costs[0].peak_memory == costs[1].peak_memory


@pytest.mark.parametrize("problem", PROBLEMS[:4], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_walks_that_end_early_are_exact_on_long_orders(kind: str, problem: Problem) -> None:
    graph = random_dag(0, 300)
    chain = start_chain(graph, problem, list_schedule(graph, problem), np.random.SeedSequence(1))
    for heat in (5.0, 0.5, 0.01):
        walk(chain, 200, heat)
        walk(chain, 200, heat, kind)
        check_exact(graph, problem, chain)


def solved(graph: ComputationGraph, problem: Problem, evaluations: int = 2000, seed: int = 3, **options: Any) -> Plan:
    return solve(Task(graph, problem, Budget(evaluations=evaluations), seed), **options)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_plans_are_valid_and_not_worse_than_list_scheduling(problem: Problem) -> None:
    graph = random_dag(0)
    plan = solved(graph, problem)
    plan.check(graph)
    assert plan.rank <= exact.evaluate(graph, problem, *list_schedule(graph, problem)).rank(problem)
    assert plan.value >= lower_bound(graph, problem)
    assert plan.evaluations <= 2000


@pytest.mark.parametrize(
    "problem", [Problem("makespan", 2, latency=0.25), Problem("makespan", 2, "link", bandwidth=8.0)]
)
def test_tiny_optima_are_found(problem: Problem) -> None:
    assert solved(TINY, problem).value == pytest.approx(optimum(TINY, problem), rel=1e-9)


def test_one_core_and_two_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_dag(2, 60)
    plans = []
    for cores in ({0}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores, raising=False)
        plans.append(solved(graph, PROBLEMS[0], 5000, chains=3))
    assert plans[0].order == plans[1].order
    assert plans[0].placement == plans[1].placement


def test_a_memory_limit_is_kept_where_it_can_be() -> None:
    graph, free = random_dag(1), Problem("makespan", 2)
    peak = max(exact.evaluate(graph, free, *list_schedule(graph, free)).peak_memory)
    memory = Problem("peak_memory", 2)
    least = int(exact.evaluate(graph, memory, *list_schedule(graph, memory)).objective(memory))
    for limit in (least, (least + peak) // 2):
        limited = dataclasses.replace(free, memory_limit=limit)
        plan = solved(graph, limited)
        plan.check(graph)
        assert plan.excess == 0
        assert plan.rank <= exact.evaluate(graph, limited, *list_schedule(graph, limited)).rank(limited)
    assert 0 < solved(graph, dataclasses.replace(free, memory_limit=1)).excess < least + 1


def test_seconds_are_kept() -> None:
    plan = solve(Task(random_dag(0, 100), PROBLEMS[0], Budget(seconds=1.5)))
    assert 1.4 < plan.seconds < 3
    assert plan.evaluations > 500


def test_without_moves_it_ends() -> None:
    plan = solve(Task(ComputationGraph("one", (Op("a", runtime=1),)), Problem("makespan", 1), Budget(seconds=60.0)))
    assert plan.seconds < 10
    assert plan.value == 1


def test_it_starts_from_a_hint() -> None:
    graph, problem = random_dag(0), PROBLEMS[0]
    hint = Task(graph, problem, Budget(evaluations=1)).plan(None, graph.arrays.topological, evaluations=1)
    plan = solved(graph, problem, 1, hint=hint)
    assert plan.value == sum(op.runtime for op in graph.ops)


def test_it_climbs_out_of_a_schedule_that_leaves_devices_idle() -> None:
    graph, problem = random_dag(0, 1500), Problem("makespan", 2, "rendezvous", latency=8.0, bandwidth=20.0)
    placement, _ = list_schedule(graph, problem)
    assert placement.max() == 0  # a search with the usual cold start stays there
    assert solved(graph, problem, 20_000).value < 0.998 * sum(op.runtime for op in graph.ops)


# Local search: climbs, restarts, finds tiny optima


def test_its_plans_are_valid_and_better_than_random_ones() -> None:
    graph, budget = random_dag(0), Budget(evaluations=3000)
    for problem in PROBLEMS:
        plan = solve_local_search(Task(graph, problem, budget, 0))
        plan.check(graph)
        assert plan.value >= lower_bound(graph, problem)
        assert plan.evaluations == budget.evaluations
        if problem == PROBLEMS[0]:  # each compiles a program
            assert plan.value < 0.95 * solve_random(Task(graph, problem, budget, 0)).value


@pytest.mark.parametrize("problem", [Problem("makespan", 2, "free"), Problem(devices=2)])
def test_it_finds_tiny_optima(problem: Problem) -> None:
    plan = solve_local_search(Task(TINY, problem, Budget(evaluations=4000), 0), patience=50)
    assert plan.value == pytest.approx(optimum(TINY, problem), rel=1e-6)


def test_it_restarts_when_it_is_stuck() -> None:
    """Once it is stuck, more time changes nothing without restarts; with them it does on some graph."""
    problem, budget = PROBLEMS[0], Budget(evaluations=20_000)
    gains = []
    for seed in range(3):
        graph = random_dag(seed)
        stuck, restarted = (
            solve_local_search(Task(graph, problem, budget, 0), patience=patience).value for patience in (10**6, 400)
        )
        gains.append(stuck - restarted)
    assert max(gains) > 0


def test_memory_limits_are_kept_where_they_can_be() -> None:
    graph, problem, budget = random_dag(0), PROBLEMS[1], Budget(evaluations=5000)
    least = int(solve_local_search(Task(graph, Problem(devices=problem.devices), budget, 0)).value)
    for limit in (2 * least, 1):
        plan = solve_local_search(Task(graph, dataclasses.replace(problem, memory_limit=limit), budget, 0))
        plan.check(graph)
        assert (plan.excess == 0) == (limit > 1)


def test_a_climb_without_moves_ends() -> None:
    graph = ComputationGraph("one", (Op("a", runtime=1),))
    assert solve_local_search(Task(graph, Problem("makespan", 1), Budget(seconds=60.0))).seconds < 10


# Annealing in levels: graphs of segments, and plans that come back from them


def chains(count: int, length: int) -> ComputationGraph:
    """Chains of ops with expensive transfers that meet in one op."""
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
    placement, nodes = expand(graph, problem.devices, order, segment, list_schedule(coarse, problem))
    exact.evaluate(graph, problem, placement, nodes)  # raises if the order is invalid
    assert all(len(set(placement[segment == i].tolist())) == 1 for i in range(count))


def test_one_segment_an_op_keeps_the_makespan() -> None:
    graph = random_dag(3, 50)
    order = graph.arrays.topological.astype(np.int64)
    segment = segments(graph, PROBLEMS[0], order, len(graph.ops))
    coarse = coarse_graph(graph, segment)
    plan = list_schedule(coarse, PROBLEMS[0])
    fine = expand(graph, 2, order, segment, plan)
    same_order = expand(coarse, 2, np.arange(len(coarse.ops)), np.arange(len(coarse.ops)), plan)
    makespans = [exact.evaluate(graph, PROBLEMS[0], *fine), exact.evaluate(coarse, PROBLEMS[0], *same_order)]
    assert makespans[0].makespan == makespans[1].makespan


def test_chains_are_not_cut() -> None:
    graph = chains(4, 30)
    segment = segments(graph, PROBLEMS[0], np.array(depth_first(graph.arrays.waiting()), np.int64), 12)
    assert all(len(set(segment[30 * i : 30 * i + 5].tolist())) <= 2 for i in range(4))


@pytest.mark.parametrize(
    "problem", [PROBLEMS[0], Problem("makespan", 3, "link", latency=0.5), Problem("makespan", 2, memory_limit=2000)]
)
def test_it_is_better_than_its_start(problem: Problem) -> None:
    graph = random_dag(0, 150)
    plan = solve_multilevel(Task(graph, problem, Budget(evaluations=6000), 3), coarse=20)
    plan.check(graph)
    start = exact.evaluate(graph, problem, *quick_schedule(graph, problem)).rank(problem)
    assert plan.rank < start if problem == PROBLEMS[0] else plan.rank <= start
    assert plan.evaluations <= 6000


def test_a_hint_is_never_lost() -> None:
    graph = random_dag(1, 80)
    task = Task(graph, PROBLEMS[0], Budget(evaluations=1))
    hint = task.plan(*list_schedule(graph, PROBLEMS[0]), evaluations=1)
    assert solve_multilevel(task, coarse=20, hint=hint).value <= hint.value
