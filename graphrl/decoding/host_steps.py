"""The state of orders of `sequential.py`, and a step of them, by compiled code for CPUs.

A step computes features and logits of the ready ops alone. `host_sequential.py` makes orders of it, `host_beam.py` a
beam search; both are custom calls, as in `compiled/custom_call.py`, with the operands listed here.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import inlined, integer
from graphrl.compiled.custom_call import operand, part_of, row_of, size, typed
from graphrl.compiled.pointers import array, load_half, matrix
from graphrl.decoding.op_features import FEATURES, Head, Usage
from graphrl.graphs.padding import ROW_WIDTH, PaddedGraph

# Operands, each with its shape after leading axes of `jax.vmap`. Letters are those of graphs/padding.py and of
# sequential.py: b buffers, h hidden values.
CHOICE = 0  # [1] int32: GREEDY, SAMPLE or GIVEN
NUM_OPS = 1  # [g] int32
INDEGREE = 2  # [g, u] int32
OP_ROW, OP_ROWS = 3, 4  # [g, n] int32
ROW_ENTRY = 5  # [g, r, ROW_WIDTH] int32
USE_OP, USE_BUFFER = 6, 7  # [g, e] int32, sorted by op
FREED = 8  # [g, b] float32
ADDED, DEAD, WORKSPACE, DEPTH = 9, 10, 11, 12  # [g, n] float32
PRIORITY = 13  # [g, n] float32
HIDDEN = 14  # [g, n, h] float32
KERNEL = 15  # [F, h] float32
OUT = 16  # [h] float32
SEEDS = 17  # [g, 2] uint32
GIVEN_ORDER = 18  # [g, s, n] int32
COTANGENT = 19  # [g, s] float32, for `_differentiate`
# Results of `_decode`
ORDER, LOG_PROB = 0, 1  # [g, s, n] int32, [g, s] float32

GREEDY, SAMPLE, GIVEN = 0, 1, 2
NUM_FEATURES = len(FEATURES)
I32, U32, F32 = np.int32, np.uint32, np.float32
_0, _1 = np.float32(0), np.float32(1)


class Lane(NamedTuple):
    """An order of a graph of n ops, b buffers and e uses: its graph, its head, and the state of memory so far."""

    ops: int
    op_row: int  # addresses of the graph's parts of the operands
    op_rows: int
    row_entry: int
    first_read: Any  # [n + 1] int32, of each op in `reads`
    reads: Any  # [e] int32, buffers; those of an op are distinct
    freed: Any  # [b] float32, bytes freed with the buffer
    added: Any  # [n] float32
    dead: Any  # [n] float32
    workspace: Any  # [n] float32
    depth: Any  # [n] float32
    priority: Any  # [n] float32
    hidden: Any  # [n, h] float32
    kernel: Any  # [F, h] float32
    out: Any  # [h] float32
    waits: Any  # [n] int32, number of missing inputs; -1 once it has run
    left: Any  # [b] int32, number of readers that have not run
    pending: Any  # [b] int32, their number plus that of the inputs that they wait for
    ready: Any  # [n] int32, the ready ops, in any order
    since: Any  # [n] int32, step at which an op became ready
    features: Any  # [n, F] float32, of the ready ops
    relu: Any  # [n, h] float32, their hidden layers
    log_prob: Any  # [n] float32
    memory: Any  # [2] float32, live and peak
    state: Any  # int32: `waits` to `since` and `memory`
    end: int  # address after the arrays


@inlined
def lane_of(call: int, memory: int, outer: int, graph: int, like: int) -> Lane:
    """The arrays of a lane, some of them in a thread's memory."""
    n, uses = size(operand(call, PRIORITY), -1), size(operand(call, USE_OP), -1)
    buffers, width = size(operand(call, FREED), -1), size(operand(call, OUT), -1)
    features = integer(NUM_FEATURES)
    first_read = memory + 8  # its first word is of the pool
    reads = first_read + 4 * (n + 1)
    waits = reads + 4 * uses
    left = waits + 4 * n
    pending = left + 4 * buffers
    ready = pending + 4 * buffers
    since = ready + 4 * n
    totals = since + 4 * n
    values = totals + 4 * 2
    relu = values + 4 * n * features
    log_prob = relu + 4 * n * width
    return Lane(
        integer(array(row_of(call, NUM_OPS, integer(1), outer, graph, like), integer(1), I32)[0]),
        row_of(call, OP_ROW, integer(2), outer, graph, like),
        row_of(call, OP_ROWS, integer(2), outer, graph, like),
        row_of(call, ROW_ENTRY, integer(3), outer, graph, like),
        array(first_read, n + 1, I32),
        array(reads, uses, I32),
        array(row_of(call, FREED, integer(2), outer, graph, like), buffers, F32),
        array(row_of(call, ADDED, integer(2), outer, graph, like), n, F32),
        array(row_of(call, DEAD, integer(2), outer, graph, like), n, F32),
        array(row_of(call, WORKSPACE, integer(2), outer, graph, like), n, F32),
        array(row_of(call, DEPTH, integer(2), outer, graph, like), n, F32),
        array(row_of(call, PRIORITY, integer(2), outer, graph, like), n, F32),
        matrix(row_of(call, HIDDEN, integer(3), outer, graph, like), n, width, F32),
        matrix(part_of(call, KERNEL, integer(2), outer, like), features, width, F32),
        array(part_of(call, OUT, integer(1), outer, like), width, F32),
        array(waits, n, I32),
        array(left, buffers, I32),
        array(pending, buffers, I32),
        array(ready, n, I32),
        array(since, n, I32),
        matrix(values, n, features, F32),
        matrix(relu, n, width, F32),
        array(log_prob, n, F32),
        array(totals, integer(2), F32),
        array(waits, (values - waits) // 4, I32),
        (log_prob + 4 * n + 15) // 8 * 8,
    )


@inlined
def start(call: int, lane: Lane, outer: int, graph: int, like: int) -> int:
    """Prepares the state before the first op; returns the number of ready ops."""
    uses, slots = size(operand(call, USE_OP), -1), size(operand(call, INDEGREE), -1)
    use_op = array(row_of(call, USE_OP, integer(2), outer, graph, like), uses, I32)
    use_buffer = array(row_of(call, USE_BUFFER, integer(2), outer, graph, like), uses, I32)
    indegree = array(row_of(call, INDEGREE, integer(2), outer, graph, like), slots, I32)
    buffers = len(lane.left)
    for buffer in range(buffers):
        lane.left[buffer], lane.pending[buffer] = 0, 0
    use, reads = 0, 0
    for op in range(lane.ops):
        lane.first_read[op] = reads
        while use < uses and use_op[use] == op:
            buffer, is_new = use_buffer[use], True
            for i in range(lane.first_read[op], reads):
                is_new &= lane.reads[i] != buffer
            if is_new:
                lane.reads[reads] = buffer
                lane.left[buffer] += 1
                lane.pending[buffer] += 1 + indegree[op]
                reads += 1
            use += 1
    lane.first_read[lane.ops] = reads
    count = 0
    for op in range(lane.ops):
        lane.waits[op], lane.since[op] = indegree[op], 0
        if indegree[op] == 0:
            lane.ready[count] = op
            count += 1
    lane.memory[0], lane.memory[1] = _0, _0
    return count


@inlined
def _log(x: Any) -> Any:
    return np.log(_1 + x) if x > _0 else -np.log(_1 - x)


@inlined
def _gain(lane: Lane, op: int) -> Any:
    """Bytes that an op frees minus those that it adds, if it ran now."""
    gain = lane.dead[op] - lane.added[op]
    for i in range(lane.first_read[op], lane.first_read[op + 1]):
        if lane.left[lane.reads[i]] == 1:
            gain += lane.freed[lane.reads[i]]
    return gain


@inlined
def score(lane: Lane, count: int, step: int) -> None:
    """Computes the log-probabilities of the ready ops, and their features and hidden layers if there are several."""
    lane.log_prob[0] = _0
    if count > 1:
        _score(lane, count, step)


@inlined
def _score(lane: Lane, count: int, step: int) -> None:
    lowest = lane.depth[lane.ready[0]]
    for k in range(count):
        lowest = min(lowest, lane.depth[lane.ready[k]])
    for k in range(count):
        op = lane.ready[k]
        _look(lane, op, k, step, lowest)
        logit = lane.priority[op]
        for i in range(len(lane.out)):
            lane.relu[k, i] = lane.hidden[op, i]
        for f in range(NUM_FEATURES):
            value = lane.features[k, f]
            for i in range(len(lane.out)):
                lane.relu[k, i] += value * lane.kernel[f, i]
        for i in range(len(lane.out)):
            lane.relu[k, i] = max(lane.relu[k, i], _0)
            logit += lane.relu[k, i] * lane.out[i]
        lane.log_prob[k] = logit
    highest, total = lane.log_prob[best(lane, count)], _0
    for k in range(count):
        total += np.exp(lane.log_prob[k] - highest)
    for k in range(count):
        lane.log_prob[k] -= highest + np.log(total)


@inlined
def _look(lane: Lane, op: int, k: int, step: int, lowest: Any) -> None:
    """Computes the features of a ready op, in the order of `FEATURES`."""
    live, peak = lane.memory[0], lane.memory[1]
    freed, share, pending = lane.dead[op], _0, _0
    for i in range(lane.first_read[op], lane.first_read[op + 1]):
        buffer = lane.reads[i]
        num_bytes, left = lane.freed[buffer], lane.left[buffer]
        share += num_bytes / F32(left)
        if left == 1:
            freed += num_bytes
        else:
            pending += num_bytes / F32(lane.pending[buffer])
    released, released_gain, unlocked = _0, _0, _0
    row = load_half(lane.op_row, op)
    for entry in range(row * ROW_WIDTH, (row + load_half(lane.op_rows, op)) * ROW_WIDTH):
        other = load_half(lane.row_entry, entry)
        if other < lane.ops:
            unlocked += _1 / F32(lane.waits[other])
            if lane.waits[other] == 1:
                released += _1
                released_gain += _gain(lane, other)
    added, workspace = lane.added[op], lane.workspace[op]
    features = lane.features
    features[k, 0] = _log(added)
    features[k, 1] = _log(workspace)
    features[k, 2] = _log(freed)
    features[k, 3] = _log(freed - added)
    features[k, 4] = _log(max(live + added + workspace - peak, _0))
    features[k, 5] = _log(peak - live)
    features[k, 6] = live / peak if peak > _0 else _0
    features[k, 7] = _log(share)
    features[k, 8] = _log(pending)
    features[k, 9] = _log(released)
    features[k, 10] = _log(released_gain)
    features[k, 11] = _log(unlocked)
    features[k, 12] = F32(step) / F32(lane.ops)
    features[k, 13] = _log(F32(0.1) * F32(step - lane.since[op]))
    features[k, 14] = _log(lane.depth[op] - lowest)


@inlined
def best(lane: Lane, count: int) -> int:
    """Place of the likeliest ready op, ties to the lower index."""
    best = integer(0)
    for k in range(1, count):
        above, equal = lane.log_prob[k] > lane.log_prob[best], lane.log_prob[k] == lane.log_prob[best]
        if above or (equal and lane.ready[k] < lane.ready[best]):
            best = integer(k)
    return best


@inlined
def place_of(lane: Lane, count: int, op: int) -> int:
    """Place of a ready op; -1 for an op that is not ready."""
    place = integer(-1)
    for k in range(count):
        if lane.ready[k] == op:
            place = integer(k)
    return place


@inlined
def draw(lane: Lane, count: int, uniform: Any) -> int:
    """Place of the op that a uniform number draws."""
    place = integer(0)
    for k in range(count - 1):
        uniform -= np.exp(lane.log_prob[k])
        if uniform < _0:
            break
        place = integer(k + 1)
    return place


@inlined
def run(lane: Lane, count: int, place: int, step: int) -> int:
    """Runs the ready op at a place; returns the number of ready ops after it."""
    op = integer(lane.ready[place])
    live = lane.memory[0] + lane.added[op]
    lane.memory[1] = max(lane.memory[1], live + lane.workspace[op])
    live -= lane.dead[op]
    for i in range(lane.first_read[op], lane.first_read[op + 1]):
        buffer = lane.reads[i]
        lane.left[buffer] -= 1
        lane.pending[buffer] -= 1
        if lane.left[buffer] == 0:
            live -= lane.freed[buffer]
    lane.memory[0] = live
    lane.waits[op] = -1
    count -= 1
    lane.ready[place] = lane.ready[count]
    row = load_half(lane.op_row, op)
    for entry in range(row * ROW_WIDTH, (row + load_half(lane.op_rows, op)) * ROW_WIDTH):
        other = load_half(lane.row_entry, entry)
        if other < lane.ops:
            lane.waits[other] -= 1
            for i in range(lane.first_read[other], lane.first_read[other + 1]):
                lane.pending[lane.reads[i]] -= 1
            if lane.waits[other] == 0:
                lane.ready[count], lane.since[other] = other, step + 1
                count += 1
    return count


def results_of(graph: PaddedGraph, samples: int) -> list[jax.ShapeDtypeStruct]:
    g, n = len(graph.num_ops), graph.sizes.ops
    return [jax.ShapeDtypeStruct((g, samples, n), jnp.int32), jax.ShapeDtypeStruct((g, samples), jnp.float32)]


def unused(graphs: int, samples: int) -> tuple[jax.Array, jax.Array]:
    """Seeds and orders for calls that read none."""
    return jnp.zeros((graphs, 2), jnp.uint32), jnp.zeros((graphs, samples, 1), jnp.int32)


def operands_of(
    choice: int, graph: PaddedGraph, usage: Usage, head: Head, seeds: jax.Array, order: jax.Array
) -> list[jax.Array]:
    sizes, (g, n, width) = graph.sizes, head.hidden.shape
    return [
        jnp.array([choice], jnp.int32),
        *typed(np.int32, (g,), graph.num_ops),
        *typed(np.int32, (g, sizes.slots), graph.indegree),
        *typed(np.int32, (g, n), graph.op_row, graph.op_rows),
        *typed(np.int32, (g, sizes.rows, ROW_WIDTH), graph.row_entry),
        *typed(np.int32, (g, sizes.uses), usage.use_op, usage.use_buffer),
        *typed(np.float32, (g, sizes.tensors), usage.freed),
        *typed(np.float32, (g, n), usage.added, usage.dead, usage.workspace, usage.depth, head.priority),
        *typed(np.float32, (g, n, width), head.hidden),
        *typed(np.float32, (NUM_FEATURES, width), head.kernel),
        *typed(np.float32, (width,), head.out),
        *typed(np.uint32, (g, 2), seeds),
        *typed(np.int32, order.shape, order),
    ]
