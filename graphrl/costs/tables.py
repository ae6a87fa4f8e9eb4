"""The read-only tables of the decoder by rows, made once for a population."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.lanes import IDLE, Lanes, entry_devices, node_count, rows
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.graphs.rows import ROW_WIDTH, WAITS

BLOCK = 8  # slots of the ready queue under one maximum; measured against 4 and 16
OP_WALK, LAST_ROW = 2, 4  # flags beside the first entry's bit: the walk is an op's, the row is the walk's last


def num_events(sizes: Sizes, devices: int) -> int:
    """c: at most this many steps decode any solution: all op rows, and the rows of all transfers."""
    foreign = devices - 1
    # A tensor of k readers has at most (k + 3) / 4 rows and min(k, d - 1) transfers.
    walked = min(sizes.rows * foreign, -(-sizes.uses * max(5, 2 * foreign) // 5))
    return sizes.rows + walked


class Tables(NamedTuple):
    """Read-only arrays of the loop. Flat tables of lanes have index x * L + lane; those of graphs are stacked."""

    start: jax.Array  # [g * (N + 1)] int32, row * d where a node's walk starts
    target: jax.Array  # [(N + 1) * L] int8, device of an op, or that a transfer goes to
    entry_flags: jax.Array  # [(r + 1) * d * L, W] int8, whether to relax the entry, and flags beside the first
    source: jax.Array  # [(r + 1) * L] int32, device of the row's op
    op_keys: jax.Array  # [slots * L] int32
    transfer_keys: jax.Array  # [(d - 1) * slots * L] int32, of the tensor of each slot
    entries: jax.Array  # [g * (r + 1), W] int32, slots
    slot: jax.Array  # [g * (r + 1)] int32
    row_offset: jax.Array  # [L] int32, where the lane's graph starts in the tables of graphs
    node_offset: jax.Array  # [L] int32, the same for durations
    index_mask: jax.Array  # [L] int32
    real_ops: jax.Array  # [L] int32
    padding_ops: jax.Array  # [L] int32, what padding adds to the node numbers of transfers


def slot_layout(sizes: Sizes) -> tuple[int, int]:
    """Slots of the state (one more than the graph's, for entries that are none) and blocks."""
    blocks = -(-(sizes.slots + 1) // BLOCK)
    return blocks * BLOCK, blocks


def make_tables(graph: PaddedGraph, lanes: Lanes, devices: int) -> Tables:
    sizes = graph.sizes
    _, g, p = lanes.placement.shape
    r = sizes.rows
    slots, _ = slot_layout(sizes)

    def of_graphs(values: jax.Array, idle: int) -> jax.Array:
        """`[g, r, ...]` to `[g * (r + 1), ...]`: one idle row ends each graph's."""
        padding = jnp.full((g, 1, *values.shape[2:]), idle, jnp.int32)
        return jnp.concatenate([values, padding], 1).reshape(g * (r + 1), *values.shape[2:])

    transfer_row = jnp.repeat(graph.tensor_row, devices - 1, axis=1)
    start = jnp.concatenate([graph.op_row, transfer_row, jnp.full((g, 1), r, jnp.int32)], 1)
    targets = (lanes.placement, jnp.moveaxis(lanes.target, 0, 1).reshape(-1, g, p), jnp.zeros((1, g, p), jnp.int32))
    source = jnp.concatenate([rows(lanes.placement, graph.row_owner), jnp.zeros((1, g, p), jnp.int32)])
    no_key = jnp.full((slots - sizes.ops, g, p), IDLE)
    by_tensor = jnp.concatenate([lanes.transfer_keys, jnp.full((1, devices - 1, g, p), IDLE)])
    no_slot = jnp.full((slots - sizes.slots, g, p), IDLE)
    by_slot = [jnp.concatenate([rows(by_tensor[:, s], graph.slot_tensor), no_slot]) for s in range(devices - 1)]
    return Tables(
        start=(start * devices).reshape(-1),
        target=jnp.concatenate(targets).astype(jnp.int8).reshape(-1),
        entry_flags=_entry_flags(graph, lanes, devices),
        source=source.reshape(-1),
        op_keys=jnp.concatenate([lanes.op_keys, no_key]).reshape(-1),
        transfer_keys=jnp.concatenate([*by_slot, no_slot]).reshape(-1),
        entries=of_graphs(graph.row_entry, sizes.slots),
        slot=of_graphs(graph.row_slot, sizes.slots),
        row_offset=lanes.graph * (r + 1),
        node_offset=lanes.graph * (node_count(sizes, devices) + 1),
        index_mask=lanes.index_mask[lanes.graph],
        real_ops=graph.num_ops[lanes.graph],
        padding_ops=sizes.ops - graph.num_ops[lanes.graph],
    )


def _entry_flags(graph: PaddedGraph, lanes: Lanes, devices: int) -> jax.Array:
    """For every row and device: which entries a walk for that device relaxes, and what row it is.

    An op's walk, on its own device, relaxes the readers there and all control successors; a transfer's walk the
    readers on its target.
    """
    reads = entry_devices(graph, lanes.placement)  # [W, r, g, p]
    owner = rows(lanes.placement, graph.row_owner)
    waits = jnp.moveaxis(graph.row_kind == WAITS, (0, 1, 2), (2, 1, 0))[..., None]  # [W, r, g, 1]
    ends_op, ends_tensor = graph.row_ends_op.T[..., None], graph.row_ends_tensor.T[..., None]
    by_target = []
    for b in range(devices):
        own = owner == b
        relax = ((reads == b) | (waits & own[None])).astype(jnp.int8)
        last = jnp.where(own, ends_op, ends_tensor)
        flags = jnp.where(own, OP_WALK, 0) + jnp.where(last, LAST_ROW, 0)
        by_target.append(jnp.stack([relax[0] + flags.astype(jnp.int8), *relax[1:]], -1))
    table = jnp.stack(by_target, 1)  # [r, d, g, p, W]
    idle = jnp.zeros((1, *table.shape[1:]), jnp.int8).at[..., 0].set(LAST_ROW)
    return jnp.concatenate([table, idle]).reshape(-1, ROW_WIDTH)
