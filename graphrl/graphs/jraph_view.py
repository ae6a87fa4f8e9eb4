"""Padded graphs as jraph sees them. The one module that imports jraph (three of its helpers are broken on current jax;
`GraphsTuple`, `GraphNetwork` and `segment_*` work).
"""

import jax
import jax.numpy as jnp
import jraph

from graphrl.graphs.features import edge_features, node_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad


def to_graphs_tuple(graph: PaddedGraph, nodes: jax.Array, edges: jax.Array) -> jraph.GraphsTuple:
    """One padded graph as a `GraphsTuple` of two graphs: the real one, and one that holds all padding.

    An edge goes from the op that produces a tensor to each op that reads it (REGAL, "Graph neural network policy":
    edges to tensors are many to one). One node is added after the padding ops, for padding edges to hang on.

    Args:
      graph: without a batch axis; `jax.vmap` over this function for batches.
      nodes: `[n, F]` features of ops.
      edges: `[e, H]` features of uses.

    Returns:
      nodes `[n + 1, F]`, edges `[e, H]`, senders and receivers `[e]` int32, n_node and n_edge `[2]` int32, no globals.
    """
    n, e = graph.runtime.shape[0], graph.use_op.shape[0]
    real = jnp.asarray(graph.use_op) < n
    producer = jnp.append(jnp.asarray(graph.producer), 0)[graph.use_tensor]
    num_edges = real.sum(dtype=jnp.int32)
    return jraph.GraphsTuple(
        nodes=jnp.concatenate([nodes, jnp.zeros((1, *nodes.shape[1:]), nodes.dtype)]),
        edges=edges,
        senders=jnp.where(real, producer, n),
        receivers=jnp.where(real, graph.use_op, n),
        n_node=jnp.stack([jnp.asarray(graph.num_ops), n + 1 - graph.num_ops]),
        n_edge=jnp.stack([num_edges, e - num_edges]),
        globals=None,
    )


def graphs_tuple(graph: ComputationGraph, to: Sizes | None = None) -> jraph.GraphsTuple:
    """A graph with its own features (`features.py`), padded to `to` (by default its bucket)."""
    to = common_sizes([graph]) if to is None else to
    nodes, edges = jnp.asarray(node_features(graph)), jnp.asarray(edge_features(graph))
    nodes = jnp.pad(nodes, ((0, to.ops - nodes.shape[0]), (0, 0)))
    edges = jnp.pad(edges, ((0, to.uses - edges.shape[0]), (0, 0)))
    return to_graphs_tuple(jax.tree.map(jnp.asarray, pad(graph, to)), nodes, edges)
