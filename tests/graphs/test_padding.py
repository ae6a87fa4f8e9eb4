"""Graphs as fixed-size arrays: rows and slots encode the whole graph, buckets keep padding small, and graphs share
sizes. Also their view as jraph graphs.
"""

import collections
import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from device_graphs import SIZES, fits, random_graph, random_graphs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from search_graphs import SIZES as DAG_SIZES
from search_graphs import random_dag

from graphrl.compare.runs import Executor, make_runs
from graphrl.costs.problem import Problem
from graphrl.errors import GraphError
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.features import node_features, padded_features
from graphrl.graphs.graph import NONE, ComputationGraph, Op, Tensor
from graphrl.graphs.jraph_view import to_graphs_tuple
from graphrl.graphs.padding import (
    NEVER,
    READS,
    ROW_WIDTH,
    WAITS,
    PaddedGraph,
    Sizes,
    bucket,
    common_sizes,
    octave_sizes,
    pad,
    pad_batch,
    rows_of,
    shared_sizes,
    sizes,
)
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes import brkga_solver

EMPTIEST = ComputationGraph("one", (Op("a"),))


@st.composite
def random(draw: st.DrawFn) -> ComputationGraph:
    graph = random_graph(np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
    assume(fits(graph))
    return graph


def entries(padded: PaddedGraph, kind: int) -> list[tuple[int, int, int]]:
    """Every row entry of a kind as (row's tensor, row's op, entry)."""
    row, column = np.nonzero(np.asarray(padded.row_kind) == kind)
    table = np.stack([padded.row_tensor[row], padded.row_owner[row], padded.row_entry[row, column]], 1)
    return [tuple(each) for each in table.tolist()]


@given(random())
def test_every_use_and_every_control_edge_stands_once_in_the_rows(graph: ComputationGraph) -> None:
    a, padded = graph.arrays, pad(graph, SIZES)
    reads = collections.Counter((tensor, op) for tensor, _, op in entries(padded, READS))
    assert reads == collections.Counter(zip(a.use_tensor.tolist(), a.use_op.tolist(), strict=True))
    assert all(a.producer[tensor] == owner for tensor, owner, _ in entries(padded, READS))
    waits = collections.Counter((owner, op) for _, owner, op in entries(padded, WAITS))
    assert waits == collections.Counter(zip(a.control_source.tolist(), a.control_target.tolist(), strict=True))
    kind, entry = np.asarray(padded.row_kind), np.asarray(padded.row_entry)
    assert set(np.unique(kind)) <= {0, READS, WAITS}
    assert (entry[kind == 0] == SIZES.slots).all()
    for row_kind, row_entry in zip(kind, entry, strict=True):
        listed = row_entry[row_kind > 0].tolist()
        assert len(set(listed)) == len(listed)  # an op once in a row


@given(random())
def test_rows_of_ops_and_tensors_are_consecutive_and_flagged(graph: ComputationGraph) -> None:
    a, padded = graph.arrays, pad(graph, SIZES)
    n, t, real = a.num_ops, a.num_tensors, sizes(graph)
    owner, tensor = np.asarray(padded.row_owner)[: real.rows], np.asarray(padded.row_tensor)[: real.rows]
    for op in range(n):
        rows = np.flatnonzero(owner == op)
        assert (rows == padded.op_row[op] + np.arange(int(padded.op_rows[op]))).all()
        assert padded.row_ends_op[rows].tolist() == [False] * (len(rows) - 1) + [True]
    for i in range(t):
        rows = int(padded.tensor_row[i]) + np.arange(int(padded.tensor_rows[i]))
        assert (tensor[rows] == i).all()
        assert padded.row_ends_tensor[rows].tolist() == [False] * (len(rows) - 1) + [True]
        read = np.flatnonzero((np.asarray(padded.row_kind) == READS).any(1) & (np.asarray(padded.row_tensor) == i))
        assert set(read.tolist()) <= set(rows.tolist())  # a transfer's walk meets all readers of the tensor
    assert padded.op_rows[:n].sum() == real.rows
    assert real.rows <= n + t + (len(a.use_op) + len(a.control_target)) // ROW_WIDTH


@given(random())
def test_slots_are_ops_and_then_further_tensors(graph: ComputationGraph) -> None:
    a, padded = graph.arrays, pad(graph, SIZES)
    slot_tensor = np.asarray(padded.slot_tensor)
    owned = slot_tensor[slot_tensor < SIZES.tensors]
    assert sorted(owned.tolist()) == list(range(a.num_tensors))  # one slot each
    for op in range(a.num_ops):
        first = np.flatnonzero(a.producer == op)[:1]
        assert slot_tensor[op] == (first[0] if len(first) else SIZES.tensors)
    for row in range(sizes(graph).rows):
        tensor = padded.row_tensor[row]
        slot = np.flatnonzero(slot_tensor == tensor)[0] if tensor < SIZES.tensors else padded.row_owner[row]
        assert padded.row_slot[row] == slot


@given(random())
def test_indegrees_count_what_rows_release(graph: ComputationGraph) -> None:
    padded = pad(graph, SIZES)
    released = np.zeros(SIZES.slots + 1, int)
    np.add.at(released, np.asarray(padded.row_entry)[np.asarray(padded.row_kind) > 0], 1)
    n = graph.arrays.num_ops
    np.testing.assert_array_equal(padded.indegree[:n], released[:n])
    assert (np.asarray(padded.indegree)[n:] == NEVER).all()


@given(random())
def test_units_lose_no_digit(graph: ComputationGraph) -> None:
    a, padded = graph.arrays, pad(graph, SIZES)
    n, t = a.num_ops, a.num_tensors
    np.testing.assert_array_equal(padded.tensor_bytes[:t] * padded.byte_unit, a.tensor_bytes)
    np.testing.assert_array_equal(padded.workspace[:n] * padded.byte_unit, a.workspace_bytes)
    np.testing.assert_array_equal(padded.runtime[:n] * padded.second_unit, a.runtime)
    np.testing.assert_array_equal(padded.owned_bytes[:t] > 0, (a.alias == NONE) & (a.tensor_bytes > 0))


def test_units_of_huge_and_of_no_values() -> None:
    huge = ComputationGraph("huge", (Op("a", outputs=(Tensor("t", 2**62),), runtime=1e29),))
    padded = pad(huge)
    assert padded.tensor_bytes[0] * padded.byte_unit == 2.0**62
    assert 1 <= padded.runtime[0] < 2**11
    assert pad(EMPTIEST).byte_unit == pad(EMPTIEST).second_unit == 1


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_buckets_are_monotone_and_waste_little(a: int, b: int) -> None:
    small, large = sorted((a, b))
    assert bucket(small) <= bucket(large)
    assert bucket(small) >= small
    assert bucket(bucket(small)) == bucket(small)
    if small > 8:
        assert bucket(small) <= 1.125 * small


def test_buckets_are_few() -> None:
    assert bucket(0) == 0
    assert {bucket(count) for count in range(1, 9)} == {8}
    for octave in range(3, 16):
        assert len({bucket(count) for count in range(2**octave + 1, 2 ** (octave + 1) + 1)}) == 8


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Sizes)])
def test_too_small_sizes_are_an_error(field: str) -> None:
    graph = max(random_graphs(np.random.default_rng(0), 20), key=lambda graph: graph.arrays.num_ops)
    real = sizes(graph)
    assert pad(graph, real).sizes == real
    with pytest.raises(GraphError, match=r"graph 'random' has sizes .*, more than the .* it is padded to"):
        pad(graph, dataclasses.replace(real, **{field: getattr(real, field) - 1}))


def test_slots_of_further_tensors_are_not_used_up_by_more_ops() -> None:
    """Padding ops take slots behind the ops'; slots of further tensors come after them."""
    graph = ComputationGraph("two", (Op("a", outputs=(Tensor("t", 1), Tensor("u", 1))),))
    real = sizes(graph)
    assert (real.ops, real.slots) == (1, 2)
    larger = dataclasses.replace(common_sizes([graph]), ops=16, slots=16)
    with pytest.raises(GraphError):
        pad(graph, larger)
    padded = pad(graph, dataclasses.replace(larger, slots=17))
    assert padded.slot_tensor[[0, 16]].tolist() == [0, 1]


def test_batches_have_a_leading_axis() -> None:
    graphs = random_graphs(np.random.default_rng(1), 3)
    batch = pad_batch(graphs, SIZES)
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(batch))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda leaf: leaf[1], batch), pad(graphs[1], SIZES))


@given(random())
def test_sharers_come_after_the_owners_of_their_buffers(graph: ComputationGraph) -> None:
    a, padded = graph.arrays, pad(graph, SIZES)
    count = sizes(graph).shares
    tensor, of = np.asarray(padded.share_tensor), np.asarray(padded.share_of)
    assert (tensor[count:] == SIZES.tensors).all()
    place = {shared: index for index, shared in enumerate(tensor[:count].tolist())}
    for index in range(count):
        assert of[index] == (a.reuses if padded.share_reuses[index] else a.alias)[tensor[index]]
        assert place.get(int(of[index]), -1) < index
    rank = np.argsort(a.topological)[a.producer[tensor[:count]]]
    assert (np.diff(rank) >= 0).all()
    same_op = np.diff(rank) == 0
    assert (np.diff(tensor[:count])[same_op] > 0).all()  # of two candidates, the first output gets the buffer


def test_rows_are_made_once_and_go_with_their_graph() -> None:
    graph = random_graph(np.random.default_rng(0))
    rows = weakref.ref(rows_of(graph.arrays))
    pad(graph)
    assert rows_of(graph.arrays) is rows()
    del graph
    gc.collect()
    assert rows() is None


@given(random())
def test_octaves_hold_a_graph_in_powers_of_two(graph: ComputationGraph) -> None:
    to = octave_sizes(graph)
    assert to.ops & (to.ops - 1) == 0
    assert to.ops < 2 * max(len(graph.ops), 8)
    pad(graph, to)  # it raises if the graph does not fit


# Sizes that graphs share.


RENDEZVOUS = Problem("makespan", 2)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8))
def test_shared_sizes_hold_every_graph_and_alone_it_has_its_own_bucket(seeds: list[int]) -> None:
    graphs = [random_graph(np.random.default_rng(seed)) for seed in seeds]
    shared = shared_sizes(graphs)
    for graph, to in zip(graphs, shared, strict=True):
        assert pad(graph, to).sizes == to
    assert shared_sizes(graphs[:1]) == [common_sizes(graphs[:1])]


def test_shared_sizes_are_few_and_close() -> None:
    graphs = load_graphs(["regal-like:x24"])
    shared = shared_sizes(graphs)
    assert len(set(shared)) <= 10 < len({common_sizes([graph]) for graph in graphs})
    for graph, to in zip(graphs, shared, strict=True):
        real = sizes(graph)
        assert to.ops <= 1.25 * 1.125 * real.ops
        assert to.tensors <= 1.25 * 1.125 * real.tensors
        assert to.uses <= 2 * 1.125 * real.uses


@pytest.mark.parametrize("method", ["brkga", "brkga+", "auto"])
def test_padding_changes_no_result(method: str) -> None:
    graph, solve = random_dag(5), find_solver(method)
    to = Sizes(**{name: 8 + 3 * size // 2 for name, size in dataclasses.asdict(common_sizes([graph])).items()})
    own, padded = (solve(Task(graph, RENDEZVOUS, Budget(300), 1, sizes=sizes)) for sizes in (None, to))
    assert (padded.placement, padded.order) == (own.placement, own.order)


def test_a_comparison_compiles_a_program_for_graphs_of_similar_sizes() -> None:
    graphs = load_graphs([f"series-parallel:{ops}" for ops in (100, 110, 120)])
    runs = make_runs(graphs, RENDEZVOUS, ["brkga"], [0], Budget(160), cores=1)
    assert len({run.sizes for run in runs}) == 1 < len({common_sizes([graph]) for graph in graphs})
    programs = getattr(brkga_solver._evolve, "_cache_size")  # noqa: B009  (types do not know it)
    before = programs()
    executor = Executor()
    assert [executor.execute(run).error for run in runs] == [None] * 3
    assert programs() == before + 1


def test_under_a_budget_in_seconds_every_graph_has_its_own_bucket() -> None:
    runs = make_runs(load_graphs(["layered:50x2"]), RENDEZVOUS, ["brkga"], [0], Budget(None, 1.0), cores=1)
    assert [run.sizes for run in runs] == [None, None]
    assert len({dataclasses.replace(run, sizes=common_sizes([run.graph])).key for run in runs}) == 2


# The jraph view.


def graphs_tuple(graph: ComputationGraph, sizes: Sizes) -> jraph.GraphsTuple:
    """A graph with its own features, padded."""
    nodes, edges = map(jnp.asarray, padded_features(graph, sizes))
    return to_graphs_tuple(jax.tree.map(jnp.asarray, pad(graph, sizes)), nodes, edges)


def test_edges_are_uses_and_padding_is_a_graph_of_its_own() -> None:
    graph = random_dag(0, 20)
    a, view = graph.arrays, graphs_tuple(graph, DAG_SIZES)
    e = len(a.use_op)
    np.testing.assert_array_equal(view.n_node, [20, DAG_SIZES.ops + 1 - 20])
    np.testing.assert_array_equal(view.n_edge, [e, DAG_SIZES.uses - e])
    np.testing.assert_array_equal(view.senders[:e], a.producer[a.use_tensor])
    np.testing.assert_array_equal(view.receivers[:e], a.use_op)
    assert np.all(np.asarray(view.senders[e:]) >= 20)
    assert np.all(np.asarray(view.receivers[e:]) >= 20)
    np.testing.assert_array_equal(view.nodes[:20], node_features(graph))
    assert not np.any(np.asarray(view.nodes[20:]))


def test_control_edges_follow_the_uses_and_have_no_features() -> None:
    ops = (
        Op("a", runtime=1.0, outputs=(Tensor("x", 4),)),
        Op("b", runtime=1.0, inputs=("x",), after=("a",)),
        Op("c", runtime=1.0, inputs=("x",), after=("b",)),
    )
    sizes = Sizes(ops=8, tensors=8, slots=8, rows=16, uses=8, controls=8, shares=0)
    view = graphs_tuple(ComputationGraph("controls", ops), sizes)
    assert view.edges.shape[0] == 16
    np.testing.assert_array_equal(view.n_edge, [4, 12])
    np.testing.assert_array_equal(view.senders[:4], [0, 0, 0, 1])
    np.testing.assert_array_equal(view.receivers[:4], [1, 2, 1, 2])
    assert np.all(np.asarray(view.senders[4:]) == 8)
    assert np.all(np.asarray(view.receivers[4:]) == 8)
    assert np.any(np.asarray(view.edges[:2]))
    assert not np.any(np.asarray(view.edges[2:]))


def test_a_network_sees_no_padding_not_even_in_a_full_bucket() -> None:
    network = jraph.GraphNetwork(
        update_edge_fn=lambda edges, senders, receivers, globals_: jnp.concatenate([edges, senders - receivers], -1),
        update_node_fn=lambda nodes, sent, received, globals_: jnp.concatenate([nodes, sent, received], -1),
    )
    for ops in (17, DAG_SIZES.ops):
        graph = random_dag(ops, ops)
        wide = Sizes(ops=48, tensors=48, slots=48, rows=64, uses=80, controls=0, shares=0)
        small, large = (jax.jit(network)(graphs_tuple(graph, sizes)) for sizes in (DAG_SIZES, wide))
        np.testing.assert_allclose(small.nodes[:ops], large.nodes[:ops], rtol=1e-5, atol=1e-5)
        assert np.all(np.isfinite(np.asarray(small.nodes)))
