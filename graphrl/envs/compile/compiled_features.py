"""Features of schedules, compiled for CPUs: the twin of `features.schedule_features`, as a custom call of XLA.

XLA's loop over edges takes most of the time of a step of `Compile-v0` on a CPU, and its sorting and scattering most of
the rest. All of it is also slow to compile, and an update of a learner contains it several times.

Moments are found among the sorted starts of ops by buckets: `grid` counts the starts before each multiple of 1 / n.
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
    part_of,
    result,
    run_items,
    size,
    typed,
)
from graphrl.compiled.pointers import array, matrix
from graphrl.compiled.structures import pop, push
from graphrl.graphs.padding import PaddedGraph

OP_TIMES, DEVICE_TIMES = 11, 8  # number of features per op, and per pair of op and device
MARGINS = (0.0, 0.01, 0.05, 0.2)  # windows around an op for the devices' busy shares, as shares of the makespan
SHARP = 20.0  # a slack of 1/20 of the makespan maps to 1/e, and no slack to 1
SHORTEST = 1e-6  # share of the makespan: for shorter times float32 is too coarse to compute a busy share

NUM_OPS = 0  # operand: [] int32
RUNTIME, END = 1, 2  # operands: [n] float32
PLACEMENT, PLACE = 3, 4  # operands: [n] int32
PRODUCER = 5  # operand: [t] int32
USE_TENSOR, USE_OP = 6, 7  # operands: [e] int32
CONTROL_SOURCE, CONTROL_TARGET = 8, 9  # operands: [f] int32
TIMES, PAIRS = 0, 1  # results: [n, OP_TIMES] and [n, d, DEVICE_TIMES] float32
FEW = 5_000  # ops of all schedules that one thread walks alone
I32, F32, F64 = np.int32, np.float32, np.float64
_0, _1 = F32(0), F32(1)


def compiled_schedule_features(
    graph: PaddedGraph, placement: jax.Array, place: jax.Array, end: jax.Array, devices: int
) -> tuple[jax.Array, jax.Array]:
    """Computes the features of a schedule: `[n, OP_TIMES]` and `[n, d, DEVICE_TIMES]` float32. Arguments as in
    `features.schedule_features`.
    """
    (n,), sizes = end.shape, graph.sizes
    results = [
        jax.ShapeDtypeStruct((n, OP_TIMES), jnp.float32),
        jax.ShapeDtypeStruct((n, devices, DEVICE_TIMES), jnp.float32),
    ]
    times, pairs = features_of_schedules(
        results,
        *typed(np.int32, (), graph.num_ops),
        *typed(np.float32, (n,), graph.runtime, end),
        *typed(np.int32, (n,), placement, place),
        *typed(np.int32, (sizes.tensors,), graph.producer),
        *typed(np.int32, (sizes.uses,), graph.use_tensor, graph.use_op),
        *typed(np.int32, (sizes.controls,), graph.control_source, graph.control_target),
    )
    return times, pairs


@custom_call("graphrl_schedule_features", "features of schedules", 3)
def features_of_schedules(pointer: Any) -> Any:
    """Computes the features of all schedules of a batch, with the operands and results above."""
    return run_items(pointer, own_address(), _plan, _write_features)


class _Schedule(NamedTuple):
    """A schedule of n ops with m edges on d devices, without padding; times are shares of the makespan."""

    devices: int
    device: Any  # [n] int32
    order: Any  # [n] int32, ops
    last: Any  # [n] int32, the op before on the same device, or -1
    following: Any  # [n] int32, the op after, or -1
    start: Any  # [n] float32
    end: Any  # [n] float32
    runtime: Any  # [n] float32
    ready: Any  # [n] float32, end of the last input
    latest: Any  # [n] float32, latest end that keeps the makespan
    begins: Any  # [n + 1] int32, ends of the rows of `targets`, by source
    targets: Any  # [m] int32
    heap: Any  # [n] int32
    starts: Any  # [n] float32, sorted
    grid: Any  # [n + 2] int32
    spent: Any  # [n + 1, d] float64, run times of the ops that start first
    until: Any  # [n + 1, d] float32, end of the last of them
    stop: int  # address after the arrays


@inlined
def _schedule_at(memory: int, n: int, m: int, d: int) -> _Schedule:
    until = memory + 8 * (n + 1) * d
    ints = until + 4 * (n + 1) * d
    begins = ints + 4 * 9 * n
    targets = begins + 4 * (n + 1)
    heap = targets + 4 * m
    starts, grid = heap + 4 * n, heap + 8 * n
    return _Schedule(
        d,
        array(ints, n, I32),
        array(ints + 4 * n, n, I32),
        array(ints + 8 * n, n, I32),
        array(ints + 12 * n, n, I32),
        array(ints + 16 * n, n, F32),
        array(ints + 20 * n, n, F32),
        array(ints + 24 * n, n, F32),
        array(ints + 28 * n, n, F32),
        array(ints + 32 * n, n, F32),
        array(begins, n + 1, I32),
        array(targets, m, I32),
        array(heap, n, I32),
        array(starts, n, F32),
        array(grid, n + 2, I32),
        matrix(memory, n + 1, d, F64),
        matrix(until, n + 1, d, F32),
        grid + 4 * (n + 2),
    )


@inlined
def _count_edges(call: int) -> int:
    return size(operand(call, USE_OP), -1) + size(operand(call, CONTROL_TARGET), -1)


@inlined
def _plan(call: int) -> tuple[int, int, int]:
    """Number of schedules, largest number of threads, and bytes that a thread needs."""
    like = result(call, PAIRS)
    schedules, n, d = count_outer(like, 3), size(like, -3), size(like, -2)
    stop = _schedule_at(integer(0), n, _count_edges(call), d).stop
    return schedules, integer(1 if schedules * n < FEW else MANY), stop


@part
def _write_features(call: int, item: int, memory: int) -> None:
    """Writes the features of one schedule; those of padding are 0."""
    like = result(call, PAIRS)
    size_n, d = size(like, -3), size(like, -2)
    times = matrix(data(result(call, TIMES)) + 4 * item * size_n * OP_TIMES, size_n, integer(OP_TIMES), F32)
    pairs = matrix(data(like) + 4 * item * size_n * d * DEVICE_TIMES, size_n * d, integer(DEVICE_TIMES), F32)
    n = max(0, min(size_n, _load_int(part_of(call, NUM_OPS, integer(0), item, like))))
    s = _schedule_at(memory, n, _count_edges(call), d)
    for v in range(n, size_n):
        for k in range(OP_TIMES):
            times[v, k] = _0
        for row in range(v * d, (v + 1) * d):
            for k in range(DEVICE_TIMES):
                pairs[row, k] = _0
    _read_schedule(call, s, item)
    _read_edges(call, s, item, pairs)
    _walk_backwards(s, times)
    _write_times(s, times, pairs)
    _sort_starts(s)
    _write_shares(s, pairs)


@inlined
def _load_int(address: int) -> int:
    return integer(array(address, integer(1), I32)[0])


@inlined
def _read_schedule(call: int, s: _Schedule, item: int) -> None:
    """Reads times as shares of the makespan, and each op's neighbours on its device."""
    n, d, like = len(s.order), s.devices, result(call, PAIRS)
    runtime = array(part_of(call, RUNTIME, integer(1), item, like), n, F32)
    end = array(part_of(call, END, integer(1), item, like), n, F32)
    placement = array(part_of(call, PLACEMENT, integer(1), item, like), n, I32)
    place = array(part_of(call, PLACE, integer(1), item, like), n, I32)
    makespan = F32(1e-30)
    for v in range(n):
        makespan = max(makespan, end[v])
        s.order[v] = -1
    scale = _1 / makespan
    for v in range(n):
        s.device[v] = max(0, min(placement[v], d - 1))
        s.end[v], s.runtime[v] = end[v] * scale, runtime[v] * scale
        s.start[v], s.ready[v], s.latest[v] = max(s.end[v] - s.runtime[v], _0), _0, _1
        s.last[v] = s.following[v] = -1
        if 0 <= place[v] < n:
            s.order[place[v]] = v
    for device in range(d):
        s.grid[device] = -1  # the last op there; `grid` is free until `_sort_starts`
    for at in range(n):
        v = s.order[at]
        if v >= 0:
            before = s.grid[s.device[v]]
            s.last[v], s.grid[s.device[v]] = before, v
            if before >= 0:
                s.following[before] = v


@inlined
def _read_edges(call: int, s: _Schedule, item: int, pairs: np.ndarray) -> None:
    """Reads edges by source; writes the ends of inputs and the starts of readers by device."""
    n, d, like = len(s.order), s.devices, result(call, PAIRS)
    producer = array(part_of(call, PRODUCER, integer(1), item, like), size(operand(call, PRODUCER), -1), I32)
    uses, controls = size(operand(call, USE_OP), -1), size(operand(call, CONTROL_TARGET), -1)
    tensor = array(part_of(call, USE_TENSOR, integer(1), item, like), uses, I32)
    reader = array(part_of(call, USE_OP, integer(1), item, like), uses, I32)
    source = array(part_of(call, CONTROL_SOURCE, integer(1), item, like), controls, I32)
    target = array(part_of(call, CONTROL_TARGET, integer(1), item, like), controls, I32)
    for row in range(n * d):
        pairs[row, 0], pairs[row, 1] = _0, _1
    for v in range(n + 1):
        s.begins[v] = 0
    for e in range(uses + controls):
        one, other = _edge(producer, tensor, reader, source, target, e, n)
        if one >= 0:
            s.begins[one + 1] += 1
            here, there = other * d + s.device[one], one * d + s.device[other]
            pairs[here, 0] = max(pairs[here, 0], s.end[one])
            pairs[there, 1] = min(pairs[there, 1], s.start[other])
            s.ready[other] = max(s.ready[other], s.end[one])
    for v in range(n):
        s.begins[v + 1] += s.begins[v]
    for e in range(uses + controls):  # this moves the start of each row to its end
        one, other = _edge(producer, tensor, reader, source, target, e, n)
        if one >= 0:
            s.targets[s.begins[one]] = other
            s.begins[one] += 1


@inlined
def _edge(
    producer: np.ndarray,
    tensor: np.ndarray,
    reader: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    e: int,
    n: int,
) -> tuple[int, int]:
    """Ops that an edge leads from and to: a use of a tensor or, after these, a control edge; -1 for padding."""
    if e < len(reader):
        one = integer(producer[tensor[e]] if 0 <= tensor[e] < len(producer) else -1)
        other = integer(reader[e])
    else:
        one, other = integer(source[e - len(reader)]), integer(target[e - len(reader)])
    if 0 <= one < n and 0 <= other < n:
        return one, other
    return integer(-1), integer(-1)


@inlined
def _walk_backwards(s: _Schedule, times: np.ndarray) -> None:
    """Computes latest ends if transfers take no time and devices keep their order; writes the longest paths of run
    times after ops to the eighth feature, until `_write_times`.
    """
    n = len(s.order)
    for v in range(n):
        times[v, 8] = _0
    for at in range(n - 1, -1, -1):
        v = s.order[at]
        if v < 0:
            continue
        late, after = _1, _0
        if s.following[v] >= 0:
            late = min(late, s.latest[s.following[v]] - s.runtime[s.following[v]])
        for e in range(s.begins[v - 1] if v > 0 else 0, s.begins[v]):
            other = s.targets[e]
            late = min(late, s.latest[other] - s.runtime[other])
            after = max(after, times[other, 8] + s.runtime[other])
        s.latest[v], times[v, 8] = late, after


@inlined
def _write_times(s: _Schedule, times: np.ndarray, pairs: np.ndarray) -> None:
    """Writes the features of ops, and makes times of inputs and readers relative to the op."""
    d = s.devices
    for v in range(len(s.order)):
        start, end, awaited = s.start[v], s.end[v], _1
        for row in range(v * d, (v + 1) * d):
            awaited = min(awaited, pairs[row, 1])
            pairs[row, 0] -= start
            pairs[row, 1] -= end
        idle_until = s.start[s.following[v]] if s.following[v] >= 0 else _1
        slack, free = s.latest[v] - end, _1 - end - times[v, 8]
        times[v, 0], times[v, 1], times[v, 2] = start, end, s.runtime[v]
        times[v, 3] = start - (s.end[s.last[v]] if s.last[v] >= 0 else _0)
        times[v, 4], times[v, 5] = idle_until - end, start - s.ready[v]
        times[v, 6], times[v, 7], times[v, 8] = min(awaited, idle_until) - end, slack, free
        times[v, 9] = np.exp(F32(-SHARP) * max(slack, _0))
        times[v, 10] = np.exp(F32(-SHARP) * max(free, _0))


@inlined
def _sort_starts(s: _Schedule) -> None:
    """Sorts starts, and sums run times along them."""
    n, length = len(s.order), integer(0)
    for v in range(n):
        length = push(s.heap, s.start, length, v)
    for b in range(n + 2):
        s.grid[b] = 0
    for device in range(s.devices):
        s.spent[0, device], s.until[0, device] = 0.0, _0
    for at in range(n):
        v = s.heap[0]
        length = pop(s.heap, s.start, length)
        s.starts[at] = s.start[v]
        s.grid[_bucket(s.start[v], n) + 1] += 1
        for device in range(s.devices):
            s.spent[at + 1, device], s.until[at + 1, device] = s.spent[at, device], s.until[at, device]
        device = s.device[v]
        s.spent[at + 1, device] += s.runtime[v]
        s.until[at + 1, device] = max(s.until[at + 1, device], s.end[v])
    for b in range(n + 1):
        s.grid[b + 1] += s.grid[b]


@inlined
def _bucket(moment: np.float32, n: int) -> int:
    """Index of the bucket of a moment from 0 to 1: from 0 to n."""
    return integer(moment * F32(n))


@inlined
def _count_starts(s: _Schedule, moment: np.float32) -> int:
    """Number of ops that start at a moment or before."""
    b = _bucket(moment, len(s.order))
    low, high = integer(s.grid[b]), integer(s.grid[b + 1])
    while low < high:
        middle = (low + high) // 2
        if s.starts[middle] <= moment:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _write_shares(s: _Schedule, pairs: np.ndarray) -> None:
    """Writes the shares of time in which devices run ops, around each op and in the whole run."""
    d, windows = s.devices, integer(len(MARGINS))
    for v in range(len(s.order)):
        for k in range(windows):
            margin = F32(MARGINS[k])
            _write_share(s, pairs, v, 2 + k, s.start[v] - margin, s.end[v] + margin)
        _write_share(s, pairs, v, 2 + windows, s.ready[v], s.latest[v])
        if v == 0:
            _write_share(s, pairs, v, 3 + windows, _0, _1)
        else:
            for device in range(d):
                pairs[v * d + device, 3 + windows] = pairs[device, 3 + windows]


@inlined
def _write_share(s: _Schedule, pairs: np.ndarray, v: int, k: int, begin: np.float32, end: np.float32) -> None:
    """Writes feature k of op v and each device: the share of time between two moments in which it runs ops."""
    begin, end = min(max(begin, _0), _1), min(max(end, _0), _1)
    first, last, width = _count_starts(s, begin), _count_starts(s, end), end - begin
    for device in range(s.devices):
        share = _0
        if width > F32(SHORTEST):
            done = s.spent[last, device] - max(s.until[last, device] - end, _0)
            done -= s.spent[first, device] - max(s.until[first, device] - begin, _0)
            share = min(max(F32(done) / width, _0), _1)
        pairs[v * s.devices + device, k] = share
