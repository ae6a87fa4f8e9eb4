"""Peak memory of a decoded order on the host: `device/memory.py`, one buffer and one share at a time.

Index t * d + b is the buffer of tensor t's copy on device b.
"""

from graphrl.compiled import inlined, part
from graphrl.compiled.pointers import array
from graphrl.costs.host.arrays import F32, Graph, scaled

NEVER = 2**31 - 1  # place at which a buffer ends that is never freed


@inlined
def set_last_reads(g: Graph) -> None:
    """The place of the last node that needs each copy; copies that do not exist have -1."""
    for e in range(len(g.readers)):  # not in the decoding loop: a loop over each op's inputs mispredicts a branch each
        at = g.read[e] * g.devices + g.now[g.readers[e]].device
        g.last[at] = max(g.last[at], g.place[g.readers[e]])


@inlined
def set_peaks(g: Graph, places: int, weight: int) -> None:
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
            g.peak[g.now[v].device] += scaled(weights[v])
    for device in range(d):
        live = peak = g.peak[device]
        for place in range(device * rows + 1, device * rows + places + 1):
            live += g.change[place]
            peak = max(peak, live + (g.extra[place] if len(g.extra) else 0))
        g.peak[device] = peak


@part
def share_buffers(g: Graph) -> None:
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
