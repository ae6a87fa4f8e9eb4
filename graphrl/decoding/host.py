"""Orders sampled by compiled code, as a part of a jitted program for CPUs: the loop of `rollout.sampled_orders`.

`host_orders` is a custom call of XLA (see `compiled/custom_call.py`) with the queue of `rollout.py`. It adds the same
float32 numbers in the same sequence and draws the same random words, so orders have the same bits as in pure JAX.

A lane is one order of one graph. XLA's threads share blocks of lanes. In a block, each phase of a step is a loop over
the lanes: a float32 sum in sequence waits for each addition, and a processor can add those of several lanes meanwhile.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.custom_call import (
    MANY,
    count_outer,
    custom_call,
    data,
    operand,
    own_address,
    result,
    row_of,
    run_items,
    size,
    typed,
)
from graphrl.compiled.pointers import array, load_half
from graphrl.decoding.random_words import random_word, unit_interval
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
LANES = 8  # of a block
WIDEST = 32  # block of slots
I32, U32, F32 = np.int32, np.uint32, np.float32
BELOW_ONE = np.float32(1 - 2**-24)
_0 = np.float32(0)

# Indices are unsigned: numba checks whether signed ones are negative. Loops over 4, 8 or 16 numbers are unrolled.
_ZERO, _ONE, _4, _8, _16 = (np.uint64(number) for number in (0, 1, 4, 8, 16))

LANE = np.dtype(
    [
        ("weight", np.int64),  # addresses of its graph's parts of the operands
        ("indegree", np.int64),
        ("op_row", np.int64),
        ("op_rows", np.int64),
        ("row_entry", np.int64),
        ("seeds", np.int64),
        ("order", np.int64),  # address of its result
        ("ops", np.uint64),  # number of its graph's
        ("counter", np.int64),  # of the next random word
        ("samples", np.int64),  # by which a row advances the counter
        ("at", np.uint64),  # index of a top, a block or an op, on the way down to a draw
        ("left", np.float32),  # target minus the sum of the numbers before, on that way
        ("total", np.float32),  # of the numbers of a level
        ("running", np.int32),
    ],
    align=True,
)
LANE_SIZE = LANE.itemsize


class Queues(NamedTuple):
    """Ready ops of a block's lanes, and what they wait for; padded slots have weight 0 and wait forever."""

    bits: Any  # uint64, log2 of the number of slots per block
    width: Any  # uint64, 2^bits
    tops: Any  # uint64, number of tops per lane
    lanes: Any  # [LANES] LANE
    waits: Any  # [LANES * slots] int32, number of missing inputs
    slots: Any  # [LANES * slots] float32, weight of a ready op; 0 for others
    blocks: Any  # [LANES * blocks] float32, sums of slots
    sums: Any  # [LANES * tops] float32, sums of blocks
    room: Any  # uint64, scratch per lane
    before: Any  # [LANES * room] float32, scratch: sums before each number of a level
    end: int  # address after the arrays


@custom_call("graphrl_sampled_orders", "sampled orders", 3)
def orders_of_lanes(pointer: Any) -> Any:
    """Orders of all lanes of a batch of graphs."""
    return run_items(pointer, own_address(), _plan, _sample_block)


@inlined
def _plan(call: int) -> tuple[int, int, int]:
    """Number of blocks, largest number of threads, and bytes that a thread needs."""
    like = result(call, ORDER)
    lanes, block = count_outer(like, 1), _block(call)
    few = lanes * size(like, -1) < FEW
    return (lanes + block - 1) // block, integer(1 if few else MANY), _queues_at(call, integer(0)).end


@inlined
def _block(call: int) -> int:
    """Lanes of a block: fewer than `LANES` where else there would be too few blocks for several threads."""
    lanes, block = count_outer(result(call, ORDER), 1), integer(LANES)
    while block > 1 and (lanes + block - 1) // block < 4:
        block //= 2
    return block


@inlined
def _queues_at(call: int, memory: int) -> Queues:
    """The arrays of a block's queues in a thread's memory."""
    bits = integer(array(data(operand(call, BITS)), integer(1), I32)[0])
    tops = (size(result(call, ORDER), -1) >> 2 * bits) + 1
    blocks, slots = LANES * tops << bits, LANES * tops << 2 * bits
    waits = memory + LANES * LANE_SIZE
    ready = waits + 4 * slots
    first = ready + 4 * slots
    second = first + 4 * blocks
    third, room = second + 4 * LANES * tops, max(tops, WIDEST)
    return Queues(
        np.uint64(bits),
        _ONE << np.uint64(bits),
        np.uint64(tops),
        array(memory, integer(LANES), LANE),
        array(waits, slots, I32),
        array(ready, slots, F32),
        array(first, blocks, F32),
        array(second, LANES * tops, F32),
        np.uint64(room),
        array(third, LANES * room, F32),
        third + 4 * LANES * room,
    )


@part
def _sample_block(call: int, item: int, memory: int) -> None:
    """Samples the orders of a block's lanes: an op of each, then the next."""
    like, block, queues = result(call, ORDER), _block(call), _queues_at(call, memory)
    n, count = size(like, -1), np.uint64(min(block, count_outer(like, 1) - item * block))
    for lane in range(count):
        _open_lane(call, queues.lanes[lane], item * block + integer(lane))
        _fill(queues, lane)
    for place in range(n):
        running = integer(0)
        for lane in range(count):
            running += _start_draw(queues, lane)
        if running == 0:
            _finish(queues, count, place, n)
            break
        for lane in range(count):
            _descend(queues, lane, queues.tops)
        for lane in range(count):
            _start_level(queues, lane, queues.blocks, queues.tops * queues.width)
        for lane in range(count):
            _descend(queues, lane, queues.width)
        for lane in range(count):
            _start_level(queues, lane, queues.slots, queues.tops * queues.width * queues.width)
        for lane in range(count):
            _descend(queues, lane, queues.width)
        for lane in range(count):
            _remove(queues, lane, n, place)
        for lane in range(count):
            _release(queues, lane, n)


@inlined
def _open_lane(call: int, lane: Any, number: int) -> None:
    """Sets the addresses of a lane, given its number in the result."""
    like = result(call, ORDER)
    graphs, samples, n = size(like, -3), size(like, -2), size(like, -1)
    outer, graph = number // samples // graphs, number // samples % graphs
    lane.ops = np.uint64(array(row_of(call, NUM_OPS, integer(1), outer, graph, like), integer(1), I32)[0])
    lane.weight = row_of(call, WEIGHT, integer(2), outer, graph, like)
    lane.indegree = row_of(call, INDEGREE, integer(2), outer, graph, like)
    lane.op_row = row_of(call, OP_ROW, integer(2), outer, graph, like)
    lane.op_rows = row_of(call, OP_ROWS, integer(2), outer, graph, like)
    lane.row_entry = row_of(call, ROW_ENTRY, integer(3), outer, graph, like)
    lane.seeds = row_of(call, SEEDS, integer(2), outer, graph, like)
    lane.order = data(like) + 4 * number * n
    lane.counter, lane.samples = number % samples, samples


@inlined
def _fill(queues: Queues, lane: int) -> None:
    """Fills a lane's queue with the ops that are ready at the start."""
    width, one = queues.width, queues.lanes[lane]
    blocks = queues.tops * width
    slots = blocks * width
    indegree = array(one.indegree, integer(one.ops), I32)
    weight = array(one.weight, integer(one.ops), F32)
    for v in range(one.ops):
        queues.waits[lane * slots + v] = indegree[v]
        queues.slots[lane * slots + v] = weight[v] if indegree[v] == 0 else _0
    for v in range(one.ops, slots):
        queues.waits[lane * slots + v] = -1
        queues.slots[lane * slots + v] = _0
    for block in range(lane * blocks, (lane + _ONE) * blocks):
        queues.blocks[block] = _sum(queues.slots, block * width, width)
    for top in range(lane * queues.tops, (lane + _ONE) * queues.tops):
        queues.sums[top] = _sum(queues.blocks, top * width, width)


@inlined
def _start_draw(queues: Queues, lane: int) -> int:
    """Draws a uniform number below the weight of all ready ops; returns 1, or 0 without a ready op."""
    one, tops = queues.lanes[lane], queues.tops
    total = _accumulate(queues, lane, queues.sums, lane * tops, tops)
    one.running = total > _0
    uniform = unit_interval(random_word(array(one.seeds, integer(2), U32), one.counter))
    one.at, one.left, one.total = _ZERO, uniform * total, total
    return one.running


@inlined
def _start_level(queues: Queues, lane: int, values: np.ndarray, each: Any) -> None:
    """Adds the numbers of the next level, of which a lane has `each`."""
    one, width = queues.lanes[lane], queues.width
    if one.running:
        one.at = one.at * width
        first = lane * each + one.at
        if width == _4:
            one.total = _accumulate(queues, lane, values, first, _4)
        elif width == _8:
            one.total = _accumulate(queues, lane, values, first, _8)
        elif width == _16:
            one.total = _accumulate(queues, lane, values, first, _16)
        else:
            one.total = _accumulate(queues, lane, values, first, width)


@inlined
def _accumulate(queues: Queues, lane: int, values: np.ndarray, first: Any, count: Any) -> np.float32:
    """The sum of some numbers; writes the sums before each of them."""
    total, scratch = _0, lane * queues.room
    for i in range(count):
        queues.before[scratch + i] = total
        total += values[first + i]
    return total


@inlined
def _descend(queues: Queues, lane: int, count: Any) -> None:
    """Goes down one level: to the last number whose sum before it is at most the lane's target."""
    one = queues.lanes[lane]
    if one.running:
        # the sum of the lower level may have been rounded differently
        target = min(one.left, one.total * BELOW_ONE)
        if count == _4:
            index = _count_below(queues, lane, _4, target)
        elif count == _8:
            index = _count_below(queues, lane, _8, target)
        elif count == _16:
            index = _count_below(queues, lane, _16, target)
        else:
            index = _count_below(queues, lane, count, target)
        one.at, one.left = one.at + index, target - queues.before[lane * queues.room + index]


@inlined
def _count_below(queues: Queues, lane: int, count: Any, target: np.float32) -> Any:
    """Number of sums of a level, without the first one, 0, that are at most the target."""
    index, scratch = _ZERO, lane * queues.room
    for i in range(scratch + _ONE, scratch + count):
        index += np.uint64(queues.before[i] <= target)
    return index


@inlined
def _remove(queues: Queues, lane: int, n: int, place: int) -> None:
    """Writes the drawn op to the order and removes it from the queue; writes n where no op was drawn."""
    one = queues.lanes[lane]
    one.running = one.running != 0 and one.at < one.ops
    array(one.order, n, I32)[place] = one.at if one.running else n
    if one.running:
        slots = queues.tops * queues.width * queues.width
        queues.slots[lane * slots + one.at] = _0
        _add_again(queues, lane, one.at)


@inlined
def _add_again(queues: Queues, lane: int, op: Any) -> None:
    """Computes the sums of the op's block and top again, which removes rounding errors."""
    width, tops = queues.width, queues.tops
    block, top = lane * tops * width + (op >> queues.bits), lane * tops + (op >> queues.bits >> queues.bits)
    queues.blocks[block] = _sum_of_block(queues.slots, block * width, width)
    queues.sums[top] = _sum_of_block(queues.blocks, top * width, width)


@inlined
def _sum_of_block(values: np.ndarray, first: Any, width: Any) -> np.float32:
    """`_sum`, unrolled for most widths."""
    if width == _4:
        return _sum(values, first, _4)
    if width == _8:
        return _sum(values, first, _8)
    if width == _16:
        return _sum(values, first, _16)
    return _sum(values, first, width)


@inlined
def _sum(values: np.ndarray, first: Any, count: Any) -> np.float32:
    total = _0
    for i in range(first, first + count):
        total += values[i]
    return total


@inlined
def _release(queues: Queues, lane: int, n: int) -> None:
    """Counts an input of each op that waits for the drawn one; ops without missing inputs enter the queue."""
    one = queues.lanes[lane]
    if one.running:
        row, rows = load_half(one.op_row, integer(one.at)), load_half(one.op_rows, integer(one.at))
        changed = False  # the drawn op's top, which is computed again before each row: else to the same sums
        for i in range(row, row + rows):
            if changed:
                _add_again(queues, lane, one.at)
            changed = False
            for entry in range(i * ROW_WIDTH, (i + 1) * ROW_WIDTH):
                op = np.uint64(min(load_half(one.row_entry, entry), n))
                if _count_input(queues, lane, op, n):
                    changed |= (op ^ one.at) >> queues.bits >> queues.bits == _ZERO
        one.counter += rows * one.samples


@inlined
def _count_input(queues: Queues, lane: int, op: Any, n: int) -> bool:
    """Counts an input of an op; True if it enters the queue."""
    width, tops = queues.width, queues.tops
    slot = lane * tops * width * width + op
    waits = queues.waits[slot] - 1
    queues.waits[slot] = waits
    if waits != 0:
        return False
    weight = array(queues.lanes[lane].weight, n, F32)[op]
    queues.slots[slot] = weight
    queues.blocks[lane * tops * width + (op >> queues.bits)] += weight
    queues.sums[lane * tops + (op >> queues.bits >> queues.bits)] += weight
    return True


@inlined
def _finish(queues: Queues, count: Any, place: int, n: int) -> None:
    """Writes n to the places after the last op."""
    for lane in range(count):
        order = array(queues.lanes[lane].order, n, I32)
        for i in range(place, n):
            order[i] = n


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
    g, n = weight.shape
    bits = np.array([block.bit_length() - 1], np.int32)
    sizes = graph.sizes
    (order,) = orders_of_lanes(
        [jax.ShapeDtypeStruct((g, samples, n), jnp.int32)],
        bits,
        *typed(np.int32, (g,), graph.num_ops),
        *typed(np.float32, (g, n), weight),
        *typed(np.int32, (g, sizes.slots), graph.indegree),
        *typed(np.int32, (g, n), graph.op_row, graph.op_rows),
        *typed(np.int32, (g, sizes.rows, ROW_WIDTH), graph.row_entry),
        *typed(np.uint32, (g, 2), seeds),
    )
    return order
