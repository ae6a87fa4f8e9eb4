"""Minimum cuts against all states of an op, and probing against all orders of a graph."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, plans, problems

from graphrl.costs import exact
from graphrl.costs.bounds import cuts as probing
from graphrl.costs.bounds import lower_bound
from graphrl.costs.bounds.cuts import DONE, LATER, OPEN, Cuts, Needs
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.optimize import optimize


def states(graph: ComputationGraph, op: int) -> list[np.ndarray]:
    """All sets of ops that contain an op and their own predecessors, and no successor of the op: `[n] bool` each."""
    n = graph.arrays.num_ops
    before, after = graph.arrays.dependencies()
    every = (np.array(bits, bool) for bits in itertools.product((False, True), repeat=n))
    closed = (done for done in every if done[op] and not (done[after] & ~done[before]).any())
    return [done for done in closed if not done[after[before == op]].any()]


def needed(graph: ComputationGraph, op: int, done: np.ndarray) -> int:
    """Bytes while an op runs after the other ops of `done`, in a graph without aliases and reuses."""
    a = graph.arrays
    users: list[set[int]] = [set() for _ in range(a.num_tensors)]
    for tensor, user in zip(a.use_tensor.tolist(), a.use_op.tolist(), strict=True):
        users[tensor].add(user)
    total = int(a.workspace_bytes[op])
    for tensor, writer in enumerate(a.producer.tolist()):
        waited_for = a.kept[tensor] or op in users[tensor] or any(not done[user] for user in users[tensor])
        if writer == op or (done[writer] and waited_for):
            total += int(a.tensor_bytes[tensor])
    return total


@settings(max_examples=60)
@given(graphs(max_ops=7, sharing=False), st.data())
def test_a_cut_is_the_least_of_all_states(graph: ComputationGraph, data: st.DataObject) -> None:
    op = data.draw(st.integers(0, graph.arrays.num_ops - 1))
    cuts, every = Cuts(graph, Needs(graph)), states(graph, op)
    least = min(needed(graph, op, done) for done in every)
    for late in (False, True):
        cut = cuts.least(op, late=late)
        assert cut.need == least == needed(graph, op, cut.done)
        assert any((cut.done == done).all() for done in every)
    fewest, most = cuts.least(op).done, cuts.least(op, late=True).done
    for done in every:
        if needed(graph, op, done) == least:
            assert not (fewest & ~done).any()
            assert not (done & ~most).any()


@settings(max_examples=60)
@given(graphs(max_ops=7, sharing=False), st.data())
def test_a_cut_between_states(graph: ComputationGraph, data: st.DataObject) -> None:
    n = graph.arrays.num_ops
    order = graph.arrays.topological
    begin = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(begin + 1, n))
    op = int(order[data.draw(st.integers(begin, end - 1))])
    phase = np.full(n, OPEN)
    phase[order[:begin]], phase[order[end:]] = DONE, LATER
    allowed = [d for d in states(graph, op) if d[phase == DONE].all() and not d[phase == LATER].any()]
    cut = Cuts(graph, Needs(graph)).least(op, phase)
    assert cut.need == min(needed(graph, op, done) for done in allowed)
    assert any((cut.done == done).all() for done in allowed)


def test_the_bound_is_tight_on_layered_graphs() -> None:
    graph = layered(200, 0)
    assert lower_bound(graph, Problem(), graph.arrays.topological) >= lower_bound(graph, Problem())
    plan = optimize(graph, method="min-cut", evaluations=2_000)
    assert plan.bound is not None
    assert plan.bound <= plan.value <= 1.3 * plan.bound  # without cuts it would be 1.84 times the bound


def test_sizes_whose_sum_just_fits_into_64_bits() -> None:
    ops = (
        Op("a", outputs=(Tensor("t", 2**62),)),
        Op("b", outputs=(Tensor("u", 2**62 - 1),)),
        Op("c", inputs=("t", "u")),
        Op("d", after=("c",)),
        Op("e", after=("a",)),
    )
    graph = ComputationGraph("huge", ops)
    cuts = Cuts(graph, Needs(graph))
    assert [cuts.least(op).need for op in range(5)] == [2**62, 2**62 - 1, 2**63 - 1, 0, 0]
    assert 0.999 * 2**63 <= lower_bound(graph, Problem()) <= 2**63 - 1


# Probing: never above the best order, and equal to it on some graphs where single cuts are below


def least_peak(graph: ComputationGraph) -> tuple[int, list[np.ndarray]]:
    """The least peak of all orders; and the orders."""
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


# The first layers of NASNet: `p` and `m` are computed from `a`; ops with separate outputs read each of them.
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


def test_either_first_op_runs_while_both_tensors_are_live() -> None:
    least, orders = least_peak(FORK)
    assert least == 50
    assert lower_bound(FORK, Problem()) == 48  # by cuts alone
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
    assert bounds == sorted(bounds)
    assert max(bounds) <= full <= exact.evaluate(graph, Problem(), [0] * 60, order).peak_memory[0]
