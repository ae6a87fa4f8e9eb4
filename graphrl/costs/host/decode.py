"""Decoding and simulation of candidate solutions on the host; the semantics are those of graphrl/costs.

Times are float32 in second units, added in the order of the simulation, so they have the same bits as the device's.
Clocks are updated while nodes leave the heap; memory is a second pass over the order (`memory.py`).

Ready nodes are in a binary heap of packed keys, the largest first, in an int32 array. Taking the first key leaves a
hole at the root. The first push after that fills the hole: one sift instead of two (one for a leaf that moves to the
root and one for the new key). A sentinel after the last entry is the sibling of an entry without one. The heap of
searches (`compiled/structures.py`), with keys by item, reduces throughput by 10% at 64 ops and by a quarter at 2,048.
"""

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.costs.host.arrays import F32, LANES, Decisions, Graph
from graphrl.costs.host.clocks import run_op, run_transfer
from graphrl.costs.host.memory import set_last_reads, set_peaks, share_buffers

_0, _NONE, _ONE = np.float32(0), np.uint64(0), np.uint64(1)


@part
def simulate(g: Graph, decisions: Decisions, lane: int, timed: bool, weight: int) -> np.float32:
    """Makespan of a lane; writes its peaks to `g.peak`, and its order and ends if they are wanted.

    Args:
      g: a graph.
      decisions: of a block's lanes.
      lane: of the block.
      timed: whether ends are wanted.
      weight: address of the ops' resident weights, or 0.
    """
    # constants, so each case is compiled to a separate loop
    if g.memory:
        return _simulate(g, decisions, lane, timed, True, weight)
    return _simulate(g, decisions, lane, timed, False, weight)


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
            size, hole = _run_op(g, size, node, place, decisions, lane, memory)
        else:
            size, hole = _run_transfer(g, size, node - ops, place, decisions, lane, memory)
    if memory:
        set_last_reads(g)
        if len(g.shares) > 0:
            share_buffers(g)
        set_peaks(g, place, weight)
    makespan = _0
    for device in range(g.devices):  # no transfer ends after its readers
        makespan = max(makespan, g.clocks[0, device])
    if g.ordered:
        _finish_order(g, decisions, lane, place)
    if len(decisions.ends) > 0:
        _write_ops(g, decisions, lane, place, timed)
    return makespan


@inlined
def _start(g: Graph, decisions: Decisions, lane: int, memory: bool) -> int:
    """Places all ops, resets the arrays that decoding writes, pushes the ready ops; returns the heap's size."""
    first, size = lane * decisions.op_row, 0
    for v in range(len(g.now)):
        x = g.now[v]
        x.device, x.ready, x.waits = decisions.placement[first + v], _0, g.ops[v].waits
        x.key = packed(g.bits, decisions.op_keys[first + v], v)
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
def packed(bits: int, key: np.float32, node: int) -> int:
    """A word that sorts nodes, whose index has that many bits: larger keys first, ties to the lower index. Scaling by a
    power of two is exact.
    """
    scaled = integer(np.int32(key * F32(1 << (31 - bits))))
    return (scaled << bits) | ((1 << bits) - 1 - node)


@inlined
def _run_op(g: Graph, size: int, v: int, place: int, decisions: Decisions, lane: int, memory: bool) -> tuple[int, bool]:
    """Runs an op; returns the heap's new size, and whether it still has its hole."""
    n, d, hole = len(g.now), g.devices, True
    x, op = g.now[v], g.ops[v]
    here = x.device
    end = run_op(g.clocks, here, x.ready, op.runtime) + op.runtime
    x.ready, x.waits = end, -place  # it waits no more: `_write_ops` reads its place
    if memory:
        g.place[v] = place
        _allocate(g, place, here, op.bytes, op.workspace)
    if g.ordered:
        decisions.order[lane * (len(decisions.order) // LANES) + place - 1] = v * d + here
    for tensor in range(op.writes, g.ops[v + 1].writes):
        if memory:
            g.last[tensor * d + here] = place
        remote = _NONE  # bits of devices, of which there are up to 64
        for e in range(g.tensors[tensor].readers, g.tensors[tensor + 1].readers):
            there = g.now[g.readers[e]].device
            remote |= _ONE << np.uint64(there)
            size, hole = _release(g, size, hole, g.readers[e], there == here, end)
        remote &= ~(_ONE << np.uint64(here))
        to = 0
        while remote != _NONE:
            if remote & _ONE:
                node = n + tensor * (d - 1) + to - (to > here)
                key = decisions.transfer_keys[lane * decisions.key_row + to * decisions.tensors + tensor]
                size, hole = push(g.heap, size, hole, packed(g.bits, key, node)), False
            remote >>= _ONE
            to += 1
    for e in range(op.waiters, g.ops[v + 1].waiters):
        size, hole = _release(g, size, hole, g.waiters[e], True, end)
    return size, hole


@inlined
def _run_transfer(
    g: Graph, size: int, index: int, place: int, decisions: Decisions, lane: int, memory: bool
) -> tuple[int, bool]:
    """Runs the transfer of that index; returns the heap's new size, and whether it still has its hole."""
    d, hole, t = g.devices, True, g.transfer_tensor[index]
    tensor = g.tensors[t]
    producer = g.now[tensor.producer]
    here, to = producer.device, index - t * (d - 1)
    to += here <= to
    end = run_transfer(g.transfer, g.clocks, here, to, producer.ready, tensor.seconds) + tensor.seconds
    if memory:
        g.last[t * d + here] = place
        _allocate(g, place, to, tensor.bytes, 0)
    if g.ordered:
        decisions.order[lane * (len(decisions.order) // LANES) + place - 1] = (decisions.ops + index) * d + to
    for e in range(tensor.readers, g.tensors[t + 1].readers):
        size, hole = _release(g, size, hole, g.readers[e], g.now[g.readers[e]].device == to, end)
    return size, hole


@inlined
def _release(g: Graph, size: int, hole: bool, op: int, arrived: bool, end: np.float32) -> tuple[int, bool]:
    """Counts one input of an op as arrived if `arrived`, without a branch, which would often be mispredicted."""
    x = g.now[op]
    x.ready = max(x.ready, end if arrived else _0)
    x.waits -= arrived
    if arrived and x.waits == 0:
        return push(g.heap, size, hole, x.key), False
    return size, hole


@inlined
def _finish_order(g: Graph, decisions: Decisions, lane: int, places: int) -> None:
    """Fills the steps after the last node with the number of no node."""
    steps = len(decisions.order) // LANES
    for step in range(places, steps):
        decisions.order[lane * steps + step] = decisions.nodes * g.devices


@inlined
def _write_ops(g: Graph, decisions: Decisions, lane: int, places: int, timed: bool) -> None:
    """Writes the ends of the ops, and their positions among the ops; the heap, now empty, has the op of each place."""
    ops, first, count = len(g.now), lane * decisions.ops, 0
    for place in range(places + 1):
        g.heap[place] = -1
    for v in range(ops):
        g.heap[-g.now[v].waits] = v
        decisions.ends[first + v] = g.now[v].ready if timed else _0
    for v in range(ops, decisions.ops):
        decisions.ends[first + v], decisions.places[first + v] = _0, decisions.ops
    for place in range(places + 1):
        v = g.heap[place]
        if v >= 0:
            decisions.places[first + v] = count
            count += 1


@inlined
def _allocate(g: Graph, place: int, device: int, num_bytes: int, workspace: int) -> None:
    at = device * len(g.heap) + place
    g.change[at] = num_bytes
    if len(g.extra):
        g.extra[at] = workspace


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
