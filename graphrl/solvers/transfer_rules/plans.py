"""Plans that are a placement and an order of ops alone: a rule determines the transfers.

- `op_plan`, `set_plan`, `order_by_keys`: the plan as flat arrays of small records, as large graphs exceed the caches.
  `order_by_keys` takes keys of ops: of the ready ops the one with the least key is next.
- `walk`: the makespan, without constructing the order of transfers.
- `with_transfers`: the order of ops and transfers.

The rule: a list schedule sends a tensor right before the op that waits for it. Under `rendezvous` both devices then
wait for each other, each time. "Bundled" sends wait only as often as an order of ops requires. Where an op needs a
tensor from some device, all tensors that these two devices have for each other by then are sent along, so that no later
op makes them wait for these again. For each pair of devices these are the fewest points of the order that suffice
(intervals from a tensor's producer to its first reader, stabbed greedily).
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import entry, integer, part
from graphrl.compiled.structures import pop, push, rows_by, set_rows
from graphrl.costs.host.clocks import FREE, RENDEZVOUS, TRANSFERS
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import numbered

# Start of an op's tensors, and of its rows, parts of `OpPlan.rows`; they end at the next op's start.
OP = np.dtype(
    [
        ("runtime", np.float64),  # seconds
        ("tail", np.float64),  # seconds, the longest path of run times after it
        ("end", np.float64),  # seconds, in the walk
        ("device", np.int32),
        ("place", np.int32),  # in the order
        ("next_member", np.int32),  # the next of the ops that it is colocated with, in a ring: itself if it is alone
        ("writes", np.int32),  # its tensors
        ("reads", np.int32),  # row of tensors
        ("awaits", np.int32),  # row of control predecessors
        ("before", np.int32),  # row of predecessors
        ("after", np.int32),  # row of successors
    ],
    align=True,
)
TENSOR = np.dtype(
    [
        ("seconds", np.float64),  # duration of a transfer
        ("producer", np.int32),  # op
        ("users", np.int32),  # row of ops
    ],
    align=True,
)
PAIR = np.dtype(
    [
        ("pending", np.float64),  # seconds to send the tensors that the two devices have for each other
        ("last", np.int64),  # place in the order of the last op that made them wait for each other, or -1
    ],
    align=True,
)
COPY = np.dtype(
    [
        ("arrival", np.float64),  # seconds
        ("walk", np.int64),  # the number of the walk in which it was sent
    ],
    align=True,
)


class OpPlan(NamedTuple):
    """A plan of n ops and t tensors on d devices, and the state of its walks."""

    devices: int
    transfer: int
    ops: np.ndarray  # [n + 1] OP
    tensors: np.ndarray  # [t + 1] TENSOR
    rows: np.ndarray  # uint32
    order: np.ndarray  # [n] int64, ops
    clocks: np.ndarray  # [d] float64, seconds when each device is free
    links: np.ndarray  # [d] float64, seconds when each device's outgoing link is free
    copies: np.ndarray  # [t * d] COPY, of tensors on devices; empty but under `link`
    walks: np.ndarray  # [1] int64, number of walks so far
    missing: np.ndarray  # [t] int64, heap of tensors that an op waits for
    keys: np.ndarray  # [t] float64, keys of the heap
    pairs: np.ndarray  # [d * d] PAIR, at lower device * d + higher one; empty but under `rendezvous`
    marks: np.ndarray  # [d] int64, 1 if a tensor is read on a device


def op_plan(graph: ComputationGraph, problem: Problem) -> OpPlan:
    """Builds a plan with everything on device 0, in the graph's topological order."""
    a, n, t, d = graph.arrays, graph.arrays.num_ops, graph.arrays.num_tensors, problem.devices
    ops, tensors = np.zeros(n + 1, OP), np.zeros(t + 1, TENSOR)
    ops["runtime"][:n], ops["tail"][:n] = a.runtime, a.tail
    ops["next_member"][:n] = graph.next_colocated
    ops["writes"] = np.searchsorted(a.producer, np.arange(n + 1))
    tensors["seconds"][:t] = problem.latency + a.tensor_bytes / problem.bandwidth
    tensors["producer"][:t] = a.producer
    source, target = a.dependencies()
    rows = set_rows(
        (ops, "reads", a.use_op, a.use_tensor),
        (ops, "awaits", a.control_target, a.control_source),
        (ops, "before", target, source),
        (ops, "after", source, target),
        (tensors, "users", a.use_tensor, a.use_op),
    )
    plan = OpPlan(
        devices=d,
        transfer=TRANSFERS[problem.transfer],
        ops=ops,
        tensors=tensors,
        rows=rows,
        order=np.empty(n, np.int64),
        clocks=np.zeros(d),
        links=np.zeros(d),
        copies=np.zeros(t * d if problem.transfer == "link" else 0, COPY),
        walks=np.zeros(1, np.int64),
        missing=np.zeros(t, np.int64),
        keys=np.zeros(t),
        pairs=np.zeros(d * d if problem.transfer == "rendezvous" else 0, PAIR),
        marks=np.zeros(d, np.int64),
    )
    set_plan(plan, np.zeros(n, np.int64), a.topological)
    return plan


def set_plan(plan: OpPlan, placement: np.ndarray, order: np.ndarray) -> None:
    """Sets placement and order: devices `[n]`, and a topological order `[n]` of ops."""
    plan.ops["device"][:-1] = placement
    plan.order[:] = order
    plan.ops["place"][order] = np.arange(len(order))


@part
def walk(plan: OpPlan, limit: float) -> float:
    """Computes the makespan in seconds, infinite if above the limit. Sets the devices' clocks to those of the plan."""
    ops, rows, clocks = plan.ops, plan.rows, plan.clocks
    clocks[:] = plan.links[:] = 0.0
    plan.walks[0] += 1
    for p in range(len(plan.pairs)):
        plan.pairs[p].pending, plan.pairs[p].last = 0.0, -1
    makespan = 0.0
    for place in range(len(plan.order)):
        v = plan.order[place]
        here = ops[v].device
        start = _rendezvous(plan, v) if plan.transfer == RENDEZVOUS else _arrival(plan, v)
        for e in range(ops[v].awaits, ops[v + 1].awaits):
            start = max(start, ops[rows[e]].end)
        end = max(start, clocks[here]) + ops[v].runtime
        ops[v].end = clocks[here] = end
        makespan = max(makespan, end)
        if end + ops[v].tail > limit:
            return np.inf
        if plan.transfer == RENDEZVOUS:
            _add_pending(plan, v)
    return makespan


@part
def _rendezvous(plan: OpPlan, v: int) -> float:
    """Returns the clock of an op's device once it has waited for the devices whose tensors the op needs. Each such pair
    of devices exchanges all tensors that they have for each other by then.
    """
    ops, tensors, rows, clocks, pairs = plan.ops, plan.tensors, plan.rows, plan.clocks, plan.pairs
    here, place = ops[v].device, ops[v].place
    for e in range(ops[v].reads, ops[v + 1].reads):
        writer = tensors[rows[e]].producer
        there = ops[writer].device
        if there == here:
            continue
        pair = min(here, there) * plan.devices + max(here, there)
        if pairs[pair].last <= ops[writer].place:
            now = max(clocks[here], clocks[there]) + pairs[pair].pending
            clocks[here] = clocks[there] = now
            pairs[pair].pending, pairs[pair].last = 0.0, place
    return clocks[here]


@part
def _arrival(plan: OpPlan, v: int) -> float:
    """Returns the arrival of the last of an op's inputs from other devices, seconds. Inputs not sent before are sent
    now: under `link` after the earlier sends of their writer's device, the first written first.
    """
    ops, tensors, rows, links, copies = plan.ops, plan.tensors, plan.rows, plan.links, plan.copies
    here, arrival, missing = ops[v].device, 0.0, integer(0)
    for e in range(ops[v].reads, ops[v + 1].reads):
        t = integer(rows[e])
        writer = tensors[t].producer
        if ops[writer].device == here:
            continue
        if plan.transfer == FREE:
            arrival = max(arrival, ops[writer].end + tensors[t].seconds)
        elif copies[t * plan.devices + here].walk == plan.walks[0]:
            arrival = max(arrival, copies[t * plan.devices + here].arrival)
        else:
            plan.keys[t] = ops[writer].place
            missing = push(plan.missing, plan.keys, missing, t)
    while missing > 0:
        t = plan.missing[0]
        missing = pop(plan.missing, plan.keys, missing)
        writer = tensors[t].producer
        there, copy = ops[writer].device, t * plan.devices + here
        links[there] = max(links[there], ops[writer].end) + tensors[t].seconds
        copies[copy].arrival, copies[copy].walk = links[there], plan.walks[0]
        arrival = max(arrival, links[there])
    return arrival


@part
def _add_pending(plan: OpPlan, v: int) -> None:
    """Adds an op's outputs to the pending transfers, once for each device that reads them."""
    ops, tensors, rows, marks, devices = plan.ops, plan.tensors, plan.rows, plan.marks, plan.devices
    here = ops[v].device
    for t in range(ops[v].writes, ops[v + 1].writes):
        if tensors[t].seconds <= 0.0:
            continue
        for device in range(devices):
            marks[device] = 0
        for e in range(tensors[t].users, tensors[t + 1].users):
            there = ops[rows[e]].device
            if there != here and marks[there] == 0:
                marks[there] = 1
                plan.pairs[min(here, there) * devices + max(here, there)].pending += tensors[t].seconds


@entry
def order_by_keys(plan: OpPlan, keys: np.ndarray, heap: np.ndarray, waits: np.ndarray) -> None:
    """Orders the ops by keys: of the ready ops the one of least key is next, of equal keys the lower op.

    Args:
      plan: the plan, whose order is written.
      keys: `[n]` float64.
      heap, waits: `[n]` int64 each, overwritten.
    """
    ops, rows, n, length = plan.ops, plan.rows, len(plan.order), integer(0)
    for v in range(n):
        waits[v] = ops[v + 1].before - ops[v].before
        if waits[v] == 0:
            length = push(heap, keys, length, v)
    for place in range(n):
        v = heap[0]
        length = pop(heap, keys, length)
        plan.order[place] = v
        ops[v].place = place
        for e in range(ops[v].after, ops[v + 1].after):
            u = integer(rows[e])
            waits[u] -= 1
            if waits[u] == 0:
                length = push(heap, keys, length, u)


def with_transfers(graph: ComputationGraph, problem: Problem, placement: np.ndarray, ops: np.ndarray) -> np.ndarray:
    """Returns the order `[m] int64` of node ids: ops `[n]` in a topological order, and between them the transfers.

    They are bundled under `rendezvous`, else right before the first op that waits for them. Transfers before the same
    op go in the order in which their tensors are written, under `rendezvous` pair of devices by pair.
    O((n + e) log (n + e)).
    """
    a, n, devices = graph.arrays, len(ops), problem.devices
    rank = np.empty(n, np.int64)
    rank[ops] = np.arange(n)
    placement = np.asarray(placement, np.int64)
    source, target = placement[a.producer[a.use_tensor]], placement[a.use_op]
    uses = np.flatnonzero(source != target)  # remote uses, those of one op by tensor
    uses = rows_by(rank[a.use_op[uses]], uses, n)[1]
    place, written = rank[a.use_op[uses]], rank[a.producer[a.use_tensor[uses]]]
    cause = np.zeros(len(uses), np.int64)  # transfers before one op are grouped by their cause
    if problem.transfer == "rendezvous":
        pair = np.minimum(source, target) * devices + np.maximum(source, target)
        cause = _bundled(pair[uses], written, place, devices * devices)
        place = place[cause]
    transfer = a.use_tensor[uses].astype(np.int64) * devices + target[uses]
    _, first, _ = numbered(transfer, a.num_tensors * devices)  # of the uses of one transfer, which share a cause
    none = np.zeros(n, np.int64)
    keys = [(none, written[first]), (none, cause[first]), (2 * np.arange(n) + 1, 2 * place[first])]
    return np.concatenate([ops, n + transfer[first]])[np.lexsort([np.concatenate(key) for key in keys])]


def _bundled(pair: np.ndarray, written: np.ndarray, needed: np.ndarray, pairs: int) -> np.ndarray:
    """Returns, for each use, the use that triggers its transfer, right before that one's op: `[k] int64`."""
    begins = np.concatenate([[0], np.cumsum(np.bincount(pair, minlength=pairs))])  # starts of rows in `causes`
    causes, cause = np.zeros((2, len(pair)), np.int64)
    bundle(pair, written, needed, begins, np.zeros(pairs, np.int64), causes, cause)
    return cause


@entry
def bundle(
    pair: np.ndarray,
    written: np.ndarray,
    needed: np.ndarray,
    begins: np.ndarray,
    counts: np.ndarray,
    causes: np.ndarray,
    cause: np.ndarray,
) -> None:
    """Finds, for each use, the use that triggers its transfer: writes `cause`, and for each pair of devices, to a row
    of `causes`, the uses that made the two wait for each other.

    Args:
      pair, written, needed: `[k]` int64, for each use its pair of devices, and the places of its writer and its op.
      begins, counts: `[pairs + 1]` and `[pairs]` int64, starts of the rows, and 0.
      causes, cause: `[k]` int64 each.
    """
    for use in range(len(pair)):
        row, low = pair[use], integer(0)
        first, high = begins[row], counts[row]
        while low < high:  # the first wait after it was written
            middle = (low + high) // 2
            if needed[causes[first + middle]] <= written[use]:
                low = middle + 1
            else:
                high = middle
        if low == counts[row]:  # nothing was sent since it was written
            causes[first + low] = use
            counts[row] += 1
        cause[use] = causes[first + low]
