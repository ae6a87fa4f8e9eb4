"""Probing: never above the best order, and where single cuts miss something, up to it."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, plans, problems

from graphrl.costs import exact
from graphrl.costs.bounds import cuts as probing
from graphrl.costs.bounds import lower, lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.optimize import optimize


def least_peak(graph: ComputationGraph) -> tuple[int, list[np.ndarray]]:
    """Of all orders; and the orders."""
    before, after = graph.arrays.dependencies()
    n = graph.arrays.num_ops
    orders = [
        np.array(order)
        for order in itertools.permutations(range(n))
        if all(order.index(i) < order.index(j) for i, j in zip(before, after, strict=True))
    ]
    return min(exact.evaluate(graph, Problem(), [0] * n, order).peak_memory[0] for order in orders), orders


@settings(max_examples=40)
@given(graphs(max_ops=6), st.integers(0, 1000))
def test_no_order_is_below_the_bound(graph: ComputationGraph, choice: int) -> None:
    least, orders = least_peak(graph)
    assert lower_bound(graph, Problem(), orders[choice % len(orders)]) <= least


@settings(max_examples=40)
@given(st.data())
def test_no_plan_is_below_the_bound_with_its_own_order(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(max_ops=10)), dataclasses.replace(data.draw(problems()), objective="peak_memory")
    placement, order = data.draw(plans(graph, problem))
    value = exact.evaluate(graph, problem, placement, order).objective(problem)
    assert lower_bound(graph, problem, np.asarray(order)) <= value


# The first layers of NASNet: `p` and `m` are made of `a`, each is read by ops with outputs of their own.
FORK = ComputationGraph(
    "fork",
    (
        Op("a", outputs=(Tensor("a0", 24),)),
        Op("p", inputs=("a0",), outputs=(Tensor("p0", 24),)),
        Op("s", inputs=("p0",), outputs=(Tensor("s0", 2),)),
        Op("m", inputs=("a0",), outputs=(Tensor("m0", 24, reuses="a0"),)),
        Op("u", inputs=("m0",), outputs=(Tensor("u0", 2),)),
        Op("v", inputs=("m0",), outputs=(Tensor("v0", 3),)),
        Op("end", inputs=("s0", "u0", "v0")),
    ),
)


def test_who_runs_first_runs_beside_both() -> None:
    least, orders = least_peak(FORK)
    assert least == 50
    assert lower_bound(FORK, Problem()) == 48  # cuts alone
    order = min(orders, key=lambda one: exact.evaluate(FORK, Problem(), [0] * 7, one).peak_memory)
    assert lower_bound(FORK, Problem(), order) == 50
    assert lower_bound(FORK, Problem(), orders[-1]) <= 50
    assert optimize(FORK, method="min-cut", evaluations=1_000).bound == 50


def test_little_work_leaves_the_bound_of_the_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layered(60, 2)
    order = graph.arrays.topological
    full = lower_bound(graph, Problem(), order)
    bounds = []
    for work in (0, 2_000, 20_000):
        monkeypatch.setattr(probing, "WORK", work)
        bounds.append(lower_bound(graph, Problem(), order))
    monkeypatch.setattr(lower, "probed_bound", lambda graph, cuts, arcs, ops, low, high: low)
    assert bounds[0] == lower_bound(graph, Problem(), order) <= min(bounds)
    assert max(bounds) <= full <= exact.evaluate(graph, Problem(), [0] * 60, order).peak_memory[0]


def test_a_large_graph_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    order = np.arange(7)
    assert lower_bound(FORK, Problem(), order) > 48
    monkeypatch.setattr(probing, "MAX_OPS", 6)
    assert lower_bound(FORK, Problem(), order) == 48
