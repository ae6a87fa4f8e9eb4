"""Keys to orders in the form for GPUs and TPUs: the same orders as `decode.py`, by few and large operations.

A step pops the best ready node of every lane and updates all nodes of the lane at once: one row of a matrix says what
the popped node releases, and subtracting it, testing who is ready and taking the largest key are one pass over
`[L, N]` that XLA fuses, several unrolled steps together. That is O(N) work a node, but few kernels a step, where
the scatters of `decode.py` cannot fuse (facts/perf.md 6). The trip count is static: the host waits for no step.

The matrix has a row for each op, each tensor (for its transfers) and one of zeros (for idle steps), and a column for
each node. An entry is twice the number of tensors read, which only counts where the reader is on the device that they
are now on, plus 1 for what is released anyway: control successors and the transfers of an op's tensors. It takes
2 bytes an entry: 2 MB for each graph of 512 ops and 512 tensors on 2 devices.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs.decode import Schedule
from graphrl.costs.indexing import take
from graphrl.costs.lanes import IDLE, Lanes, node_count
from graphrl.costs.problem import Transfer
from graphrl.costs.timing import Clocks, Node, advance, start_clocks
from graphrl.graphs.padding import PaddedGraph, Sizes

_UNROLL = 8


class _Tables(NamedTuple):
    """Read-only arrays of the loop; nodes and rows are numbered for padded sizes."""

    matrix: jax.Array  # [g * (n + t + 1), N] int16 or int32, what each node releases
    keys: jax.Array  # [L, N] int32, packed; IDLE for transfers that are not needed
    device: jax.Array  # [L, N] int8, of an op; any for transfers
    placement: jax.Array  # [L * n] int32
    producer: jax.Array  # [g * t] int32
    durations: jax.Array | None  # [g * (N + 1)] float32
    graph: jax.Array  # [L] int32
    index_mask: jax.Array  # [L] int32
    real_ops: jax.Array  # [L] int32


class _State(NamedTuple):
    best: jax.Array  # [L] int32, packed key of the best ready node, IDLE if there is none
    waits: jax.Array  # [L, N] int16 or int32, how much a node waits for: 0 it is ready, -1 it has run
    clocks: Clocks | None
    ready: jax.Array | None  # [L, N] float32, latest end so far of what a node waits for


class _Popped(NamedTuple):
    """The node that each lane runs in a step."""

    node: jax.Array  # [L] int32, N for none
    row: jax.Array  # [L] int32, of the matrix
    is_op: jax.Array  # [L] bool
    is_transfer: jax.Array  # [L] bool
    source: jax.Array  # [L] int32, device of the op, or of the transfer's producer
    target: jax.Array  # [L] int32, device of the op, or that the transfer goes to; 0 for none


def num_events(sizes: Sizes, devices: int) -> int:
    """c: all ops, and at most one transfer for each use; in whole unrolled bodies, so that there is no rest of a loop."""
    nodes = sizes.ops + min(sizes.tensors * (devices - 1), sizes.uses)
    return -(-nodes // _UNROLL) * _UNROLL


def schedule_dense(
    graph: PaddedGraph, lanes: Lanes, devices: int, transfer: Transfer, durations: jax.Array | None
) -> Schedule:
    """Decodes all lanes, and times them if `durations` are given. Arguments as `decode.schedule`.

    The orders are the same, in c = `num_events` steps without gaps: steps that run no node come last.
    """
    sizes = graph.sizes
    tables = _tables(graph, lanes, devices, durations)
    state = _start(graph, tables, devices, timed=durations is not None)

    def step(state: _State, _: None) -> tuple[_State, jax.Array]:
        return _step(state, tables, sizes, devices, transfer)

    state, events = lax.scan(step, state, None, length=num_events(sizes, devices), unroll=_UNROLL)
    makespan = jnp.zeros(lanes.graph.shape, jnp.float32) if state.clocks is None else state.clocks.device.max(0)
    return Schedule(events, makespan)


def _tables(graph: PaddedGraph, lanes: Lanes, devices: int, durations: jax.Array | None) -> _Tables:
    n, g, p = lanes.placement.shape
    sizes, nodes = graph.sizes, node_count(graph.sizes, devices)
    keys = jnp.concatenate([lanes.op_keys, lanes.transfer_keys.reshape(-1, g, p)])
    placement = lanes.placement.reshape(n, g * p).T
    return _Tables(
        matrix=_releases(graph, devices).reshape(g * (sizes.ops + sizes.tensors + 1), nodes),
        keys=keys.reshape(nodes, g * p).T,
        device=jnp.pad(placement.astype(jnp.int8), ((0, 0), (0, nodes - n))),
        placement=placement.reshape(-1),
        producer=graph.producer.reshape(-1),
        durations=None if durations is None else durations.reshape(-1),
        graph=lanes.graph,
        index_mask=lanes.index_mask[lanes.graph],
        real_ops=graph.num_ops[lanes.graph],
    )


def _count_type(sizes: Sizes) -> type[np.signedinteger]:
    """A type that holds every entry of the matrix and every count of what an op waits for; int32 is twice the work."""
    return np.int16 if 2 * sizes.uses + sizes.controls + 1 <= np.iinfo(np.int16).max else np.int32


def _releases(graph: PaddedGraph, devices: int) -> jax.Array:
    """What each row releases: `[g, n + t + 1, N]`, see the module's text."""
    sizes, dtype = graph.sizes, _count_type(graph.sizes)
    g, n, t = graph.runtime.shape[0], sizes.ops, sizes.tensors
    of = jnp.arange(g, dtype=jnp.int32)[:, None]
    # padding edges count 0, wherever they stand
    reads = jnp.where(graph.use_op < n, dtype(2), dtype(0))
    waits = jnp.where(graph.control_target < n, dtype(1), dtype(0))
    tensor = jnp.minimum(graph.use_tensor, t - 1)
    transfer = jnp.arange(t * (devices - 1), dtype=jnp.int32)[None, :]
    matrix = jnp.zeros((g, n + t + 1, node_count(sizes, devices)), dtype)
    matrix = matrix.at[of, graph.producer[of, tensor], graph.use_op].add(reads, mode="drop")
    matrix = matrix.at[of, n + tensor, graph.use_op].add(reads, mode="drop")
    matrix = matrix.at[of, graph.control_source, graph.control_target].add(waits, mode="drop")
    return matrix.at[of, jnp.repeat(graph.producer, devices - 1, axis=1), n + transfer].add(dtype(1))


def _start(graph: PaddedGraph, tables: _Tables, devices: int, *, timed: bool) -> _State:
    lanes, nodes = tables.keys.shape
    sizes, dtype = graph.sizes, _count_type(graph.sizes)
    # nobody releases a padding op, so that it may wait for any number
    ops = jnp.minimum(graph.indegree[:, : sizes.ops], np.iinfo(dtype).max).astype(dtype)
    waits = jnp.pad(ops, ((0, 0), (0, nodes - sizes.ops)), constant_values=dtype(1))[tables.graph]
    return _State(
        best=_best(waits, tables.keys),
        waits=waits,
        clocks=start_clocks(devices, lanes) if timed else None,
        ready=jnp.zeros((lanes, nodes), jnp.float32) if timed else None,
    )


def _step(state: _State, tables: _Tables, sizes: Sizes, devices: int, transfer: Transfer) -> tuple[_State, jax.Array]:
    popped = _popped(state.best, tables, sizes, devices)
    row = take(tables.matrix, popped.row)
    there = tables.device == popped.target.astype(jnp.int8)[:, None]
    released = jnp.where(there, row >> 1, 0) + (row & 1)
    itself = jnp.arange(row.shape[1], dtype=jnp.int32)[None, :] == popped.node[:, None]
    waits = state.waits - released - itself.astype(row.dtype)
    clocks, ready = state.clocks, state.ready
    if clocks is not None and ready is not None:
        clocks, end = advance(transfer, clocks, _timed(popped, ready, tables))
        ready = jnp.where(released > 0, jnp.maximum(ready, end[:, None]), ready)
    return _State(_best(waits, tables.keys), waits, clocks, ready), popped.node * devices + popped.target


def _best(waits: jax.Array, keys: jax.Array) -> jax.Array:
    return jnp.where(waits == 0, keys, IDLE).max(1)


def _popped(best: jax.Array, tables: _Tables, sizes: Sizes, devices: int) -> _Popped:
    """What the packed keys `[L]` of the best ready nodes say."""
    n, t = sizes.ops, sizes.tensors
    foreign = max(1, devices - 1)  # on one device there are no transfers
    running = best >= 0
    index = tables.index_mask - (best & tables.index_mask)
    is_op = index < tables.real_ops
    transfer = jnp.where(is_op, 0, index - tables.real_ops)
    tensor = lax.div(transfer, jnp.int32(foreign))
    op = jnp.where(is_op, index, take(tables.producer, tables.graph * t + tensor))
    source = take(tables.placement, jnp.arange(best.shape[0], dtype=jnp.int32) * n + op)
    there = transfer - tensor * foreign
    target = jnp.where(is_op, source, there + (source <= there).astype(jnp.int32))
    row = jnp.where(running, jnp.where(is_op, index, n + tensor), n + t)
    return _Popped(
        node=jnp.where(running, jnp.where(is_op, index, n + transfer), node_count(sizes, devices)),
        row=tables.graph * (n + t + 1) + row,
        is_op=running & is_op,
        is_transfer=running & ~is_op,
        source=source,
        target=jnp.where(running, target, 0),
    )


def _timed(popped: _Popped, ready: jax.Array, tables: _Tables) -> Node:
    """The popped nodes as the clocks want them. An idle lane reads any arrival: it holds no clock, releases nobody."""
    assert tables.durations is not None
    lanes, nodes = ready.shape
    index = jnp.arange(lanes, dtype=jnp.int32) * nodes + jnp.minimum(popped.node, nodes - 1)
    return Node(
        is_op=popped.is_op,
        is_transfer=popped.is_transfer,
        source=popped.source,
        target=popped.target,
        ready=take(ready.reshape(-1), index),
        seconds=take(tables.durations, tables.graph * (nodes + 1) + popped.node),
    )
