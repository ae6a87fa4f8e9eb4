"""Ordering-v0: its contract, its memory step by step, its rewards."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_graphs import random_graphs
from ordering_graphs import SHARING, SIZES, exact_peak, small_graphs

import graphrl
from graphrl.envs.base import TimeStep
from graphrl.envs.ordering import Observation, OrderingEnv, OrderingInstance, make_instance, make_instances
from graphrl.envs.testing import check_env
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

KEY = jax.random.key(0)
ENV = OrderingEnv()
reset, step = jax.jit(ENV.reset), jax.jit(ENV.step)


def run(instance: OrderingInstance, seed: int) -> tuple[list[int], list[TimeStep[Observation]]]:
    """An episode of random ready ops."""
    rng, order = np.random.default_rng(seed), []
    state, timestep = reset(KEY, instance)
    timesteps = [timestep]
    while not timestep.done:
        order.append(int(rng.choice(np.flatnonzero(timestep.observation.action_mask))))
        state, timestep = step(KEY, state, jnp.int32(order[-1]), instance)
        timesteps.append(timestep)
    return order, timesteps


def test_it_fulfils_the_contract() -> None:
    (graph,) = small_graphs(1)
    wider = dataclasses.replace(SIZES, ops=10, slots=10 + 24, tensors=26, rows=40, uses=48)
    check_env(graphrl.make("Ordering-v0"), make_instance(graph, SIZES), wider=make_instance(graph, wider))


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_exact_at_every_step(seed: int) -> None:
    (graph,) = random_graphs(np.random.default_rng(seed), 1, SHARING)
    order, timesteps = run(make_instance(graph, SHARING), seed)
    n = graph.arrays.num_ops
    assert sorted(order) == list(range(n))
    assert timesteps[-1].info["peak"] == exact_peak(graph, np.array(order))
    assert np.all(np.diff([timestep.info["peak"] for timestep in timesteps]) >= 0)
    for done, timestep in enumerate(timesteps):
        seen = timestep.observation
        assert sorted(np.flatnonzero(seen.scheduled)) == sorted(order[:done])
        assert seen.last == (order[done - 1] if done else SHARING.ops)
        assert not np.any(seen.action_mask & ~seen.mask)
        assert timestep.reward == 0 or done == n


def chain(scale: int) -> ComputationGraph:
    """a writes 4, b and c read it and write 3 and 5, d reads both and writes 1; order a b c d peaks at 12."""
    ops = [("a", (), 4, 0), ("b", ("a0",), 3, 0), ("c", ("a0",), 5, 2), ("d", ("b0", "c0"), 1, 0)]
    return ComputationGraph(
        "chain",
        tuple(
            Op(name=name, inputs=read, outputs=(Tensor(f"{name}0", size * scale),), workspace_bytes=work * scale)
            for name, read, size, work in ops
        ),
    )


@pytest.mark.parametrize("scale", [1, 3000])
def test_the_reward_is_the_peak_over_what_the_largest_op_holds(scale: int) -> None:
    """The worked example of `graphrl/costs`: 14 B for a b c d, 12 B for a c b d; 4 + 5 + 2 B are live at c."""
    instance = make_instance(chain(scale), SIZES)
    for order, peak in (([0, 1, 2, 3], 14), ([0, 2, 1, 3], 12)):
        state, timestep = reset(KEY, instance)
        for op in order:
            assert not timestep.done
            state, timestep = step(KEY, state, jnp.int32(op), instance)
        assert timestep.terminated
        assert timestep.reward == pytest.approx(-peak / 11)
        assert timestep.info["peak"] == peak * scale


@pytest.mark.parametrize("action", [1, 6])
def test_an_op_that_is_not_ready_ends_the_episode_and_is_worse_than_any_order(action: int) -> None:
    instance = make_instance(chain(1), SIZES)
    state, first = reset(KEY, instance)
    _, timestep = step(KEY, state, jnp.int32(action), instance)
    assert timestep.terminated
    assert timestep.reward == pytest.approx(-(4 + 3 + 5 + 1 + 2) / 11)
    assert timestep.observation.action_mask.tolist() == first.observation.action_mask.tolist()
    assert timestep.info["peak"] == 0


def test_instances_are_padded_alike_and_stacked() -> None:
    graphs = small_graphs(3)
    batch = make_instances(graphs, SIZES)
    assert batch.nodes.shape[:2] == (3, SIZES.ops)
    assert batch.relation.shape == (3, SIZES.ops, SIZES.ops)
    one = make_instance(graphs[1], SIZES)
    for together, alone in zip(jax.tree.leaves(batch), jax.tree.leaves(one), strict=True):
        np.testing.assert_array_equal(together[1], alone)
