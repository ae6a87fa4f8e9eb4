"""Decoding of keys into orders and times: a topological sort of ops and transfers by priority, a lane per candidate.

This is the form for CPUs; `decode_dense.py` is the form for GPUs, and both give the same order. A step pops the best
ready node of every lane, or continues with the rows (graphs/padding.py) of the node that it popped before; it relaxes
one row: its ops wait for one input less. All lanes advance together, so every operation is a vector operation across
lanes:

- the ready queue is one packed key a slot, under one level of block maxima (`BLOCK` slots a block);
- a slot whose op waits for k inputs contains its device minus (k + 1) * `UNIT`; a ready slot contains its packed key;
  an empty slot contains `IDLE`;
- state arrays are flat, `[slots * L]` with index slot * L + lane, and each is written in place. XLA copies an array
  that is read after it was written, or whose write does not depend on earlier reads. So each write below depends on
  every earlier read (tests/costs/test_compiled_loops.py checks the compiled loop for copies).

`Tables` has the rows; it is read-only and built once for a population. `Clocks` simulate the order: one clock per
device and, under `link`, one per outgoing link.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.indexing import put, put_max, take
from graphrl.costs.device.lanes import IDLE, Lanes, by_device, node_count, take_rows
from graphrl.costs.problem import MAX_DEVICES, Transfer
from graphrl.graphs.padding import READS, ROW_WIDTH, WAITS, PaddedGraph, Sizes

BLOCK = 8  # slots of the ready queue under one maximum; measured against 4 and 16
UNIT = MAX_DEVICES  # decrement of a slot for each input: the low bits hold its op's device
ANY, NO = -1, -2  # in place of a required device: the entry is always, or never, relaxed


def num_events(sizes: Sizes, devices: int) -> int:
    """Returns c, the most steps that decoding can take: the rows of all ops and of all possible transfers."""
    foreign = devices - 1
    # A tensor of k readers has at most (k + 3) / 4 rows and min(k, d - 1) transfers.
    transfer_rows = min(sizes.rows * foreign, -(-sizes.uses * max(5, 2 * foreign) // 5))
    return sizes.rows + transfer_rows


class Tables(NamedTuple):
    """Read-only arrays of the loop. Flat tables of lanes have index x * L + lane; those of graphs are stacked."""

    start: jax.Array  # [g * (N + 1)] int32, row * d where a node's walk starts
    target: jax.Array  # [(N + 1) * L] int8, device of an op, or target of a transfer
    op_keys: jax.Array  # [slots * L] int32
    transfer_keys: jax.Array  # [(d - 1) * slots * L] int32, of the tensor of each slot
    entries: jax.Array  # [g * (r + 1), W] int32, slots
    required: jax.Array  # [g * (r + 1) * d * 2, W] int32, device at which each entry is relaxed; by row, device, walk
    last: jax.Array  # [g * (r + 1) * 2] bool, whether the row is the last; by row, walk (0: a transfer's, 1: an op's)
    slot: jax.Array  # [g * (r + 1)] int32
    owner: jax.Array  # [g * (r + 1)] int32
    row_offset: jax.Array  # [L] int32, offset of the lane's graph in tables by row
    node_offset: jax.Array  # [L] int32, offset of the lane's graph in tables by node
    index_mask: jax.Array  # [L] int32
    real_ops: jax.Array  # [L] int32
    padding_ops: jax.Array  # [L] int32, offset that padding adds to node numbers of transfers


def slot_layout(sizes: Sizes) -> tuple[int, int]:
    """Returns the numbers of slots (one more than the graph's, for empty entries, in whole blocks) and of blocks."""
    blocks = -(-(sizes.slots + 1) // BLOCK)
    return blocks * BLOCK, blocks


def make_tables(graph: PaddedGraph, lanes: Lanes, devices: int) -> Tables:
    """Builds the tables for a batch of graphs and p candidate solutions of each."""
    sizes = graph.sizes
    _, g, p = lanes.placement.shape
    r = sizes.rows

    def by_row(values: jax.Array, idle: int | bool) -> jax.Array:
        """Appends an idle row to each graph's rows: `[g, r, ...]` becomes `[g * (r + 1), ...]`."""
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
        required=by_row(_required(graph, devices), NO).reshape(-1, ROW_WIDTH),
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
    """Returns the packed keys of the transfers of each slot's tensor, else IDLE: `[(d - 1) * slots * L]` int32."""
    _, g, p = lanes.placement.shape
    _, foreign, _, _ = lanes.transfer_keys.shape
    by_tensor = jnp.concatenate([lanes.transfer_keys, jnp.full((1, foreign, g, p), IDLE)])
    no_slot = jnp.full((slot_layout(graph.sizes)[0] - graph.sizes.slots, g, p), IDLE)
    by_slot = [jnp.concatenate([take_rows(by_tensor[:, s], graph.slot_tensor), no_slot]) for s in range(foreign)]
    return jnp.concatenate([*by_slot, no_slot]).reshape(-1)


def _required(graph: PaddedGraph, devices: int) -> jax.Array:
    """Returns the device at which each entry is relaxed, by row, device and walk: `[g, r, d, 2, W]` int32.

    A walk relaxes the readers on its device (an op's own, or a transfer's target). An op's walk also relaxes all
    control successors.
    """
    kind = graph.row_kind[:, :, None, None]
    shape = (*graph.row_kind.shape[:2], devices, 2, ROW_WIDTH)
    device = jnp.broadcast_to(jnp.arange(devices, dtype=jnp.int32)[None, None, :, None, None], shape)
    op_walk = jnp.arange(2, dtype=jnp.int32)[None, None, None, :, None] == 1
    return jnp.where(kind == READS, device, jnp.where((kind == WAITS) & op_walk, ANY, NO))


class Clocks(NamedTuple):
    """Clocks of L lanes, in second units."""

    device: jax.Array  # [d, L] float32, end of the last node on the device
    link: jax.Array  # [d, L] float32, end of the last transfer on the device's outgoing link


class Node(NamedTuple):
    """The node that each of L lanes runs now."""

    is_op: jax.Array  # [L] bool
    is_transfer: jax.Array  # [L] bool; neither: the lane is idle
    source: jax.Array  # [L] int32, the device of an op, or of a transfer's producer
    target: jax.Array  # [L] int32, the device of an op, or the target of a transfer
    ready: jax.Array  # [L] float32, latest end that an op waits for; for a transfer, its producer's end
    seconds: jax.Array  # [L] float32, duration of the node


def start_clocks(devices: int, lanes: int) -> Clocks:
    """Returns clocks that are all 0."""
    zero = jnp.zeros((devices, lanes), jnp.float32)
    return Clocks(zero, zero)


def advance(transfer: Transfer, clocks: Clocks, node: Node) -> tuple[Clocks, jax.Array]:
    """Runs one node in every lane. Returns the clocks after it, and its end `[L]`."""
    device = jnp.arange(clocks.device.shape[0], dtype=jnp.int32)[:, None]
    at_source, is_op, is_transfer = device == node.source[None], node.is_op[None], node.is_transfer[None]
    free = by_device(clocks.device, node.source)
    if transfer == "free":
        begin = jnp.where(node.is_op, jnp.maximum(node.ready, free), node.ready)
        holds, sends = is_op & at_source, None
    elif transfer == "rendezvous":
        # an op's source is its target, so one rule serves both
        begin = jnp.maximum(jnp.maximum(node.ready, free), by_device(clocks.device, node.target))
        holds = (is_op | is_transfer) & (at_source | (device == node.target[None]))
        sends = None
    else:
        begin = jnp.maximum(node.ready, jnp.where(node.is_op, free, by_device(clocks.link, node.source)))
        holds, sends = is_op & at_source, is_transfer & at_source
    end = begin + node.seconds
    link = clocks.link if sends is None else jnp.where(sends, end[None], clocks.link)
    return Clocks(jnp.where(holds, end[None], clocks.device), link), end


_UNLIMITED = np.int32(2**31 - 1)


class Schedule(NamedTuple):
    """The orders of L = g * p lanes, and their times if durations were given."""

    events: jax.Array  # [c, L] int32, node * d + device (of the op, or the transfer's target), N * d for no node
    makespan: jax.Array  # [L] float32, second units; 0 without durations
    end: jax.Array  # [n, L] float32, second units, of each op; 0 for padding, and without durations


class _Timing(NamedTuple):
    clocks: Clocks
    end: jax.Array  # [L] float32, of the node whose rows are walked
    ready: jax.Array  # [slots * L] float32, latest arrival at the slot's op; after it has run, its end


class _State(NamedTuple):
    slots: jax.Array  # [slots * L] int32
    blocks: jax.Array  # [blocks * L] int32, the largest key of each block
    place: jax.Array  # [L] int32, row * d + device of the row relaxed last
    is_op: jax.Array  # [L] bool, True while an op's rows are walked, False for a transfer's
    last: jax.Array  # [L] bool, whether that row was the walk's last
    limit: jax.Array  # [L] int32, packed key of the walk's transfer: those of its tensor with larger keys have run
    events: jax.Array  # [c, L] int32
    timing: _Timing | None  # None where no makespan is computed


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
      lanes: the result of `lanes.implied` for p candidate solutions of each graph.
      devices: d.
      transfer: the transfer model.
      durations: `[g, N + 1]` float32 seconds of every node (0 for no node), or None: no makespan is computed.
      fixed_trips: run all `num_events` steps instead of only the steps that the longest lane needs (for devices on
        which a dynamic trip count costs a synchronisation at each step).
    """
    sizes, count = graph.sizes, lanes.graph.shape[0]
    steps = num_events(sizes, devices)
    tables = make_tables(graph, lanes, devices)
    state = _start(graph, lanes, devices, steps, timed=durations is not None)
    trips = steps if fixed_trips else _trips(graph, lanes)

    def step(index: jax.Array, state: _State) -> _State:
        return _step(index, state, tables, sizes.ops, devices, transfer, durations)

    state = lax.fori_loop(0, trips, step, state)
    if state.timing is None:
        return Schedule(state.events, jnp.zeros(count, jnp.float32), jnp.zeros((sizes.ops, count), jnp.float32))
    end = state.timing.ready.reshape(-1, count)[: sizes.ops]  # the slot of an op that has run contains its end
    return Schedule(state.events, state.timing.clocks.device.max(0), end)


def _trips(graph: PaddedGraph, lanes: Lanes) -> jax.Array:
    """Returns the number of steps that the longest lane needs: rows of all ops, and of all transfers that exist."""
    op_rows = graph.op_rows.sum(-1)[:, None]
    transfer_rows = jnp.where(lanes.needed, graph.tensor_rows.T[None, :, :, None], 0).sum((0, 1))
    return (op_rows + transfer_rows).max()


def _start(graph: PaddedGraph, lanes: Lanes, devices: int, steps: int, *, timed: bool) -> _State:
    sizes, count = graph.sizes, lanes.graph.shape[0]
    _, g, p = lanes.placement.shape
    slots, blocks = slot_layout(sizes)
    keys = jnp.concatenate([lanes.op_keys, jnp.full((sizes.slots - sizes.ops, g, p), IDLE)])
    device = jnp.concatenate([lanes.placement, jnp.zeros((sizes.slots - sizes.ops, g, p), jnp.int32)])
    waits = graph.indegree.T[..., None]
    state = jnp.where(waits == 0, keys, device - (waits + 1) * UNIT)
    state = jnp.concatenate([state, jnp.full((slots - sizes.slots, g, p), IDLE)])
    idle = node_count(sizes, devices) * devices
    zero = jnp.zeros(count, jnp.float32)
    return _State(
        slots=state.reshape(-1),
        blocks=jnp.maximum(state, IDLE).reshape(blocks, BLOCK, count).max(1).reshape(-1),
        place=jnp.full(count, sizes.rows * devices, jnp.int32),
        is_op=jnp.zeros(count, jnp.bool_),
        last=jnp.ones(count, jnp.bool_),
        limit=jnp.full(count, _UNLIMITED),
        events=jnp.full((steps, count), idle, jnp.int32),
        timing=_Timing(start_clocks(devices, count), zero, jnp.zeros(slots * count, jnp.float32)) if timed else None,
    )


def _step(
    index: jax.Array,
    state: _State,
    tables: Tables,
    num_ops: int,
    devices: int,
    transfer: Transfer,
    durations: jax.Array | None,
) -> _State:
    count = state.place.shape[0]
    lane = jnp.arange(count, dtype=jnp.int32)
    no_node = tables.target.shape[0] // count - 1

    # the row to relax now: the next of the walk, or the first of the best ready node's
    popping = state.last
    best = state.blocks.reshape(-1, count).max(0)
    node = _node_of(best, tables, no_node)
    first = take(tables.start, tables.node_offset + node) + take(tables.target, node * count + lane).astype(jnp.int32)
    place = jnp.where(popping, first, state.place + devices)
    row, device = lax.div(place, jnp.int32(devices)), lax.rem(place, jnp.int32(devices))
    is_op = jnp.where(popping, node < num_ops, state.is_op)
    walk = is_op.astype(jnp.int32)
    last = take(tables.last, (tables.row_offset + row) * 2 + walk)
    limit = jnp.where(popping, jnp.where(is_op, _UNLIMITED, best), state.limit)

    # the slot that the node frees: its tensor's next transfer takes it
    left = take(tables.slot, tables.row_offset + row)
    slot, block = left * count + lane, lax.div(left, jnp.int32(BLOCK)) * count
    following = _following(tables, slot, limit, devices)
    in_block = (jnp.arange(BLOCK, dtype=jnp.int32) * count)[:, None] + (block * BLOCK + lane)[None]
    rest = jnp.where(in_block == slot[None], IDLE, jnp.maximum(take(state.slots, in_block), IDLE)).max(0)
    blocks = put(state.blocks, block + lane, jnp.maximum(rest, following))
    # min(rest, -1) is always -1: it makes the write depend on the reads of the block
    slots = put(state.slots, slot, following + (jnp.minimum(rest, -1) + 1))

    # the row's entries wait for one input less; those that wait for no other enter the queue
    listed = take(tables.entries, tables.row_offset + row)  # [L, ROW_WIDTH]
    required = take(tables.required, (tables.row_offset * devices + place) * 2 + walk)
    entries = listed * count + lane[:, None]
    waiting = take(slots, entries)
    relaxed = (waiting < -UNIT) & ((required == (waiting & (UNIT - 1))) | (required == ANY))
    counted = jnp.where(relaxed, waiting + UNIT, waiting)
    now_ready = relaxed & (counted >= -UNIT)
    values = jnp.where(now_ready, take(tables.op_keys, entries), counted)
    slots = put(slots, entries, values)
    # a value >= 0 that is not new is already in its block's maximum
    blocks = put_max(blocks, lax.div(listed, jnp.int32(BLOCK)) * count + lane[:, None], values)

    event = jnp.where(popping, node, no_node) * devices + device
    events = lax.dynamic_update_index_in_dim(state.events, event, index, 0)
    timing = state.timing
    if timing is not None and durations is not None:
        running = popping & (node < no_node)
        now = Node(
            is_op=running & is_op,
            is_transfer=running & ~is_op,
            source=take(tables.target, take(tables.owner, tables.row_offset + row) * count + lane).astype(jnp.int32),
            target=device,
            ready=take(timing.ready, slot),
            seconds=take(durations.reshape(-1), tables.node_offset + node),
        )
        timing = _time(timing, now, popping, is_op, relaxed, slot, entries, transfer)
    return _State(slots, blocks, place, is_op, last, limit, events, timing)


def _node_of(key: jax.Array, tables: Tables, no_node: int) -> jax.Array:
    """Returns the node of each packed key, `no_node` where the queue is empty: `[L]` int32."""
    index = tables.index_mask - (key & tables.index_mask)
    return jnp.where(key >= 0, index + jnp.where(index < tables.real_ops, 0, tables.padding_ops), no_node)


def _following(tables: Tables, slot: jax.Array, limit: jax.Array, devices: int) -> jax.Array:
    """Returns the largest key below `limit` of the transfers of the slot's tensor, else IDLE: `[L]` int32."""
    best = jnp.full_like(slot, IDLE)
    slots = tables.op_keys.shape[0]
    for s in range(devices - 1):
        key = take(tables.transfer_keys, slot + s * slots)
        best = jnp.maximum(best, jnp.where(key < limit, key, IDLE))
    return best


def _time(
    timing: _Timing,
    node: Node,
    popping: jax.Array,
    is_op: jax.Array,
    relaxed: jax.Array,
    slot: jax.Array,
    entries: jax.Array,
    transfer: Transfer,
) -> _Timing:
    """Runs the popped nodes on the clocks, and updates the earliest start of the nodes that they release."""
    clocks, end = advance(transfer, timing.clocks, node)
    end = jnp.where(popping, end, timing.end)
    # an op's slot now contains its end, from which its transfers start; max makes the write depend on the read
    ready = put(timing.ready, slot, jnp.where(is_op, jnp.maximum(end, node.ready), node.ready))
    ready = put_max(ready, entries, jnp.where(relaxed, end[:, None], 0.0))
    return _Timing(clocks, end, ready)
