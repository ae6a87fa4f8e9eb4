"""What the decoder of `sequential.py` knows of ready ops: the names of features, and the memory that each op uses."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.decoding import memory
from graphrl.graphs.padding import PaddedGraph

# Of a ready op. Bytes are in the mean of the bytes that an op writes. Features are signed log(1 + |x|), except fullness
# and progress.
FEATURES = (
    "added",  # bytes of its outputs
    "workspace",
    "freed",  # bytes that no op needs after it
    "gain",  # freed - added
    "growth",  # of the peak
    "slack",  # bytes below the peak so far, before it
    "fullness",  # share of the peak so far that is in use before it
    "share",  # bytes of its inputs, each divided by the number of its readers that have not run
    "pending",  # bytes of its inputs with other readers, each divided by the ops and inputs that these wait for
    "released",  # number of ops that it would make ready
    "released_gain",  # sum of their gains
    "unlocked",  # sum over the ops that wait for it of 1 / the number of inputs that they wait for
    "progress",  # share of the ops that have run
    "age",  # number of steps for which it has been ready, over 10
    "lead",  # its depth minus the least depth of a ready op
)


class Head(NamedTuple):
    """The chooser's perceptron for a batch of graphs: logit = priority + relu(hidden + features kernel) out."""

    priority: jax.Array  # [g, n] float32
    hidden: jax.Array  # [g, n, h] float32, each op's part of the hidden layer
    kernel: jax.Array  # [len(FEATURES), h] float32
    out: jax.Array  # [h] float32


class Usage(NamedTuple):
    """Memory of a batch of graphs; b buffers, at the places of their first tensors. Bytes are in the mean of the bytes
    that an op writes.
    """

    use_op: jax.Array  # [g, e] int32, sorted; n for padding
    use_buffer: jax.Array  # [g, e] int32, the buffer of each use; b for padding
    freed: jax.Array  # [g, b] float32, bytes freed by the last reader
    added: jax.Array  # [g, n] float32, bytes that the op allocates
    dead: jax.Array  # [g, n] float32, bytes of these that no op reads: freed at once
    workspace: jax.Array  # [g, n] float32
    depth: jax.Array  # [g, n] float32, longest path from an op without inputs, in ops


@jax.vmap
def usage(graph: PaddedGraph) -> Usage:
    """Computes the memory of a batch of graphs."""
    n, t = graph.sizes.ops, graph.sizes.tensors
    buffers = memory.buffers(graph)
    by_op = jnp.argsort(graph.use_op)
    use_buffer = jnp.pad(buffers.root, (0, 1), constant_values=t)[graph.use_tensor[by_op]]
    unit = jnp.maximum(graph.owned_bytes.sum() / jnp.maximum(graph.num_ops, 1).astype(jnp.float32), 1e-30)
    owned = graph.owned_bytes / unit
    is_read = jnp.zeros(t + 1, jnp.bool_).at[use_buffer].set(True)[:t]

    def sums(amount: jax.Array) -> jax.Array:
        return jnp.zeros(n, jnp.float32).at[graph.producer].add(amount)

    return Usage(
        use_op=graph.use_op[by_op],
        use_buffer=use_buffer,
        freed=jnp.where(is_read & ~buffers.pinned, owned, 0),
        added=sums(owned),
        dead=sums(jnp.where(is_read | buffers.pinned, 0, owned)),
        workspace=graph.workspace / unit,
        depth=_depth(graph).astype(jnp.float32),
    )


def _depth(graph: PaddedGraph) -> jax.Array:
    """Computes the depth of each op of a graph, `[n]` int32, by as many passes over the edges as the largest depth."""
    n = graph.sizes.ops
    entry = jnp.minimum(graph.row_entry, n)

    def longer(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        depth, _ = state
        after = depth.at[entry].max(jnp.broadcast_to(depth[graph.row_owner][:, None] + 1, entry.shape))
        return after, (after[:n] > depth[:n]).any()

    return lax.while_loop(lambda state: state[1], longer, (jnp.zeros(n + 1, jnp.int32), jnp.asarray(True)))[0][:n]
