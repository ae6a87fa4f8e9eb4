"""Memory maps on the device and in compiled host code: equal to the exact twin for any padding and batch."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from map_problems import WORKED_CHIP, WORKED_GRAPH, asked, problems

from graphrl.costs.maps import device, exact
from graphrl.costs.maps.chip import BANDWIDTHS, NNP_I, PEAKS, SECONDS, ChipMemory, MemoryChip
from graphrl.costs.maps.device import MapSizes, PaddedMapProblem, common_sizes, pad, pad_batch
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.maps.task import evaluate_all, maps_of

SIZES = MapSizes(steps=12, rows=24, reads=8)
PROBLEMS = {name: map_problem(graph(), NNP_I) for name, graph in WORKLOADS.items()}
LARGE = common_sizes(list(PROBLEMS.values()))
evaluate = jax.jit(device.evaluate)


def on_device(problem: MapProblem, to: MapSizes, weights: np.ndarray, outputs: np.ndarray) -> device.DeviceMapCosts:
    """Costs of maps `[p, n]`, with padding filled with arbitrary values."""
    full = [np.full((to.steps, len(part)), problem.memories - 1, np.int32) for part in (weights, outputs)]
    for array, part in zip(full, (weights, outputs), strict=True):
        array[: problem.steps] = part.T
    return evaluate(jax.tree.map(jnp.asarray, pad(problem, to)), *map(jnp.asarray, full))


def assert_same(problem: MapProblem, costs: device.DeviceMapCosts, weights: np.ndarray, outputs: np.ndarray) -> None:
    """Checks that every map's costs on the device are those of the twin."""
    compiler = exact.compiler(problem).latency
    rewards = device.reward(pad(problem), costs)
    for i in range(len(weights)):
        true = exact.evaluate(problem, weights[i], outputs[i])
        assert costs.weights[: problem.steps, i].tolist() == true.weights.tolist()
        assert costs.outputs[: problem.steps, i].tolist() == true.outputs.tolist()
        assert bool(costs.valid[i]) == true.valid
        assert float(costs.latency[i]) == pytest.approx(true.latency, rel=1e-6)
        assert float(costs.error[i]) == pytest.approx(true.error, abs=1e-6)
        assert float(rewards[i]) == pytest.approx(true.reward(compiler), rel=3e-6, abs=1e-6)


@settings(max_examples=40)
@given(st.data())
def test_the_device_is_the_twin(data: st.DataObject) -> None:
    problem = data.draw(problems())
    maps = [data.draw(asked(problem)) for _ in range(2)]
    weights, outputs = (np.stack(parts) for parts in zip(*maps, strict=True))
    assert_same(problem, on_device(problem, SIZES, weights, outputs), weights, outputs)


@given(st.data())
def test_compiled_host_code_is_the_twin(data: st.DataObject) -> None:
    problem = data.draw(problems())
    maps = np.stack([np.concatenate(data.draw(asked(problem))) for _ in range(3)])
    given_maps, seconds, moved = np.zeros_like(maps), np.zeros(3), np.zeros(3, np.int64)
    evaluate_all(maps_of(problem), maps, given_maps, seconds, moved)
    for i in range(3):
        true = exact.evaluate(problem, *np.split(maps[i], 2))
        assert given_maps[i].tolist() == [*true.weights.tolist(), *true.outputs.tolist()]
        assert seconds[i] == pytest.approx(true.latency, rel=1e-12)
        assert moved[i] == true.moved_bytes


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_on_the_device(name: str) -> None:
    problem = PROBLEMS[name]
    weights, outputs = np.random.default_rng(0).integers(0, 3, (2, 8, problem.steps))
    assert_same(problem, on_device(problem, LARGE, weights, outputs), weights, outputs)


def test_large_graphs_keep_their_digits() -> None:
    problem = map_problem(layered(1000, 0), MemoryChip("small", 1e12, NNP_I.memories, page=1))
    weights, outputs = np.random.default_rng(0).integers(0, 3, (2, 4, problem.steps))
    assert_same(problem, on_device(problem, common_sizes([problem]), weights, outputs), weights, outputs)


def test_padding_changes_nothing() -> None:
    problem = PROBLEMS["resnet50"]
    weights, outputs = np.random.default_rng(0).integers(0, 3, (2, 8, problem.steps))
    tight, loose = (on_device(problem, to, weights, outputs) for to in (MapSizes(57, 57, 0), LARGE))
    chex.assert_trees_all_equal(tight.latency, loose.latency)
    chex.assert_trees_all_equal(tight.error, loose.error)
    chex.assert_trees_all_equal((tight.weights, tight.outputs), (loose.weights[:57], loose.outputs[:57]))


def test_a_batch_of_problems_is_each_of_them_and_compiles_once() -> None:
    each = [PROBLEMS[name] for name in ("resnet50", "resnet101")]
    asked_maps = np.random.default_rng(0).integers(0, 3, (2, 2, LARGE.steps, 8)).astype(np.int32)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def batched(problem: PaddedMapProblem, weights: jax.Array, outputs: jax.Array) -> device.DeviceMapCosts:
        return jax.vmap(device.evaluate)(problem, weights, outputs)

    weights, outputs = map(jnp.asarray, asked_maps)
    together = batched(pad_batch(each, LARGE), weights, outputs)
    for i, problem in enumerate(each):
        alone = evaluate(pad(problem, LARGE), weights[i], outputs[i])
        chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], together), alone, rtol=1e-6)
    batched(pad_batch(each[::-1], LARGE), weights, outputs)


@pytest.mark.parametrize("end", [0, 1])
def test_the_most_work_on_the_slowest_and_the_fastest_chip_is_finite(end: int) -> None:
    rate, seconds = BANDWIDTHS[end], SECONDS[1 - end]
    graph = ComputationGraph("most", (Op("a", flops=10**30, outputs=(Tensor("a0", 2**62),), weight_bytes=2**61),))
    memories = ChipMemory("big", None, rate, rate, seconds), ChipMemory("small", 8, rate, rate, seconds)
    problem = map_problem(graph, MemoryChip("extreme", PEAKS[end], memories, seconds))
    padded = pad(problem)  # a warning of an overflow would be an error
    assert np.isfinite(padded.compiler_latency)
    assert padded.compute[0] > 0


def test_too_small_sizes_and_too_many_pages_are_refused() -> None:
    with pytest.raises(ProblemError, match="more than the"):
        pad(map_problem(WORKED_GRAPH, WORKED_CHIP), MapSizes(1, 1, 0))
    graph = PROBLEMS["bert"].graph
    memories = (ChipMemory("far", None, 1, 1), ChipMemory("near", None, 2, 2))
    pad(map_problem(graph, MemoryChip("near", 1.0, memories, page=1)))
    big = replace(graph, ops=(replace(graph.ops[0], weight_bytes=2**31), *graph.ops[1:]))
    with pytest.raises(ProblemError, match=r"pages of 1 B: below 2\^30"):
        pad(map_problem(big, MemoryChip("near", 1.0, memories, page=1)))
