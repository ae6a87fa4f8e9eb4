"""GraphSAGE as GO has it: equation 3 by hand, how far it sees, gradients, padding."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import applied, filled

from graphrl.networks.encoders import GraphSage, Neighbours, largest

SENDERS, RECEIVERS = (jnp.array(ends, jnp.int32) for ends in ([0, 1, 2, 5], [1, 2, 3, 5]))  # 0 -> 1 -> 2 -> 3, 4 alone
NODES = jax.random.normal(jax.random.key(0), (5, 3))


def test_the_largest_of_the_senders_and_nothing_below_zero_where_there_are_none() -> None:
    values = jnp.array([[0.1, 0.9], [0.5, 0.2], [0.3, 0.3]])
    out = largest(values, jnp.array([0, 1, 0, 3]), jnp.array([2, 2, 1, 3]))
    np.testing.assert_allclose(np.asarray(out), np.array([[0, 0], [0.1, 0.9], [0.5, 0.9]]))


@functools.cache
def outputs(rounds: int, neighbours: Neighbours) -> tuple[Any, Any]:
    """The jitted module, and its parameters."""
    module = GraphSage(16, rounds, neighbours)
    params = filled(module, NODES, SENDERS, RECEIVERS)
    return jax.jit(functools.partial(applied, module, params)), params


def test_equations_three_and_four() -> None:
    apply, params = outputs(1, "together")
    out = np.asarray(apply(NODES, SENDERS, RECEIVERS))

    def affine(name: str, x: Any) -> Any:
        return x @ params[name]["kernel"] + params[name]["bias"]

    def normed(name: str, x: Any) -> Any:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return scaled * params[name]["scale"] + params[name]["bias"]

    h = normed("norm_in", affine("node_in", np.asarray(NODES)))
    messages = 1 / (1 + np.exp(-affine("pool_0_0", h)))
    pooled = np.stack([messages[[1]].max(0), messages[[0, 2]].max(0), messages[[1, 3]].max(0), messages[2], 0 * h[4]])
    expected = normed("norm_0", np.maximum(affine("update_0", np.concatenate([h, pooled], 1)), 0))
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("neighbours", ["together", "apart"])
def test_it_sees_as_far_as_there_are_rounds_in_both_directions(neighbours: Neighbours) -> None:
    apply, _ = outputs(2, neighbours)
    base = apply(NODES, SENDERS, RECEIVERS)
    for op, distance in ((0, [0, 1, 2, 3, 9]), (3, [3, 2, 1, 0, 9]), (4, [9, 9, 9, 9, 0])):
        # one change may move no maximum: of several, some do
        others = [NODES.at[op, feature].add(by) for feature in range(3) for by in (-20.0, 20.0)]
        moved = [apply(nodes, SENDERS, RECEIVERS) - base for nodes in others]
        reached = np.abs(np.asarray(moved)).sum((0, 2)) > 1e-6
        assert reached.tolist() == [hops <= 2 for hops in distance]


def test_directions_are_told_apart_where_neighbours_are() -> None:
    for neighbours, same in (("together", True), ("apart", False)):
        apply, _ = outputs(2, neighbours)
        forward, backward = apply(NODES, SENDERS, RECEIVERS), apply(NODES, RECEIVERS, SENDERS)
        assert np.allclose(forward, backward, atol=1e-5) == same


def test_gradients_are_finite_and_reach_every_weight() -> None:
    module = GraphSage(16, 2)
    _, params = outputs(2, "apart")

    def loss(params: Any) -> jax.Array:
        return jnp.square(applied(module, params, NODES, SENDERS, RECEIVERS) + 0.1).sum()

    slope = jax.jit(jax.grad(loss))(params)
    for leaf in jax.tree.leaves(slope):
        assert bool(jnp.isfinite(leaf).all())
        assert float(jnp.abs(leaf).max()) > 0
