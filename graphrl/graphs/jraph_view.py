"""Conversion of padded graphs to jraph.

jraph's `GraphsTuple`, `GraphNetwork` and `segment_*` work on current jax; three of its helpers do not.
"""

import jax
import jax.numpy as jnp
import jraph

from graphrl.graphs.padding import PaddedGraph


def to_graphs_tuple(graph: PaddedGraph, nodes: jax.Array, edges: jax.Array) -> jraph.GraphsTuple:
    """Converts a padded graph to jraph's `GraphsTuple` of two graphs: the real one, and one that has all padding.

    The edges are those from the op that produces a tensor to each op that reads it (REGAL, "Graph neural network
    policy": edges to tensors are many to one), followed by those from control predecessors, with features of 0. A graph
    with control edges therefore keeps its structure. Padding edges come last and connect to one node that is added
    after the padding ops.

    Args:
      graph: one graph without a batch axis; use `jax.vmap` for batches.
      nodes: `[n, F]` features of ops.
      edges: `[e, H]` features of uses, which are (tensor, consumer) pairs.

    Returns:
      The tuple: nodes `[n + 1, F]`, edges `[e + f, H]`, senders and receivers `[e + f]` int32, n_node and n_edge `[2]`
        int32, no globals.
    """
    n, e, f = graph.runtime.shape[0], graph.use_op.shape[0], graph.control_source.shape[0]
    edges = jnp.concatenate([edges, jnp.zeros((f + 1, *edges.shape[1:]), edges.dtype)])
    none = jnp.full(1, n, jnp.int32)
    receivers = jnp.concatenate([jnp.asarray(graph.use_op), jnp.asarray(graph.control_target), none])
    producer = jnp.append(jnp.asarray(graph.producer), n)[graph.use_tensor]
    senders = jnp.concatenate([producer, jnp.asarray(graph.control_source), none])
    uses = (receivers[:e] < n).sum(dtype=jnp.int32)
    total = uses + (receivers[e:-1] < n).sum(dtype=jnp.int32)
    place = jnp.arange(e + f, dtype=jnp.int32)
    source = jnp.where(place < uses, place, jnp.where(place < total, place - uses + e, e + f))
    return jraph.GraphsTuple(
        nodes=jnp.concatenate([nodes, jnp.zeros((1, *nodes.shape[1:]), nodes.dtype)]),
        edges=edges[source],
        senders=senders[source],
        receivers=receivers[source],
        n_node=jnp.stack([jnp.asarray(graph.num_ops), n + 1 - graph.num_ops]),
        n_edge=jnp.stack([total, e + f - total]),
        globals=None,
    )
