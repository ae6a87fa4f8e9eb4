"""Kernels as a padded graph on the device: the graph that the host makes of them, and the same costs."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import PROBLEMS, SIZES, check, compiled, of_graph, random_decisions
from fusion_graphs import CHIP, chain_graph, fusable_graphs, fusion_priorities, turned_graph, viewed_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrl.costs.fusion import device
from graphrl.costs.fusion.device import FusionSizes, PaddedFusion, pad
from graphrl.costs.fusion.exact import fuse, fused_graph
from graphrl.costs.fusion.padded_graph import PaddedKernels, kernel_sizes, padded_kernels
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.graphs.padding import pad as pad_graph

FUSION_SIZES = FusionSizes(ops=SIZES.ops, tensors=SIZES.tensors, externals=3, steps=40, reads=3)
TO = kernel_sizes(SIZES)
ROWS = {field.name for field in dataclasses.fields(PaddedGraph) if "row" in field.name}


TIGHT = dataclasses.replace(TO, uses=4)


@functools.partial(jax.jit, static_argnames="to")
def kernels_on_device(graph: PaddedGraph, problem: PaddedFusion, priorities: jax.Array, to: Sizes) -> PaddedKernels:
    return padded_kernels(graph, problem, device.fuse(problem, priorities), to)


def on_device(problem: FusionProblem, priorities: np.ndarray, to: Sizes = TO) -> PaddedKernels:
    """The kernels of priorities `[n]`."""
    full = np.full(SIZES.ops, 5, np.int32)
    full[: problem.num_ops] = priorities
    padded = pad_graph(problem.graph, SIZES), pad(problem, FUSION_SIZES)
    return kernels_on_device(*jax.tree.map(jnp.asarray, padded), jnp.asarray(full), to)


@settings(max_examples=100)
@given(st.data())
def test_the_graph_of_kernels_is_the_hosts(data: st.DataObject) -> None:
    graph = data.draw(fusable_graphs())
    problem = fusion_problem(graph, CHIP)
    priorities = data.draw(fusion_priorities(problem))
    kernels, fusion = on_device(problem, priorities), fuse(problem, priorities)
    expected = pad_graph(fused_graph(fusion), TO)
    assert bool(kernels.fits)
    roots = np.asarray(kernels.root)
    assert roots[roots < SIZES.ops].tolist() == list(fusion.members)
    skipped = {"byte_unit", "second_unit", "share_tensor", "share_of", "share_reuses"}
    skipped |= ROWS if graph.arrays.control_source.size else set()  # whose control successors have rows of their own
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
    ours = on_device(problem, priorities).graph
    theirs = pad_graph(fused_graph(fuse(problem, priorities)), TO)

    def shares(padded: PaddedGraph) -> list[tuple[int, int, bool]]:
        fields = (padded.share_tensor, padded.share_of, padded.share_reuses)
        every = zip(*(np.asarray(field).tolist() for field in fields), strict=True)
        return [share for share in every if share[0] < TO.tensors]

    assert shares(ours) == shares(theirs)


@settings(max_examples=60)
@given(st.data())
def test_costs_of_kernels_equal_the_host_twin(data: st.DataObject) -> None:
    """Orders, makespans and peaks, with control edges and shared buffers; and whether they have room."""
    problem, lanes = PROBLEMS[3], 4
    fusion = fusion_problem(data.draw(fusable_graphs()), CHIP)
    priorities = data.draw(fusion_priorities(fusion))
    graph = fused_graph(fuse(fusion, priorities))
    padded = jax.tree.map(lambda leaf: leaf[None], on_device(fusion, priorities).graph)
    decisions = random_decisions(np.random.default_rng(fusion.num_ops), 1, lanes, problem.devices)
    costs = jax.device_get(compiled(problem)(padded, decisions))
    for lane in range(lanes):
        check(graph, costs, padded, (0, lane), (problem, *of_graph(decisions, graph, 0, lane)))
    assert bool(on_device(fusion, priorities, TIGHT).fits) == (len(graph.arrays.use_op) <= TIGHT.uses)


def test_many_fusions_at_once_compile_once() -> None:
    problem = fusion_problem(chain_graph("mul exp reduce_sum mul add reshape dot_general mul"), CHIP)
    padded = jax.tree.map(jnp.asarray, (pad_graph(problem.graph, SIZES), pad(problem, FUSION_SIZES)))
    chex.clear_trace_counter()
    one = chex.assert_max_traces(lambda p: padded_kernels(padded[0], padded[1], device.fuse(padded[1], p), TO), n=1)
    priorities = np.random.default_rng(0).integers(0, 3, (4, SIZES.ops)).astype(np.int32)
    together = jax.jit(jax.vmap(one))(priorities)
    for index in range(4):
        alone = on_device(problem, priorities[index, : problem.num_ops])
        chex.assert_trees_all_equal(jax.tree.map(lambda leaf, at=index: leaf[at], together), alone)
