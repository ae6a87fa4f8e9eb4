"""Decoding of keys into orders, for GPUs and TPUs: the same orders as `decode.py`, in few and large operations.

A step pops the best ready node of every lane and updates all slots of the lane together. One row of a matrix contains
the releases of the popped node. Subtracting it, testing which slots are ready and taking the largest key are one pass
over `[L, u]`, which XLA fuses over several unrolled steps. That is O(u) work a node, but few kernels a step; the
scatters of `decode.py` cannot fuse. The trip count is static, so the host never waits for a step.

Slots are those of graphs/padding.py: after an op has run, its slot holds the transfers of its first tensor, the largest
key first, so the state is no wider on many devices than on one.

The matrix has a row for each op, each tensor (for its transfers) and one of zeros (for idle steps). An entry is twice
the number of tensors read, which counts only if the reader is on the device where they are now, plus 1 for
unconditional releases: control successors and the further tensors of an op. It takes 2 bytes an entry: 1 MB for each
graph of 512 ops and 512 tensors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.device.decode import Clocks, Node, Schedule, advance, start_clocks
from graphrl.costs.device.indexing import take
from graphrl.costs.device.lanes import IDLE, Lanes, node_count, take_rows
from graphrl.costs.problem import Transfer
from graphrl.graphs.padding import PaddedGraph, Sizes

_UNROLL = 8
_UNLIMITED = np.int32(2**31 - 1)


class _Tables(NamedTuple):
    """Read-only arrays of the loop, flat where a step takes single elements of them."""

    matrix: jax.Array  # [g * (n + t + 1), u] int16 or int32, releases of each node
    device: jax.Array  # [L, u] int8, of an op; any for other slots
    placement: jax.Array  # [L * n] int32
    transfer_keys: jax.Array  # [L * (t + 1) * (d - 1)] int32, packed; IDLE if not needed, and for no tensor
    producer: jax.Array  # [g * t] int32
    tensor_slot: jax.Array  # [g * t] int32
    op_tensor: jax.Array  # [g * n] int32, an op's first tensor; t for none
    durations: jax.Array | None  # [g * (N + 1)] float32
    graph: jax.Array  # [L] int32
    index_mask: jax.Array  # [L] int32
    real_ops: jax.Array  # [L] int32


class _State(NamedTuple):
    best: jax.Array  # [L] int32, packed key of the best ready node, IDLE if no node is ready
    keys: jax.Array  # [L, u] int32, packed key of the node that the slot holds or waits for; IDLE when all have run
    waits: jax.Array  # [L, u] int16 or int32, remaining inputs of the slot's first node
    clocks: Clocks | None
    ready: jax.Array | None  # [L, u] float32, latest end so far of the inputs of the slot's node


class _Popped(NamedTuple):
    """The node that each lane runs in a step."""

    node: jax.Array  # [L] int32, N for none
    row: jax.Array  # [L] int32, of the matrix
    slot: jax.Array  # [L] int32, u for none
    following: jax.Array  # [L] int32, packed key of the transfer that has the slot next, IDLE for none
    is_op: jax.Array  # [L] bool
    is_transfer: jax.Array  # [L] bool
    source: jax.Array  # [L] int32, device of the op, or of the transfer's producer
    target: jax.Array  # [L] int32, device of the op, or target of the transfer; 0 for none


def num_events(sizes: Sizes, devices: int) -> int:
    """Returns the number c of steps: all ops, and at most a transfer for each use, in whole unrolled bodies."""
    nodes = sizes.ops + min(sizes.tensors * (devices - 1), sizes.uses)
    return -(-nodes // _UNROLL) * _UNROLL


def schedule_dense(
    graph: PaddedGraph, lanes: Lanes, devices: int, transfer: Transfer, durations: jax.Array | None
) -> Schedule:
    """Decodes all lanes, and times them if `durations` are given. Arguments as `decode.schedule`.

    The orders are the same, in c = `num_events` steps without gaps: steps that run no node come last.
    """
    sizes = graph.sizes
    tables = _tables(graph, lanes, durations)
    state = _start(graph, lanes, devices, timed=durations is not None)

    def step(state: _State, _: None) -> tuple[_State, jax.Array]:
        return _step(state, tables, sizes, devices, transfer)

    state, events = lax.scan(step, state, None, length=num_events(sizes, devices), unroll=_UNROLL)
    count = len(lanes.graph)
    if state.clocks is None or state.ready is None:
        return Schedule(events, jnp.zeros(count, jnp.float32), jnp.zeros((sizes.ops, count), jnp.float32))
    return Schedule(events, state.clocks.device.max(0), state.ready[:, : sizes.ops].T)


def _tables(graph: PaddedGraph, lanes: Lanes, durations: jax.Array | None) -> _Tables:
    n, g, p = lanes.placement.shape
    sizes = graph.sizes
    placement = lanes.placement.reshape(n, g * p).T
    keys = jnp.pad(lanes.transfer_keys, ((0, 1), (0, 0), (0, 0), (0, 0)), constant_values=IDLE)
    of_graph = jnp.arange(g, dtype=jnp.int32)[:, None]
    matrix = _releases(graph)
    return _Tables(
        matrix=matrix.reshape(-1, sizes.slots),
        device=jnp.pad(placement.astype(jnp.int8), ((0, 0), (0, sizes.slots - n))),
        placement=placement.reshape(-1),
        transfer_keys=keys.reshape(-1, g * p).T.reshape(-1),
        producer=graph.producer.reshape(-1),
        tensor_slot=graph.row_slot[of_graph, jnp.minimum(graph.tensor_row, sizes.rows - 1)].reshape(-1),
        op_tensor=graph.slot_tensor[:, :n].reshape(-1),
        durations=None if durations is None else durations.reshape(-1),
        graph=lanes.graph,
        index_mask=lanes.index_mask[lanes.graph],
        real_ops=graph.num_ops[lanes.graph],
    )


def _count_type(sizes: Sizes) -> type[np.signedinteger]:
    """Returns the type of matrix entries and of counts of pending inputs; int32 is twice the work of int16."""
    return np.int16 if 2 * sizes.uses + sizes.controls + 1 <= np.iinfo(np.int16).max else np.int32


def _releases(graph: PaddedGraph) -> jax.Array:
    """Builds the matrix of releases: `[g, n + t + 1, u]`, see the module's docstring."""
    sizes, dtype = graph.sizes, _count_type(graph.sizes)
    g, n, t = graph.runtime.shape[0], sizes.ops, sizes.tensors
    of_graph = jnp.arange(g, dtype=jnp.int32)[:, None]
    # padding counts 0 at any index
    reads = jnp.where(graph.use_op < n, dtype(2), dtype(0))
    waits = jnp.where(graph.control_target < n, dtype(1), dtype(0))
    tensor = jnp.minimum(graph.use_tensor, t - 1)
    further = jnp.minimum(graph.slot_tensor[:, n:], t - 1)
    releases = jnp.where(graph.slot_tensor[:, n:] < t, dtype(1), dtype(0))
    slot = jnp.arange(n, sizes.slots, dtype=jnp.int32)[None, :]
    matrix = jnp.zeros((g, n + t + 1, sizes.slots), dtype)
    matrix = matrix.at[of_graph, graph.producer[of_graph, tensor], graph.use_op].add(reads, mode="drop")
    matrix = matrix.at[of_graph, n + tensor, graph.use_op].add(reads, mode="drop")
    matrix = matrix.at[of_graph, graph.control_source, graph.control_target].add(waits, mode="drop")
    return matrix.at[of_graph, graph.producer[of_graph, further], slot].add(releases)


def _start(graph: PaddedGraph, lanes: Lanes, devices: int, *, timed: bool) -> _State:
    sizes, dtype = graph.sizes, _count_type(graph.sizes)
    n, g, p = lanes.placement.shape
    count, further = g * p, sizes.slots - n
    # no node releases a padding op, so it may wait for any number
    waits = jnp.minimum(graph.indegree[:, :n], np.iinfo(dtype).max).astype(dtype)
    waits = jnp.pad(waits, ((0, 0), (0, further)), constant_values=dtype(1))[lanes.graph]
    first_transfers = jnp.pad(lanes.transfer_keys.max(1, initial=IDLE), ((0, 1), (0, 0), (0, 0)), constant_values=IDLE)
    keys = jnp.concatenate([lanes.op_keys, take_rows(first_transfers, graph.slot_tensor[:, n:])]).reshape(-1, count).T
    return _State(
        best=_best(waits, keys),
        keys=keys,
        waits=waits,
        clocks=start_clocks(devices, count) if timed else None,
        ready=jnp.zeros((count, sizes.slots), jnp.float32) if timed else None,
    )


def _step(state: _State, tables: _Tables, sizes: Sizes, devices: int, transfer: Transfer) -> tuple[_State, jax.Array]:
    popped = _popped(state.best, tables, sizes, devices)
    row = take(tables.matrix, popped.row)
    there = tables.device == popped.target.astype(jnp.int8)[:, None]
    released = jnp.where(there, row >> 1, 0) + (row & 1)
    itself = jnp.arange(sizes.slots, dtype=jnp.int32)[None, :] == popped.slot[:, None]
    waits = state.waits - released
    keys = jnp.where(itself, popped.following[:, None], state.keys)
    clocks, ready = state.clocks, state.ready
    if clocks is not None and ready is not None:
        clocks, end = advance(transfer, clocks, _timed(popped, ready, tables, sizes, devices))
        # an op's slot now holds transfers, whose earliest start is the op's end
        later = (released > 0) | (itself & popped.is_op[:, None])
        ready = jnp.where(later, jnp.maximum(ready, end[:, None]), ready)
    return _State(_best(waits, keys), keys, waits, clocks, ready), popped.node * devices + popped.target


def _best(waits: jax.Array, keys: jax.Array) -> jax.Array:
    return jnp.where(waits == 0, keys, IDLE).max(1)


def _popped(best: jax.Array, tables: _Tables, sizes: Sizes, devices: int) -> _Popped:
    """Decodes the packed keys `[L]` of the best ready nodes."""
    n, t, foreign = sizes.ops, sizes.tensors, devices - 1
    lane = jnp.arange(best.shape[0], dtype=jnp.int32)
    running = best >= 0
    index = tables.index_mask - (best & tables.index_mask)
    is_op = index < tables.real_ops
    transfer = jnp.where(is_op, 0, index - tables.real_ops)
    tensor_sent = lax.div(transfer, jnp.int32(max(1, foreign)))  # the transfer's tensor
    op = jnp.where(is_op, index, take(tables.producer, tables.graph * t + tensor_sent))
    source = take(tables.placement, lane * n + op)
    there = transfer - tensor_sent * foreign
    target = jnp.where(is_op, source, there + (source <= there).astype(jnp.int32))
    row = jnp.where(running, jnp.where(is_op, index, n + tensor_sent), n + t)
    slot = jnp.where(is_op, index, take(tables.tensor_slot, tables.graph * t + tensor_sent))
    tensor = jnp.where(is_op, take(tables.op_tensor, tables.graph * n + op), tensor_sent)
    limit = jnp.where(is_op, _UNLIMITED, best)
    following = jnp.full_like(best, IDLE)
    for s in range(foreign):
        key = take(tables.transfer_keys, (lane * (t + 1) + tensor) * foreign + s)
        following = jnp.maximum(following, jnp.where(key < limit, key, IDLE))
    return _Popped(
        node=jnp.where(running, jnp.where(is_op, index, n + transfer), node_count(sizes, devices)),
        row=tables.graph * (n + t + 1) + row,
        slot=jnp.where(running, slot, sizes.slots),
        following=following,
        is_op=running & is_op,
        is_transfer=running & ~is_op,
        source=source,
        target=jnp.where(running, target, 0),
    )


def _timed(popped: _Popped, ready: jax.Array, tables: _Tables, sizes: Sizes, devices: int) -> Node:
    """Returns the popped nodes as input for the clocks.

    An idle lane reads an arbitrary arrival: it advances no clock and releases no node.
    """
    assert tables.durations is not None
    lane = jnp.arange(ready.shape[0], dtype=jnp.int32)
    return Node(
        is_op=popped.is_op,
        is_transfer=popped.is_transfer,
        source=popped.source,
        target=popped.target,
        ready=take(ready.reshape(-1), lane * sizes.slots + jnp.minimum(popped.slot, sizes.slots - 1)),
        seconds=take(tables.durations, tables.graph * (node_count(sizes, devices) + 1) + popped.node),
    )
