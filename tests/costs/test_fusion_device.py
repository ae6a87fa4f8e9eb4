"""Fusion on the device: as the exact twin, whatever the padding and the batch, compiled once."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fusion_graphs import CHIP, chain_graph, fusable_graphs, fusion_priorities, fusion_problems
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrl.costs.fusion import device
from graphrl.costs.fusion.device import FusionSizes, PaddedFusion, common_sizes, pad, pad_batch, sizes
from graphrl.costs.fusion.exact import fuse
from graphrl.costs.fusion.problem import FusionProblem, fusion_problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.zoo import load

SIZES = FusionSizes(ops=12, tensors=24, externals=3, steps=40, reads=3)
fuse_on_device = jax.jit(device.fuse)


def on_device(problem: FusionProblem, to: FusionSizes, priorities: np.ndarray) -> device.DeviceKernels:
    """The kernels of priorities `[n]`, padding filled with nonsense."""
    full = np.full(to.ops, 7, np.int32)
    full[: problem.num_ops] = priorities
    return fuse_on_device(jax.tree.map(jnp.asarray, pad(problem, to)), jnp.asarray(full))


def assert_same(problem: FusionProblem, to: FusionSizes, kernels: device.DeviceKernels, priorities: np.ndarray) -> None:
    """The device's kernels are the twin's."""
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
        assert_same(problem, SIZES, on_device(problem, SIZES, priorities), priorities)


@settings(max_examples=25)
@given(st.data())
def test_many_problems_and_many_priorities_at_once(data: st.DataObject) -> None:
    problems = [fusion_problem(data.draw(fusable_graphs()), CHIP, max_ops=3) for _ in range(2)]
    padded = jax.tree.map(jnp.asarray, pad_batch(problems, SIZES))
    priorities = np.full((2, 3, SIZES.ops), 9, np.int32)
    for index, problem in enumerate(problems):
        for sample in range(3):
            priorities[index, sample, : problem.num_ops] = data.draw(fusion_priorities(problem))
    kernels = together(padded, jnp.asarray(priorities))
    for index, problem in enumerate(problems):
        for sample in range(3):
            one = jax.tree.map(lambda leaf, at=(index, sample): leaf[at], kernels)
            assert_same(problem, SIZES, one, priorities[index, sample, : problem.num_ops].astype(int))


@jax.jit
def together(padded: PaddedFusion, priorities: jax.Array) -> device.DeviceKernels:
    """Of g problems and k priorities each."""
    return jax.vmap(jax.vmap(device.fuse, (None, 0)))(padded, priorities)


def test_one_program_serves_equal_sizes() -> None:
    chex.clear_trace_counter()
    counted = jax.jit(chex.assert_max_traces(device.fuse, n=1))
    for types in ("mul mul mul", "reshape mul reduce_sum add", "dot_general"):
        problem = fusion_problem(chain_graph(types), CHIP)
        counted(pad(problem, SIZES), jnp.ones(SIZES.ops, jnp.int32))


def test_a_real_program_is_the_twin() -> None:
    problem = fusion_problem(load("bert_base/training/b8/jaxpr").graph)  # where limits bind
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
