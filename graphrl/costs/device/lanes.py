"""Transfers and packed keys that a placement implies, for every lane.

A lane is one candidate solution of one graph. A packed key is one int32 of a node's key and its index (see `_pack`).

Nodes are numbered ops first: op v is node v, and the transfer of tensor t to its s-th foreign device is node n + t * (d
- 1) + s, where the foreign devices of t are all but its producer's, in ascending order. The index N = n + t * (d - 1)
means no node. Ascending numbers have the same order as the host's (t * devices + b), without gaps.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.indexing import put_max, take
from graphrl.graphs.padding import READS, PaddedGraph, Sizes

IDLE = np.int32(-1)  # in place of a packed key: not in the ready queue


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lanes:
    """Packed keys and needed transfers; shapes as in graphs/padding.py, lanes `[g, p]` or flattened, L = g * p."""

    placement: jax.Array  # [n, g, p] int32
    source: jax.Array  # [t, g, p] int32, device of each tensor's producer
    target: jax.Array  # [d - 1, t, g, p] int32, the foreign devices of each tensor
    needed: jax.Array  # [d - 1, t, g, p] bool, True if an op on that device reads the tensor
    op_keys: jax.Array  # [n, g, p] int32, packed
    transfer_keys: jax.Array  # [t, d - 1, g, p] int32, packed; IDLE where not needed
    index_mask: jax.Array  # [g] int32, the low bits of a packed key: mask - index
    graph: jax.Array  # [L] int32, the graph of each lane


def node_count(sizes: Sizes, devices: int) -> int:
    """Returns N, the number of ops and possible transfers of a padded graph."""
    return sizes.ops + sizes.tensors * (devices - 1)


def take_rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """Returns `array[index]` graph by graph: from array `[x, g, p]` and index `[g, y]`, `[y, g, p]`."""
    x, g, p = array.shape
    flat = index.T * g + jnp.arange(g, dtype=index.dtype)[None, :]
    return take(array.reshape(x * g, p), flat)


def by_device(values: jax.Array, device: jax.Array) -> jax.Array:
    """Returns `values[device[...], ...]` elementwise; for few devices, comparisons are cheaper than a gather."""
    shape = jnp.broadcast_shapes(values[0].shape, device.shape)
    result = jnp.broadcast_to(values[0], shape)
    for b in range(1, values.shape[0]):
        result = jnp.where(device == b, jnp.broadcast_to(values[b], shape), result)
    return result


def scatter_max(index: jax.Array, values: jax.Array, size: int, start: jax.Array | float) -> jax.Array:
    """Returns the largest of the `values` `[y, g, p]` with each `index` `[g, y]`, at least `start`: `[size, g, p]`."""
    _, g, p = values.shape
    flat = index.T * g + jnp.arange(g, dtype=index.dtype)[None, :]
    out = jnp.full((size * g, p), start, values.dtype)
    return put_max(out, flat, values).reshape(size, g, p)


def implied(graph: PaddedGraph, decisions: Decisions, devices: int) -> Lanes:
    """Computes the transfers and packed keys of `decisions` for a batch of graphs (leading axis g on every field)."""
    placement = decisions.placement
    n, g, p = placement.shape
    source = take_rows(placement, graph.producer)
    foreign = jnp.arange(devices - 1, dtype=jnp.int32)[:, None, None, None]
    target = foreign + (source[None] <= foreign).astype(jnp.int32)
    needed = by_device(readers_on(graph, placement, devices), target)
    index_bits, index_mask = _index_bits(graph, devices)
    op_index = jnp.arange(n, dtype=jnp.int32)[:, None, None]
    t = source.shape[0]
    of_tensor = jnp.arange(t, dtype=jnp.int32)[:, None, None, None] * (devices - 1) + jnp.moveaxis(foreign, 0, 1)
    transfer_index = graph.num_ops[None, None, :, None] + of_tensor
    chosen_keys = by_device(decisions.transfer_keys, target)
    transfer_keys = _pack(jnp.moveaxis(chosen_keys, 0, 1), transfer_index, index_bits)
    return Lanes(
        placement=placement,
        source=source,
        target=target,
        needed=needed,
        op_keys=_pack(decisions.op_keys, op_index, index_bits),
        transfer_keys=jnp.where(jnp.moveaxis(needed, 0, 1), transfer_keys, IDLE),
        index_mask=index_mask,
        graph=jnp.repeat(jnp.arange(g, dtype=jnp.int32), p, total_repeat_length=g * p),
    )


def readers_on(graph: PaddedGraph, placement: jax.Array, devices: int) -> jax.Array:
    """True where some op on the device reads the tensor: `[d, t, g, p]` bool."""
    t = graph.producer.shape[-1]
    reads = entry_devices(graph, placement)
    on = [scatter_max(graph.row_tensor, (reads == b).any(0), t + 1, False)[:t] for b in range(devices)]
    return jnp.stack(on)


def entry_devices(graph: PaddedGraph, placement: jax.Array) -> jax.Array:
    """Returns the device of each reader listed in a row (graphs/padding.py), else -1: `[W, r, g, p]` int32."""
    return jnp.stack(
        [
            jnp.where(
                (graph.row_kind[..., j].T == READS)[..., None],
                take_rows(placement, jnp.minimum(graph.row_entry[..., j], placement.shape[0] - 1)),
                -1,
            )
            for j in range(graph.row_entry.shape[-1])
        ]
    )


def _index_bits(graph: PaddedGraph, devices: int) -> tuple[jax.Array, jax.Array]:
    """Returns the bits of a node's index in a packed key, and their mask, `[g] int32` each; independent of padding."""
    nodes = graph.num_ops + graph.num_tensors * (devices - 1)
    bits = jnp.maximum(1, 32 - jax.lax.clz(jnp.maximum(nodes - 1, 0))).astype(jnp.int32)
    return bits, jnp.left_shift(jnp.int32(1), bits) - 1


def _pack(keys: jax.Array, index: jax.Array, index_bits: jax.Array) -> jax.Array:
    """Packs keys in [0, 1) and node indices into one non-negative int32 each: larger key first, then the lower index.

    The key is quantised to the 31 - index_bits bits that the index leaves.

    Args:
      keys: `[..., g, p]` float32.
      index: int32, broadcastable to `keys`.
      index_bits: `[g]` int32.
    """
    bits = jnp.expand_dims(index_bits, (*range(keys.ndim - 2), -1))  # [1, ..., g, 1]
    levels = jnp.left_shift(jnp.int32(1), 31 - bits)
    quantised = jnp.minimum((keys * levels.astype(jnp.float32)).astype(jnp.int32), levels - 1)
    return jnp.left_shift(quantised, bits) | (jnp.left_shift(jnp.int32(1), bits) - 1 - index)
