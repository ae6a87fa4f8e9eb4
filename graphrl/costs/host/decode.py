"""Decoding and costs of candidate solutions on the host: the lowering of `costs/device/evaluate.py` for CPUs.

The semantics are those of graphrl/costs, in the units of padded graphs: times are float32, added in the order of the
simulation, so they have the same bits as the device's; bytes are whole numbers of 2^-28 byte units, which are exact
where float32 sums can be off by a rounding. Clocks are updated while nodes leave the heap; memory is a second pass over
the order.

XLA calls `costs_of_lanes` (see `compiled/custom_call.py`) with the operands and results of the enumerations below. An
item is a block of up to 16 lanes: candidate solutions are stored lanes last, so a block reads whole cache lines of the
decisions, which it copies to rows of its own.

Ready nodes are in a binary heap of packed keys, the largest first, in an int32 array. Taking the first key leaves a
hole at the root. The first push after that fills the hole: one sift instead of two (one for a leaf that moves to the
root and one for the new key). A sentinel after the last entry is the sibling of an entry without one. The heap of
searches (`compiled/structures.py`), with keys by item, reduces throughput by 10% at 64 ops and by a quarter at 2,048.
"""

from typing import Any, NamedTuple

import numpy as np

from graphrl.compiled import inlined, integer, part
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
    matrix,
    next_item,
    null,
    opened,
    operand,
    own_address,
    result,
    size,
    start,
)
from graphrl.costs.host.clocks import run_op, run_transfer

# Operands, each with its shape after leading axes of `jax.vmap`. Letters are those of graphs/padding.py.
SETTINGS = 0  # [6] int32: devices, transfer model, and True for: makespan, memory, resident weights, orders
NUM_OPS, NUM_TENSORS = 1, 2  # [g] int32
RUNTIME, WORKSPACE, WEIGHT = 3, 4, 5  # [g, n] float32
PRODUCER = 6  # [g, t] int32
TENSOR_BYTES, OWNED_BYTES, TRANSFER_SECONDS = 7, 8, 9  # [g, t] float32
KEPT = 10  # [g, t] bool
USE_TENSOR, USE_OP = 11, 12  # [g, e] int32
CONTROL_SOURCE, CONTROL_TARGET = 13, 14  # [g, f] int32
SHARE_TENSOR, SHARE_OF = 15, 16  # [g, s] int32
SHARE_REUSES = 17  # [g, s] bool
PLACEMENT = 18  # [n, g, p] int32
OP_KEYS = 19  # [n, g, p] float32
TRANSFER_KEYS = 20  # [d, t, g, p] float32
# Results
MAKESPAN = 0  # [g, p] float32
PEAK = 1  # [d, g, p] float32
EVENTS = 2  # [c, g, p] int32, c = 0 without orders
END = 3  # [n, g, p] float32, n = 0 without orders

LANES = 16  # of a block: as many float32 as a cache line has
FEW = 2000  # ops times lanes that one thread computes alone: scheduling another takes as long
NEVER = 2**31 - 1  # place at which a buffer ends that is never freed
SCALE = float(2**28)  # of a byte unit; sums of 2^22 of the largest tensors fit into int64
_0 = np.float32(0)
LARGEST = np.nextafter(np.float32(1), _0)  # key
I32, U32, I64, F32 = np.int32, np.uint32, np.int64, np.float32


@inlined
def closed(heap: np.ndarray, size: int, hole: bool) -> int:
    """Fills the hole, if there is one, with the last entry; returns the new size."""
    if hole:
        size -= 1
        if size > 0:
            _sift_down(heap, size, heap[size])
    return size


@inlined
def push(heap: np.ndarray, size: int, hole: bool, key: int) -> int:
    """Adds a key, filling the hole if there is one; returns the new size."""
    if hole:
        _sift_down(heap, size, key)
        return size
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] >= key:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = key
    return size + 1


@inlined
def _sift_down(heap: np.ndarray, size: int, key: int) -> None:
    heap[size] = -1
    i, child = 0, 1
    while child < size:
        child += heap[child + 1] > heap[child]
        if heap[child] <= key:
            break
        heap[i] = heap[child]
        i, child = child, 2 * child + 1
    heap[i] = key


# Rows are parts of an array of ops, from their start to that of the next record's row. Indices are unsigned: numba
# checks whether signed ones are negative.
OP = np.dtype(
    [
        ("bytes", np.int64),  # of its tensors
        ("workspace", np.int64),
        ("runtime", np.float32),  # seconds
        ("waits", np.int32),  # number of tensors and control predecessors it waits for
        ("writes", np.uint32),  # the first of its tensors; they follow one another
        ("waiters", np.uint32),  # row of control successors
    ],
    align=True,
)
TENSOR = np.dtype(
    [
        ("bytes", np.int64),
        ("freed", np.int64),  # on its producer's device, where an alias owns none: 0 if it is kept
        ("seconds", np.float32),  # of a transfer
        ("producer", np.uint32),
        ("readers", np.uint32),  # row of ops
        ("kept", np.uint32),  # 1 if it is never freed there
    ],
    align=True,
)
NOW = np.dtype(
    [
        ("ready", np.float32),  # seconds, latest arrival; the end after it has run
        ("waits", np.int32),
        ("key", np.int32),  # packed
        ("device", np.uint32),
    ],
    align=True,
)
OP_SIZE, TENSOR_SIZE, NOW_SIZE = OP.itemsize, TENSOR.itemsize, NOW.itemsize

# Words at the start of a thread's memory: which graph it has read, and that graph's real sizes.
OUTER, GRAPH, OPS, TENSORS, USES, CONTROLS, WORKING, HEADER = 0, 1, 2, 3, 4, 5, 6, 8


class Graph(NamedTuple):
    """A graph of n ops and t tensors on d devices, N = n + t * (d - 1) nodes, whose places start at 1; real sizes."""

    devices: int
    transfer: int
    memory: bool  # whether peaks are computed
    ordered: bool  # whether the order is written
    bits: int  # of a node's index
    ops: Any  # [n + 1] OP
    tensors: Any  # [t + 1] TENSOR
    readers: Any  # [e] uint32, ops by the tensor that they read
    waiters: Any  # [f] uint32, ops by the control predecessor that they have
    read: Any  # [e] uint32, the tensor that each of the readers reads
    sent: Any  # [t * (d - 1)] uint32, the tensor of each transfer
    now: Any  # [n] NOW
    heap: Any  # [N + 2] int32
    clocks: Any  # [2, d] float32, seconds, see `clocks`
    place: Any  # [n] int32
    last: Any  # [t * d] int32, place of the last node that needs a copy, or -1
    change: Any  # [d * (N + 2)] int64, scaled bytes
    extra: Any  # [d * (N + 2)] int64, scaled bytes of workspace; [0] where no op has one
    peak: Any  # [d] int64, scaled bytes
    owned: Any  # [t] int64, scaled bytes that the producer allocates: 0 for an alias
    shares: Any  # [s, 4] int32: output, input, True if it reuses, and (written) index of the buffer in `last`
    alias: Any  # [t] int32, the share that makes a tensor an alias, or -1
    taker: Any  # [t * d] int32, the share that takes a buffer over, or -1
    end: int  # address after the arrays


class Decisions(NamedTuple):
    """Those of a block's lanes, of padded sizes, and its orders."""

    ops: int  # n
    tensors: int  # t
    nodes: int  # N
    op_row: int  # n and a cache line: rows whose distance is a power of two share few sets of the cache
    key_row: int  # d * t and a cache line
    placement: Any  # [LANES * op_row] int32
    op_keys: Any  # [LANES * op_row] float32
    transfer_keys: Any  # [LANES * key_row] float32
    order: Any  # [LANES * c] int32
    ends: Any  # [LANES * n] float32
    end: int  # address after the arrays


@custom_call("graphrl_costs")
def costs_of_lanes(pointer: Any) -> Any:
    """Costs of all lanes of a population on a batch of graphs: the operands and results above."""
    job = opened(pointer, own_address())
    if job != 0:
        if is_new(job, pointer):
            call = frame(job)
            lanes = count_outer(result(call, MAKESPAN), 0)
            few = lanes * size(operand(call, PLACEMENT), -3) < FEW
            start(job, _count_blocks(call) * count_outer(result(call, MAKESPAN), 2), 1 if few else 1024)
        item = next_item(job)
        if item >= 0:
            call = frame(job)
            memory = aligned_alloc(LINE, (_memory(call) + LINE - 1) // LINE * LINE)
            words = array(memory, HEADER, I64)
            words[OUTER] = words[GRAPH] = -1
            while item >= 0:
                _cost_block(call, item, memory)
                done(job)
                item = next_item(job)
            free(memory)
        close(job, pointer)
    return null()


@inlined
def _block(call: int) -> int:
    """Lanes of a block: fewer than `LANES` where else there would be too few blocks for several threads."""
    like, block = result(call, MAKESPAN), integer(LANES)
    lanes, outer = size(like, -2) * size(like, -1), count_outer(like, 2)
    while block > 1 and outer * ((lanes + block - 1) // block) < 8:
        block //= 2
    return block


@inlined
def _count_blocks(call: int) -> int:
    like, block = result(call, MAKESPAN), _block(call)
    return (size(like, -2) * size(like, -1) + block - 1) // block


@inlined
def _memory(call: int) -> int:
    """Bytes that a thread needs for the largest graph of the padded sizes."""
    n, t = size(operand(call, RUNTIME), -1), size(operand(call, PRODUCER), -1)
    e, f = size(operand(call, USE_OP), -1), size(operand(call, CONTROL_TARGET), -1)
    return _graph(call, _decisions(call, integer(0)).end, n, t, e, f, integer(1)).end


@inlined
def _decisions(call: int, memory: int) -> Decisions:
    n, t, d = size(operand(call, PLACEMENT), -3), size(operand(call, PRODUCER), -1), size(result(call, PEAK), -3)
    c, ends = size(result(call, EVENTS), -3), size(result(call, END), -3)
    op_row, key_row = n + LANES, d * t + LANES
    a = memory + 8 * HEADER
    b = a + 4 * LANES * op_row
    keys = b + 4 * LANES * op_row
    order = keys + 4 * LANES * key_row
    last = order + 4 * LANES * c
    return Decisions(
        n,
        t,
        n + t * (d - 1),
        op_row,
        key_row,
        array(a, LANES * op_row, I32),
        array(b, LANES * op_row, F32),
        array(keys, LANES * key_row, F32),
        array(order, LANES * c, I32),
        array(last, LANES * ends, F32),
        (last + 4 * LANES * ends + 63) // 64 * 64,
    )


@inlined
def _graph(call: int, memory: int, n: int, t: int, e: int, f: int, working: int) -> Graph:
    """The arrays of a graph of these sizes in a thread's memory; `working` is 1 if some op has workspace."""
    settings = array(data(operand(call, SETTINGS)), integer(6), I32)
    d, s = integer(settings[0]), size(operand(call, SHARE_OF), -1)
    nodes = n + t * (d - 1)
    bits = 1
    while nodes - 1 >> bits != 0:
        bits += 1
    places = nodes + 2
    ops = memory
    tensors = ops + (n + 1) * OP_SIZE
    now = tensors + (t + 1) * TENSOR_SIZE
    change = now + n * NOW_SIZE
    extra = change + 8 * d * places
    peak = extra + 8 * d * places * working
    owned = peak + 8 * d
    readers = owned + 8 * t
    read, waiters = readers + 4 * e, readers + 8 * e
    sent = waiters + 4 * f
    heap = sent + 4 * t * (d - 1)
    clocks = heap + 4 * places
    place = clocks + 8 * d
    last = place + 4 * n
    shares = last + 4 * t * d
    alias = shares + 16 * s
    taker = alias + 4 * t
    return Graph(
        d,
        integer(settings[1]),
        settings[3] != 0,
        settings[5] != 0,
        bits,
        array(ops, n + 1, OP),
        array(tensors, t + 1, TENSOR),
        array(readers, e, U32),
        array(waiters, f, U32),
        array(read, e, U32),
        array(sent, t * (d - 1), U32),
        array(now, n, NOW),
        array(heap, places, I32),
        matrix(clocks, integer(2), d, F32),
        array(place, n, I32),
        array(last, t * d, I32),
        array(change, d * places, I64),
        array(extra, d * places * working, I64),
        array(peak, d, I64),
        array(owned, t, I64),
        array(shares, 4 * s, I32),
        array(alias, t, I32),
        array(taker, t * d, I32),
        taker + 4 * t * d,
    )


@inlined
def _field(call: int, index: int, axes: int, outer: int, item: int) -> int:
    """Address of an operand's part for an outer index: its last `axes` axes, of elements of `item` bytes."""
    buffer, each = operand(call, index), item
    for axis in range(-axes, 0):
        each *= size(buffer, axis)
    return data(buffer) + broadcast(buffer, axes, outer, result(call, MAKESPAN), integer(2)) * each


@inlined
def _row(call: int, index: int, outer: int, graph: int, item: int) -> int:
    """Address of a graph's row of an operand `[g, x]`."""
    return _field(call, index, 2, outer, item) + graph * size(operand(call, index), -1) * item


@part
def _cost_block(call: int, block: int, memory: int) -> None:
    """Costs the lanes of a block."""
    like, width = result(call, MAKESPAN), _block(call)
    graphs, population = size(like, -2), size(like, -1)
    lanes, blocks = graphs * population, _count_blocks(call)
    outer, first = block // blocks, block % blocks * width
    count = min(width, lanes - first)
    decisions, words = _decisions(call, memory), array(memory, HEADER, I64)
    _read_decisions(call, decisions, outer, first, count)
    makespan = array(data(like) + 4 * outer * lanes, lanes, F32)
    peak = array(data(result(call, PEAK)), size(result(call, PEAK), -3) * lanes * (outer + 1), F32)
    settings = array(data(operand(call, SETTINGS)), integer(6), I32)
    for lane in range(count):
        graph = (first + lane) // population
        if words[OUTER] != outer or words[GRAPH] != graph:
            _read_graph(call, decisions.end, words, outer, graph)
        g = _graph(call, decisions.end, words[OPS], words[TENSORS], words[USES], words[CONTROLS], words[WORKING])
        weight = _row(call, WEIGHT, outer, graph, 4) if settings[4] != 0 else integer(0)
        makespan[first + lane] = _evaluate(g, decisions, lane, settings[2] != 0, weight)
        for device in range(g.devices):
            at = (outer * g.devices + device) * lanes + first + lane
            peak[at] = F32(g.peak[device] / SCALE) if g.memory else _0
    if settings[5] != 0:
        _write_orders(call, decisions, outer, first, count)


@inlined
def _read_decisions(call: int, decisions: Decisions, outer: int, first: int, count: int) -> None:
    """Copies the decisions of a block's lanes to a row a lane; out of range, they become the nearest that are in it."""
    like = result(call, MAKESPAN)
    lanes, devices = size(like, -2) * size(like, -1), size(result(call, PEAK), -3)
    n, keys, row, key_row = decisions.ops, devices * decisions.tensors, decisions.op_row, decisions.key_row
    placement = array(_field(call, PLACEMENT, 3, outer, 4), n * lanes, I32)
    op_keys = array(_field(call, OP_KEYS, 3, outer, 4), n * lanes, F32)
    transfer_keys = array(_field(call, TRANSFER_KEYS, 4, outer, 4), keys * lanes, F32)
    for v in range(n):
        for lane in range(count):
            device = placement[v * lanes + first + lane]
            decisions.placement[lane * row + v] = max(0, min(device, devices - 1))
            decisions.op_keys[lane * row + v] = _valid(op_keys[v * lanes + first + lane])
    for k in range(keys):
        for lane in range(count):
            decisions.transfer_keys[lane * key_row + k] = _valid(transfer_keys[k * lanes + first + lane])


@inlined
def _valid(key: np.float32) -> np.float32:
    return min(max(key, _0), LARGEST) if key == key else _0


@inlined
def _write_orders(call: int, decisions: Decisions, outer: int, first: int, count: int) -> None:
    """Copies the orders and ends of a block's lanes to the results, where lanes come last."""
    like = result(call, MAKESPAN)
    lanes = size(like, -2) * size(like, -1)
    n, steps = decisions.ops, len(decisions.order) // LANES
    events = array(data(result(call, EVENTS)) + 4 * outer * steps * lanes, steps * lanes, I32)
    ends = array(data(result(call, END)) + 4 * outer * n * lanes, n * lanes, F32)
    for k in range(steps):
        for lane in range(count):
            events[k * lanes + first + lane] = decisions.order[lane * steps + k]
    for v in range(n):
        for lane in range(count):
            ends[v * lanes + first + lane] = decisions.ends[lane * n + v]


@inlined
def _scaled(units: np.float32) -> int:
    return integer(np.float64(units) * SCALE)


@part
def _read_graph(call: int, memory: int, words: np.ndarray, outer: int, graph: int) -> None:
    """Reads a graph of the batch into a thread's memory."""
    n = integer(array(_field(call, NUM_OPS, 1, outer, 4), graph + 1, I32)[graph])
    t = integer(array(_field(call, NUM_TENSORS, 1, outer, 4), graph + 1, I32)[graph])
    use_tensor = array(_row(call, USE_TENSOR, outer, graph, 4), size(operand(call, USE_TENSOR), -1), I32)
    use_op = array(_row(call, USE_OP, outer, graph, 4), len(use_tensor), I32)
    source = array(_row(call, CONTROL_SOURCE, outer, graph, 4), size(operand(call, CONTROL_SOURCE), -1), I32)
    target = array(_row(call, CONTROL_TARGET, outer, graph, 4), len(source), I32)
    e = f = 0
    while e < len(use_tensor) and use_tensor[e] < t:
        e += 1
    while f < len(source) and source[f] < n:
        f += 1
    working = 0
    workspace = array(_row(call, WORKSPACE, outer, graph, 4), n, F32)
    for v in range(n):
        working |= workspace[v] > 0
    words[OUTER], words[GRAPH], words[OPS], words[TENSORS] = outer, graph, n, t
    words[USES], words[CONTROLS], words[WORKING] = e, f, working
    g = _graph(call, memory, n, t, e, f, integer(working))
    _read_ops(call, g, outer, graph)
    _read_tensors(call, g, outer, graph)
    at = 0
    for i in range(e):
        while at <= use_tensor[i]:
            g.tensors[at].readers = i
            at += 1
        g.readers[i], g.read[i] = use_op[i], use_tensor[i]
        g.ops[use_op[i]].waits += 1
    for tensor in range(at, t + 1):
        g.tensors[tensor].readers = e
    at = 0
    for i in range(f):
        while at <= source[i]:
            g.ops[at].waiters = i
            at += 1
        g.waiters[i] = target[i]
        g.ops[target[i]].waits += 1
    for v in range(at, n + 1):
        g.ops[v].waiters = f
    _read_shares(call, g, outer, graph)


@inlined
def _read_ops(call: int, g: Graph, outer: int, graph: int) -> None:
    n = len(g.now)
    runtime = array(_row(call, RUNTIME, outer, graph, 4), n, F32)
    workspace = array(_row(call, WORKSPACE, outer, graph, 4), n, F32)
    for v in range(n):
        op = g.ops[v]
        op.bytes, op.workspace, op.runtime, op.waits = 0, _scaled(workspace[v]), runtime[v], 0


@inlined
def _read_tensors(call: int, g: Graph, outer: int, graph: int) -> None:
    t = len(g.tensors) - 1
    producer = array(_row(call, PRODUCER, outer, graph, 4), t, I32)
    num_bytes = array(_row(call, TENSOR_BYTES, outer, graph, 4), t, F32)
    owned = array(_row(call, OWNED_BYTES, outer, graph, 4), t, F32)
    seconds = array(_row(call, TRANSFER_SECONDS, outer, graph, 4), t, F32)
    kept = array(_row(call, KEPT, outer, graph, 1), t, np.uint8)
    at = 0
    for i in range(t):
        tensor = g.tensors[i]
        own = _scaled(owned[i])
        tensor.bytes, tensor.freed, tensor.kept, g.owned[i] = _scaled(num_bytes[i]), 0 if kept[i] else own, kept[i], own
        tensor.seconds, tensor.producer = seconds[i], producer[i]
        g.ops[producer[i]].bytes += own
        for device in range(g.devices - 1):
            g.sent[i * (g.devices - 1) + device] = i
        while at <= producer[i]:
            g.ops[at].writes = i
            at += 1
    for v in range(at, len(g.ops)):
        g.ops[v].writes = t


@inlined
def _read_shares(call: int, g: Graph, outer: int, graph: int) -> None:
    t, s = len(g.tensors) - 1, len(g.shares) // 4
    tensor = array(_row(call, SHARE_TENSOR, outer, graph, 4), s, I32)
    of = array(_row(call, SHARE_OF, outer, graph, 4), s, I32)
    reuses = array(_row(call, SHARE_REUSES, outer, graph, 1), s, np.uint8)
    for i in range(t):
        g.alias[i] = -1
    for i in range(s):
        g.shares[4 * i], g.shares[4 * i + 1], g.shares[4 * i + 2] = tensor[i], of[i], reuses[i]
        if tensor[i] < t and not reuses[i]:
            g.alias[tensor[i]] = i


@part
def _evaluate(g: Graph, decisions: Decisions, lane: int, timed: bool, weight: int) -> np.float32:
    """Makespan of a lane; writes its peaks to `g.peak`, and its order and ends if they are wanted.

    Args:
      weight: address of the ops' resident weights, or 0.
    """
    # constants, so each case is compiled to a separate loop
    if timed and g.memory:
        return _simulate(g, decisions, lane, True, True, weight)
    if timed:
        return _simulate(g, decisions, lane, True, False, weight)
    return _simulate(g, decisions, lane, False, True, weight)


@inlined
def _simulate(g: Graph, decisions: Decisions, lane: int, timed: bool, memory: bool, weight: int) -> np.float32:
    ops, mask, place, hole = len(g.now), (1 << g.bits) - 1, 0, False
    size = _start(g, decisions, lane, memory)
    while True:
        size = closed(g.heap, size, hole)
        if size == 0:
            break
        place += 1
        node = mask - (g.heap[0] & mask)
        if node < ops:
            size, hole = _run_op(g, size, node, place, decisions, lane, timed, memory)
        else:
            size, hole = _run_transfer(g, size, node - ops, place, decisions, lane, timed, memory)
    if memory:
        _set_last_reads(g)
        if len(g.shares) > 0:
            _share_buffers(g)
        _set_peaks(g, place, weight)
    makespan = _0
    for device in range(g.devices):  # no transfer ends after its readers
        makespan = max(makespan, g.clocks[0, device])
    if g.ordered:
        _finish_order(g, decisions, lane, place, timed)
    return makespan


@inlined
def _start(g: Graph, decisions: Decisions, lane: int, memory: bool) -> int:
    """Places all ops, resets the arrays that decoding writes, pushes the ready ops; returns the heap's size."""
    first, size = lane * decisions.op_row, 0
    for v in range(len(g.now)):
        x = g.now[v]
        x.device, x.ready, x.waits = decisions.placement[first + v], _0, g.ops[v].waits
        x.key = _packed(g, decisions.op_keys[first + v], v)
    for v in range(len(g.now)):
        if g.now[v].waits == 0:
            size = push(g.heap, size, False, g.now[v].key)
    for device in range(g.devices):
        g.clocks[0, device] = g.clocks[1, device] = _0
    if memory:
        for i in range(len(g.last)):
            g.last[i] = -1
        for i in range(len(g.change)):
            g.change[i] = 0
        for i in range(len(g.extra)):
            g.extra[i] = 0
    return size


@inlined
def _packed(g: Graph, key: np.float32, node: int) -> int:
    """A word that sorts nodes: larger keys first, ties to the lower index. Scaling by a power of two is exact."""
    scaled = integer(np.int32(key * F32(1 << (31 - g.bits))))
    return (scaled << g.bits) | ((1 << g.bits) - 1 - node)


@inlined
def _run_op(
    g: Graph, size: int, v: int, place: int, decisions: Decisions, lane: int, timed: bool, memory: bool
) -> tuple[int, bool]:
    """Runs an op; returns the heap's new size, and whether it still has its hole."""
    n, d, hole = len(g.now), g.devices, True
    x, op = g.now[v], g.ops[v]
    here, end = x.device, _0
    if timed:
        end = run_op(g.clocks, here, x.ready, op.runtime) + op.runtime
        x.ready = end
    if memory:
        g.place[v] = place
        _allocate(g, place, here, op.bytes, op.workspace)
    if g.ordered:
        decisions.order[lane * (len(decisions.order) // LANES) + place - 1] = v * d + here
    for tensor in range(op.writes, g.ops[v + 1].writes):
        if memory:
            g.last[tensor * d + here] = place
        elsewhere = 0  # bits of devices
        for e in range(g.tensors[tensor].readers, g.tensors[tensor + 1].readers):
            there = g.now[g.readers[e]].device
            elsewhere |= 1 << there
            size, hole = _release(g, size, hole, g.readers[e], there == here, end, timed)
        elsewhere &= ~(1 << here)
        to = 0
        while elsewhere != 0:
            if elsewhere & 1:
                node = n + tensor * (d - 1) + to - (to > here)
                key = decisions.transfer_keys[lane * decisions.key_row + to * decisions.tensors + tensor]
                size, hole = push(g.heap, size, hole, _packed(g, key, node)), False
            elsewhere >>= 1
            to += 1
    for e in range(op.waiters, g.ops[v + 1].waiters):
        size, hole = _release(g, size, hole, g.waiters[e], True, end, timed)
    return size, hole


@inlined
def _run_transfer(
    g: Graph, size: int, index: int, place: int, decisions: Decisions, lane: int, timed: bool, memory: bool
) -> tuple[int, bool]:
    """Runs the transfer of that index; returns the heap's new size, and whether it still has its hole."""
    d, hole, t = g.devices, True, g.sent[index]
    tensor = g.tensors[t]
    producer = g.now[tensor.producer]
    here, to, end = producer.device, index - t * (d - 1), _0
    to += here <= to
    if timed:
        end = run_transfer(g.transfer, g.clocks, here, to, producer.ready, tensor.seconds) + tensor.seconds
    if memory:
        g.last[t * d + here] = place
        _allocate(g, place, to, tensor.bytes, 0)
    if g.ordered:
        decisions.order[lane * (len(decisions.order) // LANES) + place - 1] = (decisions.ops + index) * d + to
    for e in range(tensor.readers, g.tensors[t + 1].readers):
        size, hole = _release(g, size, hole, g.readers[e], g.now[g.readers[e]].device == to, end, timed)
    return size, hole


@inlined
def _release(g: Graph, size: int, hole: bool, op: int, here: bool, end: np.float32, timed: bool) -> tuple[int, bool]:
    """Counts an input of an op as arrived if the op is `here`, without a branch, which would often be mispredicted."""
    x = g.now[op]
    if timed:
        x.ready = max(x.ready, end if here else _0)
    x.waits -= here
    if here and x.waits == 0:
        return push(g.heap, size, hole, x.key), False
    return size, hole


@inlined
def _finish_order(g: Graph, decisions: Decisions, lane: int, places: int, timed: bool) -> None:
    """Fills the steps after the last node with the number of no node, and copies the ends of the ops."""
    steps, ops = len(decisions.order) // LANES, len(g.now)
    for step in range(places, steps):
        decisions.order[lane * steps + step] = decisions.nodes * g.devices
    for v in range(decisions.ops):
        decisions.ends[lane * decisions.ops + v] = g.now[v].ready if timed and v < ops else _0


@inlined
def _allocate(g: Graph, place: int, device: int, num_bytes: int, workspace: int) -> None:
    at = device * len(g.heap) + place
    g.change[at] = num_bytes
    if len(g.extra):
        g.extra[at] = workspace


@inlined
def _set_last_reads(g: Graph) -> None:
    """The place of the last node that needs each copy; copies that do not exist have -1."""
    for e in range(len(g.readers)):  # not in the decoding loop: a loop over each op's inputs mispredicts a branch each
        at = g.read[e] * g.devices + g.now[g.readers[e]].device
        g.last[at] = max(g.last[at], g.place[g.readers[e]])


@inlined
def _set_peaks(g: Graph, places: int, weight: int) -> None:
    """Computes the peaks of all devices. Copies that do not exist are freed at place 0, which is not counted."""
    d, rows = g.devices, len(g.heap)
    for t in range(len(g.tensors) - 1):
        tensor = g.tensors[t]
        home = g.now[tensor.producer].device
        for device in range(d):
            last = g.last[t * d + device]
            if last != NEVER:
                freed = tensor.freed if device == home else tensor.bytes
                g.change[device * rows + last + 1] -= freed
    for device in range(d):
        g.peak[device] = 0
    if weight != 0:
        weights = array(weight, len(g.now), F32)
        for v in range(len(g.now)):
            g.peak[g.now[v].device] += _scaled(weights[v])
    for device in range(d):
        live = most = g.peak[device]
        for place in range(device * rows + 1, device * rows + places + 1):
            live += g.change[place]
            most = max(most, live + (g.extra[place] if len(g.extra) else 0))
        g.peak[device] = most


@part
def _share_buffers(g: Graph) -> None:
    """Extends and hands over the buffers that outputs share with inputs: `device/memory.py`, one share at a time.

    Index t * d + b is the buffer of tensor t's copy on device b.
    """
    d, count = g.devices, len(g.shares) // 4
    real = len(g.tensors) - 1
    for i in range(len(g.taker)):
        g.taker[i] = -1
    for t in range(real):
        tensor = g.tensors[t]
        # a buffer of 0 bytes whose copies have some is that of an external input
        if tensor.kept or (g.owned[t] == 0 and tensor.bytes > 0 and g.alias[t] < 0):
            g.last[t * d + g.now[tensor.producer].device] = NEVER
    for s in range(count):
        t, of = g.shares[4 * s], g.shares[4 * s + 1]
        if t >= real or of >= real:
            continue
        here = g.now[g.tensors[t].producer].device
        buffer = of * d + here
        if g.now[g.tensors[of].producer].device == here and g.alias[of] >= 0:
            buffer = g.shares[4 * g.alias[of] + 3]
        g.shares[4 * s + 3] = buffer
        if g.shares[4 * s + 2] == 0:
            g.last[buffer] = max(g.last[buffer], g.last[t * d + here])
    _take_over(g, real, count)


@inlined
def _take_over(g: Graph, real: int, count: int) -> None:
    """Lets outputs that reuse a buffer which ends at their op take it over, the first if several can."""
    d, rows = g.devices, len(g.heap)
    for s in range(count):
        t = g.shares[4 * s]
        if t < real and g.shares[4 * s + 1] < real and g.shares[4 * s + 2] != 0:
            buffer = g.shares[4 * s + 3]
            if g.last[buffer] == g.place[g.tensors[t].producer] and g.taker[buffer] < 0:
                g.taker[buffer] = s
    for s in range(count - 1, -1, -1):  # from the last of a chain to its first: a buffer ends with its last taker
        t = g.shares[4 * s]
        if t >= real or g.shares[4 * s + 1] >= real or g.shares[4 * s + 2] == 0:
            continue
        buffer, producer = g.shares[4 * s + 3], g.tensors[t].producer
        if g.taker[buffer] == s:
            own = t * d + g.now[producer].device
            g.last[buffer] = g.last[own]
            g.last[own] = NEVER  # it frees nothing
            g.change[g.now[producer].device * rows + g.place[producer]] -= g.owned[t]
