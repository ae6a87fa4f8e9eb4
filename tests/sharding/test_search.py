"""Reduction, bounds and search of sharding problems: all agree with trying everything on small ones."""

import dataclasses
import itertools
import time
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from shardings import brute_force, random_problem

from graphrl.errors import ProblemError
from graphrl.sharding import messages as dual
from graphrl.sharding import moves
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem
from graphrl.sharding.reduce import reduce_problem
from graphrl.sharding.rules import Reduced
from graphrl.sharding.search import Parts, Report, search

ONE_THREAD: dict[str, Any] = {"workers": 1, "clock": time.process_time}  # on a loaded machine, too


def reduced_optimum(problem: ShardingProblem, reduced: Reduced) -> int | None:
    """The least cost of labels of the reduced problem whose expansion is feasible, which must be those that fit."""
    best = None
    for labels in itertools.product(*map(range, reduced.sizes.tolist())):
        label = np.array(labels, np.int64)
        cost = reduced.constant + int(reduced.cost[reduced.offset[:-1] + label].sum())
        for e, (a, b) in enumerate(reduced.edges):
            cost += int(reduced.edge_cost[reduced.edge_offset[e] + label[a] * reduced.sizes[b] + label[b]])
        held = np.zeros(len(reduced.room), np.int64)
        for u, v in enumerate(reduced.user):
            held[reduced.span[u, 0] : reduced.span[u, 1]] += reduced.usage[reduced.usage_offset[u] + label[v]]
        expanded = reduced.expand(label)
        fits = bool((held <= reduced.room).all())
        assert fits == (problem.peak(expanded) <= problem.limit)
        if cost < PROHIBITIVE:
            assert cost == problem.total_cost(expanded)
            if fits and (best is None or cost < best):
                best = cost
    return best


@hypothesis.given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.6]), st.booleans())
@hypothesis.settings(max_examples=60, deadline=None)
def test_the_reduction_keeps_the_optimum(seed: int, prohibitive: float, merge: bool) -> None:
    problem = random_problem(seed, prohibitive=prohibitive)
    try:
        reduced = reduce_problem(problem, merge=merge)
    except ProblemError:
        assert brute_force(problem) is None
        return
    assert reduced_optimum(problem, reduced) == brute_force(problem)


def test_forced_nodes_merge() -> None:
    """A chain of nodes that must have equal strategies is one group, with the intervals of all."""
    k, n = 3, 20
    forced = np.where(np.eye(k, dtype=bool), 0, PROHIBITIVE).ravel()
    starts = np.arange(n)
    random = np.random.default_rng(0)
    problem = ShardingProblem(
        "chain", np.arange(n + 1) * k, random.integers(0, 9, n * k), random.integers(0, 9, n * k),
        np.stack([starts, starts + 2], 1), np.stack([starts[:-1], starts[1:]], 1), np.arange(n) * k * k,
        np.tile(forced, n - 1), 14,
    )  # fmt: skip
    reduced = reduce_problem(problem)
    assert len(reduced.sizes) <= 1
    assert len(reduced.edges) == 0
    assert problem.total_cost(reduced.expand(np.zeros(len(reduced.sizes), np.int64))) < PROHIBITIVE


@pytest.mark.parametrize("seed", range(8))
def test_the_search_finds_the_optimum(seed: int) -> None:
    problem = random_problem(seed, nodes=7, prohibitive=0.1)
    optimum = brute_force(problem)
    if optimum is None:
        with pytest.raises(ProblemError):
            search(problem, 0.1, **ONE_THREAD)
        return
    reports: list[Report] = []
    plan, _ = search(problem, 0.3, **ONE_THREAD, report=reports.append)
    assert plan.cost == optimum
    assert plan.bound <= optimum
    plan.check(problem)
    costs = [report.cost for report in reports if report.cost is not None]
    bounds = [report.bound for report in reports]
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("parts", [Parts(reduction=False), Parts(messages=False), Parts(trees=False)])
def test_parts_can_be_left_out(parts: Parts) -> None:
    problem = random_problem(4, nodes=7, prohibitive=0.1)
    assert brute_force(problem) is not None
    plan, _ = search(problem, 0.3, **ONE_THREAD, parts=parts)
    assert plan.cost == brute_force(problem)


@hypothesis.given(st.integers(0, 2**32 - 1), st.floats(0, 20))
@hypothesis.settings(max_examples=30, deadline=None)
def test_any_multipliers_give_a_bound(seed: int, multiplier: float) -> None:
    problem = random_problem(seed, prohibitive=0.0)
    optimum = brute_force(problem)
    if optimum is None:
        return
    reduced = reduce_problem(problem)
    if not len(reduced.sizes):
        return
    model = moves.model_of(reduced)
    state = moves.start(model, np.zeros(len(reduced.sizes), np.int64), 1.0, 0)
    messages = dual.messages_of(model, 100.0)
    room = dual.price(model, state, messages, np.full(moves.MAX_WATCHED, multiplier))
    for forward in (True, False, True, False):
        bound = dual.sweep(model, messages, forward) - room
        assert reduced.constant - (-bound // messages.scale) <= optimum


def test_the_bound_of_a_tree_is_its_optimum() -> None:
    problem = random_problem(5, nodes=6, prohibitive=0.0)
    tree = dataclasses.replace(problem, limit=2**40, edges=problem.edges[:5], edge_offset=problem.edge_offset[:6])
    reduced = reduce_problem(tree, merge=False)
    model = moves.model_of(reduced)
    messages = dual.messages_of(model, 100.0)
    state = moves.start(model, np.zeros(len(reduced.sizes), np.int64), 1.0, 0)
    dual.price(model, state, messages, np.zeros(moves.MAX_WATCHED))
    for _ in range(20):
        dual.sweep(model, messages, True)
        bound = dual.sweep(model, messages, False)
    assert reduced.constant - (-bound // messages.scale) == brute_force(tree)


def coloured(nodes: int, pairs: list[tuple[int, int]]) -> ShardingProblem:
    """Nodes of three strategies that cost 1 to 3, and edges that forbid equal ones."""
    forbidden = np.where(np.eye(3, dtype=bool), PROHIBITIVE, 0).ravel()
    return ShardingProblem(
        "coloured", np.arange(nodes + 1) * 3, np.tile([1, 2, 3], nodes), np.ones(3 * nodes, np.int64),
        np.tile([[0, 1]], (nodes, 1)), np.array(pairs), np.arange(len(pairs) + 1) * 9, np.tile(forbidden, len(pairs)),
        nodes,
    )  # fmt: skip


def test_plans_with_prohibitive_costs_are_no_progress() -> None:
    """Labels that fit into memory but have prohibitive costs are neither kept nor reported."""
    problem = coloured(4, list(itertools.combinations(range(4), 2)))  # no three colours will do
    reports: list[Report] = []
    with pytest.raises(ProblemError, match="no feasible plan was found"):
        search(problem, 0.3, **ONE_THREAD, report=reports.append)
    assert [report.cost for report in reports] == [None] * len(reports)


@pytest.mark.parametrize("nodes", [9, 14, 16, 24])
def test_many_prohibitive_costs_do_not_overflow(nodes: int) -> None:
    reduced = reduce_problem(
        coloured(nodes, [(v, w) for v in range(nodes) for w in (v + 1, v + 3) if w < nodes]), merge=False
    )
    model = moves.model_of(reduced)
    state = moves.start(model, np.zeros(nodes, np.int64), 1.0, 0)  # every edge is prohibitive
    assert int(state.numbers[moves.COST]) == nodes + len(reduced.edges) * int(model.cap)
    assert state.numbers[moves.BEST] < 0


def test_costs_that_add_up_to_prohibitive_ones_are_refused() -> None:
    problem = coloured(3, [(0, 1)])
    problem.cost[:] = 4 * 10**17
    with pytest.raises(ProblemError, match="use a larger unit"):
        reduce_problem(problem)
