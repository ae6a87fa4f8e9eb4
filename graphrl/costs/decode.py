"""Keys to orders: a priority topological sort of ops and transfers, one lane for each candidate solution.

The form for CPUs. A step pops the best ready node of every lane, or goes on with the rows of the node that it popped
before; it relaxes one row. All lanes advance together, so that every operation is a vector operation across lanes:

- the ready queue is one packed key a slot, under one level of block maxima (`_BLOCK` slots a block);
- a slot holds -1 minus the number of inputs that its op waits for or, once ready, its packed key; empty, `IDLE`;
- state arrays are flat, `[slots * L]` with index slot * L + lane, and each is written in place. XLA copies an array
  that is read after it was written, or written by operands that do not depend on what was read before, so each write
  below depends on every earlier read (tests/test_compiled.py looks for copies in the compiled loop).

`decode_dense.py` is the form for GPUs; both give the same order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.lanes import IDLE, Lanes, entry_devices, rows
from graphrl.costs.problem import Transfer
from graphrl.costs.timing import Clocks, Node, advance, start_clocks
from graphrl.graphs.padding import ROW_WIDTH, WAITS, PaddedGraph, Sizes

_BLOCK = 8
_OP, _LAST = 2, 4  # flags beside the first entry's bit: the walk is an op's, the row is the walk's last
_UNLIMITED = jnp.int32(2**31 - 1)


class Schedule(NamedTuple):
    """The orders of L = g * p lanes, and what the clocks said."""

    events: jax.Array  # [c, L] int32, node * d + device (of the op, or that the transfer goes to), N * d for no node
    makespan: jax.Array  # [L] float32, second units; 0 without durations


def num_events(sizes: Sizes, devices: int) -> int:
    """c: at most this many steps decode any solution: all op rows, and the rows of all transfers."""
    foreign = devices - 1
    # A tensor of k readers has at most (k + 3) / 4 rows and min(k, d - 1) transfers.
    walked = min(sizes.rows * foreign, -(-sizes.uses * max(5, 2 * foreign) // 5))
    return sizes.rows + walked


def node_count(sizes: Sizes, devices: int) -> int:
    """N: ops and possible transfers of a padded graph."""
    return sizes.ops + sizes.tensors * (devices - 1)


class _Tables(NamedTuple):
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


class _State(NamedTuple):
    slots: jax.Array  # [slots * L] int32
    blocks: jax.Array  # [blocks * L] int32, the largest key of each block
    place: jax.Array  # [L] int32, row * d + device of the row relaxed last
    flags: jax.Array  # [L] int8, of that row
    limit: jax.Array  # [L] int32, transfers of the row's tensor with larger keys have run
    events: jax.Array  # [c, L] int32
    clocks: Clocks | None
    end: jax.Array | None  # [L] float32, of the node whose rows are walked
    ready: jax.Array | None  # [slots * L] float32, latest arrival so far; end of the producer once it ran


def schedule(
    graph: PaddedGraph,
    lanes: Lanes,
    devices: int,
    transfer: Transfer,
    durations: jax.Array | None,
    *,
    fixed_trips: bool = False,
) -> Schedule:
    """Decodes all lanes, and times them if `durations` are given.

    Args:
      graph: a batch of graphs (leading axis g).
      lanes: what `lanes.implied` says of p candidate solutions a graph.
      devices: d.
      transfer: the transfer model.
      durations: `[g, N + 1]` float32 seconds of every node (0 for no node), or None: no makespan is computed.
      fixed_trips: run all `num_events` steps instead of only as many as the longest lane needs (for devices on which
        a trip count that is known only at run time costs a synchronisation a step).
    """
    sizes, count = graph.sizes, lanes.graph.shape[0]
    steps = num_events(sizes, devices)
    tables = _tables(graph, lanes, devices)
    state = _start(graph, lanes, devices, steps, timed=durations is not None)
    trips = steps if fixed_trips else _trips(graph, lanes)

    def step(index: jax.Array, state: _State) -> _State:
        return _step(index, state, tables, devices, transfer, durations)

    state = lax.fori_loop(0, trips, step, state)
    makespan = jnp.zeros(count, jnp.float32) if state.clocks is None else state.clocks.device.max(0)
    return Schedule(state.events, makespan)


def _trips(graph: PaddedGraph, lanes: Lanes) -> jax.Array:
    """Steps that the longest lane needs: rows of all ops, and of all transfers that exist."""
    op_rows = graph.op_rows.sum(-1)[:, None]
    transfer_rows = jnp.where(lanes.needed, graph.tensor_rows.T[None, :, :, None], 0).sum((0, 1))
    return (op_rows + transfer_rows).max()


def _slot_layout(sizes: Sizes) -> tuple[int, int]:
    """Slots of the state (one more than the graph's, for entries that are none) and blocks."""
    blocks = -(-(sizes.slots + 1) // _BLOCK)
    return blocks * _BLOCK, blocks


def _tables(graph: PaddedGraph, lanes: Lanes, devices: int) -> _Tables:
    sizes, count = graph.sizes, lanes.graph.shape[0]
    _, g, p = lanes.placement.shape
    r = sizes.rows
    slots, _ = _slot_layout(sizes)

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
    return _Tables(
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
    _, g, p = lanes.placement.shape
    reads = entry_devices(graph, lanes.placement)  # [W, r, g, p]
    owner = rows(lanes.placement, graph.row_owner)
    waits = jnp.moveaxis(graph.row_kind == WAITS, (0, 1, 2), (2, 1, 0))[..., None]  # [W, r, g, 1]
    ends_op, ends_tensor = graph.row_ends_op.T[..., None], graph.row_ends_tensor.T[..., None]
    by_target = []
    for b in range(devices):
        own = owner == b
        relax = ((reads == b) | (waits & own[None])).astype(jnp.int8)
        last = jnp.where(own, ends_op, ends_tensor)
        flags = jnp.where(own, _OP, 0) + jnp.where(last, _LAST, 0)
        by_target.append(jnp.stack([relax[0] + flags.astype(jnp.int8), *relax[1:]], -1))
    table = jnp.stack(by_target, 1)  # [r, d, g, p, W]
    idle = jnp.zeros((1, *table.shape[1:]), jnp.int8).at[..., 0].set(_LAST)
    return jnp.concatenate([table, idle]).reshape(-1, ROW_WIDTH)


def _start(graph: PaddedGraph, lanes: Lanes, devices: int, steps: int, *, timed: bool) -> _State:
    sizes, count = graph.sizes, lanes.graph.shape[0]
    _, g, p = lanes.placement.shape
    slots, blocks = _slot_layout(sizes)
    waits = graph.indegree.T[..., None]
    keys = jnp.concatenate([lanes.op_keys, jnp.full((sizes.slots - sizes.ops, g, p), IDLE)])
    state = jnp.where(waits == 0, keys, -1 - waits)
    state = jnp.concatenate([state, jnp.full((slots - sizes.slots, g, p), -(2**30), jnp.int32)])
    idle = node_count(sizes, devices) * devices
    return _State(
        slots=state.reshape(-1),
        blocks=jnp.maximum(state, IDLE).reshape(blocks, _BLOCK, count).max(1).reshape(-1),
        place=jnp.full(count, sizes.rows * devices, jnp.int32),
        flags=jnp.full(count, _LAST, jnp.int8),
        limit=jnp.full(count, _UNLIMITED),
        events=jnp.full((steps, count), idle, jnp.int32),
        clocks=start_clocks(devices, count) if timed else None,
        end=jnp.zeros(count, jnp.float32) if timed else None,
        ready=jnp.zeros(slots * count, jnp.float32) if timed else None,
    )


def _get(array: jax.Array, index: jax.Array) -> jax.Array:
    return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _step(
    index: jax.Array,
    state: _State,
    tables: _Tables,
    devices: int,
    transfer: Transfer,
    durations: jax.Array | None,
) -> _State:
    count = state.place.shape[0]
    lane = jnp.arange(count, dtype=jnp.int32)
    no_node = tables.target.shape[0] // count - 1

    # which row is relaxed now: the next of the walk, or the first of the best ready node's
    popping = (state.flags & _LAST) != 0
    best = state.blocks.reshape(-1, count).max(0)
    real = tables.index_mask - (best & tables.index_mask)
    node = jnp.where(best >= 0, real + jnp.where(real < tables.real_ops, 0, tables.padding_ops), no_node)
    start = _get(tables.start, tables.node_offset + node) + _get(tables.target, node * count + lane).astype(jnp.int32)
    place = jnp.where(popping, start, state.place + devices)
    local_row = lax.div(place, jnp.int32(devices))
    row = tables.row_offset + local_row
    relax = _get(tables.entry_flags, place * count + lane)  # [L, W]
    flags = relax[:, 0]
    is_op = (flags & _OP) != 0
    limit = jnp.where(popping, jnp.where(is_op, _UNLIMITED, best), state.limit)

    # the slot that the node leaves: its tensor's next transfer takes it
    left = _get(tables.slot, row)
    slot, block = left * count + lane, lax.div(left, jnp.int32(_BLOCK)) * count
    following = _following(tables, slot, limit, devices)
    in_block = (jnp.arange(_BLOCK, dtype=jnp.int32) * count)[:, None] + (block * _BLOCK + lane)[None]
    rest = jnp.where(in_block == slot[None], IDLE, jnp.maximum(_get(state.slots, in_block), IDLE)).max(0)
    blocks = state.blocks.at[block + lane].set(jnp.maximum(rest, following), mode="promise_in_bounds", wrap_negative_indices=False)
    # min(rest, -1) is always -1: it makes the write depend on the reads of the block
    written = following + (jnp.minimum(rest, -1) + 1)
    slots = state.slots.at[slot].set(written, mode="promise_in_bounds", wrap_negative_indices=False)

    # the row's entries: one input less to wait for, and into the queue with those that waited for no other
    listed = _get(tables.entries, row)
    entries = listed * count + lane[:, None]
    relaxed = (relax & 1).astype(jnp.int32)
    waiting = _get(slots, entries) + relaxed
    now_ready = (waiting == -1) & (relaxed > 0)
    values = jnp.where(now_ready, _get(tables.op_keys, entries), waiting)
    slots = slots.at[entries].set(values, mode="promise_in_bounds", wrap_negative_indices=False)
    # a value >= 0 that is not new stands in its block already
    entry_blocks = lax.div(listed, jnp.int32(_BLOCK)) * count + lane[:, None]
    blocks = blocks.at[entry_blocks].max(values, mode="promise_in_bounds", wrap_negative_indices=False)

    target = lax.rem(place, jnp.int32(devices))
    event = jnp.where(popping, node, no_node) * devices + target
    events = lax.dynamic_update_index_in_dim(state.events, event, index, 0)
    state = state._replace(slots=slots, blocks=blocks, place=place, flags=flags, limit=limit, events=events)
    if durations is None:
        return state
    running = popping & (node < no_node)
    timed = Node(
        is_op=running & is_op,
        is_transfer=running & ~is_op,
        source=_get(tables.source, local_row * count + lane),
        target=target,
        ready=_get(state.ready, slot),
        seconds=_get(durations.reshape(-1), tables.node_offset + node),
    )
    return _time(state, timed, popping, is_op, relaxed > 0, slot, entries, transfer)


def _following(tables: _Tables, slot: jax.Array, limit: jax.Array, devices: int) -> jax.Array:
    """The largest key below `limit` among the transfers of the slot's tensor, IDLE if there is none: `[L]` int32."""
    best = jnp.full_like(slot, IDLE)
    slots = tables.op_keys.shape[0]
    for s in range(devices - 1):
        key = _get(tables.transfer_keys, slot + s * slots)
        best = jnp.maximum(best, jnp.where(key < limit, key, IDLE))
    return best


def _time(
    state: _State,
    node: Node,
    popping: jax.Array,
    is_op: jax.Array,
    relaxed: jax.Array,
    slot: jax.Array,
    entries: jax.Array,
    transfer: Transfer,
) -> _State:
    """Runs the popped nodes on the clocks, and tells what they release when it may start."""
    clocks, end = advance(transfer, state.clocks, node)
    end = jnp.where(popping, end, state.end)
    # an op's slot now holds its end, which its transfers start from; max makes the write depend on the read
    ready = state.ready.at[slot].set(
        jnp.where(is_op, jnp.maximum(end, node.ready), node.ready), mode="promise_in_bounds", wrap_negative_indices=False
    )
    ready = ready.at[entries].max(jnp.where(relaxed, end[:, None], 0.0), mode="promise_in_bounds", wrap_negative_indices=False)
    return state._replace(clocks=clocks, end=end, ready=ready)
