"""What decoding gives: orders, how probable they were and what they cost.

All of `decoding` takes a batch of graphs, and what it returns has the batch's leading axis g. In an order `[n]` the
first `num_ops` places are ops and the rest n. Lanes (samples of graphs) come last inside, as everywhere in `costs`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.lanes import implied
from graphrl.costs.device.memory import peak_memory
from graphrl.graphs.padding import PaddedGraph


class Rollout(NamedTuple):
    """Orders of a batch of graphs."""

    order: jax.Array  # [g, ..., n] int32, ops; n after the last
    log_prob: jax.Array  # [g, ...] float32
    peak: jax.Array  # [g, ...] float32, byte units of the graph (`PaddedGraph.byte_unit`)


def peaks(graph: PaddedGraph, order: jax.Array) -> jax.Array:
    """Peak memory of complete orders on one device: `[g, ...]` float32, byte units.

    Args:
      graph: a batch of graphs (leading axis g).
      order: `[g, ..., n]` int32, as `Rollout.order`.
    """
    g, n = order.shape[0], order.shape[-1]
    lanes = order.reshape(g, -1, n)
    events = jnp.moveaxis(lanes, -1, 0).reshape(n, -1)
    implication = implied(graph, on_one_device(graph, jnp.zeros((n, g, lanes.shape[1]), jnp.float32)), 1)
    return peak_memory(graph, implication, events, 1).reshape(order.shape[:-1])


def on_one_device(graph: PaddedGraph, op_keys: jax.Array) -> Decisions:
    """Decisions of op keys `[n, g, p]` in [0, 1)."""
    transfers = jnp.zeros((1, graph.sizes.tensors, *op_keys.shape[1:]), jnp.float32)
    return Decisions(jnp.zeros(op_keys.shape, jnp.int32), op_keys, transfers)
