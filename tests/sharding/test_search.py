"""Reduction, bounds and search of sharding problems: all agree with trying everything on small ones."""

import dataclasses
import itertools
import math
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
from graphrl.sharding.exact import Limits, solve_exactly, solve_part
from graphrl.sharding.layers import layers
from graphrl.sharding.multipliers import Ascent
from graphrl.sharding.problem import PROHIBITIVE, ShardingProblem
from graphrl.sharding.reduce import reduce_problem, restrict_problem
from graphrl.sharding.rules import Reduced
from graphrl.sharding.search import search
from graphrl.sharding.worker import Parts, Report

ONE_THREAD: dict[str, Any] = {"workers": 1, "clock": time.process_time}  # on a loaded machine, too
LIMITS = Limits(pairs=10**6, stop=lambda: False, work=10.0, seed=0)


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


@hypothesis.given(
    st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.6]), st.booleans(), st.sampled_from([1, 2**49])
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_the_reduction_keeps_the_optimum(seed: int, prohibitive: float, merge: bool, unit: int) -> None:
    problem = in_units(random_problem(seed, prohibitive=prohibitive), unit, seed)
    try:
        reduced = reduce_problem(problem, merge=merge)
    except ProblemError:
        assert brute_force(problem) is None
        return
    assert reduced_optimum(problem, reduced) == brute_force(problem)


@pytest.mark.parametrize("seed", range(4))
def test_a_ring_goes(seed: int) -> None:
    """Nodes with two neighbours become edges, also where their neighbours do so later; large costs stay exact."""
    n, k, random = 7, 3, np.random.default_rng(seed)
    first = np.arange(n)
    ring = ShardingProblem(
        "ring", np.arange(n + 1) * k, random.integers(0, 9, n * k), np.ones(n * k, np.int64), np.tile([[0, 1]], (n, 1)),
        np.stack([first, (first + 1) % n], 1), np.arange(n + 1) * k * k, random.integers(0, 30, n * k * k), n,
    )  # fmt: skip
    ring = in_units(ring, 2**49, seed)
    reduced = reduce_problem(ring)
    assert len(reduced.sizes) == 0
    assert len(reduced.pair_offset) > 2  # eliminated nodes
    assert reduced_optimum(ring, reduced) == brute_force(ring)


@hypothesis.given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2]))
@hypothesis.settings(max_examples=40, deadline=None)
def test_a_restriction_has_the_best_of_the_plans_that_are_left(seed: int, prohibitive: float) -> None:
    problem = random_problem(seed, nodes=8, prohibitive=prohibitive)
    try:
        reduced = reduce_problem(problem)
    except ProblemError:
        return
    keep = np.random.default_rng(seed).random(len(reduced.cost)) < 0.8
    left = reduced._replace(cost=np.where(keep, reduced.cost, PROHIBITIVE))
    try:
        restricted = restrict_problem(reduced, keep)
    except ProblemError:
        assert reduced_optimum(problem, left) is None
        return
    assert reduced_optimum(problem, restricted) == reduced_optimum(problem, left)


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


@pytest.mark.parametrize(
    "parts", [Parts(reduction=False), Parts(messages=False), Parts(trees=False), Parts(exact=False)]
)
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
    messages = dual.messages_of(model, 100.0)
    room = dual.price(model, messages, np.full(len(reduced.room), multiplier))
    lower = np.full(len(reduced.cost), -dual.LARGEST, np.int64)
    for forward in (True, False, True, False):
        for scaled in (dual.sweep(model, messages, forward), dual.tighten(model, messages, forward, lower)):
            assert reduced.constant - (-(scaled - room) // messages.scale) <= optimum


def in_units(problem: ShardingProblem, unit: int, seed: int) -> ShardingProblem:
    """The problem with `unit` times its costs, and a little more where that is not all."""
    random = np.random.default_rng(seed)

    def scaled(cost: np.ndarray) -> np.ndarray:
        return np.where(cost < PROHIBITIVE, cost * unit + random.integers(0, min(4, unit), len(cost)), PROHIBITIVE)

    return dataclasses.replace(problem, cost=scaled(problem.cost), edge_cost=scaled(problem.edge_cost))


@hypothesis.given(
    st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3]), st.integers(-2, 3), st.integers(0, 8),
    st.sampled_from([1, 2**49]), st.sampled_from([1.0, 100.0]),
)  # fmt: skip
@hypothesis.settings(max_examples=40, deadline=None)
def test_what_is_left_out_has_no_better_plan(
    seed: int, prohibitive: float, ahead: int, steps: int, unit: int, scale: float
) -> None:
    """With a limit at the optimum or above it the exact search proves it; with one below that there is no plan."""
    problem = in_units(random_problem(seed, prohibitive=prohibitive), unit, seed)
    optimum = brute_force(problem)
    if optimum is None:
        return
    reduced = reduce_problem(problem)
    if not len(reduced.sizes):
        return
    ascent = Ascent(reduced, moves.model_of(reduced), scale)
    for _ in range(steps):
        ascent.step()
    answer = solve_part(ascent, optimum + ahead, LIMITS)
    assert answer.proven
    if ahead < 0:
        assert answer.strategies is None
        assert answer.bound == optimum + ahead + 1
        return
    assert answer.bound == optimum
    assert answer.strategies is not None
    assert problem.total_cost(answer.strategies) == optimum
    assert problem.peak(answer.strategies) <= problem.limit


def test_bytes_that_are_limited_late_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrl.sharding.exact.ROWS", 0)
    binding = 0
    for seed in range(20):
        free = dataclasses.replace(random_problem(seed, nodes=7, prohibitive=0.0), limit=2**40)
        problem = dataclasses.replace(free, limit=8)
        optimum = brute_force(problem)
        if optimum is None:
            continue
        answer = solve_exactly(reduce_problem(problem, merge=False), PROHIBITIVE - 1, LIMITS)
        assert (answer.proven, answer.bound) == (True, optimum)
        assert answer.strategies is not None
        assert problem.peak(answer.strategies) <= problem.limit
        binding += optimum > (brute_force(free) or 0)
    assert binding >= 5


def test_costs_that_floats_do_not_separate_are_proven_exactly() -> None:
    problem = in_units(random_problem(218, nodes=7, strategies=4, prohibitive=0.2), 2**49, 218)
    answer = solve_exactly(reduce_problem(problem), PROHIBITIVE - 1, LIMITS)
    assert answer.proven
    assert answer.bound == brute_force(problem)


def test_labels_of_a_reduced_problem_come_back_from_their_expansion() -> None:
    reduced = reduce_problem(layers(60, 3))
    label = np.random.default_rng(0).integers(0, reduced.sizes)
    assert len(label)
    assert (reduced.project(reduced.expand(label)) == label).all()


def test_the_same_evaluations_give_the_same_plan() -> None:
    """The clock has no effect."""
    problem = layers(120, 2)
    plans = [
        search(problem, math.inf, seed=3, evaluations=300, clock=clock)[0] for clock in (time.time, time.process_time)
    ]
    assert plans[0].strategies == plans[1].strategies
    assert plans[0].bound == plans[1].bound


@pytest.mark.parametrize(("nodes", "seed"), [(20, 5), (30, 6), (40, 52), (60, 44)])
def test_small_problems_are_proven_soon(nodes: int, seed: int) -> None:
    """Where the bound of the messages is below the optimum."""
    plan, _ = search(layers(nodes, seed), 60.0, seed=0, evaluations=1000)
    assert plan.cost == plan.bound


def test_the_bound_of_a_tree_is_its_optimum() -> None:
    problem = random_problem(5, nodes=6, prohibitive=0.0)
    tree = dataclasses.replace(problem, limit=2**40, edges=problem.edges[:5], edge_offset=problem.edge_offset[:6])
    reduced = reduce_problem(tree, merge=False)
    model = moves.model_of(reduced)
    messages = dual.messages_of(model, 100.0)
    dual.price(model, messages, np.zeros(len(reduced.room)))
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


@pytest.mark.parametrize(("exact", "message"), [(False, "no feasible plan was found"), (True, "no plan is feasible")])
def test_plans_with_prohibitive_costs_are_no_progress(exact: bool, message: str) -> None:
    """Labels that fit into memory but have prohibitive costs are neither kept nor reported."""
    problem = coloured(4, list(itertools.combinations(range(4), 2)))  # no three colours will do
    reports: list[Report] = []
    with pytest.raises(ProblemError, match=message):
        search(problem, 60 if exact else 0.3, **ONE_THREAD, report=reports.append, parts=Parts(exact=exact))
    assert [report.cost for report in reports] == [None] * len(reports)
    assert reports[-1].seconds < 30


def test_nodes_that_get_their_last_strategies_together_may_exclude_each_other() -> None:
    """Two neighbours of a node and its partner leave each one strategy, in the same pass; the pair is prohibitive."""
    equal, second, first = [0, PROHIBITIVE, PROHIBITIVE, 0], [PROHIBITIVE] * 2 + [0] * 2, [0] * 2 + [PROHIBITIVE] * 2
    problem = dataclasses.replace(
        coloured(4, [(0, 1), (1, 2), (0, 3)]), offset=np.arange(5) * 2, cost=np.zeros(8, np.int64),
        usage=np.zeros(8, np.int64), edge_offset=np.arange(4) * 4, edge_cost=np.array([*equal, *second, *first]),
    )  # fmt: skip
    with pytest.raises(ProblemError, match="no plan is feasible"):
        reduce_problem(problem)


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
