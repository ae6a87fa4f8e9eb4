"""Orders through minimum cuts: exact memory along them, optimal where that can be proven, reproducible."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs
from search_graphs import random_dag

import graphrl
from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.known_optima import in_tree
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders.dfs_dp import solve as exact_solve
from graphrl.solvers.orders.min_cut import Passes, solve
from graphrl.solvers.orders.random_orders import Drawing


@settings(max_examples=100)
@given(graphs(max_ops=10), st.integers(0, 99))
def test_usage_is_the_exact_memory(graph: ComputationGraph, seed: int) -> None:
    flow = Flow(graph)
    drawn = Drawing(flow).draw(np.random.default_rng(seed), 1, by_priority=True)
    assert drawn is not None
    usage = Usage(flow)(drawn[0])
    costs = exact.evaluate(graph, Problem(), np.zeros(len(graph.ops), np.int64), drawn[0])
    assert int(usage.max()) == costs.peak_memory[0]


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=9), st.integers(0, 99))
def test_small_graphs_are_ordered_within_the_bound(graph: ComputationGraph, seed: int) -> None:
    plan = solve(Task(graph, Problem(), Budget(300), seed))
    best = exact_solve(Task(graph, Problem(), Budget(seconds=20), 0))
    plan.check(graph)
    assert plan.bound is not None
    assert plan.bound <= best.value <= plan.value


def test_most_graphs_are_solved_exactly() -> None:
    solved = 0
    for seed in range(20):
        graph = layered(18, seed)
        best = exact_solve(Task(graph, Problem(), Budget(seconds=20), 0))
        solved += solve(Task(graph, Problem(), Budget(400), seed)).value == best.value
    assert solved >= 16


def test_trees_are_proven_optimal() -> None:
    tree = in_tree(300, 0)
    plan = solve(Task(tree.graph, Problem(), Budget(5_000), 0))
    assert plan.value == tree.peak


def test_better_than_the_rules() -> None:
    graph = layered(300, 1)
    plain = graphrl.optimize(graph, method="list")
    plan = graphrl.optimize(graph, method="min-cut", evaluations=1_500, seed=3)
    assert plan.value < 0.97 * plain.value


def test_a_buffer_much_larger_than_the_rest() -> None:
    graph = layered(60, 0)
    total = sum(tensor.bytes for op in graph.ops for tensor in op.outputs)
    ops = [dataclasses.replace(op, after=(*op.after, "first")) for op in graph.ops]
    first = Op("first", outputs=(Tensor("large", 1000 * total),))
    last = Op("last", inputs=("large",), after=tuple(op.name for op in ops))
    passes = Passes(ComputationGraph("heavy", (first, *ops, last)), 0)
    passes.bound = 0  # so that passes continue
    for _ in range(30):
        order = passes.next(lambda: False)
        exact.evaluate(passes._graph, Problem(), np.zeros(62, np.int64), order)  # raises if it is not topological


def test_resident_weights_and_starts() -> None:
    graph = random_dag(1, 40)
    problem = Problem(resident_weights=True)
    plan = solve(Task(graph, problem, Budget(200), 0))
    assert plan.bound is not None
    assert plan.bound <= plan.value
    good = plan.decisions(graph)[1]
    again = solve(Task(graph, problem, Budget(1), 1), starts=(good,))
    assert again.value <= plan.value


def test_passes_keep_the_best_and_give_orders() -> None:
    graph = layered(120, 2)
    passes = Passes(graph, 0)
    before = passes.peak
    for _ in range(5):
        order = passes.next(lambda: False)
        assert sorted(order.tolist()) == list(range(120))
        exact.evaluate(graph, Problem(), np.zeros(120, np.int64), order)  # raises if it is not topological
        assert passes.bound <= passes.peak <= min(before, int(passes.usage(order).max()))
