"""Memory of a schedule on every device, exactly as in costs/exact/memory.py, and the schedule as an order of nodes.

The instance of tensor t on its producer's device has number t, the copy on device b has T + t * devices + b.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import NONE, ComputationGraph
from graphrl.solvers.schedules.state import ABSENT, Schedule, home

BUFFER = np.dtype(
    [
        ("holder", np.int64),  # the instance that owns an instance's buffer; the other fields are those of owners
        ("size", np.int64),  # bytes
        ("left", np.int64),  # number of uses to come
        ("taker", np.int64),  # the op that took it over, or -1
        ("pinned", np.int64),  # 1 if it is never freed
    ],
    align=True,
)


class Memory(NamedTuple):
    """Sizes of buffers, and work space for a walk over them: n ops, t tensors, d devices."""

    limit: int  # bytes of a device, 0 if the objective is the peak
    num_bytes: np.ndarray  # [t] int64
    workspace: np.ndarray  # [n] int64
    resident: np.ndarray  # [n] int64, bytes that an op keeps on its device from the start
    kept: np.ndarray  # [t] int64, 1 or 0
    alias: np.ndarray  # [t] int64, a tensor, NONE or EXTERNAL
    reuses: np.ndarray  # [t] int64, the same
    tensors: np.ndarray  # [t] int64, in an order where aliases follow their sources
    nodes: np.ndarray  # [n + t * d] int64, of the schedule
    buffers: np.ndarray  # [t + t * d] BUFFER
    live: np.ndarray  # [2 * d] int64, bytes on each device, and peaks


def memory(graph: ComputationGraph, problem: Problem) -> Memory:
    """Builds the `Memory` for a graph's schedules."""
    a = graph.arrays
    n, t, d = a.num_ops, a.num_tensors, problem.devices
    resident = a.weight_bytes if problem.resident_weights else np.zeros(n)
    return Memory(
        limit=0 if problem.objective == "peak_memory" else problem.memory_limit or 0,
        num_bytes=a.tensor_bytes.astype(np.int64),
        workspace=a.workspace_bytes.astype(np.int64),
        resident=resident.astype(np.int64),
        kept=a.kept.astype(np.int64),
        alias=a.alias.astype(np.int64),
        reuses=a.reuses.astype(np.int64),
        tensors=np.argsort(a.rank[a.producer], kind="stable").astype(np.int64),
        nodes=np.zeros(n + t * d, np.int64),
        buffers=np.zeros(t + t * d, BUFFER),
        live=np.zeros(2 * d, np.int64),
    )


@part
def write_nodes(s: Schedule, nodes: np.ndarray) -> int:
    """Writes the schedule's order as node ids `[n + t * d]` (see `costs`); returns their number."""
    ops, begins, copies, order = s.ops, s.begins, s.copies, s.order
    n, d, count = len(order), s.devices, 0
    for place in range(n):
        x = integer(order[place])
        copy = ops[x].copies
        while copy != ABSENT:
            if not copies[copy].early:
                nodes[count] = n + copy
                count += 1
            copy = copies[copy].after
        nodes[count] = x
        count += 1
        for copy in range(begins[x].writes * d, begins[x + 1].writes * d):
            if copies[copy].early and copies[copy].first != ABSENT:
                nodes[count] = n + copy
                count += 1
    return count


@part
def excess(s: Schedule, m: Memory) -> int:
    """Returns the bytes by which the largest peak of a device exceeds the limit, at least 0."""
    ops, order = s.ops, s.order
    buffers, nodes, live, alias = m.buffers, m.nodes, m.live, m.alias
    n, d, base = len(order), s.devices, len(alias)
    _share(s, m)
    for device in range(d):
        live[device] = 0
    for x in range(n):
        live[ops[x].device] += m.resident[x]
    for device in range(d):
        live[d + device] = live[device]
    for i in range(write_nodes(s, nodes)):
        node = nodes[i]
        if node < n:
            _run(s, m, node)
        else:
            t, there = (node - n) // d, (node - n) % d
            live[there] += buffers[base + node - n].size
            live[d + there] = max(live[d + there], live[there])
            _release(m, buffers[t].holder, home(s, t))
    largest = 0
    for device in range(d):
        largest = max(largest, live[d + device] - m.limit)
    return largest


@part
def _share(s: Schedule, m: Memory) -> None:
    """Sets the buffer of every instance, and the number of its uses."""
    copies, buffers, alias = s.copies, m.buffers, m.alias
    d, base = s.devices, len(alias)
    for i in range(len(buffers)):
        buffer = buffers[i]
        buffer.holder, buffer.left, buffer.taker, buffer.pinned = i, 0, -1, 0
        buffer.size = m.num_bytes[i] if i < base else m.num_bytes[(i - base) // d]
    for i in range(base):
        t = m.tensors[i]
        source = alias[t]
        if source != NONE:
            buffers[t].size = 0
        if source >= 0:
            buffers[t].holder = _holder(s, m, source, home(s, t))
    for t in range(base):
        if m.kept[t] or alias[t] < NONE:
            buffers[buffers[t].holder].pinned = 1
        for device in range(d):
            readers = copies[t * d + device].readers
            buffers[_holder(s, m, t, device)].left += readers
            if device != home(s, t) and readers:
                buffers[buffers[t].holder].left += 1


@inlined
def _holder(s: Schedule, m: Memory, t: int, device: int) -> int:
    """Returns the instance that owns the buffer of a tensor on a device; the device must have the tensor."""
    buffers, alias = m.buffers, m.alias
    return buffers[t if home(s, t) == device else len(alias) + t * s.devices + device].holder


@part
def _run(s: Schedule, m: Memory, x: int) -> None:
    """Runs an op: allocates its outputs, updates the peak, and releases its inputs."""
    begins, rows = s.begins, s.rows
    buffers, live, alias = m.buffers, m.live, m.alias
    here, begin, end = integer(s.ops[x].device), integer(begins[x].writes), integer(begins[x + 1].writes)
    for t in range(begin, end):
        source = _holder(s, m, m.reuses[t], here) if m.reuses[t] >= 0 else -1
        if source >= 0 and buffers[source].taker != x and _is_last_use(s, m, x, source):
            buffers[source].taker = x
            buffers[t].size, buffers[source].size = buffers[source].size, 0
        elif alias[t] == NONE:
            live[here] += buffers[t].size
    live[s.devices + here] = max(live[s.devices + here], live[here] + m.workspace[x])
    for t in range(begin, end):
        if alias[t] == NONE and buffers[t].left == 0 and not buffers[t].pinned:
            live[here] -= buffers[t].size
    for e in range(begins[x].reads, begins[x + 1].reads):
        _release(m, _holder(s, m, integer(rows[e]), here), here)


@part
def _is_last_use(s: Schedule, m: Memory, x: int, source: int) -> bool:
    """True if an op has all remaining uses of a buffer, and the buffer may be freed."""
    begins, rows = s.begins, s.rows
    buffers, here = m.buffers, integer(s.ops[x].device)
    reads = 0
    for e in range(begins[x].reads, begins[x + 1].reads):
        reads += _holder(s, m, integer(rows[e]), here) == source
    return not buffers[source].pinned and buffers[source].left == reads


@inlined
def _release(m: Memory, holder: int, device: int) -> None:
    """Counts one use of a buffer as done, and frees it after the last."""
    buffers, live = m.buffers, m.live
    buffer = buffers[holder]
    buffer.left -= 1
    if buffer.left == 0 and not buffer.pinned:
        live[device] -= buffer.size
