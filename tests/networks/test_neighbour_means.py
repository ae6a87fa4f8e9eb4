"""Means over neighbours: known values, padding, renumbering; the network depends on nothing else."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphrl.networks.encoders import NeighbourMeans, neighbour_mean


class Seen(NamedTuple):
    """What the network looks at."""

    graph: jraph.GraphsTuple
    mask: jax.Array


def seen(values: np.ndarray, edges: np.ndarray, room: int) -> Seen:
    """Ops `[n, F]` and edges `[2, e]`, senders and receivers, padded to `room` ops and two more edges."""
    n, count = len(values), edges.shape[1]
    nodes = np.full((room + 1, values.shape[1]), 7.0, np.float32)  # padding has values, too: they must not count
    nodes[:n] = values
    ends = np.concatenate([edges, np.full((2, 2), room)], 1).astype(np.int32)
    graph = jraph.GraphsTuple(
        jnp.asarray(nodes), None, jnp.asarray(ends[1]), jnp.asarray(ends[0]), None, np.array([n]), np.array([count])
    )
    return Seen(graph, jnp.arange(room) < n)


def test_means_of_a_diamond() -> None:
    senders, receivers = jnp.array([0, 0, 1, 2, 4]), jnp.array([1, 2, 3, 3, 4])  # the last is padding
    values = jnp.array([[1.0], [2.0], [4.0], [8.0]])
    np.testing.assert_array_equal(neighbour_mean(values, senders, receivers)[:, 0], [0, 1, 1, 3])
    np.testing.assert_array_equal(neighbour_mean(values, receivers, senders)[:, 0], [3, 8, 8, 0])


@settings(max_examples=20)
@given(st.integers(0, 2**31 - 1))
def test_padding_and_numbers_of_ops_change_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 6
    values, edges = random.normal(size=(n, 3)), np.stack(np.triu_indices(n, 1))[:, random.random(15) < 0.4]
    new = random.permutation(n)
    renumbered = np.empty_like(values)
    renumbered[new] = values
    network = NeighbourMeans(width=4)
    near = seen(values, edges, n)
    params = network.init(jax.random.key(0), near)
    far, other = seen(values, edges, n + 3), seen(renumbered, new[edges], n)
    whole, padded, moved = (np.asarray(network.apply(params, each)) for each in (near, far, other))
    assert whole.std() > 0
    np.testing.assert_allclose(padded[:n], whole, atol=1e-5)
    np.testing.assert_allclose(moved[new], whole, atol=1e-5)
