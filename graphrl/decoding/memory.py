"""Peak memory on one device, op by op and exactly: what an order that is not complete yet has cost so far.

The rules are those of `costs/exact/memory.py`. What is known before any op runs is `GraphBuffers`; functions are of one
graph and one state, to be mapped over. A step looks at all t tensors, in a few vector operations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.indexing import add, take
from graphrl.graphs.padding import PaddedGraph


class GraphBuffers(NamedTuple):
    """The buffers of a graph, each named by its first tensor; t tensors, s shares."""

    of: jax.Array  # [t] int32, the buffer of each tensor: its own, or what it is an alias in
    pinned: jax.Array  # [t] bool, never freed
    source: jax.Array  # [s] int32, the buffer that a share may take over; t - 1 for padding
    op: jax.Array  # [s] int32, that would take it over; n for none, and where another output of the op comes first


class Memory(NamedTuple):
    """After some ops."""

    left: jax.Array  # [t] int32, uses of each buffer that are to come
    size: jax.Array  # [t] float32, byte units: what the buffer has, or will
    live: jax.Array  # [] float32, byte units
    peak: jax.Array  # [] float32, byte units


def buffers(graph: PaddedGraph) -> GraphBuffers:
    """The buffers of one graph."""
    n, t, shares = graph.sizes.ops, graph.sizes.tensors, graph.sizes.shares
    own = jnp.arange(t, dtype=jnp.int32)
    pinned = graph.kept
    if not shares:
        nothing = jnp.zeros(0, jnp.int32)
        return GraphBuffers(own, pinned, nothing, nothing)
    # [t + 1] the tensor that each is an alias of
    aliases = jnp.where(graph.share_reuses, t, graph.share_tensor)
    of = jnp.arange(t + 1, dtype=jnp.int32).at[aliases].set(graph.share_of).at[t].set(t)
    external = (of[:t] == own) & (graph.owned_bytes == 0) & (graph.tensor_bytes > 0)
    for _ in range(shares.bit_length()):
        of = take(of, of)
    pinned = jnp.zeros(t, jnp.bool_).at[of[:t]].max(pinned | external)
    source = jnp.minimum(take(of, graph.share_of), t - 1)
    real = graph.share_reuses & (graph.share_tensor < t)
    op = jnp.where(real, take(graph.producer, jnp.minimum(graph.share_tensor, t - 1)), n)
    same = (op[:, None] == op[None]) & (source[:, None] == source[None])
    second = jnp.tril(same, -1).any(1)
    return GraphBuffers(of[:t], pinned, source, jnp.where(second, n, op))


def start(graph: PaddedGraph, buffers: GraphBuffers) -> Memory:
    """Before the first op."""
    t, n = graph.sizes.tensors, graph.sizes.ops
    read = jnp.concatenate([buffers.of, jnp.full(1, t, jnp.int32)])[graph.use_tensor]
    left = add(jnp.zeros(t + 1, jnp.int32), read, (graph.use_op < n).astype(jnp.int32))[:t]
    zero = jnp.zeros((), jnp.float32)
    return Memory(left, graph.owned_bytes, zero, zero)


def reads(graph: PaddedGraph, buffers: GraphBuffers, op: jax.Array) -> jax.Array:
    """How many tensors of each buffer an op reads: `[t]` int32."""
    t = graph.sizes.tensors
    read = jnp.concatenate([buffers.of, jnp.full(1, t, jnp.int32)])[graph.use_tensor]
    return add(jnp.zeros(t + 1, jnp.int32), read, (graph.use_op == op).astype(jnp.int32))[:t]


def spared(graph: PaddedGraph, buffers: GraphBuffers, memory: Memory, read: jax.Array) -> jax.Array:
    """What each share would spare its op now by taking over a buffer: `[s]` float32, byte units; -1 if it may not.

    Args:
      graph: one graph.
      buffers: its.
      memory: now.
      read: `[s]` int32, how many tensors of the share's source its op reads.
    """
    last = take(memory.left, buffers.source) == read
    takes = last & ~take(buffers.pinned, buffers.source) & (buffers.op < graph.sizes.ops)
    return jnp.where(takes, take(memory.size, jnp.minimum(graph.share_tensor, graph.sizes.tensors - 1)), -1)


def run(graph: PaddedGraph, buffers: GraphBuffers, memory: Memory, op: jax.Array, read: jax.Array) -> Memory:
    """Memory after an op that was ready.

    Args:
      graph: one graph.
      buffers: its.
      memory: before the op.
      op: `[]` int32; n or more: none.
      read: `[t]` int32, as `reads`.
    """
    n, t = graph.sizes.ops, graph.sizes.tensors
    is_output = (graph.producer == op) & (jnp.arange(t, dtype=jnp.int32) < graph.num_tensors)
    size, taken = memory.size, jnp.zeros(t, jnp.bool_)
    if graph.sizes.shares:
        takes = (spared(graph, buffers, memory, take(read, buffers.source)) >= 0) & (buffers.op == op) & (op < n)
        output = jnp.minimum(graph.share_tensor, t - 1)
        taken = taken.at[output].max(takes)
        given = jnp.zeros(t, jnp.bool_).at[buffers.source].max(takes)
        grown = jnp.zeros(t, jnp.float32).at[output].add(jnp.where(takes, take(size, buffers.source), 0))
        size = jnp.where(taken, grown, jnp.where(given, 0, size))
    live = memory.live + jnp.where(is_output & ~taken, size, 0).sum()
    peak = jnp.maximum(memory.peak, live + jnp.where(op < n, take(graph.workspace, jnp.minimum(op, n - 1)), 0))
    left = memory.left - read
    freed = ((read > 0) | is_output) & (left == 0) & ~buffers.pinned
    return Memory(left, size, live - jnp.where(freed, size, 0).sum(), peak)
