"""The read-only tables of the decoder by rows, made once for a population."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.lanes import IDLE, Lanes, node_count, take_rows
from graphrl.costs.problem import MAX_DEVICES
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.graphs.rows import READS, ROW_WIDTH, WAITS

BLOCK = 8  # slots of the ready queue under one maximum; measured against 4 and 16
UNIT = MAX_DEVICES  # what a slot counts down by for each input: the low bits hold its op's device
ANY, NO = -1, -2  # in place of the device that an entry must be on to be relaxed


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
    op_keys: jax.Array  # [slots * L] int32
    transfer_keys: jax.Array  # [(d - 1) * slots * L] int32, of the tensor of each slot
    entries: jax.Array  # [g * (r + 1), W] int32, slots
    wanted: jax.Array  # [g * (r + 1) * d * 2, W] int32, the device that each entry must be on; by row, device, walk
    last: jax.Array  # [g * (r + 1) * 2] bool, whether the row is the last; by row, walk (0: a transfer's, 1: an op's)
    slot: jax.Array  # [g * (r + 1)] int32
    owner: jax.Array  # [g * (r + 1)] int32
    row_offset: jax.Array  # [L] int32, where the lane's graph starts in tables by row
    node_offset: jax.Array  # [L] int32, the same in tables by node
    index_mask: jax.Array  # [L] int32
    real_ops: jax.Array  # [L] int32
    padding_ops: jax.Array  # [L] int32, what padding adds to the node numbers of transfers


def slot_layout(sizes: Sizes) -> tuple[int, int]:
    """Slots of the state (one more than the graph's, for entries that are none) and blocks."""
    blocks = -(-(sizes.slots + 1) // BLOCK)
    return blocks * BLOCK, blocks


def make_tables(graph: PaddedGraph, lanes: Lanes, devices: int) -> Tables:
    """The tables of a batch of graphs and p candidate solutions of each."""
    sizes = graph.sizes
    _, g, p = lanes.placement.shape
    r = sizes.rows

    def by_row(values: jax.Array, idle: int | bool) -> jax.Array:
        """`[g, r, ...]` to `[g * (r + 1), ...]`: one idle row ends each graph's."""
        padding = jnp.full((g, 1, *values.shape[2:]), idle, values.dtype)
        return jnp.concatenate([values, padding], 1).reshape(g * (r + 1), *values.shape[2:])

    transfer_row = jnp.repeat(graph.tensor_row, devices - 1, axis=1)
    start = jnp.concatenate([graph.op_row, transfer_row, jnp.full((g, 1), r, jnp.int32)], 1)
    targets = (lanes.placement, jnp.moveaxis(lanes.target, 0, 1).reshape(-1, g, p), jnp.zeros((1, g, p), jnp.int32))
    no_key = jnp.full((slot_layout(sizes)[0] - sizes.ops, g, p), IDLE)
    return Tables(
        start=(start * devices).reshape(-1),
        target=jnp.concatenate(targets).astype(jnp.int8).reshape(-1),
        op_keys=jnp.concatenate([lanes.op_keys, no_key]).reshape(-1),
        transfer_keys=_transfer_keys_by_slot(graph, lanes),
        entries=by_row(graph.row_entry, sizes.slots),
        wanted=by_row(_wanted(graph, devices), NO).reshape(-1, ROW_WIDTH),
        last=by_row(jnp.stack([graph.row_ends_tensor, graph.row_ends_op], -1), True).reshape(-1),
        slot=by_row(graph.row_slot, sizes.slots),
        owner=by_row(graph.row_owner, 0),
        row_offset=lanes.graph * (r + 1),
        node_offset=lanes.graph * (node_count(sizes, devices) + 1),
        index_mask=lanes.index_mask[lanes.graph],
        real_ops=graph.num_ops[lanes.graph],
        padding_ops=sizes.ops - graph.num_ops[lanes.graph],
    )


def _transfer_keys_by_slot(graph: PaddedGraph, lanes: Lanes) -> jax.Array:
    """`[(d - 1) * slots * L]` int32, IDLE for slots without a tensor."""
    _, g, p = lanes.placement.shape
    _, foreign, _, _ = lanes.transfer_keys.shape
    by_tensor = jnp.concatenate([lanes.transfer_keys, jnp.full((1, foreign, g, p), IDLE)])
    no_slot = jnp.full((slot_layout(graph.sizes)[0] - graph.sizes.slots, g, p), IDLE)
    by_slot = [jnp.concatenate([take_rows(by_tensor[:, s], graph.slot_tensor), no_slot]) for s in range(foreign)]
    return jnp.concatenate([*by_slot, no_slot]).reshape(-1)


def _wanted(graph: PaddedGraph, devices: int) -> jax.Array:
    """For every row, device and walk, the device that each entry must be on to be relaxed: `[g, r, d, 2, W]` int32.

    A walk relaxes the readers on its device (an op's own, or where a transfer goes); an op's, all control successors.
    """
    kind = graph.row_kind[:, :, None, None]
    shape = (*graph.row_kind.shape[:2], devices, 2, ROW_WIDTH)
    device = jnp.broadcast_to(jnp.arange(devices, dtype=jnp.int32)[None, None, :, None, None], shape)
    op_walk = jnp.arange(2, dtype=jnp.int32)[None, None, None, :, None] == 1
    return jnp.where(kind == READS, device, jnp.where((kind == WAITS) & op_walk, ANY, NO))
