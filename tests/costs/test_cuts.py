"""Minimum cuts: what an op needs at least is what its best state needs, found by trying all states."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.costs.bounds import lower, lower_bound
from graphrl.costs.bounds.cuts import DONE, LATER, OPEN, Cuts, Needs
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.optimize import optimize
from graphrl.solvers.flow import Flow, Usage


def states(graph: ComputationGraph, op: int) -> list[np.ndarray]:
    """All sets of ops that hold an op and their own predecessors, and no successor of the op: `[n] bool` each."""
    n = graph.arrays.num_ops
    before, after = graph.arrays.dependencies()
    every = (np.array(bits, bool) for bits in itertools.product((False, True), repeat=n))
    closed = (done for done in every if done[op] and not (done[after] & ~done[before]).any())
    return [done for done in closed if not done[after[before == op]].any()]


def needed(graph: ComputationGraph, op: int, done: np.ndarray) -> int:
    """Bytes while an op of a graph without aliases and reuses runs as the last of some ops."""
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


@given(graphs(max_ops=10), st.integers(0, 9))
def test_no_order_needs_less_than_a_cut(graph: ComputationGraph, seed: int) -> None:
    op = seed % graph.arrays.num_ops
    flow = Flow(graph)
    usage, order = Usage(flow), np.array(flow.topological)
    assert Cuts(graph, Needs(graph)).least(op).need <= usage(order)[order == op]


def test_other_weights_lead_to_other_cuts() -> None:
    graph = layered(100, 0)
    needs = Needs(graph)
    cuts, sizes = Cuts(graph, needs), needs.least[needs.least > 0]
    rng = np.random.default_rng(0)
    cut_sets = {cuts.least(50, weight=rng.integers(1, 1000, len(sizes))).done.tobytes() for _ in range(20)}
    assert len(cut_sets) > 1


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


@pytest.mark.parametrize("devices", [1, 2])
def test_cuts_raise_the_bound(devices: int) -> None:
    graph, problem = layered(100, 1), Problem(devices=devices)  # on two, one op's own needs are the bound
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "CUT_WORK", 0)
        plain = lower_bound(graph, problem)
    assert lower_bound(graph, problem) >= (1.05 if devices == 1 else 1) * plain
