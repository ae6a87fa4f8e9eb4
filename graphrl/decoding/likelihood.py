"""Computes the log-probability of an order under eq. 8 (Topoformer), and its gradient.

log p(order) = sum over steps t of y[order[t]] - log Z_t, where Z_t adds exp(y) over the ops that are ready at t. Op j
is ready from the step after its last predecessor's to its own: an interval. The gradient is d log p / d y_j = 1 - sum
over that interval of exp(y_j) / Z_t.

Both are sums over intervals, computed with a binary tree of steps: an interval consists of at most two nodes per level.
The cost is O(n log n), and only positive numbers are added. Differences of prefix sums would lose all digits if weights
differ widely.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.indexing import add, put, take
from graphrl.costs.device.lanes import scatter_max, take_rows
from graphrl.graphs.padding import PaddedGraph

RANGE = 140.0  # range of priorities for which weights, sums and reciprocals of sums are finite in float32


class _Ready(NamedTuple):
    """Steps at which each op is ready: `[n, g, s]` int32, from `first` up to but not including `end`; empty for
    padding.
    """

    first: jax.Array
    end: jax.Array


def log_prob(graph: PaddedGraph, priorities: jax.Array, order: jax.Array) -> jax.Array:
    """Computes the log-probability of complete orders: `[g, ...]` float32. Differentiable in the priorities, once.

    Priorities more than `RANGE` below their graph's highest are raised to that limit.

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; values at padding are ignored.
      order: `[g, ..., n]` int32, topological orders of the ops; any numbers >= n after the last op.
    """
    g, n = priorities.shape
    lanes = jnp.moveaxis(jnp.minimum(order, n).reshape(g, -1, n), -1, 0)
    ready = _ready(graph, lanes)
    values = _clipped(graph, priorities).T[..., None]
    return _log_prob(values, lanes, ready).reshape(order.shape[:-1])


def weights(graph: PaddedGraph, priorities: jax.Array) -> jax.Array:
    """Computes exp(priorities), shifted to the middle of float32's range: `[g, n]` float32; 0 for padding."""
    return jnp.where(_real(graph), jnp.exp(_clipped(graph, priorities)), 0)


def _real(graph: PaddedGraph) -> jax.Array:
    return jnp.arange(graph.sizes.ops, dtype=jnp.int32)[None] < graph.num_ops[:, None]


def _clipped(graph: PaddedGraph, priorities: jax.Array) -> jax.Array:
    """Shifts priorities so that the graph's highest is `RANGE` / 2, and raises them to at least -`RANGE` / 2: `[g, n]`;
    0 for padding.
    """
    real = _real(graph)
    highest = lax.stop_gradient(jnp.where(real, priorities, -jnp.inf).max(1, keepdims=True))
    shifted = jnp.where(real, priorities, 0) - highest + RANGE / 2
    return jnp.where(real, jnp.maximum(shifted, -RANGE / 2), 0)


def _ready(graph: PaddedGraph, order: jax.Array) -> _Ready:
    """Computes the steps at which each op is ready, for orders `[n, g, s]`."""
    n, g, s = order.shape
    lane = jnp.arange(g * s, dtype=jnp.int32).reshape(1, g, s)
    step = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[:, None, None], order.shape)
    place = put(jnp.zeros((n + 1) * g * s, jnp.int32), order * (g * s) + lane, step).reshape(n + 1, g, s)[:n]
    after = take_rows(place, graph.row_owner) + 1
    width = graph.row_entry.shape[-1]
    entries = jnp.moveaxis(jnp.minimum(graph.row_entry, n), -1, 1).reshape(g, -1)
    first = scatter_max(entries, jnp.concatenate([after] * width), n + 1, 0)[:n]
    real = _real(graph).T[..., None]
    return _Ready(jnp.where(real, first, 0), jnp.where(real, place + 1, 0))


@jax.custom_vjp
def _log_prob(values: jax.Array, order: jax.Array, ready: _Ready) -> jax.Array:
    """Computes log-probabilities `[g, s]` from values `[n, g, 1]` of `_clipped`, orders `[n, g, s]` and intervals."""
    return _forward(values, order, ready)[0]


def _forward(values: jax.Array, order: jax.Array, ready: _Ready) -> tuple[jax.Array, tuple]:
    n, g, _ = order.shape
    total = _sums_at_steps(jnp.broadcast_to(jnp.exp(values), order.shape), ready)
    lane = jnp.arange(g, dtype=jnp.int32)[None, :, None]
    chosen = take(jnp.pad(values, ((0, 1), (0, 0), (0, 0))).reshape(-1), order * g + lane)
    step_log_probs = jnp.where(order < n, chosen - jnp.log(jnp.where(order < n, total, 1)), 0)
    return step_log_probs.sum(0), (values, order, ready, total)


def _backward(residuals: tuple, cotangent: jax.Array) -> tuple:
    values, order, ready, total = residuals
    n = order.shape[0]
    inverse = jnp.where(order < n, 1 / jnp.where(order < n, total, 1), 0)
    expected = jnp.exp(values) * _sums_over_steps(inverse, ready)
    real = ready.end > ready.first
    gradient = (jnp.where(real, 1 - expected, 0) * cotangent[None]).sum(-1, keepdims=True)
    return gradient, *jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (order, ready))


_log_prob.defvjp(_forward, _backward)


# The tree is a heap: node 1 covers all steps, node i has the children 2 i and 2 i + 1, and the leaves come last. Node 0
# is unused. A loop over levels finds the nodes of all intervals in parallel, from the leaves up.


def _sums_at_steps(amount: jax.Array, ready: _Ready) -> jax.Array:
    """Sums for every step the amounts `[n, g, s]` of the ops that are ready: `[n, g, s]`."""
    n, g, s = amount.shape

    def level(_: int, state: tuple[_Ready, jax.Array]) -> tuple[_Ready, jax.Array]:
        ready, tree = state
        nodes, ready = _nodes(ready)
        for index in nodes:
            tree = add(tree, index, amount)
        return ready, tree

    size = _leaves(n)
    tree = jnp.zeros(2 * size * g * s, amount.dtype)
    tree = lax.fori_loop(0, size.bit_length(), level, (_from_leaves(ready), tree))[1].reshape(2 * size, g, s)
    total = tree[1:2]
    for first in (1 << i for i in range(1, size.bit_length())):
        total = jnp.repeat(total, 2, axis=0) + tree[first : 2 * first]
    return total[:n]


def _sums_over_steps(amount: jax.Array, ready: _Ready) -> jax.Array:
    """Sums for every op the amounts `[n, g, s]` of the steps at which it is ready: `[n, g, s]`."""
    n, g, s = amount.shape
    size = _leaves(n)
    levels = [jnp.pad(amount, ((0, size - n), (0, 0), (0, 0)))]
    while len(levels[-1]) > 1:
        levels.append(levels[-1].reshape(-1, 2, g, s).sum(1))
    tree = jnp.concatenate([jnp.zeros((1, g, s), amount.dtype), *reversed(levels)]).reshape(-1)

    def level(_: int, state: tuple[_Ready, jax.Array]) -> tuple[_Ready, jax.Array]:
        ready, sums = state
        nodes, ready = _nodes(ready)
        for index in nodes:
            sums = sums + take(tree, index)
        return ready, sums

    return lax.fori_loop(0, size.bit_length(), level, (_from_leaves(ready), jnp.zeros_like(amount)))[1]


def _leaves(steps: int) -> int:
    return 1 << max(0, steps - 1).bit_length()


def _from_leaves(ready: _Ready) -> _Ready:
    """Converts intervals of steps to intervals of tree nodes at the lowest level."""
    leaves = _leaves(ready.first.shape[0])
    return _Ready(ready.first + leaves, ready.end + leaves)


def _nodes(ready: _Ready) -> tuple[tuple[jax.Array, jax.Array], _Ready]:
    """Splits intervals of nodes of one tree level. Returns the nodes whose parents are not within the interval, as flat
    indices (node 0 if there is no such node), and the rest of the interval as nodes of the level above.
    """
    first, end = ready
    _, g, s = first.shape
    lane = jnp.arange(g * s, dtype=jnp.int32).reshape(1, g, s)
    left = (first < end) & (first % 2 == 1)
    after = first + left.astype(jnp.int32)
    right = (after < end) & (end % 2 == 1)
    before = end - right.astype(jnp.int32)
    nodes = jnp.where(left, first, 0) * (g * s) + lane, jnp.where(right, before, 0) * (g * s) + lane
    return nodes, _Ready(after // 2, before // 2)
