"""The device code against its host twin: orders, makespans and peaks, to the last digit."""

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
from worked_example import MAKESPANS, TINY

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.device.decisions import Decisions, DeviceProblem, from_genes, num_genes, to_genes
from graphrl.costs.device.evaluate import DeviceCosts, evaluate, fitness
from graphrl.costs.problem import Problem
from graphrl.graphs.padding import PaddedGraph, pad_batch

GRAPHS, LANES = 12, 10  # of each problem: 12 * 12 * 10 triples in all


@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_name)
def test_equals_the_host_twin(problem: Problem) -> None:
    rng = np.random.default_rng(100 * problem.devices + len(problem.transfer))
    graphs = random_graphs(rng, GRAPHS)
    padded = pad_batch(graphs, SIZES)
    decisions = random_decisions(rng, GRAPHS, LANES, problem.devices)
    costs = jax.device_get(compiled(problem)(padded, decisions))
    for (i, graph), lane in itertools.product(enumerate(graphs), range(LANES)):
        check(graph, costs, padded, (i, lane), (problem, *of_graph(decisions, graph, i, lane)))


@pytest.mark.parametrize("problem", PROBLEMS, ids=problem_name)
def test_never_below_the_bounds(problem: Problem) -> None:
    rng = np.random.default_rng(7)
    graphs = random_graphs(rng, GRAPHS)
    padded = pad_batch(graphs, SIZES)
    costs = compiled(problem)(padded, random_decisions(rng, GRAPHS, LANES, problem.devices))
    for i, graph in enumerate(graphs):
        peak = costs.peak_memory[:, i].max(0) * padded.byte_unit[i]
        assert peak.min() >= lower_bound(graph, dataclasses.replace(problem, objective="peak_memory"))
        assert costs.makespan[i].min() * padded.second_unit[i] >= lower_bound(graph, problem)


@settings(max_examples=60)
@given(st.data())
def test_equals_the_host_twin_on_small_graphs(data: st.DataObject) -> None:
    problem = PROBLEMS[6]  # rendezvous on 3 devices
    graph = data.draw(drawn_graphs())
    assume(fits(graph))
    placement, op_keys, transfer_keys = data.draw(drawn_decisions(graph, problem))
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    decisions = random_decisions(np.random.default_rng(0), 1, 1, problem.devices)
    np.asarray(decisions.placement)[:n, 0, 0] = placement
    np.asarray(decisions.op_keys)[:n, 0, 0] = op_keys
    np.asarray(decisions.transfer_keys)[:, :t, 0, 0] = transfer_keys.T
    padded = pad_batch([graph], SIZES)
    costs = jax.device_get(compiled(problem)(padded, decisions))
    check(graph, costs, padded, (0, 0), (problem, placement, op_keys, transfer_keys))


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


# The worked example of graphrl/costs


def tiny_costs(problem: Problem, placement: list[int], op_keys: list[float]) -> tuple[list[int], float, list[float]]:
    padded = pad_batch([TINY])
    n, t = padded.sizes.ops, padded.sizes.tensors
    decisions = Decisions(
        np.pad(np.array(placement, np.int32), (0, n - 4))[:, None, None],  # type: ignore[arg-type]
        np.pad(np.array(op_keys, np.float32), (0, n - 4))[:, None, None],  # type: ignore[arg-type]
        np.full((problem.devices, t, 1, 1), 0.5, np.float32),  # type: ignore[arg-type]
    )
    costs = compiled(problem)(padded, decisions)
    order = host_order(np.asarray(costs.events)[:, 0, 0], TINY, problem.devices, n, t)
    peaks = costs.peak_memory[:, 0, 0] * padded.byte_unit[0]
    return order.tolist(), float(costs.makespan[0, 0] * padded.second_unit[0]), peaks.tolist()


@pytest.mark.parametrize(
    ("op_keys", "order", "peak"), [([0.5] * 4, [0, 1, 2, 3], 14.0), ([0.5, 0.1, 0.9, 0.5], [0, 2, 1, 3], 12.0)]
)
def test_worked_example_on_one_device(op_keys: list[float], order: list[int], peak: float) -> None:
    assert tiny_costs(Problem(), [0, 0, 0, 0], op_keys) == (order, 7.0, [peak])


@pytest.mark.parametrize(("transfer", "latency", "bandwidth", "makespan"), MAKESPANS)
def test_worked_example_on_two_devices(transfer: str, latency: float, bandwidth: float, makespan: float) -> None:
    problem = Problem("makespan", 2, transfer, latency, bandwidth)  # type: ignore[arg-type]
    a0_to_1, c0_to_0 = 4 + 0 * 2 + 1, 4 + 2 * 2 + 0
    order = [0, 1, a0_to_1, 2, c0_to_0, 3]
    assert tiny_costs(problem, [0, 0, 1, 0], [0.5] * 4) == (order, makespan, [9.0, 11.0])


# Fitness and genes


def test_fitness_ranks_as_the_host_does() -> None:
    """Feasible solutions before infeasible ones, whatever their makespans, and those by their excess."""
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
        # of equal excess the host also says which is faster; a search need not
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


@pytest.mark.parametrize("problem", [PROBLEMS[4], PROBLEMS[6]], ids=problem_name)
def test_larger_padding_changes_nothing(problem: Problem) -> None:
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


def test_a_batch_equals_a_loop_and_a_vmap() -> None:
    problem = PROBLEMS[5]  # link on 2 devices
    rng = np.random.default_rng(12)
    graphs = random_graphs(rng, GRAPHS)
    padded = pad_batch(graphs, SIZES)
    decisions = random_decisions(rng, GRAPHS, LANES, problem.devices)
    batch = compiled(problem)(padded, decisions)

    def one(graph: PaddedGraph, decisions: Decisions) -> DeviceCosts:
        # the number of steps depends on what else is in a batch, the steps that run a node do not
        return evaluate(graph, decisions, DeviceProblem.of(problem))._replace(events=jax.numpy.int32(0))

    split = [jax.tree.map(lambda x, i=i: x[i : i + 1], padded) for i in range(GRAPHS)]
    lanes = [jax.tree.map(lambda x, i=i: x[..., i : i + 1, :], decisions) for i in range(GRAPHS)]
    jitted = jax.jit(one)
    loop = [jitted(graph, part) for graph, part in zip(split, lanes, strict=True)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *split)
    vmapped = jax.jit(jax.vmap(one))(stacked, jax.tree.map(lambda *leaves: np.stack(leaves), *lanes))
    for i in range(GRAPHS):
        np.testing.assert_array_equal(batch.makespan[i], loop[i].makespan[0])
        np.testing.assert_array_equal(batch.peak_memory[:, i], loop[i].peak_memory[:, 0])
        np.testing.assert_array_equal(batch.makespan[i], vmapped.makespan[i, 0])
        np.testing.assert_array_equal(batch.peak_memory[:, i], vmapped.peak_memory[i, :, 0])


def test_a_mixed_set_of_graphs_compiles_once() -> None:
    problem = PROBLEMS[1]
    rng = np.random.default_rng(13)
    traced = jax.jit(
        chex.assert_max_traces(lambda graph, decisions: evaluate(graph, decisions, DeviceProblem.of(problem)), n=1)
    )
    for graph in random_graphs(rng, 5):
        traced(pad_batch([graph], SIZES), random_decisions(rng, 1, 3, problem.devices))
