"""Peak memory of every device along an order, from births and deaths of buffers, without a loop over ops.

`peak_memory` counts memory by **place**, the index of a node in the order, not by time. A buffer is born at its op or
transfer and dies after the last node that needs it. Live memory is a running sum over the order.

A tensor has up to d **copies**: the one where its producer runs (copy 0) and one on each foreign device that reads it
(copy 1 + s, see lanes.py). An **instance** is a copy of a tensor on a device: copy c of tensor i is instance c * t + i.

`share_buffers` adds buffers that tensors share (`alias` and `reuses`), by the rules of `costs/exact/memory.py`. It is
only compiled for graphs that are padded for shares. A **share** is an output x that uses the buffer of an input y of
its op. That buffer belongs to the transferred copy of y on the op's device. If y was produced there, it belongs to y
itself or, if y is an alias, to the tensor with which y shares it.

- An alias only extends the buffer's life to its own end.
- An output that reuses takes the buffer over if that would end at the op itself. Then the output allocates nothing and
  frees nothing, and the buffer ends with the output, or with the next output that takes it over.

Both are chains of shares. Pointer doubling follows them in log2(s) rounds of gathers, with no loop over shares.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import add, put, put_max, take
from graphrl.costs.device.lanes import Lanes, by_device, entry_devices, node_count, scatter_max, take_rows
from graphrl.graphs.padding import PaddedGraph

_BLOCK = 16


def peak_memory(
    graph: PaddedGraph, lanes: Lanes, events: jax.Array, devices: int, *, resident_weights: bool = False
) -> jax.Array:
    """Computes the peak memory of every device, in byte units: `[d, g, p]` float32.

    Args:
      graph: a batch of graphs (leading axis g).
      lanes: the result of `implied` for the placements.
      events: `[c, L]` int32 orders, as `decode.Schedule.events`.
      devices: d.
      resident_weights: count the weights of the ops placed on a device from the start.
    """
    _, g, p = lanes.placement.shape
    node, device = events // devices, events % devices
    place = _places(node, node_count(graph.sizes, devices)).reshape(-1, g, p)
    copies = _copies(graph, lanes, place, devices, never=events.shape[0])
    per_node = _bytes_of_nodes(graph, devices)
    index = node + lanes.graph[None] * per_node.shape[-1]
    allocated, workspace = (take(table, index) for table in per_node.reshape(2, -1))
    if graph.sizes.shares:
        shared = share_buffers(graph, lanes, place, copies.end, copies.freed, allocated)
        copies, allocated = copies._replace(end=shared.end, freed=shared.freed), shared.allocated
    freed = _freed(copies, events.shape[0], devices)
    resident = jnp.zeros((devices, g, p), jnp.float32)
    if resident_weights:
        on = lanes.placement[None] == jnp.arange(devices, dtype=jnp.int32)[:, None, None, None]
        resident = jnp.where(on, graph.weight.T[None, :, :, None], 0.0).sum(1)
    return _walk(resident.reshape(devices, -1), device, allocated, workspace, freed).reshape(devices, g, p)


def _places(node: jax.Array, nodes: int) -> jax.Array:
    """Returns each node's place in the order: `[N + 1, L]` int32 from `[c, L]`; undefined for nodes that never run."""
    steps, count = node.shape
    lane = jnp.arange(count, dtype=jnp.int32)
    step = jnp.broadcast_to(jnp.arange(steps, dtype=jnp.int32)[:, None], node.shape)
    place = jnp.zeros((nodes + 1) * count, jnp.int32)
    return put(place, node * count + lane[None], step).reshape(nodes + 1, count)


class Copies(NamedTuple):
    """Device, end and size of every copy of every tensor in every lane."""

    device: jax.Array  # [d, t, g, p] int32
    end: jax.Array  # [d, t, g, p] int32, place of the last node that needs it; c if never freed or no such copy
    freed: jax.Array  # [d, t, g, p or 1] float32, byte units freed at its end


def _copies(graph: PaddedGraph, lanes: Lanes, place: jax.Array, devices: int, never: int) -> Copies:
    n, g, p = lanes.placement.shape
    t = lanes.source.shape[0]
    last_read = _last_reads(graph, lanes.placement, place[:n], devices)
    # transfers that do not exist have place -1, so they keep nothing alive
    last_send = jnp.where(lanes.needed, jnp.moveaxis(place[n:-1].reshape(t, devices - 1, g, p), 1, 0), -1)
    home = jnp.maximum(take_rows(place[:n], graph.producer), by_device(last_read, lanes.source))
    home = jnp.where(graph.kept.T[:, :, None], never, jnp.maximum(home, last_send.max(0, initial=-1)))
    foreign = jnp.where(lanes.needed, by_device(last_read, lanes.target), never)
    sizes = (graph.owned_bytes, *([graph.tensor_bytes] * (devices - 1)))
    return Copies(
        device=jnp.concatenate([lanes.source[None], lanes.target]),
        end=jnp.concatenate([home[None], foreign]),
        freed=jnp.stack(sizes).transpose(0, 2, 1)[..., None],
    )


def _bytes_of_nodes(graph: PaddedGraph, devices: int) -> jax.Array:
    """Returns the bytes of outputs and of workspace that each node allocates: `[2, g, N + 1]` float32, byte units."""
    g, n = graph.runtime.shape
    graph_index = jnp.arange(g)[:, None]
    outputs = jnp.zeros((g, n), jnp.float32).at[graph_index, graph.producer].add(graph.owned_bytes)
    copies = jnp.repeat(graph.tensor_bytes, devices - 1, axis=1)
    none = jnp.zeros((g, 1), jnp.float32)
    allocated = jnp.concatenate([outputs, copies, none], 1)
    return jnp.stack([allocated, jnp.concatenate([graph.workspace, jnp.zeros_like(copies), none], 1)])


class Shared(NamedTuple):
    """Results of `share_buffers`: ends of buffers, and the bytes that are freed and allocated."""

    end: jax.Array  # [d, t, g, p] int32, see `Copies`
    freed: jax.Array  # [d, t, g, p] float32, byte units, see `Copies`
    allocated: jax.Array  # [c, L] float32, byte units


def share_buffers(
    graph: PaddedGraph, lanes: Lanes, place: jax.Array, end: jax.Array, freed: jax.Array, allocated: jax.Array
) -> Shared:
    """Adjusts ends, frees and allocations to buffer sharing; the arguments assume that every tensor has its own buffer.

    Args:
      graph: a batch of graphs (leading axis g) with `sizes.shares` > 0.
      lanes: the result of `implied` for the placements.
      place: `[N + 1, g, p]` int32, place of every node in the order.
      end: `[d, t, g, p]` int32, as `memory.Copies.end`; c for never.
      freed: `[d, t, g, p or 1]` float32, as `memory.Copies.freed`.
      allocated: `[c, L]` float32, byte units that the node at each place allocates.
    """
    d, t, g, p = end.shape
    never, none = allocated.shape[0], d * t
    shares = _shares(graph, lanes, place)
    home = jnp.where(shares.external, never, end[0])  # so that no share takes an external buffer over
    ends = _append_zeros(jnp.concatenate([home, end[1:].reshape(none - t, g, p)]))
    buffer = _gather(shares.instance, _chain_ends(shares.parent))
    of_aliases = jnp.where(shares.reuses, -1, take_rows(ends, shares.tensor))
    ends = put_max(_flat(ends), _index(buffer), of_aliases).reshape(none + 1, g, p)
    reuses, reuser = _reusers(shares, buffer, ends)
    final = _gather(take_rows(ends, shares.tensor), _chain_ends(take_rows(reuser, shares.tensor)))
    # at most one share takes a buffer over; the others write to the last row, which is not read
    ends = put(_flat(ends), _index(jnp.where(reuses, buffer, none)), final)
    frees = _append_zeros(jnp.broadcast_to(freed, end.shape).reshape(none, g, p))
    owner = jnp.where(reuses, shares.tensor.T[..., None], none)
    owned = jnp.take_along_axis(graph.owned_bytes, jnp.minimum(shares.tensor, t - 1), 1).T[..., None]
    zeros, saved = jnp.zeros_like(reuses, jnp.float32), jnp.where(reuses, -owned, 0.0)
    return Shared(
        end=ends.reshape(none + 1, g, p)[:none].reshape(d, t, g, p),
        freed=put(_flat(frees), _index(owner), zeros).reshape(none + 1, g, p)[:none].reshape(d, t, g, p),
        allocated=add(_flat(allocated), _index(shares.place), saved).reshape(allocated.shape),
    )


def _freed(copies: Copies, steps: int, devices: int) -> jax.Array:
    """Returns the bytes freed after each place of the order: `[d, c, L]` float32, byte units."""
    _, t, g, p = copies.device.shape
    lane = jnp.arange(g * p, dtype=jnp.int32).reshape(1, g, p)
    freed = jnp.zeros(devices * (steps + 1) * g * p, jnp.float32)
    for device, end, size in zip(*copies, strict=True):
        index = (device * (steps + 1) + end) * (g * p) + lane
        freed = add(freed, index, jnp.broadcast_to(size, (t, g, p)))
    return freed.reshape(devices, steps + 1, g * p)[:, :steps]


def _walk(
    live: jax.Array, device: jax.Array, allocated: jax.Array, workspace: jax.Array, freed: jax.Array
) -> jax.Array:
    """Returns the largest live bytes `[d, L]` along the order, from `[c, L]` allocations and `[d, c, L]` frees.

    Works in blocks: first the total of each block and its peak above its start, for all blocks in parallel, then a scan
    over the blocks. XLA:CPU runs one cumulative sum over c nine times slower.
    """
    d, count = live.shape
    steps = device.shape[0]
    blocks = -(-steps // _BLOCK)

    def blocked(values: jax.Array) -> jax.Array:
        padding = [(0, 0)] * (values.ndim - 2) + [(0, blocks * _BLOCK - steps), (0, 0)]
        return jnp.pad(values, padding).reshape(*values.shape[:-2], blocks, _BLOCK, count)

    device, allocated, workspace, freed = (blocked(values) for values in (device, allocated, workspace, freed))
    added = jnp.zeros((d, blocks, count), jnp.float32)
    peak = jnp.zeros((d, blocks, count), jnp.float32)
    for i in range(_BLOCK):
        here = device[None, :, i] == jnp.arange(d, dtype=jnp.int32)[:, None, None]
        added = added + jnp.where(here, allocated[None, :, i], 0.0)
        peak = jnp.maximum(peak, added + jnp.where(here, workspace[None, :, i], 0.0))
        added = added - freed[:, :, i]

    def step(carry: tuple[jax.Array, jax.Array], block: tuple) -> tuple[tuple[jax.Array, jax.Array], None]:
        live, largest = carry
        added, peak = block
        return (live + added, jnp.maximum(largest, live + peak)), None

    blocks_first = (jnp.moveaxis(added, 1, 0), jnp.moveaxis(peak, 1, 0))
    return lax.scan(step, (live, live), blocks_first, unroll=8)[0][1]


def _last_reads(graph: PaddedGraph, placement: jax.Array, place: jax.Array, devices: int) -> jax.Array:
    """Returns the last place at which an op on each device reads each tensor, else -1: `[d, t, g, p]` int32."""
    t = graph.producer.shape[-1]
    reads = entry_devices(graph, placement)
    last_op = placement.shape[0] - 1
    at = jnp.stack([take_rows(place, jnp.minimum(graph.row_entry[..., j], last_op)) for j in range(reads.shape[0])])
    last = [scatter_max(graph.row_tensor, jnp.where(reads == b, at, -1).max(0), t + 1, -1)[:t] for b in range(devices)]
    return jnp.stack(last)


class _Shares(NamedTuple):
    """All shares of every graph (x uses the buffer of y, see the module); padding has tensor t and instance d * t."""

    tensor: jax.Array  # [g, s] int32, x
    reuses: jax.Array  # [s, g, 1] bool
    place: jax.Array  # [s, g, p] int32, place of x's producer in the order
    instance: jax.Array  # [s, g, p] int32, instance of y on x's device
    parent: jax.Array  # [s, g, p] int32, the share that makes y an alias on this device; s if y is no alias
    external: jax.Array  # [t, g, 1] bool, tensors that are aliases of external inputs


def _shares(graph: PaddedGraph, lanes: Lanes, place: jax.Array) -> _Shares:
    t, g, _ = lanes.source.shape
    none = (lanes.target.shape[0] + 1) * t
    count = graph.sizes.shares
    of_graph = jnp.arange(g, dtype=jnp.int32)[:, None]
    index = jnp.arange(count, dtype=jnp.int32)[None, :]
    # [g, t + 1] the share that makes a tensor an alias
    alias = jnp.full((g, t + 1), count, jnp.int32)
    alias = alias.at[of_graph, graph.share_tensor].set(jnp.where(graph.share_reuses, count, index))
    alias = alias.at[:, t].set(count)
    real_tensor, real_of = (jnp.minimum(tensor, t - 1) for tensor in (graph.share_tensor, graph.share_of))
    here, there = take_rows(lanes.source, real_tensor), take_rows(lanes.source, real_of)
    copy = jnp.where(here == there, 0, 1 + here - (here > there).astype(jnp.int32))
    of = graph.share_of.T[..., None]
    return _Shares(
        tensor=graph.share_tensor,
        reuses=graph.share_reuses.T[..., None],
        place=take_rows(place, graph.producer[of_graph, real_tensor]),
        instance=jnp.where(of < t, copy * t + of, none),
        parent=jnp.where(copy == 0, alias[of_graph, graph.share_of].T[..., None], count),
        external=((graph.owned_bytes == 0) & (graph.tensor_bytes > 0) & (alias[:, :t] == count)).T[..., None],
    )


def _append_zeros(array: jax.Array) -> jax.Array:
    """Appends a row for the index that means none."""
    return jnp.concatenate([array, jnp.zeros((1, *array.shape[1:]), array.dtype)])


def _gather(array: jax.Array, index: jax.Array) -> jax.Array:
    """Returns `array[index]` lane by lane: from `[x, g, p]` and `[s, g, p]`, `[s, g, p]`."""
    return take(_flat(array), _index(index))


def _chain_ends(following: jax.Array) -> jax.Array:
    """Returns the last share of the chain from each share, `[s, g, p]`, given the next of each (s for none)."""
    count = following.shape[0]
    index = jnp.arange(count, dtype=jnp.int32)[:, None, None]
    following = jnp.where(following < count, following, index)
    return lax.fori_loop(0, (count - 1).bit_length(), lambda _, chain: _gather(chain, chain), following)


def _flat(array: jax.Array) -> jax.Array:
    return array.reshape(-1)


def _index(index: jax.Array) -> jax.Array:
    """Converts indices `[s, g, p]` along the first axis of an `[x, g, p]` array to indices of the flat array."""
    _, g, p = index.shape
    return index * (g * p) + jnp.arange(g * p, dtype=jnp.int32).reshape(1, g, p)


def _reusers(shares: _Shares, buffer: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the shares that take over their buffer, `[s, g, p]` bool, and each buffer's taker, `[d * t + 1, g, p]`.

    A taker of s means that no share takes the buffer. If several outputs of an op can take one buffer, the first does.
    """
    count = buffer.shape[0]
    index = jnp.arange(count, dtype=jnp.int32)[:, None, None]
    can_reuse = shares.reuses & (_gather(ends, buffer) == shares.place)
    unclaimed = jnp.full_like(ends, count)
    reuser = _flat(unclaimed).at[_index(buffer)].min(jnp.where(can_reuse, index, count)).reshape(ends.shape)
    return can_reuse & (_gather(reuser, buffer) == index), reuser
