"""Keys of ops and of transfers from an order of the ops alone, compiled: the rule of `envs/compile/sends.py`.

The order is that of the ops on one device. A transfer is right before the first op that waits for it; under
`rendezvous` it is earlier, with the first transfer between the same two devices after its tensor is written.

Scratch memory is what `simulate` writes later: `last` has the rank of the first op that waits for a transfer, `heap`
the first transfer before each op, `taker` the next one, and `change` the place of the previous transfer between two
devices.
"""

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.costs.host.arrays import F32, Decisions, Graph
from graphrl.costs.host.clocks import RENDEZVOUS
from graphrl.costs.host.decode import closed, packed, push


@part
def set_keys(g: Graph, decisions: Decisions, lane: int) -> None:
    """Replaces a lane's keys of ops, which determine their order, and of transfers by those of the rule."""
    if len(g.now) > 0:
        _rank(g, decisions, lane)
        _list_transfers(g, decisions, lane)
        if g.transfer == RENDEZVOUS:
            _bundle(g, decisions, lane)
        else:
            _send_late(g, decisions, lane)


@inlined
def _rank(g: Graph, decisions: Decisions, lane: int) -> None:
    """Orders the ops on one device: writes their ranks to `place`, and the ops to `sequence`."""
    n, size, hole, bits = len(g.now), integer(0), False, integer(1)
    while n - 1 >> bits != 0:
        bits += 1
    mask = (1 << bits) - 1
    for v in range(n):
        x = g.now[v]
        x.waits, x.key = g.ops[v].waits, packed(bits, decisions.op_keys[lane * decisions.op_row + v], v)
        x.device = decisions.placement[lane * decisions.op_row + v]
    for v in range(n):
        if g.now[v].waits == 0:
            size = push(g.heap, size, False, g.now[v].key)
    for rank in range(n):
        size = closed(g.heap, size, hole)
        v, hole = mask - (g.heap[0] & mask), True
        g.place[v], g.sequence[rank] = rank, v
        first, last = g.tensors[g.ops[v].writes].readers, g.tensors[g.ops[v + 1].writes].readers
        for e in range(first, last):  # rows of readers follow one another, as the tensors of an op do
            size, hole = _arrive(g, size, hole, g.readers[e])
        for e in range(g.ops[v].waiters, g.ops[v + 1].waiters):
            size, hole = _arrive(g, size, hole, g.waiters[e])


@inlined
def _arrive(g: Graph, size: int, hole: bool, op: int) -> tuple[int, bool]:
    x = g.now[op]
    x.waits -= 1
    if x.waits == 0:
        return push(g.heap, size, hole, x.key), False
    return size, hole


@inlined
def _list_transfers(g: Graph, decisions: Decisions, lane: int) -> None:
    """Lists the transfers by the first op that waits for them, in the order in which their tensors are written."""
    n, d = len(g.now), g.devices
    for i in range(len(g.last)):
        g.last[i] = n
    for e in range(len(g.readers)):
        v = g.readers[e]
        i = g.read[e] * d + g.now[v].device
        g.last[i] = min(g.last[i], g.place[v])
    for rank in range(n):
        g.heap[rank] = -1
    for rank in range(n - 1, -1, -1):
        v = g.sequence[rank]
        for tensor in range(g.ops[v].writes, g.ops[v + 1].writes):
            for device in range(d):
                i = tensor * d + device
                if g.last[i] < n and device != g.now[v].device:
                    g.taker[i], g.heap[g.last[i]] = g.heap[g.last[i]], i


@inlined
def _bundle(g: Graph, decisions: Decisions, lane: int) -> None:
    """Writes keys by which transfers between two devices are together."""
    n, d = len(g.now), g.devices
    for i in range(d * d):
        g.pairs[i] = -1
    for rank in range(n):
        decisions.op_keys[lane * decisions.op_row + g.sequence[rank]] = _bundled_key(n, rank, integer(0))
        there, i = g.now[g.sequence[rank]].device, g.heap[rank]
        while i >= 0:
            producer = g.tensors[i // d].producer
            here, written = g.now[producer].device, g.place[producer]
            pair = min(here, there) * d + max(here, there)
            if g.pairs[pair] <= written:  # no transfer between the two devices since the tensor was written
                g.change[rank * d + here], g.pairs[pair] = g.pairs[pair], rank
            before = integer(g.pairs[pair])
            while True:
                v = g.now[g.sequence[before]].device  # one of the two
                earlier = g.change[before * d + (here if v == there else there)]
                if earlier <= written:
                    break
                before = earlier
            at = lane * decisions.key_row + there * decisions.tensors + i // d
            decisions.transfer_keys[at] = _bundled_key(n, before, integer(1))
            i = g.taker[i]


@inlined
def _bundled_key(n: int, place: int, is_send: int) -> np.float32:
    return F32(2 * (n - 1 - place) + is_send) / F32(2 * n)


@inlined
def _send_late(g: Graph, decisions: Decisions, lane: int) -> None:
    """Writes keys by which each transfer is right before the first op that waits for it; those of one op's tensors
    before the same op share a position.
    """
    n, d = len(g.now), g.devices
    steps = n
    for rank in range(n):
        steps += _count_positions(g, g.heap[rank])
    place = integer(0)
    for rank in range(n):
        v, i, previous = g.sequence[rank], g.heap[rank], integer(-1)
        while i >= 0:
            written = g.place[g.tensors[i // d].producer]
            place += integer(written != previous and previous >= 0)
            at = lane * decisions.key_row + g.now[v].device * decisions.tensors + i // d
            decisions.transfer_keys[at] = F32(steps - 1 - place) / F32(steps)
            previous, i = integer(written), g.taker[i]
        place += integer(previous >= 0)
        decisions.op_keys[lane * decisions.op_row + v] = F32(steps - 1 - place) / F32(steps)
        place += 1


@inlined
def _count_positions(g: Graph, i: int) -> int:
    """Number of positions of a list of transfers."""
    count, previous = integer(0), integer(-1)
    while i >= 0:
        written = integer(g.place[g.tensors[i // g.devices].producer])
        count += integer(written != previous)
        previous, i = written, g.taker[i]
    return count
