"""Building a plan: which op is appended next."""

import functools
from contextlib import AbstractContextManager

import numpy as np

from graphrl.compiled import announced, entry, inlined, integer, part
from graphrl.compiled.beside import beside
from graphrl.costs.problem import Problem
from graphrl.graphs.arrays import NONE
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.rules.plan_builder.append import KEPT, Choice, choose, place, sort_inputs, transfer
from graphrl.solvers.rules.plan_builder.queues import pop, push
from graphrl.solvers.rules.plan_builder.state import AVAILABLE, LOCAL, PENDING, Builder, builder

GIVEN, HIGHEST, LOCAL_FIRST, EARLIEST = range(4)
NAME = "list schedules"  # of what is compiled


def in_order(b: Builder, order: np.ndarray, choice: Choice) -> PlacedOrder:
    """The ops in an order `[n]`, each where the choice says."""
    return _built(b, GIVEN, choice, order)


def placed(b: Builder, order: np.ndarray, placement: np.ndarray) -> PlacedOrder:
    """The ops in an order `[n]` on the devices `[n]`."""
    b.ops["device"][:-1] = placement
    return _built(b, GIVEN, Choice(KEPT), order)


def highest_level_first(b: Builder, choice: Choice, *, local_first: bool) -> PlacedOrder:
    """Time runs along the device that is free first. Of the ops whose predecessors have ended by then the one of
    highest level is next.

    Args:
      choice: where it goes.
      local_first: whether ops that need no transfer to the device that is free go before those that do.
    """
    return _built(b, LOCAL_FIRST if local_first else HIGHEST, choice)


def earliest_first(b: Builder) -> PlacedOrder:
    """Of all ops whose predecessors are placed, on all devices, what can start first; of equals, the op of highest
    level, then the lower op, then the lower device.
    """
    return _built(b, EARLIEST, Choice(KEPT))


def _built(b: Builder, rule: int, choice: Choice, order: np.ndarray | None = None) -> PlacedOrder:
    prepare()
    b.clear()
    if order is None:
        b.ops["device"] = NONE
    count = build(b, rule, np.zeros(0, np.int64) if order is None else order.astype(np.int64), choice)
    return b.ops["device"][:-1].copy(), b.nodes[:count].copy()


@functools.cache
def prepare() -> None:
    """Compiles building, or loads it, once in a process."""
    b = builder(ComputationGraph("one", (Op("a"),)), Problem("makespan", 2))
    with announced(build, NAME, seconds=2):
        build(b, GIVEN, np.zeros(1, np.int64), Choice(KEPT))


def prepared_beside() -> AbstractContextManager[None]:
    """Another process does what `prepare` does while this one compiles something else in it, which takes longer."""
    return beside(build, NAME, prepare)


@entry
def build(b: Builder, rule: int, order: np.ndarray, choice: Choice) -> int:
    """Builds a plan on a cleared builder; gives the number of its nodes.

    Args:
      b: whose ops have no device yet, unless they are in an order.
      rule: one of those above.
      order: `[n]` of the ops, for GIVEN.
      choice: where ops go; KEPT for EARLIEST, which says it.
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
def _highest(b: Builder, local_first: bool) -> int:
    """The next op of `highest_level_first`."""
    ops, devices, queues, lengths, width = b.ops, b.devices, b.queues, b.lengths, len(b.inputs)
    used = LOCAL + len(devices) if local_first else LOCAL
    for queue in range(AVAILABLE, used):
        while lengths[queue] > 0 and ops[queues[queue * width].item].device != NONE:
            pop(b, queue)
    device = 0
    for other in range(len(devices)):
        if devices[other].free < devices[device].free:
            device = other
    now = devices[device].free
    if lengths[AVAILABLE] == 0:
        now = max(now, queues[0].key)
    while lengths[PENDING] > 0 and queues[0].key <= now:
        op = pop(b, integer(PENDING))
        for queue in range(AVAILABLE, used):
            if queue == AVAILABLE or _has_inputs(b, op, queue - LOCAL):
                push(b, queue, float(ops[op].rank), op)
    return pop(b, integer(LOCAL + device if local_first and lengths[LOCAL + device] > 0 else AVAILABLE))


@part
def _earliest(b: Builder) -> int:
    """The next op of `earliest_first`, and its device. The first queue is a mere list here."""
    ops, queues, lengths = b.ops, b.queues, b.lengths
    best, device, least = 0, 0, np.inf
    for i in range(lengths[PENDING]):
        op = queues[i].item
        sort_inputs(b, op)
        home = integer(ops[ops[op].leader].home)
        for there in range(len(b.devices)):
            if home != NONE and home != there:
                continue
            start, _, _ = transfer(b, op, there, integer(NONE))
            if start < least or (start == least and ops[op].rank < ops[queues[best].item].rank):
                best, device, least = i, there, start
    op = queues[best].item
    lengths[PENDING] -= 1
    queues[best].item = queues[lengths[PENDING]].item
    ops[op].device = device
    return op


@part
def _queue_successors(b: Builder, op: int) -> None:
    """Those that wait for no other op are pending until the last of their predecessors ends."""
    ops, rows = b.ops, b.rows
    for e in range(ops[op].after, ops[op + 1].after):
        after, ready = integer(rows[e]), 0.0
        ops[after].left -= 1
        if ops[after].left == 0:
            for i in range(ops[after].inputs, ops[after + 1].inputs):
                ready = max(ready, ops[b.tensors[rows[i]].producer].end)
            for i in range(ops[after].awaits, ops[after + 1].awaits):
                ready = max(ready, ops[rows[i]].end)
            push(b, integer(PENDING), ready, after)


@inlined
def _has_inputs(b: Builder, op: int, device: int) -> bool:
    """Whether an op could run on a device without a transfer."""
    home = integer(b.ops[b.ops[op].leader].home)
    if home != NONE and home != device:
        return False
    for e in range(b.ops[op].inputs, b.ops[op + 1].inputs):
        t = b.rows[e]
        if b.ops[b.tensors[t].producer].device != device and b.copies[t * len(b.devices) + device].arrival < 0.0:
            return False
    return True
