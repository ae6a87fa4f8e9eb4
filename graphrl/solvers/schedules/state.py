"""State of a search over schedules: an order, a placement and send times, with their clocks, as flat arrays.

A *schedule* is a topological order of ops (the index of an op is its *place*), a placement, and a send time for each
copy. A copy is the pair (tensor t, device b) of index t * devices + b. It is sent *early*, as soon as its tensor
exists, or late, right before the first op that needs it. Early copies of an op directly follow it, in the order of
tensors and devices; late ones precede their first reader, in the order of its inputs. So a schedule is an order of ops
and transfers as `costs` define it, whatever the placement; a copy that a move makes necessary already has its place.

A copy is needed on every device but the producer's that reads the tensor. Its first reader there is kept up to date as
ops move. Each op links the copies of which it is the first reader, in ascending order.

The state is a named tuple of a few arrays of records, which numba compiles once for all sizes. Compile time grows with
the number of array arguments, and with the integer types of the calls, so integers that are passed on are of 64 bits.
Records are small, with integers of 32 bits: the fields of an op that a walk reads fit in one cache line.
"""

from typing import NamedTuple

import numpy as np

from graphrl.compiled import inlined, integer, part
from graphrl.compiled.structures import set_rows
from graphrl.costs.host.clocks import TRANSFERS
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import distinct
from graphrl.solvers.base import PlacedOrder

STRIDE = 16  # places between two checkpoints of the clocks
ABSENT = 2**32 - 1  # in place of an op or a copy that does not exist
MAX_REDUCED = 20_000  # ops up to which implied dependencies are left out: sets of ops take n^2 bits

OP = np.dtype(
    [
        ("runtime", np.float64),  # seconds
        ("end", np.float64),  # seconds
        ("old_end", np.float64),  # before the trial, if the trial has changed it
        ("device", np.uint32),
        ("copies", np.uint32),  # the first of the copies of which it is the first reader, or ABSENT; they are linked
        ("last", np.uint32),  # the last of them
        ("awaits", np.uint32),  # number of control predecessors in its row
        ("early", np.uint32),  # number of its tensors' copies that are sent early where they are needed
        ("place", np.uint32),  # in the order
        ("next_member", np.uint32),  # the next of the ops that it is colocated with, in a ring: itself if it is alone
        ("mark", np.int64),  # stamp of the last move that marked it
    ],
    align=True,
)
# Start of an op's tensors, and of its rows, parts of `Schedule.rows`; they end at the next op's start.
BEGIN = np.dtype(
    [
        ("writes", np.uint32),  # its tensors
        ("reads", np.uint32),  # row of tensors
        ("awaits", np.uint32),  # row of control predecessors that no other dependency implies
        ("waiters", np.uint32),  # row of control successors, the same
        ("before", np.uint32),  # row of predecessors, without those that others imply
        ("after", np.uint32),  # row of successors, the same
    ],
    align=True,
)
TENSOR = np.dtype(
    [
        ("seconds", np.float64),  # duration of a transfer
        ("producer", np.uint32),  # op
        ("users", np.uint32),  # start of its row of ops
    ],
    align=True,
)
COPY = np.dtype(
    [
        ("arrival", np.float64),  # seconds, if it is needed; unused under `rendezvous`, where the clocks suffice
        ("old_arrival", np.float64),  # before the trial, if the trial has changed it
        ("tensor", np.uint32),
        ("first", np.uint32),  # the first op on the device that reads it, or ABSENT where it is not needed
        ("before", np.uint32),  # the next smaller copy of the same first reader, or ABSENT
        ("after", np.uint32),  # the next larger one
        ("readers", np.uint32),  # number of ops on the device that read the tensor
        ("early", np.uint32),  # 1 if it is sent early, 0 if late
    ],
    align=True,
)


class Schedule(NamedTuple):
    """A schedule of n ops and t tensors on d devices, its clocks, and the state that undoes a trial of a move.

    Checkpoint c, of C, is before place c * STRIDE of the order. It has k clocks: the time when each device is free, and
    under `link` also the time when each outgoing link is free.
    """

    devices: int
    transfer: int
    ops: np.ndarray  # [n] OP
    begins: np.ndarray  # [n + 1] BEGIN
    tensors: np.ndarray  # [t + 1] TENSOR
    copies: np.ndarray  # [t * d] COPY
    rows: np.ndarray  # uint32
    order: np.ndarray  # [n] uint32, ops
    clocks: np.ndarray  # [C * k] float64, seconds
    trial: np.ndarray  # [C * k] float64, the same after a trial move
    now: np.ndarray  # [k] float64
    tails: np.ndarray  # [C * k * d] float64: least seconds from each clock to each device's last clock
    op_tails: np.ndarray  # [2 * n * d] float64: the same from the start of each op, and from its end through others
    score: np.ndarray  # [3] float64: makespan, mean of the devices' last clocks, energy
    fresh: np.ndarray  # [2] int64: the place from which on tails are valid, number of places walked in vain since
    changed: np.ndarray  # [n + t * d] int64: in the trial, ops whose end changed, and n + copies whose arrival did


def schedule(graph: ComputationGraph, problem: Problem, plan: PlacedOrder) -> Schedule:
    """Builds the schedule of a plan (placement, order of nodes) with send times by `_early`. Clocks are not set."""
    a, d = graph.arrays, problem.devices
    n, t = a.num_ops, a.num_tensors
    placement, nodes = plan
    checkpoints = -(-n // STRIDE)
    clocks = 2 * d if problem.transfer == "link" else d
    ops, begins, tensors, copies = (
        np.zeros(n, OP),
        np.zeros(n + 1, BEGIN),
        np.zeros(t + 1, TENSOR),
        np.zeros(t * d, COPY),
    )
    order = nodes[nodes < n].astype(np.uint32)
    ops["runtime"], ops["device"], ops["place"][order] = (a.runtime, placement, np.arange(n))
    ops["next_member"] = graph.next_colocated
    begins["writes"] = np.searchsorted(a.producer, np.arange(n + 1))
    tensors["seconds"][:t] = problem.latency + a.tensor_bytes / problem.bandwidth
    tensors["producer"][:t] = a.producer
    copies["tensor"], copies["first"], ops["copies"] = np.arange(t * d) // d, ABSENT, ABSENT
    copies["readers"] = np.bincount(a.use_tensor * d + placement[a.use_op], minlength=t * d)
    copies["early"] = _early(nodes, n, d, ops["place"], a.producer, a.use_tensor, a.use_op, placement)
    ops["early"] = np.bincount(a.producer[copies["tensor"]], copies["early"], n)
    rows = _set_rows(graph, begins, tensors)
    ops["awaits"] = np.diff(begins["awaits"])
    return Schedule(
        devices=d,
        transfer=TRANSFERS[problem.transfer],
        ops=ops,
        begins=begins,
        tensors=tensors,
        copies=copies,
        rows=rows,
        order=order,
        clocks=np.zeros(checkpoints * clocks),
        trial=np.zeros(checkpoints * clocks),
        now=np.zeros(clocks),
        tails=np.zeros(checkpoints * clocks * d),
        op_tails=np.zeros(2 * n * d),
        score=np.zeros(3),
        fresh=np.array([n, 0]),
        changed=np.zeros(n + t * d, np.int64),
    )


def _early(
    nodes: np.ndarray,
    n: int,
    devices: int,
    place: np.ndarray,
    producer: np.ndarray,
    use_tensor: np.ndarray,
    use_op: np.ndarray,
    placement: np.ndarray,
) -> np.ndarray:
    """Returns a mask `[t * d]` of early copies: those right after their producer that are not in the ascending row of
    copies right before an op that is their first reader.
    """
    first = np.full(len(producer) * devices, n)
    np.minimum.at(first, use_tensor * devices + placement[use_op], place[use_op])
    at, sends = np.flatnonzero(nodes < n), np.flatnonzero(nodes >= n)
    copies, op = nodes[sends] - n, np.searchsorted(at, sends)  # the place of the op that comes next
    following = np.append(nodes, 0)[sends + 1]
    fits = (first[copies] == op) & (op < n) & ((following < n) | (copies < following - n))
    misfits = np.append(sends[~fits], len(nodes))
    # the copies between it and the op must fit, too
    is_late = fits & (misfits[np.searchsorted(misfits, sends)] > np.append(at, len(nodes))[op])
    early = np.zeros(len(first), np.int64)
    early[copies] = ~is_late & (place[producer[copies // devices]] == op - 1)
    return early


def _set_rows(graph: ComputationGraph, begins: np.ndarray, tensors: np.ndarray) -> np.ndarray:
    """Returns all rows, one after another, and writes their starts into `begins` and `tensors`."""
    a = graph.arrays
    n = a.num_ops
    source, target = _reduced(graph)
    data = _pairs(a.producer[a.use_tensor], a.use_op, n)
    control = np.setdiff1d(_pairs(a.control_source, a.control_target, n), data, assume_unique=True)
    control = np.intersect1d(control, _pairs(source, target, n), assume_unique=True)
    return set_rows(
        (begins, "reads", a.use_op, a.use_tensor),
        (begins, "awaits", control % n, control // n),
        (begins, "waiters", control // n, control % n),
        (begins, "before", target, source),
        (begins, "after", source, target),
        (tensors, "users", a.use_tensor, a.use_op),
    )


def _pairs(source: np.ndarray, target: np.ndarray, n: int) -> np.ndarray:
    """Encodes pairs of ops as one number each; returns them sorted, without repeats."""
    return distinct(source.astype(np.int64) * n + target)


def _reduced(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray]:
    """Returns the dependencies that no others imply (the transitive reduction): sources and targets, `[m]` int."""
    a = graph.arrays
    if a.num_ops > MAX_REDUCED:
        return a.dependencies()
    rank = a.rank.tolist()
    reached = [0] * a.num_ops  # sets of ops as the bits of integers
    source, target = [], []
    for op in a.topological.tolist():
        ancestors = 0
        for before in sorted(a.predecessors[op], key=rank.__getitem__, reverse=True):
            if not ancestors >> before & 1:
                source.append(before)
                target.append(op)
                ancestors |= reached[before] | 1 << before
        reached[op] = ancestors
    return np.array(source, np.int64), np.array(target, np.int64)


@part
def set_first(s: Schedule, copy: int, x: int) -> None:
    """Makes op x, or ABSENT, the first reader of a copy."""
    ops, copies = s.ops, s.copies
    entry = copies[copy]
    if entry.first != ABSENT:
        if entry.before == ABSENT:
            ops[entry.first].copies = entry.after
        else:
            copies[entry.before].after = entry.after
        if entry.after == ABSENT:
            ops[entry.first].last = entry.before
        else:
            copies[entry.after].before = entry.before
    entry.first = x
    if x == ABSENT:
        return
    before, after = ABSENT, ops[x].copies
    while after != ABSENT and after < copy:
        before, after = after, copies[after].after
    entry.before, entry.after = before, after
    if before == ABSENT:
        ops[x].copies = copy
    else:
        copies[before].after = copy
    if after == ABSENT:
        ops[x].last = copy
    else:
        copies[after].before = copy


@part
def first_reader(s: Schedule, t: int, device: int) -> int:
    """Returns the first op on a device that reads a tensor, or ABSENT."""
    ops, rows = s.ops, s.rows
    first, place = ABSENT, len(s.order)
    if s.copies[t * s.devices + device].readers:
        for e in range(s.tensors[t].users, s.tensors[t + 1].users):
            user = ops[rows[e]]
            if user.device == device and user.place < place:
                first, place = rows[e], user.place
    return first


@inlined
def home(s: Schedule, t: int) -> int:
    """Returns the device of a tensor's producer."""
    return integer(s.ops[s.tensors[t].producer].device)


@part
def set_readers(s: Schedule) -> None:
    """Sets the first readers of all copies, in a schedule that has none yet."""
    for t in range(len(s.tensors) - 1):
        for device in range(s.devices):
            if device != home(s, t):
                set_first(s, t * s.devices + device, first_reader(s, t, device))
