"""Exact memory of an incomplete order on one device, updated op by op: current and peak.

The rules are those of `costs/exact/memory.py`. A share is a tensor that is an alias of another or may reuse its buffer.
`GraphBuffers` has the values that are known before any op runs. Functions are for one graph and one state; callers use
`jax.vmap`. A step processes all t tensors in a few vector operations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.indexing import add, take
from graphrl.graphs.padding import PaddedGraph


class GraphBuffers(NamedTuple):
    """The buffers of a graph, each identified by the index of its first tensor; t tensors, s shares."""

    root: jax.Array  # [t] int32, the buffer of each tensor: its own, or the one that it is an alias of
    pinned: jax.Array  # [t] bool, True for buffers that are never freed
    source: jax.Array  # [s] int32, the buffer that a share may reuse; t - 1 for padding
    op: jax.Array  # [s] int32, the op that may reuse it; n without one, or if an earlier output of the op has it


class Memory(NamedTuple):
    """State of memory after some ops."""

    left: jax.Array  # [t] int32, number of remaining uses of each buffer
    size: jax.Array  # [t] float32, byte units: current or future size of the buffer
    live: jax.Array  # [] float32, byte units: memory in use now
    peak: jax.Array  # [] float32, byte units: largest memory in use so far


def buffers(graph: PaddedGraph) -> GraphBuffers:
    """Computes the buffers of one graph."""
    n, t, shares = graph.sizes.ops, graph.sizes.tensors, graph.sizes.shares
    own = jnp.arange(t, dtype=jnp.int32)
    pinned = graph.kept
    if not shares:
        empty = jnp.zeros(0, jnp.int32)
        return GraphBuffers(own, pinned, empty, empty)
    # [t + 1] the tensor of which each is an alias
    aliases = jnp.where(graph.share_reuses, t, graph.share_tensor)
    root = jnp.arange(t + 1, dtype=jnp.int32).at[aliases].set(graph.share_of).at[t].set(t)
    external = (root[:t] == own) & (graph.owned_bytes == 0) & (graph.tensor_bytes > 0)
    for _ in range(shares.bit_length()):
        root = take(root, root)
    pinned = jnp.zeros(t, jnp.bool_).at[root[:t]].max(pinned | external)
    source = jnp.minimum(take(root, graph.share_of), t - 1)
    real = graph.share_reuses & (graph.share_tensor < t)
    op = jnp.where(real, take(graph.producer, jnp.minimum(graph.share_tensor, t - 1)), n)
    same = (op[:, None] == op[None]) & (source[:, None] == source[None])
    second = jnp.tril(same, -1).any(1)
    return GraphBuffers(root[:t], pinned, source, jnp.where(second, n, op))


def start(graph: PaddedGraph, buffers: GraphBuffers) -> Memory:
    """Creates the state of memory before the first op."""
    t, n = graph.sizes.tensors, graph.sizes.ops
    read = jnp.concatenate([buffers.root, jnp.full(1, t, jnp.int32)])[graph.use_tensor]
    left = add(jnp.zeros(t + 1, jnp.int32), read, (graph.use_op < n).astype(jnp.int32))[:t]
    zero = jnp.zeros((), jnp.float32)
    return Memory(left, graph.owned_bytes, zero, zero)


def reads(graph: PaddedGraph, buffers: GraphBuffers, op: jax.Array) -> jax.Array:
    """Counts the tensors of each buffer that an op reads: `[t]` int32."""
    t = graph.sizes.tensors
    read = jnp.concatenate([buffers.root, jnp.full(1, t, jnp.int32)])[graph.use_tensor]
    return add(jnp.zeros(t + 1, jnp.int32), read, (graph.use_op == op).astype(jnp.int32))[:t]


def saved_bytes(graph: PaddedGraph, buffers: GraphBuffers, memory: Memory, read: jax.Array) -> jax.Array:
    """Computes how much memory each share would save if its op ran now and reused the buffer: `[s]` float32, byte
    units; -1 if reuse is not allowed.

    Args:
      graph: one graph.
      buffers: its buffers.
      memory: current state.
      read: `[s]` int32, the number of tensors of the share's source that its op reads.
    """
    last = take(memory.left, buffers.source) == read
    takes = last & ~take(buffers.pinned, buffers.source) & (buffers.op < graph.sizes.ops)
    return jnp.where(takes, take(memory.size, jnp.minimum(graph.share_tensor, graph.sizes.tensors - 1)), -1)


def run(graph: PaddedGraph, buffers: GraphBuffers, memory: Memory, op: jax.Array, read: jax.Array) -> Memory:
    """Runs a ready op, and returns the state of memory after it.

    Args:
      graph: one graph.
      buffers: its buffers.
      memory: state before the op.
      op: `[]` int32; n or more runs no op.
      read: `[t]` int32, as returned by `reads`.
    """
    n, t = graph.sizes.ops, graph.sizes.tensors
    is_output = (graph.producer == op) & (jnp.arange(t, dtype=jnp.int32) < graph.num_tensors)
    size, is_reused = memory.size, jnp.zeros(t, jnp.bool_)
    if graph.sizes.shares:
        takes = (saved_bytes(graph, buffers, memory, take(read, buffers.source)) >= 0) & (buffers.op == op) & (op < n)
        output = jnp.minimum(graph.share_tensor, t - 1)
        is_reused = is_reused.at[output].max(takes)
        is_donated = jnp.zeros(t, jnp.bool_).at[buffers.source].max(takes)
        reused_size = jnp.zeros(t, jnp.float32).at[output].add(jnp.where(takes, take(size, buffers.source), 0))
        size = jnp.where(is_reused, reused_size, jnp.where(is_donated, 0, size))
    live = memory.live + jnp.where(is_output & ~is_reused, size, 0).sum()
    peak = jnp.maximum(memory.peak, live + jnp.where(op < n, take(graph.workspace, jnp.minimum(op, n - 1)), 0))
    left = memory.left - read
    is_freed = ((read > 0) | is_output) & (left == 0) & ~buffers.pinned
    return Memory(left, size, live - jnp.where(is_freed, size, 0).sum(), peak)
