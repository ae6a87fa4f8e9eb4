"""Dependencies as a matrix: the state of many orders under way, for decoders that look at all ops at every step."""

import jax
import jax.numpy as jnp

from graphrl.graphs.padding import PaddedGraph


def releases(graph: PaddedGraph) -> jax.Array:
    """What every op takes from what all ops wait for when it runs, itself included: `[g, n + 1, n]` int16.

    The last row, of none, is 0. An op waits for its in-degree (`waits`), is ready at 0, and has run below that.

    Args:
      graph: a batch of graphs (leading axis g).
    """
    n = graph.sizes.ops
    entry = jnp.minimum(graph.row_entry, n)
    of_graph = jnp.arange(len(entry), dtype=jnp.int32)[:, None, None]
    matrix = jnp.broadcast_to(jnp.eye(n + 1, dtype=jnp.int16), (len(entry), n + 1, n + 1))
    return matrix.at[of_graph, graph.row_owner[..., None], entry].add(jnp.int16(1))[..., :n]


def waits(graph: PaddedGraph) -> jax.Array:
    """What every op waits for at the start: `[g, n]` int16; padding waits for ever."""
    most = jnp.iinfo(jnp.int16).max
    return jnp.minimum(graph.indegree[:, : graph.sizes.ops], most).astype(jnp.int16)
