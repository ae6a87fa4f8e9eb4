"""Arrays of a call of the compiled costs: operands and results, and what a thread reads them into.

Candidate solutions are stored lanes last, so a thread takes a block of up to 16 lanes, whole cache lines of the
decisions, and copies them to rows of its own. It reads a graph when a lane of another graph begins.

Bytes are whole numbers of 2^-28 byte units, which are exact where float32 sums can be off by a rounding.
"""

from typing import Any, NamedTuple

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.custom_call import data, operand, part_of, result, row_of, size
from graphrl.compiled.pointers import array, matrix

# Operands, each with its shape after leading axes of `jax.vmap`. Letters are those of graphs/padding.py.
SETTINGS = 0  # [5] int32: devices, transfer model, and True for: makespan, memory, resident weights
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
TRANSFER_KEYS = 20  # [d, t, g, p] float32, or [0, t, g, p] for transfers by the rule of `sends.py`
# Results
MAKESPAN = 0  # [g, p] float32
PEAK = 1  # [d, g, p] float32
EVENTS = 2  # [c, g, p] int32, c = 0 if they are not wanted
END = 3  # [n, g, p] float32, n = 0 if they are not wanted
PLACE = 4  # [n, g, p] int32, likewise: position of each op among the ops; n for padding

LANES = 16  # of a block: as many float32 as a cache line has
SCALE = float(2**28)  # of a byte unit; sums of 2^22 of the largest tensors fit into int64
_0 = np.float32(0)
LARGEST = np.nextafter(np.float32(1), _0)  # key
I32, U32, I64, F32 = np.int32, np.uint32, np.int64, np.float32

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
    ordered: bool  # whether events are written
    bits: int  # of a node's index
    ops: Any  # [n + 1] OP
    tensors: Any  # [t + 1] TENSOR
    readers: Any  # [e] uint32, ops by the tensor that they read
    waiters: Any  # [f] uint32, ops by the control predecessor that they have
    read: Any  # [e] uint32, the tensor that each of the readers reads
    transfer_tensor: Any  # [t * (d - 1)] uint32, the tensor of each transfer
    now: Any  # [n] NOW
    heap: Any  # [m + 2] int32, m the largest number of nodes that run: n + min(t * (d - 1), e)
    clocks: Any  # [2, d] float32, seconds, see `clocks`
    place: Any  # [n] int32
    sequence: Any  # [n] int32, ops by their rank on one device
    pairs: Any  # [d * d] int32, place of the last transfer between two devices
    last: Any  # [t * d] int32, place of the last node that needs a copy, or -1
    change: Any  # [d * (m + 2)] int64, scaled bytes
    extra: Any  # [d * (m + 2)] int64, scaled bytes of workspace; [0] where no op has one
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
    ends: Any  # [LANES * n] float32; [0] if they are not wanted
    places: Any  # [LANES * n] int32; likewise
    end: int  # address after the arrays


@inlined
def decisions_at(call: int, memory: int) -> Decisions:
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
        array(last + 4 * LANES * ends, LANES * ends, I32),
        (last + 8 * LANES * ends + 63) // 64 * 64,
    )


@inlined
def graph_at(call: int, memory: int, n: int, t: int, e: int, f: int, working: int) -> Graph:
    """The arrays of a graph of these sizes in a thread's memory; `working` is 1 if some op has workspace."""
    settings = array(data(operand(call, SETTINGS)), integer(5), I32)
    d, s = integer(settings[0]), size(operand(call, SHARE_OF), -1)
    nodes = n + t * (d - 1)
    bits = 1
    while nodes - 1 >> bits != 0:
        bits += 1
    places = n + min(t * (d - 1), e) + 2  # each transfer has a reader
    ops = memory
    tensors = ops + (n + 1) * OP_SIZE
    now = tensors + (t + 1) * TENSOR_SIZE
    change = now + n * NOW_SIZE
    extra = change + 8 * d * places
    peak = extra + 8 * d * places * working
    owned = peak + 8 * d
    readers = owned + 8 * t
    read, waiters = readers + 4 * e, readers + 8 * e
    transfer_tensor = waiters + 4 * f
    heap = transfer_tensor + 4 * t * (d - 1)
    clocks = heap + 4 * places
    place = clocks + 8 * d
    sequence = place + 4 * n
    pairs = sequence + 4 * n
    last = pairs + 4 * d * d
    shares = last + 4 * t * d
    alias = shares + 16 * s
    taker = alias + 4 * t
    return Graph(
        d,
        integer(settings[1]),
        settings[3] != 0,
        size(result(call, EVENTS), -3) > 0,
        bits,
        array(ops, n + 1, OP),
        array(tensors, t + 1, TENSOR),
        array(readers, e, U32),
        array(waiters, f, U32),
        array(read, e, U32),
        array(transfer_tensor, t * (d - 1), U32),
        array(now, n, NOW),
        array(heap, places, I32),
        matrix(clocks, integer(2), d, F32),
        array(place, n, I32),
        array(sequence, n, I32),
        array(pairs, d * d, I32),
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
def _field(call: int, index: int, axes: int, outer: int) -> int:
    """Address of an operand's part for an outer index: its last `axes` axes."""
    return part_of(call, index, integer(axes), outer, result(call, MAKESPAN))


@inlined
def row(call: int, index: int, outer: int, graph: int) -> int:
    """Address of a graph's row of an operand `[g, x]`."""
    return row_of(call, index, integer(2), outer, graph, result(call, MAKESPAN))


@inlined
def read_decisions(call: int, decisions: Decisions, outer: int, first: int, count: int) -> None:
    """Copies the decisions of a block's lanes to a row a lane; out of range, they become the nearest that are in it."""
    like = result(call, MAKESPAN)
    lanes, devices = size(like, -2) * size(like, -1), size(result(call, PEAK), -3)
    n, row, key_row = decisions.ops, decisions.op_row, decisions.key_row
    keys = size(operand(call, TRANSFER_KEYS), -4) * decisions.tensors
    placement = array(_field(call, PLACEMENT, 3, outer), n * lanes, I32)
    op_keys = array(_field(call, OP_KEYS, 3, outer), n * lanes, F32)
    transfer_keys = array(_field(call, TRANSFER_KEYS, 4, outer), keys * lanes, F32)
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
def write_orders(call: int, decisions: Decisions, outer: int, first: int, count: int) -> None:
    """Copies the events, ends and places of a block's lanes to the results, where lanes come last."""
    like = result(call, MAKESPAN)
    lanes = size(like, -2) * size(like, -1)
    n, steps = decisions.ops, len(decisions.order) // LANES
    events = array(data(result(call, EVENTS)) + 4 * outer * steps * lanes, steps * lanes, I32)
    for k in range(steps):
        for lane in range(count):
            events[k * lanes + first + lane] = decisions.order[lane * steps + k]
    if len(decisions.ends) == 0:
        return
    ends = array(data(result(call, END)) + 4 * outer * n * lanes, n * lanes, F32)
    places = array(data(result(call, PLACE)) + 4 * outer * n * lanes, n * lanes, I32)
    for v in range(n):
        for lane in range(count):
            ends[v * lanes + first + lane] = decisions.ends[lane * n + v]
            places[v * lanes + first + lane] = decisions.places[lane * n + v]


@inlined
def scaled(units: np.float32) -> int:
    return integer(np.float64(units) * SCALE)


@part
def read_graph(call: int, memory: int, words: np.ndarray, outer: int, graph: int) -> None:
    """Reads a graph of the batch into a thread's memory."""
    n = integer(array(_field(call, NUM_OPS, 1, outer), graph + 1, I32)[graph])
    t = integer(array(_field(call, NUM_TENSORS, 1, outer), graph + 1, I32)[graph])
    use_tensor = array(row(call, USE_TENSOR, outer, graph), size(operand(call, USE_TENSOR), -1), I32)
    use_op = array(row(call, USE_OP, outer, graph), len(use_tensor), I32)
    source = array(row(call, CONTROL_SOURCE, outer, graph), size(operand(call, CONTROL_SOURCE), -1), I32)
    target = array(row(call, CONTROL_TARGET, outer, graph), len(source), I32)
    e = f = 0
    while e < len(use_tensor) and use_tensor[e] < t:
        e += 1
    while f < len(source) and source[f] < n:
        f += 1
    working = 0
    workspace = array(row(call, WORKSPACE, outer, graph), n, F32)
    for v in range(n):
        working |= workspace[v] > 0
    words[OUTER], words[GRAPH], words[OPS], words[TENSORS] = outer, graph, n, t
    words[USES], words[CONTROLS], words[WORKING] = e, f, working
    g = graph_at(call, memory, n, t, e, f, integer(working))
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
    runtime = array(row(call, RUNTIME, outer, graph), n, F32)
    workspace = array(row(call, WORKSPACE, outer, graph), n, F32)
    for v in range(n):
        op = g.ops[v]
        op.bytes, op.workspace, op.runtime, op.waits = 0, scaled(workspace[v]), runtime[v], 0


@inlined
def _read_tensors(call: int, g: Graph, outer: int, graph: int) -> None:
    t = len(g.tensors) - 1
    producer = array(row(call, PRODUCER, outer, graph), t, I32)
    num_bytes = array(row(call, TENSOR_BYTES, outer, graph), t, F32)
    owned = array(row(call, OWNED_BYTES, outer, graph), t, F32)
    seconds = array(row(call, TRANSFER_SECONDS, outer, graph), t, F32)
    kept = array(row(call, KEPT, outer, graph), t, np.uint8)
    at = 0
    for i in range(t):
        tensor = g.tensors[i]
        own = scaled(owned[i])
        tensor.bytes, tensor.freed, tensor.kept, g.owned[i] = scaled(num_bytes[i]), 0 if kept[i] else own, kept[i], own
        tensor.seconds, tensor.producer = seconds[i], producer[i]
        g.ops[producer[i]].bytes += own
        for device in range(g.devices - 1):
            g.transfer_tensor[i * (g.devices - 1) + device] = i
        while at <= producer[i]:
            g.ops[at].writes = i
            at += 1
    for v in range(at, len(g.ops)):
        g.ops[v].writes = t


@inlined
def _read_shares(call: int, g: Graph, outer: int, graph: int) -> None:
    t, s = len(g.tensors) - 1, len(g.shares) // 4
    tensor = array(row(call, SHARE_TENSOR, outer, graph), s, I32)
    of = array(row(call, SHARE_OF, outer, graph), s, I32)
    reuses = array(row(call, SHARE_REUSES, outer, graph), s, np.uint8)
    for i in range(t):
        g.alias[i] = -1
    for i in range(s):
        g.shares[4 * i], g.shares[4 * i + 1], g.shares[4 * i + 2] = tensor[i], of[i], reuses[i]
        if tensor[i] < t and not reuses[i]:
            g.alias[tensor[i]] = i
