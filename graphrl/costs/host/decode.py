"""Decoding and costs of chromosomes on the host, on flat arrays: the yardstick in `graphrl bench`.

The semantics are exactly those of graphrl/costs, without aliases, reuses, resident weights and limits: transfers are
nodes with their own keys, and memory is counted by position in the order. Keys are quantised to the bits that a packed
31-bit word has for them next to the node's index. The clocks are updated while nodes leave the heap; memory is a second
pass over the order.

Ready nodes are in a binary heap of packed keys, the largest first, in an int32 array. Taking the first key leaves a
hole at the root. The first push after that fills the hole: one sift instead of two (one for a leaf that moves to the
root and one for the new key). A sentinel after the last entry is the sibling of an entry without one. The heap of
searches (`compiled/structures.py`), with keys by item, reduces throughput by 10% at 64 ops and by a quarter at 2,048.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, inlined, integer, part
from graphrl.costs.exact import key_bits
from graphrl.costs.host.clocks import TRANSFERS, run_op, run_transfer
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph


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
        ("freed", np.int64),  # of those, on its producer's device: 0 if it is kept
        ("seconds", np.float32),  # of a transfer
        ("producer", np.uint32),
        ("readers", np.uint32),  # row of ops
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


class Graph(NamedTuple):
    """A graph of n ops and t tensors on d devices: N = n + t * (d - 1) nodes, whose places start at 1."""

    devices: int
    transfer: int
    timed: bool  # whether clocks are kept
    memory: bool  # whether peaks are computed
    bits: int  # of a node's index
    ops: np.ndarray  # [n + 1] OP
    tensors: np.ndarray  # [t + 1] TENSOR
    readers: np.ndarray  # [e] uint32, ops by the tensor that they read
    waiters: np.ndarray  # [f] uint32, ops by the control predecessor that they have
    read: np.ndarray  # [e] uint32, the tensor that each of the readers reads
    transfer_tensor: np.ndarray  # [t * (d - 1)] uint32, the tensor of each transfer
    now: np.ndarray  # [n] NOW
    heap: np.ndarray  # [N + 2] int32
    clocks: np.ndarray  # [2, d] float32, seconds, see `clocks`
    place: np.ndarray  # [n] int32
    last: np.ndarray  # [t * d] int32, place of the last node that needs a copy, or -1
    change: np.ndarray  # [d * (N + 2)] int64, bytes
    extra: np.ndarray  # [d * (N + 2)] int64, bytes of workspace; [0] where no op has one
    peak: np.ndarray  # [d] int64, bytes


def host_graph(graph: ComputationGraph, problem: Problem, *, timed: bool, memory: bool) -> Graph:
    """The graph, to be decoded under a problem.

    Raises:
      GraphrlError: an alias, a reuse, resident weights or a memory limit.
    """
    _check_supported(graph, problem)
    a, d = graph.arrays, problem.devices
    n, t = a.num_ops, a.num_tensors
    places = n + t * (d - 1) + 2
    ops, tensors = np.zeros(n + 1, OP), np.zeros(t + 1, TENSOR)
    np.add.at(ops["bytes"], a.producer, a.tensor_bytes)
    ops["workspace"][:n], ops["runtime"][:n] = a.workspace_bytes, a.runtime
    ops["waits"] = np.bincount(a.use_op, minlength=n + 1) + np.bincount(a.control_target, minlength=n + 1)
    ops["writes"] = np.searchsorted(a.producer, np.arange(n + 1))
    ops["waiters"] = np.searchsorted(a.control_source, np.arange(n + 1))
    tensors["bytes"][:t], tensors["freed"][:t] = a.tensor_bytes, a.tensor_bytes * ~a.kept
    tensors["seconds"][:t] = [problem.transfer_seconds(num_bytes) for num_bytes in a.tensor_bytes.tolist()]
    tensors["producer"][:t] = a.producer
    tensors["readers"] = np.searchsorted(a.use_tensor, np.arange(t + 1))
    return Graph(
        devices=d,
        transfer=TRANSFERS[problem.transfer],
        timed=timed,
        memory=memory,
        bits=31 - key_bits(n, t, d),
        ops=ops,
        tensors=tensors,
        readers=a.use_op.astype(np.uint32),
        waiters=a.control_target.astype(np.uint32),
        read=a.use_tensor.astype(np.uint32),
        transfer_tensor=np.repeat(np.arange(t, dtype=np.uint32), d - 1),
        now=np.zeros(n, NOW),
        heap=np.zeros(places, np.int32),
        clocks=np.zeros((2, d), np.float32),
        place=np.zeros(n, np.int32),
        last=np.zeros(t * d, np.int32),
        change=np.zeros(d * places, np.int64),
        extra=np.zeros(d * places if a.workspace_bytes.any() else 0, np.int64),
        peak=np.zeros(d, np.int64),
    )


def _check_supported(graph: ComputationGraph, problem: Problem) -> None:
    """Refuses graphs and problems that this decoder does not support.

    Raises:
      GraphrlError: an alias, a reuse, resident weights or a memory limit.
    """
    if (graph.arrays.alias >= 0).any() or (graph.arrays.reuses >= 0).any():
        raise GraphrlError(f"graph {graph.name!r} has aliases or reuses: the compiled decoder does not support them")
    if problem.resident_weights or problem.memory_limit is not None:
        raise GraphrlError("resident weights and memory limits: the compiled decoder does not support them")


_0 = np.float32(0)


def cost_all(
    graphs: Sequence[Graph], genes: Sequence[np.ndarray], runs: int = 1, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Costs of p chromosomes `[p, genes]` of each of g graphs, computed `runs` times over.

    Returns:
      Makespans `[g, p]` float32, seconds, and peaks `[g, p, d]` int64, bytes; 0 where they are not computed.
    """
    population, devices = len(genes[0]), graphs[0].devices
    makespan = np.zeros((len(graphs), population), np.float32)
    peak = np.zeros((len(graphs), population, devices), np.int64)

    def cost(i: int) -> None:
        costs(graphs[i], genes[i].ravel(), runs, makespan[i], peak[i].ravel())

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(cost, range(len(graphs))))
    return makespan, peak


@entry
def costs(g: Graph, genes: np.ndarray, runs: int, makespan: np.ndarray, peak: np.ndarray) -> None:
    """Costs p chromosomes, `runs` times over.

    Args:
      g: the graph.
      genes: `[p * genes]` float32 in [0, 1), one chromosome after another (graphrl/bench/cases.py).
      runs: number of repetitions.
      makespan: `[p]` float32, seconds, to be written if `g.timed`.
      peak: `[p * d]` int64, bytes, to be written if `g.memory`.
    """
    each = len(genes) // len(makespan)
    for _ in range(runs):
        for p in range(len(makespan)):
            makespan[p] = evaluate(g, genes, p * each)
            if g.memory:
                for device in range(g.devices):
                    peak[p * g.devices + device] = g.peak[device]


@part
def evaluate(g: Graph, genes: np.ndarray, begin: int) -> np.float32:
    """Makespan of the chromosome that starts at gene `begin`; writes its peaks to `g.peak`."""
    # constants, so each case is compiled to a separate loop
    if g.timed and g.memory:
        return _evaluate(g, genes, begin, True, True)
    if g.timed:
        return _evaluate(g, genes, begin, True, False)
    return _evaluate(g, genes, begin, False, True)


@inlined
def _evaluate(g: Graph, genes: np.ndarray, begin: int, timed: bool, memory: bool) -> np.float32:
    ops, mask, place, hole = len(g.now), (1 << g.bits) - 1, 0, False
    size = _start(g, genes, begin, memory)
    while True:
        size = closed(g.heap, size, hole)
        if size == 0:
            break
        place += 1
        node = mask - (g.heap[0] & mask)
        if node < ops:
            size, hole = _run_op(g, size, node, place, genes, begin, timed, memory)
        else:
            size, hole = _run_transfer(g, size, node - ops, place, timed, memory)
    if memory:
        _set_peaks(g, place)
    makespan = _0
    for device in range(g.devices):  # no transfer ends after its readers
        makespan = max(makespan, g.clocks[0, device])
    return makespan


@inlined
def _start(g: Graph, genes: np.ndarray, begin: int, memory: bool) -> int:
    """Places all ops, resets the arrays that decoding writes, pushes the ready ops; returns the heap's size."""
    n, d, size = len(g.now), g.devices, 0
    for v in range(n):
        x, device, highest = g.now[v], 0, genes[begin + v]
        for other in range(1, d):
            if genes[begin + other * n + v] > highest:
                device, highest = other, genes[begin + other * n + v]
        x.device, x.ready, x.waits = device, _0, g.ops[v].waits
        x.key = _packed(g, genes[begin + d * n + v], v)
    for v in range(n):
        if g.now[v].waits == 0:
            size = push(g.heap, size, False, g.now[v].key)
    for device in range(d):
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
    scaled = integer(np.int32(key * np.float32(1 << (31 - g.bits))))
    return (scaled << g.bits) | ((1 << g.bits) - 1 - node)


@inlined
def _run_op(
    g: Graph, size: int, v: int, place: int, genes: np.ndarray, begin: int, timed: bool, memory: bool
) -> tuple[int, bool]:
    """Runs an op; returns the heap's new size, and whether it still has its hole."""
    n, t, d, hole = len(g.now), len(g.tensors) - 1, g.devices, True
    x, op = g.now[v], g.ops[v]
    here, end = x.device, _0
    if timed:
        end = run_op(g.clocks, here, x.ready, op.runtime) + op.runtime
        x.ready = end
    if memory:
        g.place[v] = place
        _allocate(g, place, here, op.bytes, op.workspace)
    for tensor in range(op.writes, g.ops[v + 1].writes):
        if memory:
            g.last[tensor * d + here] = place
        remote = 0  # bits of devices
        for e in range(g.tensors[tensor].readers, g.tensors[tensor + 1].readers):
            there = g.now[g.readers[e]].device
            remote |= 1 << there
            size, hole = _release(g, size, hole, g.readers[e], there == here, end, timed)
        remote &= ~(1 << here)
        to = 0
        while remote != 0:
            if remote & 1:
                node = n + tensor * (d - 1) + to - (to > here)
                key = genes[begin + (d + 1) * n + to * t + tensor]
                size, hole = push(g.heap, size, hole, _packed(g, key, node)), False
            remote >>= 1
            to += 1
    for e in range(op.waiters, g.ops[v + 1].waiters):
        size, hole = _release(g, size, hole, g.waiters[e], True, end, timed)
    return size, hole


@inlined
def _run_transfer(g: Graph, size: int, index: int, place: int, timed: bool, memory: bool) -> tuple[int, bool]:
    """Runs the transfer of that index; returns the heap's new size, and whether it still has its hole."""
    d, hole, t = g.devices, True, g.transfer_tensor[index]
    tensor = g.tensors[t]
    producer = g.now[tensor.producer]
    here, to, end = producer.device, index - t * (d - 1), _0
    to += here <= to
    if timed:
        end = run_transfer(g.transfer, g.clocks, here, to, producer.ready, tensor.seconds) + tensor.seconds
    if memory:
        g.last[t * d + here] = place
        _allocate(g, place, to, tensor.bytes, 0)
    for e in range(tensor.readers, g.tensors[t + 1].readers):
        size, hole = _release(g, size, hole, g.readers[e], g.now[g.readers[e]].device == to, end, timed)
    return size, hole


@inlined
def _release(g: Graph, size: int, hole: bool, op: int, arrived: bool, end: np.float32, timed: bool) -> tuple[int, bool]:
    """Counts one input of an op as arrived if `arrived`, without a branch, which would often be mispredicted."""
    x = g.now[op]
    if timed:
        x.ready = max(x.ready, end if arrived else _0)
    x.waits -= arrived
    if arrived and x.waits == 0:
        return push(g.heap, size, hole, x.key), False
    return size, hole


@inlined
def _allocate(g: Graph, place: int, device: int, num_bytes: int, workspace: int) -> None:
    at = device * len(g.heap) + place
    g.change[at] = num_bytes
    if len(g.extra):
        g.extra[at] = workspace


@inlined
def _set_peaks(g: Graph, places: int) -> None:
    """Computes the peaks of all devices.

    A copy is freed after the place of the last node that needs it. Copies that do not exist end at -1 and are freed at
    place 0.
    """
    d, rows = g.devices, len(g.heap)
    for e in range(len(g.readers)):  # not in the decoding loop: a loop over each op's inputs mispredicts a branch each
        at = g.read[e] * d + g.now[g.readers[e]].device
        g.last[at] = max(g.last[at], g.place[g.readers[e]])
    for t in range(len(g.tensors) - 1):
        tensor = g.tensors[t]
        home = g.now[tensor.producer].device
        for device in range(d):
            freed = tensor.freed if device == home else tensor.bytes
            g.change[device * rows + g.last[t * d + device] + 1] -= freed
    for device in range(d):
        live = peak = 0
        for place in range(device * rows + 1, device * rows + places + 1):
            live += g.change[place]
            peak = max(peak, live + (g.extra[place] if len(g.extra) else 0))
        g.peak[device] = peak
