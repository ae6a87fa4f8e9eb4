"""Approximate dynamic programming ("approximate-dp"): exact where nothing is cut, valid and repeatable always."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import random_graphs
from approximate_dp_tasks import ANY, ONE, scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from search_graphs import random_dag

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.known_optima import KnownPeak, in_tree, out_tree, series_parallel
from graphrl.graphs.datasets.layered import Layered, layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.approximate_dp.solver import solve


def least_peak(graph: ComputationGraph) -> int:
    """The least peak over all orders, by brute force over orders; for graphs of up to 8 ops."""
    flow = Flow(graph)

    def orders(first: list[int]) -> list[list[int]]:
        if len(first) == flow.num_ops:
            return [first]
        ready = [op for op in range(flow.num_ops) if op not in first and set(flow.predecessors[op]) <= set(first)]
        return [order for op in ready for order in orders([*first, op])]

    return min(flow.peak(order) for order in orders([]))


def least_peak_of_sets(graph: ComputationGraph) -> int:
    """The same by dynamic programming over sets of ops, for graphs without `reuses`."""
    flow = Flow(graph)
    workspace = graph.arrays.workspace_bytes.tolist()
    best = {frozenset[int](): 0}
    for _ in range(flow.num_ops):
        following: dict[frozenset[int], int] = {}
        for ran, peak in best.items():
            written = {b for op in ran for b in flow.writes[op]}
            live = sum(flow.size[b] for b in written if flow.pinned[b] or not set(flow.users[b]) <= ran)
            for op in range(flow.num_ops):
                if op not in ran and set(flow.predecessors[op]) <= ran:
                    compared = live + sum(flow.size[b] for b in flow.writes[op]) + workspace[op]
                    after = ran | {op}
                    following[after] = min(following.get(after, 2**62), max(peak, compared))
        best = following
    return best[frozenset(range(flow.num_ops))]


@given(st.data(), st.sampled_from(["random", "live"]), st.booleans())
@settings(max_examples=40)
def test_is_optimal_where_nothing_is_cut(data: st.DataObject, tie: str, weights: bool) -> None:
    graph = data.draw(random_graphs.graphs(max_ops=7))
    problem = Problem(resident_weights=weights)
    plan = solve(Task(graph, problem, ANY, 0), width=256, tie=tie)
    plan.check(graph)
    resident = int(graph.arrays.weight_bytes.sum()) if weights else 0
    best = least_peak(graph) + resident
    assert plan.bound is not None
    assert lower_bound(graph, problem) <= plan.value
    a = graph.arrays
    takes = np.flatnonzero(a.reuses >= 0)
    if all(a.tensor_bytes[takes] == np.array(Flow(graph).size)[[Flow(graph).reuses[t] for t in takes.tolist()]]):
        assert plan.value == plan.bound == best
    else:
        assert plan.bound <= best <= plan.value


@pytest.mark.parametrize(("rank", "tie"), [("peak", "random"), ("peak", "live"), ("live", "random")])
def test_agrees_with_dynamic_programming_over_sets(rank: str, tie: str) -> None:
    for seed in range(12):
        graph = random_dag(seed, 14)
        plan = solve(Task(graph, ONE, ANY, seed), width=256, rank=rank, tie=tie)
        assert plan.value == plan.bound == least_peak_of_sets(graph)


def test_sizes_that_do_not_fit_in_32_bits() -> None:
    graph = random_dag(3, 14)
    exact = scaled(graph, 2**40 + 1)  # a common divisor
    assert solve(Task(exact, ONE, ANY, 0), width=256).value == least_peak_of_sets(exact)
    first, *others = scaled(graph, 10**12).ops
    rounded = dataclasses.replace(graph, ops=(dataclasses.replace(first, workspace_bytes=1), *others))
    plan = solve(Task(rounded, ONE, ANY, 0), width=256)
    best = least_peak_of_sets(rounded)
    assert plan.bound is not None
    assert best * (1 - 1e-7) <= plan.bound <= best <= plan.value <= best * (1 + 1e-7)


@pytest.mark.parametrize("family", [in_tree, out_tree, series_parallel])
def test_known_optima(family: Callable[[int, int], KnownPeak]) -> None:
    for seed in range(6):
        tree = family(16, seed)
        plan = solve(Task(tree.graph, ONE, ANY, seed), width=256)
        assert plan.value == tree.peak
        assert plan.bound in (None, tree.peak)


def test_hub_with_many_readers_and_many_inputs() -> None:
    """Counters of 40 need six bits; the graph needs all leaves at once."""
    leaves = [Op(f"leaf{i}", inputs=("hub",), outputs=(Tensor(f"t{i}", 3),)) for i in range(40)]
    ops = (Op("hub", outputs=(Tensor("hub", 5),)), *leaves, Op("sum", inputs=tuple(f"t{i}" for i in range(40))))
    assert solve(Task(ComputationGraph("hub", ops), ONE, ANY, 0), width=8).value == 5 + 40 * 3


def test_says_that_it_is_optimal_only_if_it_is() -> None:
    for seed in range(30):
        graph = random_dag(seed, 14)
        plan = solve(Task(graph, ONE, ANY, seed), width=8)
        plan.check(graph)
        best = least_peak_of_sets(graph)
        assert plan.value >= best
        assert plan.bound is None or plan.bound == plan.value == best


def test_wider_beams_are_better_on_the_mean() -> None:
    graphs = [layered(100, seed, Layered(cost_per="node", parameter_cost=False)) for seed in range(4)]
    narrow, wide = (
        np.mean([solve(Task(graph, ONE, ANY, 0), width=width).value for graph in graphs]) for width in (2, 64)
    )
    assert narrow > wide


def test_same_seed_same_plan() -> None:
    graph = layered(100, 1)
    first, again, other = (solve(Task(graph, ONE, ANY, seed), width=64) for seed in (1, 1, 2))
    assert first.order == again.order
    assert first.order != other.order


def test_makespan_is_the_same_in_every_order() -> None:
    graph = random_dag(0, 14)
    plan = solve(Task(graph, Problem("makespan"), ANY, 0))
    assert plan.bound is None
    assert plan.peak_memory[0] == least_peak_of_sets(graph)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width is 0"),
        ({"width": 2**23}, "width is"),
        ({"tie": "first"}, "tie is 'first': must be random or live"),
        ({"rank": "size"}, "rank is 'size': must be peak or live"),
    ],
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        solve(Task(random_dag(0, 14), ONE, ANY, 0), **options)  # type: ignore[arg-type]


def test_one_device_only() -> None:
    with pytest.raises(ProblemError, match="devices must be 1, and is 2"):
        solve(Task(random_dag(0, 14), Problem(devices=2), ANY, 0))
