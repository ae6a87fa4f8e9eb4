"""Decodes and costs chromosomes: the clocks run along with the heap of ready nodes, memory is a pass after it."""

import numpy as np

from graphrl.bench.yardstick.graph import LINK, RENDEZVOUS, Graph
from graphrl.bench.yardstick.heap import closed, push
from graphrl.compiled import entry, inlined, integer, part

_0 = np.float32(0)


@entry
def costs(g: Graph, genes: np.ndarray, runs: int, makespan: np.ndarray, peak: np.ndarray) -> None:
    """Costs p chromosomes, `runs` times over.

    Args:
      g: the graph.
      genes: `[p * genes]` float32 in [0, 1), one chromosome after another (graphrl/bench/graphs.py).
      runs: how often.
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
    """The makespan of the chromosome that begins at a gene; its peaks are left in `g.peak`."""
    # constants, so that each gets a loop of its own
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
        makespan = max(makespan, g.clocks[device])
    return makespan


@inlined
def _start(g: Graph, genes: np.ndarray, begin: int, memory: bool) -> int:
    """Places all ops and resets what decoding writes. The size of the heap, with the ops that wait for nothing."""
    n, d, size = len(g.now), g.devices, 0
    for v in range(n):
        x, device, most = g.now[v], 0, genes[begin + v]
        for other in range(1, d):
            if genes[begin + other * n + v] > most:
                device, most = other, genes[begin + other * n + v]
        x.device, x.ready, x.waits = device, _0, g.ops[v].waits
        x.key = _packed(g, genes[begin + d * n + v], v)
    for v in range(n):
        if g.now[v].waits == 0:
            size = push(g.heap, size, False, g.now[v].key)
    for i in range(2 * d):
        g.clocks[i] = _0
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
    """Runs an op; the heap's new size, and whether it has its hole still."""
    n, t, d, hole = len(g.now), len(g.tensors) - 1, g.devices, True
    x, op = g.now[v], g.ops[v]
    here, end = x.device, _0
    if timed:
        end = max(g.clocks[here], x.ready) + op.runtime
        x.ready = g.clocks[here] = end
    if memory:
        g.place[v] = place
        _allocate(g, place, here, op.bytes, op.workspace)
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
                key = genes[begin + (d + 1) * n + to * t + tensor]
                size, hole = push(g.heap, size, hole, _packed(g, key, node)), False
            elsewhere >>= 1
            to += 1
    for e in range(op.waiters, g.ops[v + 1].waiters):
        size, hole = _release(g, size, hole, g.waiters[e], True, end, timed)
    return size, hole


@inlined
def _run_transfer(g: Graph, size: int, index: int, place: int, timed: bool, memory: bool) -> tuple[int, bool]:
    """Runs the transfer of that index; the heap's new size, and whether it has its hole still."""
    d, hole, t = g.devices, True, g.sent[index]
    tensor = g.tensors[t]
    producer = g.now[tensor.producer]
    here, to, end = producer.device, index - t * (d - 1), _0
    to += here <= to
    if timed:
        end = producer.ready
        if g.transfer == RENDEZVOUS:
            end = max(end, g.clocks[here], g.clocks[to]) + tensor.seconds
            g.clocks[here] = g.clocks[to] = end
        elif g.transfer == LINK:
            end = max(end, g.clocks[d + here]) + tensor.seconds
            g.clocks[d + here] = end
        else:
            end += tensor.seconds
    if memory:
        g.last[t * d + here] = place
        _allocate(g, place, to, tensor.bytes, 0)
    for e in range(tensor.readers, g.tensors[t + 1].readers):
        size, hole = _release(g, size, hole, g.readers[e], g.now[g.readers[e]].device == to, end, timed)
    return size, hole


@inlined
def _release(g: Graph, size: int, hole: bool, op: int, came: bool, end: np.float32, timed: bool) -> tuple[int, bool]:
    """Tells an op that something that it waits for came, if it did: a branch for that would be missed often."""
    x = g.now[op]
    if timed:
        x.ready = max(x.ready, end if came else _0)
    x.waits -= came
    if came and x.waits == 0:
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
    """Peaks of all devices. A copy is freed after the place of the last node that needs it; copies that never were end
    at -1: place 0 takes them.
    """
    d, rows = g.devices, len(g.heap)
    for e in range(len(g.readers)):  # not in the decoding loop: loops over each op's inputs miss a branch each
        at = g.read[e] * d + g.now[g.readers[e]].device
        g.last[at] = max(g.last[at], g.place[g.readers[e]])
    for t in range(len(g.tensors) - 1):
        tensor = g.tensors[t]
        home = g.now[tensor.producer].device
        for device in range(d):
            freed = tensor.freed if device == home else tensor.bytes
            g.change[device * rows + g.last[t * d + device] + 1] -= freed
    for device in range(d):
        live = most = 0
        for place in range(device * rows + 1, device * rows + places + 1):
            live += g.change[place]
            most = max(most, live + (g.extra[place] if len(g.extra) else 0))
        g.peak[device] = most
