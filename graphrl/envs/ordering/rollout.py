"""Orders from priorities (Topoformer, section 4.2): greedily, and by sampling eq. 8.

All functions take a batch of graphs, and what is returned has the batch's leading axis g. In an order `[n]` the first
`num_ops` places are ops and the rest n. Lanes (samples of graphs) come last inside, as everywhere in `costs`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.decisions import Decisions
from graphrl.costs.evaluate import evaluate
from graphrl.costs.indexing import put
from graphrl.costs.lanes import Lanes, implied
from graphrl.costs.memory import peak_memory
from graphrl.costs.problem import Problem
from graphrl.envs.ordering.likelihood import log_prob
from graphrl.envs.ordering.race import sampled_orders
from graphrl.graphs.padding import PaddedGraph

_PROBLEM = Problem("peak_memory", 1)


class Rollout(NamedTuple):
    """Orders, how probable they were, and what they cost."""

    order: jax.Array  # [g, ..., n] int32, ops; n after the last
    log_prob: jax.Array  # [g, ...] float32, by eq. 8
    peak: jax.Array  # [g, ...] float32, byte units of the graph (`PaddedGraph.byte_unit`)


def greedy(graph: PaddedGraph, priorities: jax.Array) -> Rollout:
    """Always the ready op of highest priority, ties to the lower index.

    It is the decoder of `costs` on the ranks of the priorities, so that no bit of them is lost (up to 32,768 ops).

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; what stands at padding does not matter.

    Returns:
      One order a graph: arrays of leading shape `[g]`.
    """
    n = graph.sizes.ops
    real = jnp.arange(n, dtype=jnp.int32)[None] < graph.num_ops[:, None]
    ranked = jnp.argsort(jnp.where(real, -priorities, jnp.inf), axis=1, stable=True).astype(jnp.int32)
    rank = jnp.argsort(ranked, axis=1).astype(jnp.float32)  # the inverse of a permutation
    costs = evaluate(graph, _on_one_device(graph, (n - rank - 0.5) / n, 1), _PROBLEM, makespan=False)
    order = _without_gaps(costs.events, n)
    return Rollout(order, log_prob(graph, priorities, order), costs.peak_memory[0, :, 0])


def sample(graph: PaddedGraph, priorities: jax.Array, keys: jax.Array, samples: int) -> Rollout:
    """Orders drawn by eq. 8: op j of the ready ones with a probability proportional to exp(priority of j).

    Args:
      graph: a batch of graphs (leading axis g).
      priorities: `[g, n]` float32; what stands at padding does not matter.
      keys: `[g]` typed keys: a graph's orders are a function of its own key.
      samples: s, orders to draw of each graph. Static.

    Returns:
      Arrays of leading shape `[g, s]`.
    """
    order = sampled_orders(graph, priorities, keys, samples)
    return Rollout(order, log_prob(graph, priorities, order), peaks(graph, order))


def peaks(graph: PaddedGraph, order: jax.Array) -> jax.Array:
    """Peak memory of complete orders on one device: `[g, ...]` float32, byte units.

    Args:
      graph: a batch of graphs (leading axis g).
      order: `[g, ..., n]` int32, as `Rollout.order`.
    """
    g, n = order.shape[0], order.shape[-1]
    lanes = order.reshape(g, -1, n)
    events = jnp.moveaxis(lanes, -1, 0).reshape(n, -1)
    return peak_memory(graph, _lanes(graph, lanes.shape[1]), events, 1).reshape(order.shape[:-1])


def _lanes(graph: PaddedGraph, samples: int) -> Lanes:
    zeros = jnp.zeros((graph.sizes.ops, graph.runtime.shape[0], samples), jnp.float32)
    return implied(graph, _decisions(graph, zeros), 1)


def _on_one_device(graph: PaddedGraph, keys: jax.Array, samples: int) -> Decisions:
    """Decisions of op keys `[g, n]`, the same in all samples."""
    spread = jnp.broadcast_to(keys.T[..., None], (*keys.T.shape, samples))
    return _decisions(graph, spread)


def _decisions(graph: PaddedGraph, op_keys: jax.Array) -> Decisions:
    transfers = jnp.zeros((1, graph.sizes.tensors, *op_keys.shape[1:]), jnp.float32)
    return Decisions(jnp.zeros(op_keys.shape, jnp.int32), op_keys, transfers)


def _without_gaps(events: jax.Array, n: int) -> jax.Array:
    """The ops of events `[c, g, 1]` in their order: `[g, n]` int32, n after the last."""
    node = events[..., 0]
    g = node.shape[1]
    place = jnp.cumsum((node < n).astype(jnp.int32), axis=0) - 1
    index = jnp.where(node < n, place, n) * g + jnp.arange(g, dtype=jnp.int32)[None]
    order = put(jnp.full((n + 1) * g, n, jnp.int32), index, node)
    return order.reshape(n + 1, g)[:n].T
