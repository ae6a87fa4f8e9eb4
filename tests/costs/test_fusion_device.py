"""Fusion on the device: equal to the exact twin for any padding and batch; and the padded graph of its kernels."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import PROBLEMS, SIZES, check, compiled, of_graph, random_decisions
from fusion_graphs import (
    CHIP,
    chain_graph,
    fusable_graphs,
    fusion_priorities,
    fusion_problems,
    turned_graph,
    viewed_graph,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrl.costs.fusion import device
from graphrl.costs.fusion.device import FusionSizes, PaddedFusion, common_sizes, pad, pad_batch, sizes
from graphrl.costs.fusion.exact import fuse, fused_graph
from graphrl.costs.fusion.padded_graph import PaddedKernels, kernel_sizes, padded_kernels
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.zoo import load
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.graphs.padding import pad as pad_graph

SMALL = FusionSizes(ops=12, tensors=24, externals=3, steps=40, reads=3)
fuse_on_device = jax.jit(device.fuse)


def on_device(problem: FusionProblem, to: FusionSizes, priorities: np.ndarray) -> device.DeviceKernels:
    """The kernels of priorities `[n]`, with padding filled with arbitrary values."""
    full = np.full(to.ops, 7, np.int32)
    full[: problem.num_ops] = priorities
    return fuse_on_device(jax.tree.map(jnp.asarray, pad(problem, to)), jnp.asarray(full))


def assert_same(problem: FusionProblem, to: FusionSizes, kernels: device.DeviceKernels, priorities: np.ndarray) -> None:
    """Checks that the device's kernels equal the twin's."""
    true, n, tensors = fuse(problem, priorities), problem.num_ops, problem.graph.arrays.num_tensors
    assert np.asarray(kernels.inlined)[:n].tolist() == true.inlined.tolist()
    assert not np.asarray(kernels.inlined)[n:].any()
    np.testing.assert_allclose(np.asarray(kernels.seconds)[:n], true.op_seconds, rtol=1e-5)
    assert not np.asarray(kernels.seconds)[n:].any()
    for root, members in true.members.items():
        if len(members) > 1:
            row = np.asarray(kernels.members)[root]
            assert sorted(row[row < to.ops].tolist()) == list(members)
            row = np.asarray(kernels.arguments)[root]
            row = row[row < to.tensors + to.externals]
            read = np.where(row < tensors, row, row - to.tensors + tensors).tolist()
            assert sorted(read) == sorted(true.arguments[root])


@settings(max_examples=50)
@given(st.data())
def test_the_device_is_the_twin(data: st.DataObject) -> None:
    problem = data.draw(fusion_problems())
    for _ in range(3):
        priorities = data.draw(fusion_priorities(problem))
        assert_same(problem, SMALL, on_device(problem, SMALL, priorities), priorities)


@jax.jit
@chex.assert_max_traces(n=1)
def together(padded: PaddedFusion, priorities: jax.Array) -> device.DeviceKernels:
    """Kernels of g problems with k priorities each."""
    return jax.vmap(jax.vmap(device.fuse, (None, 0)))(padded, priorities)


@settings(max_examples=25)
@given(st.data())
def test_many_problems_and_many_priorities_at_once(data: st.DataObject) -> None:
    problems = [fusion_problem(data.draw(fusable_graphs()), CHIP, max_ops=3) for _ in range(2)]
    padded = jax.tree.map(jnp.asarray, pad_batch(problems, SMALL))
    priorities = np.full((2, 3, SMALL.ops), 9, np.int32)
    for index, problem in enumerate(problems):
        for sample in range(3):
            priorities[index, sample, : problem.num_ops] = data.draw(fusion_priorities(problem))
    kernels = together(padded, jnp.asarray(priorities))
    for index, problem in enumerate(problems):
        for sample in range(3):
            one = jax.tree.map(lambda leaf, at=(index, sample): leaf[at], kernels)
            assert_same(problem, SMALL, one, priorities[index, sample, : problem.num_ops].astype(int))


def test_a_real_program_is_the_twin() -> None:
    problem = fusion_problem(load("bert_base/training/b8/jaxpr").graph)  # limits bind here
    to = common_sizes([problem])
    generator = np.random.default_rng(0)
    for levels in (2, 20):
        priorities = generator.integers(0, levels, problem.num_ops)
        assert_same(problem, to, on_device(problem, to, priorities), priorities)


def test_sizes_that_are_too_small_are_refused() -> None:
    problem = fusion_problem(chain_graph("mul mul mul"), CHIP)
    assert sizes(problem) == FusionSizes(ops=3, tensors=3, externals=1, steps=3, reads=1)
    with pytest.raises(ProblemError, match="more than the"):
        pad(problem, FusionSizes(2, 3, 1, 3, 1))


# Kernels as a padded graph


FUSION = FusionSizes(ops=SIZES.ops, tensors=SIZES.tensors, externals=3, steps=40, reads=3)
TO = kernel_sizes(SIZES)
ROWS = {field.name for field in dataclasses.fields(PaddedGraph) if "row" in field.name}
TIGHT = dataclasses.replace(TO, uses=4)


@functools.partial(jax.jit, static_argnames="to")
def kernels_on_device(graph: PaddedGraph, problem: PaddedFusion, priorities: jax.Array, to: Sizes) -> PaddedKernels:
    return padded_kernels(graph, problem, device.fuse(problem, priorities), to)


def kernels_of(problem: FusionProblem, priorities: np.ndarray, to: Sizes = TO) -> PaddedKernels:
    """The padded graph of the kernels of priorities `[n]`."""
    full = np.full(SIZES.ops, 5, np.int32)
    full[: problem.num_ops] = priorities
    padded = pad_graph(problem.graph, SIZES), pad(problem, FUSION)
    return kernels_on_device(*jax.tree.map(jnp.asarray, padded), jnp.asarray(full), to)


@settings(max_examples=50)
@given(st.data())
def test_the_graph_of_kernels_is_the_hosts(data: st.DataObject) -> None:
    graph = data.draw(fusable_graphs())
    problem = fusion_problem(graph, CHIP)
    priorities = data.draw(fusion_priorities(problem))
    kernels, fusion = kernels_of(problem, priorities), fuse(problem, priorities)
    expected = pad_graph(fused_graph(fusion), TO)
    assert bool(kernels.fits)
    roots = np.asarray(kernels.root)
    assert roots[roots < SIZES.ops].tolist() == list(fusion.members)
    skipped = {"byte_unit", "second_unit", "share_tensor", "share_of", "share_reuses"}
    skipped |= ROWS if graph.arrays.control_source.size else set()  # control successors have separate rows
    for field in dataclasses.fields(PaddedGraph):
        if field.name not in skipped:
            ours, theirs = (np.asarray(getattr(each, field.name)) for each in (kernels.graph, expected))
            unit = {"runtime": "second_unit"}.get(field.name, "byte_unit")
            if field.name in ("runtime", "workspace", "weight", "tensor_bytes", "owned_bytes"):
                ours, theirs = (
                    values * np.float32(getattr(each, unit))
                    for values, each in ((ours, kernels.graph), (theirs, expected))
                )
            assert ours.dtype == theirs.dtype, field.name
            assert ours.tolist() == theirs.tolist(), field.name


@pytest.mark.parametrize("priority", [0, 1])
@pytest.mark.parametrize("graph", [viewed_graph(), turned_graph()], ids=["viewed", "turned"])
def test_shared_buffers_are_the_hosts(graph: ComputationGraph, priority: int) -> None:
    problem = fusion_problem(graph, CHIP)
    priorities = np.full(problem.num_ops, priority)
    ours = kernels_of(problem, priorities).graph
    theirs = pad_graph(fused_graph(fuse(problem, priorities)), TO)

    def shares(padded: PaddedGraph) -> list[tuple[int, int, bool]]:
        fields = (padded.share_tensor, padded.share_of, padded.share_reuses)
        every = zip(*(np.asarray(field).tolist() for field in fields), strict=True)
        return [share for share in every if share[0] < TO.tensors]

    assert shares(ours) == shares(theirs)


@settings(max_examples=30)
@given(st.data())
def test_costs_of_kernels_equal_the_host_twin(data: st.DataObject) -> None:
    """Orders, makespans, peaks and the flag of room equal the twin's, with control edges and shared buffers."""
    problem, lanes = PROBLEMS[3], 4
    fusion = fusion_problem(data.draw(fusable_graphs()), CHIP)
    priorities = data.draw(fusion_priorities(fusion))
    graph = fused_graph(fuse(fusion, priorities))
    padded = jax.tree.map(lambda leaf: leaf[None], kernels_of(fusion, priorities).graph)
    decisions = random_decisions(np.random.default_rng(fusion.num_ops), 1, lanes, problem.devices)
    costs = jax.device_get(compiled(problem)(padded, decisions))
    for lane in range(lanes):
        check(graph, costs, padded, (0, lane), (problem, *of_graph(decisions, graph, 0, lane)))
    assert bool(kernels_of(fusion, priorities, TIGHT).fits) == (len(graph.arrays.use_op) <= TIGHT.uses)


def test_many_fusions_at_once_compile_once() -> None:
    problem = fusion_problem(chain_graph("mul exp reduce_sum mul add reshape dot_general mul"), CHIP)
    padded = jax.tree.map(jnp.asarray, (pad_graph(problem.graph, SIZES), pad(problem, FUSION)))
    chex.clear_trace_counter()
    one = chex.assert_max_traces(lambda p: padded_kernels(padded[0], padded[1], device.fuse(padded[1], p), TO), n=1)
    priorities = np.random.default_rng(0).integers(0, 3, (4, SIZES.ops)).astype(np.int32)
    together = jax.jit(jax.vmap(one))(priorities)
    for index in range(4):
        alone = kernels_of(problem, priorities[index, : problem.num_ops])
        chex.assert_trees_all_equal(jax.tree.map(lambda leaf, at=index: leaf[at], together), alone)
