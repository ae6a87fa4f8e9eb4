"""Brute force: the optimum by naive enumeration with exact costs, and its limits."""

import dataclasses
import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed_searches import interrupted_plan
from random_graphs import graphs, plans, problems
from search_graphs import random_dag
from worked_example import WORKED

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact.memory import MemoryWalk
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.exact.brute_force import placements, solve

# The worked example of graphrl/costs
LONG = Budget(seconds=600)


def all_orders(routes: Routes) -> Iterator[list[int]]:
    """Every topological order of the node ids of a placement."""
    size = len(routes.nodes)
    before = [{int(b) for b, a in zip(routes.before, routes.after, strict=True) if a == slot} for slot in range(size)]

    def extend(order: list[int]) -> Iterator[list[int]]:
        if len(order) == size:
            yield [int(routes.nodes[slot]) for slot in order]
        for slot in range(size):
            if slot not in order and before[slot] <= set(order):
                yield from extend([*order, slot])

    return extend([])


def optimum(graph: ComputationGraph, problem: Problem) -> tuple[int, float]:
    """The least rank of all plans, each costed by `exact.evaluate`."""
    return min(
        exact.evaluate(graph, problem, placement, order).rank(problem)
        for placement in itertools.product(range(problem.devices), repeat=len(graph.ops))
        for order in all_orders(Routes(graph, problem, placement))
    )


@settings(max_examples=60)
@given(graphs(max_ops=4), problems(max_devices=2), st.sampled_from([None, 1, 6, 12, 20]))
def test_it_finds_the_optimum(graph: ComputationGraph, problem: Problem, limit: int | None) -> None:
    if problem.objective == "makespan":
        problem = dataclasses.replace(problem, memory_limit=limit)
    if sum(len(op.inputs) for op in graph.ops) > 4:
        graph = dataclasses.replace(graph, ops=tuple(dataclasses.replace(op, after=()) for op in graph.ops))
    plan = solve(Task(graph, problem, LONG, 0))
    plan.check(graph)
    assert plan.rank == optimum(graph, problem)
    assert plan.bound == (plan.value if plan.excess == 0 else None)
    assert plan.value >= lower_bound(graph, problem)


@pytest.mark.parametrize(
    ("problem", "value"),
    [
        (Problem(), 12),
        (Problem("makespan"), 7.0),
        (Problem("makespan", 2, "free"), 5.0),
        (Problem("makespan", 2, "rendezvous"), 5.0),  # b goes away and comes back when c has ended
        (Problem("makespan", 2, "free", latency=0.5, bandwidth=4.0), 6.5),  # c and d go: 1 + 1.5 + 3 + 1
        (Problem("makespan", 2, "rendezvous", latency=0.5, bandwidth=4.0), 7.0),
        (Problem("makespan", 1, memory_limit=12), 7.0),
    ],
)
def test_worked_example(problem: Problem, value: float) -> None:
    plan = solve(Task(WORKED, problem, LONG, 0))
    assert plan.value == plan.bound == value
    plan.check(WORKED)


def test_the_place_of_a_transfer_matters_under_rendezvous() -> None:
    """The sender's own user of a0 must wait for the transfer (2 to 6 s), else the receiver waits for it (6 to 10 s)."""
    graph = ComputationGraph(
        "fork",
        (
            Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
            Op("b", runtime=4, inputs=("a0",)),
            Op("c", runtime=4, inputs=("a0",)),
        ),
    )
    plan = solve(Task(graph, Problem("makespan", 2, "rendezvous", bandwidth=4.0), LONG, 0))
    assert plan.value == 6.0
    assert plan.placement["b"] != plan.placement["c"]


@given(st.data())
def test_the_walk_is_the_exact_memory_and_goes_back(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(max_ops=8)), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    routes = Routes(graph, problem, placement)
    walk = MemoryWalk(graph, problem, routes)
    start = list(walk.live)
    slots = np.searchsorted(routes.nodes, order).tolist()
    for _ in range(2):
        peak, live = max(start), []
        for slot in slots:
            peak = max(peak, walk.step(slot))
            live.append(list(walk.live))
        costs = exact.evaluate(graph, problem, placement, order)
        assert peak == max(costs.peak_memory)
        assert live == np.stack([device[:, 1] for device in costs.memory], axis=1).tolist()
        for slot in reversed(slots):
            walk.back(slot)
        assert walk.live == start


@pytest.mark.parametrize(("ops", "devices", "count"), [(1, 1, 1), (4, 1, 1), (4, 2, 8), (4, 4, 15), (3, 9, 5)])
def test_placements_up_to_names(ops: int, devices: int, count: int) -> None:
    seen = {tuple(placement.tolist()) for placement in placements(ops, devices)}
    assert len(seen) == len(list(placements(ops, devices))) == count

    def renamed(placement: tuple[int, ...]) -> tuple[int, ...]:
        names: dict[int, int] = {}
        return tuple(names.setdefault(device, len(names)) for device in placement)

    assert {renamed(placement) for placement in itertools.product(range(devices), repeat=ops)} == seen


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"brute-force.*'dag0' \(20 ops, 2 devices\) needs more than steps=1000"):
        solve(Task(random_dag(0, 20), Problem("makespan", 2), LONG, 0), steps=1000)
    with pytest.raises(ProblemError, match="up to 64 ops"):
        solve(Task(random_dag(0, 65), Problem(), LONG, 0))


def test_a_budget_ends_it_without_a_bound() -> None:
    plan = solve(Task(random_dag(1, 14), Problem("makespan", 3), Budget(evaluations=1), 0))
    assert plan.bound is None
    assert plan.evaluations >= 1
    plan.check(random_dag(1, 14))


@pytest.mark.parametrize("budget", [Budget(evaluations=50), Budget(seconds=0.5)])
def test_a_budget_ends_it_where_placements_are_given_up_at_once(budget: Budget) -> None:
    ops = [Op(f"op{i}", runtime=1.0, weight_bytes=1) for i in range(19)]
    graph = ComputationGraph("heavy", (*ops, Op("heavy", runtime=1.0, weight_bytes=19)))
    started = time.perf_counter()  # the heavy op alone is the optimum, and no step is made any more
    plan = solve(Task(graph, Problem(devices=64, resident_weights=True), budget))
    assert time.perf_counter() - started < 5
    assert (plan.value, plan.bound) == (19, None)


def test_interrupted_it_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrl.solvers.base.REPORT_SECONDS", 0.0)
    graph = random_dag(0)
    interrupted_plan(solve, graph, Problem("makespan", 2)).check(graph)
