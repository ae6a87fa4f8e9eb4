"""Which buffers kernels' outputs share, on the device: the twin of what `fused_graph` does by names."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.indexing import take
from graphrl.costs.fusion.device import DeviceKernels
from graphrl.costs.fusion.padding import PaddedFusion
from graphrl.graphs.padding import PaddedGraph


class Buffers(NamedTuple):
    """Shares, new numbers of tensors; those that are no more are of tensor t, as padding is."""

    owned_bytes: jax.Array  # [t] float32, by old number: what its producer allocates
    tensor: jax.Array  # [s] int32
    of: jax.Array  # [s] int32
    reuses: jax.Array  # [s] bool


def kernel_buffers(
    graph: PaddedGraph, problem: PaddedFusion, kernels: DeviceKernels, is_written: jax.Array, new: jax.Array
) -> Buffers:
    """The buffers of a graph's kernels.

    Args:
      is_written: `[t]` bool, whether a root writes the tensor.
      new: `[t + 1]` int32, its number among those.
    """
    t = graph.sizes.tensors
    if graph.sizes.shares == 0:
        return Buffers(graph.owned_bytes, graph.share_tensor, graph.share_of, graph.share_reuses)
    alias = jnp.full(t + 1, t, jnp.int32).at[jnp.where(graph.share_reuses, t, graph.share_tensor)].set(graph.share_of)
    alias = alias.at[t].set(t)
    outside = (graph.owned_bytes == 0) & (graph.tensor_bytes > 0) & (alias[:t] == t)
    # whose buffer a reader of each tensor finds: its own, t for none, t + 1 for that of an external input
    own = jnp.arange(t, dtype=jnp.int32)
    buffer = jnp.where(is_written, own, jnp.where(outside, t + 1, alias[:t]))
    buffer = jnp.append(buffer, jnp.array([t, t + 1], jnp.int32))
    for _ in range((problem.max_ops - 1).bit_length()):  # a chain through inlined ops has at most as many members
        buffer = take(buffer, buffer)
    seen = take(buffer, alias)[:t]
    owned = jnp.where((alias[:t] < t) & (seen == t), graph.tensor_bytes, graph.owned_bytes)

    of = jnp.where(graph.share_reuses, graph.share_of, take(buffer, graph.share_of))
    stays = take(jnp.append(is_written, False), graph.share_tensor) & (of < t)
    stays &= ~(graph.share_reuses & _lost(graph, problem, kernels, jnp.append(is_written, False)))
    return Buffers(
        owned_bytes=owned,
        tensor=jnp.where(stays, take(new, graph.share_tensor), t),
        of=jnp.where(stays, take(new, jnp.minimum(of, t)), t),
        reuses=stays & graph.share_reuses,
    )


def _lost(graph: PaddedGraph, problem: PaddedFusion, kernels: DeviceKernels, is_written: jax.Array) -> jax.Array:
    """Whether what each share takes over is not there any more, or a member but the root reads it: `[s]` bool."""
    n, t = graph.sizes.ops, graph.sizes.tensors
    root = jnp.where(graph.share_tensor < t, take(jnp.append(graph.producer, 0), graph.share_tensor), n)
    members = take(jnp.concatenate([kernels.members, jnp.full((1, problem.max_ops), n, jnp.int32)]), root)
    inner = jnp.where(members == root[:, None], n, members)
    reads = (take(problem.reads, inner) == graph.share_of[:, None, None]).any((1, 2))
    return reads | ~take(is_written, graph.share_of)
