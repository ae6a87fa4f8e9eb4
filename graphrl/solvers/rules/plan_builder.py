"""Compiled list construction of plans: each op goes to the device of a `Choice`, with the transfers that it needs.

The order is given, or by highest level or earliest start from queues. `place` appends an op on a device.

Memory is estimated from above: every device that has a tensor of a buffer keeps the buffer until all its users are
placed, since their devices are not known before.
"""

import functools
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, background_compile, entry, inlined, integer, part
from graphrl.compiled.structures import pop, push
from graphrl.costs.host.clocks import LINK, RENDEZVOUS, run_op, run_transfer
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import NONE, ComputationGraph, Op
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.rules.plan_state import AVAILABLE, LOCAL, PENDING, Builder, builder

KEPT, START, FINISH, BYTES = range(4)  # rules of a `Choice`
GIVEN, HIGHEST, LOCAL_FIRST, EARLIEST = range(4)  # rules for the order of `build`
NAME = "list schedules"  # announced while it compiles


class Choice(NamedTuple):
    """Rule that chooses an op's device. KEPT is the device that it has; else, of the devices that exceed a target
    least, the one of least

    - START: start;
    - FINISH: finish, with a price on being busy and on the time of others; then the least busy, then the fewest bytes;
    - BYTES: bytes that are added; then peak.

    Ties go to the lower device.
    """

    least: int  # KEPT, START, FINISH or BYTES
    busy: float = 0.0  # price per second that a device is still busy when the first is free, in seconds of finish
    delay: float = 0.0  # price per second by which the clocks of others advance (rendezvous: they send)
    target: float = np.inf  # target of a device's estimated peak, bytes


def in_order(b: Builder, order: np.ndarray, choice: Choice) -> PlacedOrder:
    """Places the ops in an order `[n]`, each on the device of the choice."""
    return _run_build(b, GIVEN, choice, order)


def place_all(b: Builder, order: np.ndarray, placement: np.ndarray) -> PlacedOrder:
    """Places the ops in an order `[n]` on the devices `[n]`."""
    b.ops["device"][:-1] = placement
    return _run_build(b, GIVEN, Choice(KEPT), order)


def highest_level_first(b: Builder, choice: Choice, *, local_first: bool) -> PlacedOrder:
    """Schedules by levels: time runs along the device that is free first; of the ops whose predecessors have ended by
    then the one of highest level (longest path to the end) is next.

    Args:
      choice: rule for the op's device.
      local_first: True if ops that need no transfer to the device that is free go before those that do.
    """
    return _run_build(b, LOCAL_FIRST if local_first else HIGHEST, choice)


def earliest_first(b: Builder) -> PlacedOrder:
    """Schedules by ETF: of all ops whose predecessors are placed, on all devices, the earliest start is next; of
    equals, the op of highest level, then the lower op, then the lower device.
    """
    return _run_build(b, EARLIEST, Choice(KEPT))


@functools.cache
def prepare() -> None:
    """Compiles building, or loads it, once per process."""
    b = builder(ComputationGraph("one", (Op("a"),)), Problem("makespan", 2))
    with announced(build, NAME, seconds=2):
        build(b, GIVEN, np.zeros(1, np.int64), Choice(KEPT))


def prepared_in_background() -> AbstractContextManager[None]:
    """Runs `prepare` in another process while this one compiles something else in the block, which takes longer."""
    return background_compile(build, NAME, prepare)


def _run_build(b: Builder, rule: int, choice: Choice, order: np.ndarray | None = None) -> PlacedOrder:
    prepare()
    b.clear()
    if order is None:
        b.ops["device"] = NONE
    count = build(b, rule, np.zeros(0, np.int64) if order is None else order.astype(np.int64), choice)
    return b.ops["device"][:-1].copy(), b.nodes[:count].copy()


@entry
def build(b: Builder, rule: int, order: np.ndarray, choice: Choice) -> int:
    """Builds a plan on a cleared builder; returns the number of its nodes.

    Args:
      b: the builder; its ops have no device yet, unless the rule is GIVEN.
      rule: GIVEN, HIGHEST, LOCAL_FIRST or EARLIEST.
      order: `[n]` order of the ops, for GIVEN.
      choice: rule for devices; KEPT for EARLIEST, which chooses them itself.
    """
    count = integer(0)
    for i in range(len(b.ops) - 1):
        if rule == GIVEN:
            op = order[i]
        else:
            op = _earliest(b) if rule == EARLIEST else _highest(b, rule == LOCAL_FIRST)
        sort_inputs(b, op)
        count = place(b, op, choose(b, op, choice), count)
        if rule != GIVEN:
            _queue_successors(b, op)
    return count


@part
def _earliest(b: Builder) -> int:
    """Returns the next op of `earliest_first`, and sets its device. The first queue is an unordered list here."""
    ops, pending, lengths = b.ops, b.queues[PENDING], b.lengths
    best, device, least = 0, 0, np.inf
    for i in range(lengths[PENDING]):
        op = pending[i]
        sort_inputs(b, op)
        home = integer(ops[ops[op].leader].home)
        for there in range(len(b.devices)):
            if home != NONE and home != there:
                continue
            start, _, _ = transfer(b, op, there, integer(NONE))
            if start < least or (start == least and b.rank[op] < b.rank[pending[best]]):
                best, device, least = i, there, start
    op = pending[best]
    lengths[PENDING] -= 1
    pending[best] = pending[lengths[PENDING]]
    ops[op].device = device
    return op


@part
def _highest(b: Builder, local_first: bool) -> int:
    """Returns the next op of `highest_level_first`."""
    queues, lengths, pending = b.queues, b.lengths, b.queues[PENDING]
    used = LOCAL + len(b.devices) if local_first else LOCAL
    for queue in range(AVAILABLE, used):
        while lengths[queue] > 0 and b.ops[queues[queue, 0]].device != NONE:
            lengths[queue] = pop(queues[queue], b.rank, lengths[queue])
    device = _first_free(b)
    now = b.clocks[0, device]
    if lengths[AVAILABLE] == 0:
        now = max(now, b.ready[pending[0]])
    while lengths[PENDING] > 0 and b.ready[pending[0]] <= now:
        op = pending[0]
        lengths[PENDING] = pop(pending, b.ready, lengths[PENDING])
        for queue in range(AVAILABLE, used):
            if queue == AVAILABLE or _has_inputs(b, op, queue - LOCAL):
                lengths[queue] = push(queues[queue], b.rank, lengths[queue], op)
    queue = integer(LOCAL + device if local_first and lengths[LOCAL + device] > 0 else AVAILABLE)
    op = queues[queue, 0]
    lengths[queue] = pop(queues[queue], b.rank, lengths[queue])
    return op


@part
def sort_inputs(b: Builder, op: int) -> None:
    """Writes the inputs of an op, whose predecessors must be placed, to `b.inputs`: the earliest written first, of
    equals the lower tensor. Shell's sort: most ops have few inputs, and some have thousands.
    """
    ops, inputs = b.ops, b.inputs
    begin, gap = ops[op].inputs, integer(1)
    count = ops[op + 1].inputs - begin
    for i in range(count):
        inputs[i] = b.rows[begin + i]
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, count):
            i, t = k, inputs[k]
            while i >= gap and _is_before(b, t, inputs[i - gap]):
                inputs[i] = inputs[i - gap]
                i -= gap
            inputs[i] = t
        gap //= 3


@part
def place(b: Builder, op: int, device: int, count: int) -> int:
    """Appends an op, whose inputs are sorted, on a device. Takes the number of nodes so far and returns the new one."""
    ops, devices, rows = b.ops, b.devices, b.rows
    start, _, count = transfer(b, op, device, count)
    clock = _transfer_clocks(b)
    for other in range(len(devices)):
        b.clocks[clock, other] = b.trial[clock, other]
    ops[op].device = ops[ops[op].leader].home = device
    ops[op].end = run_op(b.clocks, device, start, ops[op].runtime) + ops[op].runtime
    b.nodes[count] = op
    devices[device].weights += ops[op].weight
    for e in range(ops[op + 1].writes - 1, ops[op].writes - 1, -1):  # a buffer that takes another one over comes last
        size, reuses = _allocation(b, integer(rows[e]), device)
        if reuses:
            source = b.copies[b.tensors[rows[e]].source * len(devices) + device]
            size, source.bytes = source.bytes, NONE
            devices[device].live -= size
        _allocate(b, integer(rows[e]), device, size)
    devices[device].peak = max(devices[device].peak, devices[device].live + ops[op].workspace)
    for e in range(ops[op].reads, ops[op + 1].reads):
        b.tensors[rows[e]].left -= 1
        _release(b, integer(rows[e]))
    for e in range(ops[op].writes, ops[op + 1].writes):
        _release(b, integer(rows[e]))
    return count + 1


@part
def choose(b: Builder, op: int, choice: Choice) -> int:
    """Returns the device for an op with sorted inputs: that of the ops colocated with it, if one of them is placed."""
    ops, devices, rows = b.ops, b.devices, b.rows
    if choice.least == KEPT:
        return ops[op].device
    home = integer(ops[ops[op].leader].home)
    if home != NONE:
        return home
    free = b.clocks[0, _first_free(b)]
    best, best_excess, best_first, best_second, best_third = integer(0), np.inf, np.inf, np.inf, np.inf
    for device in range(len(devices)):
        entry = devices[device]
        start, delay, added = transfer(b, op, device, integer(NONE))
        busy = b.clocks[0, device] - free
        for e in range(ops[op].writes, ops[op + 1].writes):
            size, reuses = _allocation(b, integer(rows[e]), device)
            added += 0 if reuses else size
        peak = max(entry.peak, entry.live + added + ops[op].workspace) + entry.weights + ops[op].weight
        excess, first, second, third = max(0.0, peak - choice.target), start, 0.0, 0.0
        if choice.least == FINISH:
            first = start + ops[op].runtime + choice.busy * busy + choice.delay * delay
            second, third = busy, float(added)
        elif choice.least == BYTES:
            first, second = float(added), float(peak)
        better = third < best_third
        if excess != best_excess:
            better = excess < best_excess
        elif first != best_first:
            better = first < best_first
        elif second != best_second:
            better = second < best_second
        if better:
            best, best_excess, best_first, best_second, best_third = device, excess, first, second, third
    return best


@part
def _queue_successors(b: Builder, op: int) -> None:
    """Adds the successors whose predecessors are all placed to the PENDING queue, keyed by the last one's end."""
    ops, rows = b.ops, b.rows
    for e in range(ops[op].after, ops[op + 1].after):
        after, ready = integer(rows[e]), 0.0
        ops[after].left -= 1
        if ops[after].left == 0:
            for i in range(ops[after].inputs, ops[after + 1].inputs):
                ready = max(ready, ops[b.tensors[rows[i]].producer].end)
            for i in range(ops[after].awaits, ops[after + 1].awaits):
                ready = max(ready, ops[rows[i]].end)
            b.ready[after] = ready
            b.lengths[PENDING] = push(b.queues[PENDING], b.ready, b.lengths[PENDING], after)


@part
def transfer(b: Builder, op: int, device: int, count: int) -> tuple[float, float, int]:
    """Tries or makes the transfers that an op, whose inputs are sorted, still needs on a device.

    Args:
      count: number of nodes, after which the transfers are written, with their bytes and arrivals; NONE is a trial.

    Returns:
      Start of the op, seconds; the seconds by which the clocks of other devices advance (rendezvous: they send); and
      the bytes that arrive or, if it is no trial, the number of nodes.
    """
    ops, tensors, copies, devices, rows, trial = b.ops, b.tensors, b.copies, b.devices, b.rows, b.trial
    d = len(devices)
    clock = _transfer_clocks(b)
    for other in range(d):
        trial[clock, other] = b.clocks[clock, other]
    start, added, senders, written = 0.0, integer(0), integer(0), count
    for i in range(ops[op + 1].inputs - ops[op].inputs):
        t = b.inputs[i]
        tensor = tensors[t]
        home, arrival = ops[tensor.producer].device, ops[tensor.producer].end
        if home != device:
            copy = copies[t * d + device]
            if copy.arrival >= 0.0:
                arrival = copy.arrival
            else:
                arrival = run_transfer(b.transfer, trial, home, device, arrival, tensor.seconds) + tensor.seconds
                sender = 0
                while sender < senders and devices[sender].sender != home:
                    sender += 1
                devices[sender].sender, senders = home, max(senders, sender + 1)
                added += tensor.bytes
                if count != NONE:
                    copy.arrival = arrival
                    _allocate(b, tensor.buffer, device, tensor.bytes)
                    b.nodes[written] = len(ops) - 1 + t * d + device
                    written += 1
        start = max(start, arrival)
    for e in range(ops[op].awaits, ops[op + 1].awaits):
        start = max(start, ops[rows[e]].end)
    delay = 0.0
    for i in range(senders if b.transfer == RENDEZVOUS else 0):
        sender = devices[i].sender
        delay += trial[0, sender] - b.clocks[0, sender]
    return max(start, b.clocks[0, device]), delay, added if count == NONE else written


@inlined
def _first_free(b: Builder) -> int:
    """Returns the device that is free first; of equals, the lower one."""
    device = integer(0)
    for other in range(len(b.devices)):
        if b.clocks[0, other] < b.clocks[0, device]:
            device = other
    return device


@inlined
def _has_inputs(b: Builder, op: int, device: int) -> bool:
    """True if an op could run on a device without a transfer."""
    home = integer(b.ops[b.ops[op].leader].home)
    if home != NONE and home != device:
        return False
    for e in range(b.ops[op].inputs, b.ops[op + 1].inputs):
        t = b.rows[e]
        if b.ops[b.tensors[t].producer].device != device and b.copies[t * len(b.devices) + device].arrival < 0.0:
            return False
    return True


@inlined
def _is_before(b: Builder, t: int, other: int) -> bool:
    """True if a tensor is written before another one."""
    end, other_end = b.ops[b.tensors[t].producer].end, b.ops[b.tensors[other].producer].end
    return end < other_end or (end == other_end and t < other)


@inlined
def _transfer_clocks(b: Builder) -> int:
    """Returns the index of the clocks that transfers advance: 1 for those of links, 0 for those of devices."""
    return integer(1 if b.transfer == LINK else 0)


@inlined
def _allocation(b: Builder, buffer: int, device: int) -> tuple[int, bool]:
    """Returns the bytes of a buffer that an op writes on a device, and True if it takes them over."""
    entry = b.tensors[buffer]
    if entry.source == NONE:
        return entry.size, False
    # It may turn out only later if the op is really the last user on its device: the larger size is safe.
    allocated = b.copies[entry.source * len(b.devices) + device].bytes
    return max(entry.size, allocated), entry.takes == 1 and allocated != NONE and b.tensors[entry.source].left == 1


@inlined
def _allocate(b: Builder, buffer: int, device: int, size: int) -> None:
    """Adds `size` bytes of a buffer to a device."""
    copy = b.copies[buffer * len(b.devices) + device]
    copy.bytes = max(copy.bytes, integer(0)) + size
    b.devices[device].live += size


@part
def _release(b: Builder, buffer: int) -> None:
    """Frees a buffer on all devices if it has no users left."""
    if b.tensors[buffer].left == 0 and not b.tensors[buffer].pinned:
        for device in range(len(b.devices)):
            copy = b.copies[buffer * len(b.devices) + device]
            if copy.bytes != NONE:
                b.devices[device].live -= copy.bytes
                copy.bytes = NONE
