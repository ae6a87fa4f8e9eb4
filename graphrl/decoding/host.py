"""Orders sampled by compiled code, as a part of a jitted program for CPUs: the loop of `rollout.sampled_orders`.

`host_orders` is a custom call of XLA (see `compiled/custom_call.py`): the same queue with the same float32 sums in the
same sequence, and the same random words, so that orders have the same bits as in pure JAX. XLA's threads share the
lanes; a lane is one order of one graph.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import announced, inlined, integer, part
from graphrl.compiled.custom_call import (
    LINE,
    aligned_alloc,
    array,
    broadcast,
    close,
    count_outer,
    custom_call,
    data,
    done,
    frame,
    free,
    is_new,
    next_item,
    null,
    opened,
    operand,
    own_address,
    result,
    size,
    start,
)
from graphrl.compiled.random_words import random_word, unit_interval
from graphrl.graphs.padding import ROW_WIDTH, PaddedGraph

# Operands, each with its shape after leading axes of `jax.vmap`. Letters are those of graphs/padding.py.
BITS = 0  # [1] int32: a block has 2^bits slots
NUM_OPS = 1  # [g] int32
WEIGHT = 2  # [g, n] float32
INDEGREE = 3  # [g, u] int32
OP_ROW, OP_ROWS = 4, 5  # [g, n] int32
ROW_ENTRY = 6  # [g, r, ROW_WIDTH] int32
SEEDS = 7  # [g, 2] uint32
# Result
ORDER = 0  # [g, s, n] int32

FEW = 2000  # ops times lanes that one thread computes alone: scheduling another takes as long
MANY = 1024  # threads: as many as XLA has
WIDEST = 32  # block
I32, U32, F32 = np.int32, np.uint32, np.float32
BELOW_ONE = np.float32(1 - 2**-24)
_0 = np.float32(0)

OP = np.dtype([("waits", np.int32), ("weight", np.float32)], align=True)  # number of missing inputs
OP_SIZE = OP.itemsize


class Queue(NamedTuple):
    """Ready ops of a lane; padded slots have weight 0 and wait forever."""

    bits: int
    ops: Any  # [slots] OP
    slots: Any  # [slots] float32, weight of a ready op; 0 for others
    blocks: Any  # [slots / block] float32, sums of slots
    tops: Any  # [slots / block^2] float32, sums of blocks
    sums: Any  # [tops or WIDEST] float32, scratch: sums before each element
    end: int  # address after the arrays


@custom_call("graphrl_sampled_orders")
def orders_of_lanes(pointer: Any) -> Any:
    """Orders of all lanes of a batch of graphs."""
    job = opened(pointer, own_address())
    if job != 0:
        if is_new(job, pointer):
            like = result(frame(job), ORDER)
            lanes = count_outer(like, 1)
            start(job, lanes, integer(1 if lanes * size(like, -1) < FEW else MANY))
        item = next_item(job)
        if item >= 0:
            call = frame(job)
            memory = aligned_alloc(LINE, (_queue_at(call, integer(0)).end + LINE - 1) // LINE * LINE)
            while item >= 0:
                _sample_order(call, item, memory)
                done(job)
                item = next_item(job)
            free(memory)
        close(job, pointer)
    return null()


@inlined
def _queue_at(call: int, memory: int) -> Queue:
    """The arrays of a queue in a thread's memory."""
    bits = integer(array(data(operand(call, BITS)), integer(1), I32)[0])
    tops = (size(result(call, ORDER), -1) >> 2 * bits) + 1
    blocks, slots = tops << bits, tops << 2 * bits
    ready = memory + slots * OP_SIZE
    first, second = ready + 4 * slots, ready + 4 * (slots + blocks)
    sums = second + 4 * tops
    width = max(tops, WIDEST)
    return Queue(
        bits,
        array(memory, slots, OP),
        array(ready, slots, F32),
        array(first, blocks, F32),
        array(second, tops, F32),
        array(sums, width, F32),
        sums + 4 * width,
    )


@inlined
def _of_graph(call: int, index: int, axes: int, outer: int, graph: int) -> int:
    """Address of a graph's part of an operand whose last `axes` axes start with g."""
    buffer, each = operand(call, index), 4
    for axis in range(1 - axes, 0):
        each *= size(buffer, axis)
    batch = broadcast(buffer, axes, outer, result(call, ORDER), integer(3))
    return data(buffer) + (batch * size(buffer, -axes) + graph) * each


@part
def _sample_order(call: int, lane: int, memory: int) -> None:
    """Samples the order of a lane."""
    like = result(call, ORDER)
    graphs, samples, n = size(like, -3), size(like, -2), size(like, -1)
    outer, graph, sample = lane // samples // graphs, lane // samples % graphs, lane % samples
    queue = _queue_at(call, memory)
    ops = integer(array(_of_graph(call, NUM_OPS, integer(1), outer, graph), integer(1), I32)[0])
    first_row = array(_of_graph(call, OP_ROW, integer(2), outer, graph), n, I32)
    row_count = array(_of_graph(call, OP_ROWS, integer(2), outer, graph), n, I32)
    rows = size(operand(call, ROW_ENTRY), -2)
    entries = array(_of_graph(call, ROW_ENTRY, integer(3), outer, graph), rows * ROW_WIDTH, I32)
    seeds = array(_of_graph(call, SEEDS, integer(2), outer, graph), integer(2), U32)
    order = array(data(like) + 4 * lane * n, n, I32)
    _fill(call, queue, outer, graph, ops)
    step = 0  # rows so far
    for place in range(n):
        op = _draw(queue, unit_interval(random_word(seeds, step * samples + sample)))
        if op < 0:
            for rest in range(place, n):
                order[rest] = n
            break
        order[place] = op
        queue.slots[op] = _0
        for row in range(first_row[op], first_row[op] + row_count[op]):
            _add_again(queue, op)
            _release(queue, entries, row * ROW_WIDTH, n)
        step += row_count[op]


@inlined
def _fill(call: int, queue: Queue, outer: int, graph: int, ops: int) -> None:
    """Fills a queue with the ops that are ready at the start."""
    weight = array(_of_graph(call, WEIGHT, integer(2), outer, graph), ops, F32)
    indegree = array(_of_graph(call, INDEGREE, integer(2), outer, graph), ops, I32)
    for v in range(ops):
        op = queue.ops[v]
        op.waits, op.weight = indegree[v], weight[v]
        queue.slots[v] = weight[v] if indegree[v] == 0 else _0
    for v in range(ops, len(queue.ops)):
        op = queue.ops[v]
        op.waits, op.weight = -1, _0
        queue.slots[v] = _0
    width = 1 << queue.bits
    for block in range(len(queue.blocks)):
        queue.blocks[block] = _sum(queue.slots, block * width, width)
    for top in range(len(queue.tops)):
        queue.tops[top] = _sum(queue.blocks, top * width, width)


@inlined
def _draw(queue: Queue, uniform: np.float32) -> int:
    """The op of that uniform number in [0, 1), in proportion to the weights of the ready ops; -1 if none is ready."""
    width = 1 << queue.bits
    total = _accumulate(queue.tops, integer(0), len(queue.tops), queue.sums)
    if not total > _0:
        return -1
    top, left = _pick(queue.sums, len(queue.tops), total, uniform * total)
    total = _accumulate(queue.blocks, top * width, width, queue.sums)
    inner, left = _pick(queue.sums, width, total, left)
    block = top * width + inner
    total = _accumulate(queue.slots, block * width, width, queue.sums)
    return block * width + _pick(queue.sums, width, total, left)[0]


@inlined
def _accumulate(values: np.ndarray, first: int, count: int, sums: np.ndarray) -> np.float32:
    """The sum of numbers from the first on; writes the sums before each of them."""
    total = _0
    for i in range(count):
        sums[i] = total
        total += values[first + i]
    return total


@inlined
def _pick(sums: np.ndarray, count: int, total: np.float32, target: np.float32) -> tuple[int, np.float32]:
    """The last number whose sum before it is at most the target, and the target minus that sum."""
    target, index = min(target, total * BELOW_ONE), 0
    for i in range(1, count):
        index += sums[i] <= target
    return index, target - sums[index]


@inlined
def _add_again(queue: Queue, op: int) -> None:
    """Computes the sums of the op's block and top again."""
    width = 1 << queue.bits
    block, top = op >> queue.bits, op >> 2 * queue.bits
    queue.blocks[block] = _sum(queue.slots, block * width, width)
    queue.tops[top] = _sum(queue.blocks, top * width, width)


@inlined
def _sum(values: np.ndarray, first: int, count: int) -> np.float32:
    total = _0
    for i in range(first, first + count):
        total += values[i]
    return total


@inlined
def _release(queue: Queue, entries: np.ndarray, first: int, idle: int) -> None:
    """Counts an input of each op of a row; ops without missing inputs enter the queue."""
    for i in range(first, first + ROW_WIDTH):
        v = min(entries[i], idle)
        op = queue.ops[v]
        op.waits -= 1
        gained = op.weight if op.waits == 0 else _0
        queue.slots[v] += gained
        queue.blocks[v >> queue.bits] += gained
        queue.tops[v >> 2 * queue.bits] += gained


def host_orders(graph: PaddedGraph, weight: jax.Array, seeds: jax.Array, samples: int, block: int) -> jax.Array:
    """Samples orders of a batch of graphs.

    Args:
      graph: a batch of graphs (leading axis g).
      weight: `[g, n]` float32, of each op.
      seeds: `[g, 2]` uint32, of the random words.
      samples: s, orders per graph.
      block: slots per sum, a power of two.

    Returns:
      `[g, s, n]` int32; n after the last op.
    """
    with announced(orders_of_lanes, "sampled orders"):
        orders_of_lanes.register()
    g, n = weight.shape
    bits = np.array([block.bit_length() - 1], np.int32)
    call = jax.ffi.ffi_call(
        "graphrl_sampled_orders", jax.ShapeDtypeStruct((g, samples, n), jnp.int32), vmap_method="expand_dims"
    )
    operands = (bits, graph.num_ops, weight, graph.indegree, graph.op_row, graph.op_rows, graph.row_entry, seeds)
    order: jax.Array = call(*map(jax.lax.stop_gradient, operands))
    return order
