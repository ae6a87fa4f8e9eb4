"""The device code against its host twin: orders, makespans and peaks are equal to the last digit."""

import dataclasses
import functools
import itertools

import chex
import jax
import numpy as np
import pytest
from device_graphs import (
    PROBLEMS,
    SIZES,
    check,
    compiled,
    fits,
    host_order,
    of_graph,
    problem_name,
    random_decisions,
    random_graphs,
    resized,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_graphs import decisions as drawn_decisions
from random_graphs import graphs as drawn_graphs

from graphrl.costs import exact
from graphrl.costs.device.decisions import Decisions, DeviceProblem, from_genes, num_genes, to_genes
from graphrl.costs.device.evaluate import DeviceCosts, evaluate, fitness
from graphrl.costs.problem import MAX_DEVICES, Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import PaddedGraph, pad_batch

GRAPHS, LANES = 12, 10
# every number of devices and every model
CASES = {f"rows-{problem_name(PROBLEMS[i])}": (PROBLEMS[i], "rows") for i in (0, 3, 4, 5, 6, 8)}
CASES |= {f"dense-{problem_name(PROBLEMS[i])}": (PROBLEMS[i], "dense") for i in (0, 3, 4, 8)}
CASES |= {f"host-{problem_name(problem)}": (problem, "host") for problem in PROBLEMS}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_host_twin(case: str) -> None:
    """Rows and dense in pure JAX, and host, compiled for CPUs."""
    problem, form = CASES[case]
    rng = np.random.default_rng(100 * problem.devices + len(problem.transfer))
    graphs = random_graphs(rng, GRAPHS)
    padded = pad_batch(graphs, SIZES)
    decisions = random_decisions(rng, GRAPHS, LANES, problem.devices)
    costs = jax.device_get(compiled(problem, form)(padded, decisions))
    for (i, graph), lane in itertools.product(enumerate(graphs), range(LANES)):
        check(graph, costs, padded, (i, lane), (problem, *of_graph(decisions, graph, i, lane)))


@pytest.mark.parametrize("form", ["rows", "host"])
@settings(max_examples=40)
@given(data=st.data())
def test_equals_the_host_twin_on_small_graphs(form: str, data: st.DataObject) -> None:
    problem = PROBLEMS[6]  # rendezvous on 3 devices
    graph = data.draw(drawn_graphs())
    assume(fits(graph))
    placement, op_keys, transfer_keys = data.draw(drawn_decisions(graph, problem))
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    decisions = random_decisions(np.random.default_rng(0), 1, LANES, problem.devices)
    np.asarray(decisions.placement)[:n, 0, 0] = placement
    np.asarray(decisions.op_keys)[:n, 0, 0] = op_keys
    np.asarray(decisions.transfer_keys)[:, :t, 0, 0] = transfer_keys.T
    padded = pad_batch([graph], SIZES)
    costs = jax.device_get(compiled(problem, form)(padded, decisions))
    check(graph, costs, padded, (0, 0), (problem, placement, op_keys, transfer_keys))


def test_the_largest_number_of_devices() -> None:
    problem = Problem("makespan", MAX_DEVICES, "link", 0.5, 4.0)
    rng = np.random.default_rng(5)
    graphs = random_graphs(rng, 4)
    decisions = random_decisions(rng, 4, 3, MAX_DEVICES)
    np.asarray(decisions.placement)[::2] = MAX_DEVICES - 1
    padded = pad_batch(graphs, SIZES)
    costs = jax.device_get(compiled(problem, "host")(padded, decisions))
    for (i, graph), lane in itertools.product(enumerate(graphs), range(3)):
        check(graph, costs, padded, (i, lane), (problem, *of_graph(decisions, graph, i, lane)))


def test_the_random_graphs_try_every_rule() -> None:
    graphs = random_graphs(np.random.default_rng(0), 60)
    arrays = [graph.arrays for graph in graphs]
    assert any((a.tensor_bytes == 0).any() for a in arrays)
    assert any(len(set(a.producer.tolist())) < a.num_tensors for a in arrays)  # several outputs
    assert any(a.kept.any() for a in arrays)
    assert any(np.bincount(a.use_tensor).max(initial=0) > 8 for a in arrays)  # rows of one tensor
    assert any(np.bincount(a.control_source).max(initial=0) > 8 for a in arrays)
    data = [set(zip(a.producer[a.use_tensor].tolist(), a.use_op.tolist(), strict=True)) for a in arrays]
    control = [set(zip(a.control_source.tolist(), a.control_target.tolist(), strict=True)) for a in arrays]
    assert any(x & y for x, y in zip(data, control, strict=True))  # side by side
    assert sum((a.alias >= 0).sum() for a in arrays) > 60
    assert sum((a.reuses >= 0).sum() for a in arrays) > 60
    assert any((a.alias == -2).any() for a in arrays)  # of an external input


# Chains of shared buffers


def op(name: str, inputs: str, *outputs: Tensor) -> Op:
    return Op(name, inputs=tuple(inputs.split()), outputs=outputs)


CHAINS = [
    ComputationGraph(
        "each output takes over the buffer of the one before",
        (
            op("a", "", Tensor("a0", 13)),
            op("b", "a0", Tensor("b0", 12, reuses="a0")),
            op("c", "b0", Tensor("c0", 11, reuses="b0")),
            op("d", "c0", Tensor("d0", 11, reuses="c0"), Tensor("d1", 1)),
            op("e", "d0 d1", Tensor("e0", 10, reuses="d0")),
            op("f", "e0", Tensor("f0", 8)),
        ),
    ),
    ComputationGraph(
        "aliases of aliases, and two outputs that want their buffer",
        (
            op("a", "", Tensor("a0", 9)),
            op("b", "a0", Tensor("b0", 9, alias="a0")),
            op("c", "b0", Tensor("c0", 8, alias="b0"), Tensor("c1", 2)),
            op("d", "c0 a0", Tensor("d0", 5, reuses="c0"), Tensor("d1", 4, reuses="a0")),
            op("e", "d0 c1", Tensor("e0", 6)),
            op("f", "d1 e0", Tensor("f0", 1, reuses="d1")),
        ),
    ),
    ComputationGraph(
        "an alias of an external input has no buffer to give",
        (
            op("a", "x", Tensor("a0", 9, alias="x")),
            op("b", "a0", Tensor("b0", 8, reuses="a0")),
            op("c", "a0 b0", Tensor("c0", 7, reuses="a0")),
            op("d", "c0", Tensor("d0", 7, reuses="c0")),
        ),
        inputs=(Tensor("x", 9),),
    ),
    ComputationGraph(
        "a kept alias keeps the buffer, but not its copies elsewhere",
        (
            op("a", "", Tensor("a0", 9)),
            op("b", "a0", Tensor("b0", 9, alias="a0")),
            op("c", "a0", Tensor("c0", 8, reuses="a0")),
            op("d", "b0", Tensor("d0", 7, reuses="b0")),
            op("e", "c0 d0", Tensor("e0", 6)),
        ),
        outputs=("b0",),
    ),
]


@pytest.mark.parametrize("form", ["rows", "host"])
def test_chains_of_shared_buffers_under_every_placement(form: str) -> None:
    problem, padded = PROBLEMS[6], pad_batch(CHAINS, SIZES)
    lanes = 2**6
    decisions = random_decisions(np.random.default_rng(0), len(CHAINS), lanes, problem.devices)
    for i in range(6):
        np.asarray(decisions.placement)[i] = (np.arange(lanes) >> i) % 2 + problem.devices - 2
    costs = jax.device_get(compiled(problem, form)(padded, decisions))
    for (i, graph), lane in itertools.product(enumerate(CHAINS), range(lanes)):
        check(graph, costs, padded, (i, lane), (problem, *of_graph(decisions, graph, i, lane)))


# Fitness and genes


def test_fitness_ranks_as_the_host_does() -> None:
    """Feasible solutions rank before infeasible ones, whatever their makespans; the latter rank by their excess."""
    rng = np.random.default_rng(21)
    problem = dataclasses.replace(PROBLEMS[3], memory_limit=40)
    graphs = [graph for graph in random_graphs(rng, 60) if graph.arrays.num_ops > 12][:GRAPHS]
    padded = pad_batch(graphs, SIZES)
    decisions = random_decisions(rng, GRAPHS, LANES, problem.devices)
    values = np.asarray(jax.jit(functools.partial(fitness, problem=DeviceProblem.of(problem)))(padded, decisions))
    seen = set()
    for i, graph in enumerate(graphs):
        costs = []
        for lane in range(LANES):
            placement, *keys = of_graph(decisions, graph, i, lane)
            order = exact.decode(graph, problem, placement, *keys)
            costs.append(exact.evaluate(graph, problem, placement, order))
        # with equal excess the host also ranks by makespan; a search need not
        ranks = [(cost.excess(problem), cost.feasible(problem) and cost.makespan) for cost in costs]
        assert np.argsort(values[i], kind="stable").tolist() == sorted(range(LANES), key=ranks.__getitem__)
        seen |= {tuple(sorted({cost.feasible(problem) for cost in costs}))}
    assert (False, True) in seen  # some graph has both kinds


def test_genes_and_back() -> None:
    decisions = random_decisions(np.random.default_rng(4), 2, 3, 3)
    genes = to_genes(decisions, 3)
    assert genes.shape == (num_genes(SIZES, 3), 2, 3)
    jax.tree.map(np.testing.assert_array_equal, from_genes(genes, SIZES, 3), decisions)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_equal_affinities_go_to_the_lower_device(devices: int) -> None:
    genes = np.full((num_genes(SIZES, devices), 1, 1), 0.5, np.float32)
    assert (from_genes(jax.numpy.asarray(genes), SIZES, devices).placement == 0).all()


# Batches, padding, compiles


def test_larger_padding_changes_nothing() -> None:
    problem = PROBLEMS[6]
    rng = np.random.default_rng(11)
    graphs = random_graphs(rng, GRAPHS)
    larger = dataclasses.replace(SIZES, ops=40, tensors=72, slots=40 + 32, rows=128, uses=96, controls=56, shares=40)
    decisions = random_decisions(rng, GRAPHS, LANES, problem.devices)
    small = compiled(problem)(pad_batch(graphs, SIZES), decisions)
    large = compiled(problem)(pad_batch(graphs, larger), resized(decisions, larger, rng))
    np.testing.assert_array_equal(small.makespan, large.makespan)
    np.testing.assert_array_equal(small.peak_memory, large.peak_memory)
    events, more_events = np.asarray(small.events), np.asarray(large.events)
    for (i, graph), lane in itertools.product(enumerate(graphs), range(LANES)):
        order = host_order(events[:, i, lane], graph, problem.devices, SIZES.ops, SIZES.tensors)
        same = host_order(more_events[:, i, lane], graph, problem.devices, larger.ops, larger.tensors)
        np.testing.assert_array_equal(order, same)


def test_a_batch_equals_a_loop_and_a_vmap_and_compiles_once() -> None:
    problem = PROBLEMS[6]
    rng = np.random.default_rng(12)
    graphs = random_graphs(rng, GRAPHS)
    padded = pad_batch(graphs, SIZES)
    decisions = random_decisions(rng, GRAPHS, LANES, problem.devices)
    batch = compiled(problem)(padded, decisions)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def vmapped(graphs: PaddedGraph, decisions: Decisions) -> DeviceCosts:
        # the number of steps depends on the rest of a batch, the steps that run a node do not
        def one(graph: PaddedGraph, decisions: Decisions) -> DeviceCosts:
            return evaluate(graph, decisions, DeviceProblem.of(problem))._replace(events=jax.numpy.int32(0))

        return jax.vmap(one)(graphs, decisions)

    split = [jax.tree.map(lambda x, i=i: x[i : i + 1], padded) for i in range(GRAPHS)]
    lanes = [jax.tree.map(lambda x, i=i: x[..., i : i + 1, :], decisions) for i in range(GRAPHS)]
    loop = [compiled(problem)(graph, part) for graph, part in zip(split, lanes, strict=True)]
    for order in (1, -1):
        parts = (split[::order], lanes[::order])
        together = vmapped(*(jax.tree.map(lambda *leaves: np.stack(leaves), *part) for part in parts))
        for i in range(GRAPHS):
            np.testing.assert_array_equal(batch.makespan[i], loop[i].makespan[0])
            np.testing.assert_array_equal(batch.peak_memory[:, i], loop[i].peak_memory[:, 0])
            np.testing.assert_array_equal(batch.makespan[i], together.makespan[::order][i, 0])
            np.testing.assert_array_equal(batch.peak_memory[:, i], together.peak_memory[::order][i, :, 0])
