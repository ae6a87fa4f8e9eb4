"""What walks of such plans read and write: flat arrays of small records, as caches do not hold the largest graphs."""

from typing import NamedTuple

import numpy as np

from graphrl.compiled.records import TRANSFERS, set_rows
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph

# Where what belongs to an op begins, up to where the next one's does: its tensors, and rows, parts of `Placed.rows`.
OP = np.dtype(
    [
        ("runtime", np.float64),  # seconds
        ("tail", np.float64),  # seconds, the longest path of run times after it
        ("end", np.float64),  # seconds, in the walk
        ("device", np.int32),
        ("place", np.int32),  # in the order
        ("mate", np.int32),  # the next of the ops that it is colocated with, in a ring: itself if it is alone
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
        ("seconds", np.float64),  # of a transfer
        ("producer", np.int32),  # op
        ("users", np.int32),  # row of ops
    ],
    align=True,
)
PAIR = np.dtype(
    [
        ("waiting", np.float64),  # seconds that sending takes of what the two devices have for one another
        ("last", np.int64),  # the place of the last op that made them wait for one another, or -1
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


class Placed(NamedTuple):
    """A plan of n ops and t tensors on d devices, and what walks write."""

    devices: int
    transfer: int
    ops: np.ndarray  # [n + 1] OP
    tensors: np.ndarray  # [t + 1] TENSOR
    rows: np.ndarray  # uint32
    order: np.ndarray  # [n] int64, ops
    clocks: np.ndarray  # [d] float64, seconds when devices are free
    links: np.ndarray  # [d] float64, seconds when their outgoing links are
    copies: np.ndarray  # [t * d] COPY, of tensors on devices; none but under `link`
    walks: np.ndarray  # [1] int64, how many there were
    missing: np.ndarray  # [t] int64, tensors that an op waits for, a heap
    keys: np.ndarray  # [t] float64, of the heap
    pairs: np.ndarray  # [d * d] PAIR, at lower device * d + higher one; none but under `rendezvous`
    marks: np.ndarray  # [d] int64, whether a tensor is read on a device


def placed(graph: ComputationGraph, problem: Problem) -> Placed:
    """Everything on device 0, in the graph's topological order."""
    a, n, t, d = graph.arrays, graph.arrays.num_ops, graph.arrays.num_tensors, problem.devices
    ops, tensors = np.zeros(n + 1, OP), np.zeros(t + 1, TENSOR)
    ops["runtime"][:n], ops["tail"][:n] = a.runtime, a.tail
    ops["mate"][:n] = graph.mates
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
    plan = Placed(
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
    put(plan, np.zeros(n, np.int64), a.topological)
    return plan


def put(plan: Placed, placement: np.ndarray, order: np.ndarray) -> None:
    """Places the ops: devices `[n]`, and a topological order `[n]` of ops."""
    plan.ops["device"][:-1] = placement
    plan.order[:] = order
    plan.ops["place"][order] = np.arange(len(order))
