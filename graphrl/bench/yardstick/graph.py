"""A graph, and what decoding a chromosome of it writes, as flat arrays.

The semantics are exactly those of graphrl/costs: transfers are nodes with keys of their own, keys are quantised to the
bits that a packed 31-bit word leaves beside the node's index, and memory is counted by place in the order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.exact import key_bits
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph

FREE, RENDEZVOUS, LINK = range(3)
TRANSFERS = {"free": FREE, "rendezvous": RENDEZVOUS, "link": LINK}

# Rows are parts of an array of ops, from their begin to that of the next record's. Indices are unsigned: numba looks
# whether signed ones are negative.
OP = np.dtype(
    [
        ("bytes", np.int64),  # of its tensors
        ("workspace", np.int64),
        ("runtime", np.float32),  # seconds
        ("waits", np.int32),  # for so many tensors and control predecessors
        ("writes", np.uint32),  # the first of its tensors; they follow one another
        ("waiters", np.uint32),  # row of control successors
    ],
    align=True,
)
TENSOR = np.dtype(
    [
        ("bytes", np.int64),
        ("freed", np.int64),  # of those, where it was made: none if it is kept
        ("seconds", np.float32),  # of a transfer
        ("producer", np.uint32),
        ("readers", np.uint32),  # row of ops
    ],
    align=True,
)
NOW = np.dtype(
    [
        ("ready", np.float32),  # seconds, the latest arrival; the end, once it ran
        ("waits", np.int32),
        ("key", np.int32),  # packed
        ("device", np.uint32),
    ],
    align=True,
)


class Graph(NamedTuple):
    """A graph of n ops and t tensors on d devices: N = n + t * (d - 1) nodes, whose places begin with 1."""

    devices: int
    transfer: int
    timed: bool  # whether clocks are kept
    memory: bool  # whether peaks are
    bits: int  # of a node's index
    ops: np.ndarray  # [n + 1] OP
    tensors: np.ndarray  # [t + 1] TENSOR
    readers: np.ndarray  # [e] uint32, ops by the tensor that they read
    waiters: np.ndarray  # [f] uint32, ops by the control predecessor that they have
    read: np.ndarray  # [e] uint32, the tensor that each of the readers reads
    sent: np.ndarray  # [t * (d - 1)] uint32, the tensor of each transfer
    now: np.ndarray  # [n] NOW
    heap: np.ndarray  # [N + 2] int32
    clocks: np.ndarray  # [2d] float32, seconds: of the devices, and of their outgoing links
    place: np.ndarray  # [n] int32
    last: np.ndarray  # [t * d] int32, place of the last node that needs a copy, or -1
    change: np.ndarray  # [d * (N + 2)] int64, bytes
    extra: np.ndarray  # [d * (N + 2)] int64, bytes of workspace; [0] where no op has one
    peak: np.ndarray  # [d] int64, bytes

    @property
    def genes(self) -> int:
        """Of a chromosome."""
        return (self.devices + 1) * (len(self.ops) - 1) + self.devices * (len(self.tensors) - 1)


def host_graph(graph: ComputationGraph, problem: Problem, *, timed: bool, memory: bool) -> Graph:
    """The graph, to be decoded under a problem.

    Raises:
      GraphrlError: see `check_supported`.
    """
    check_supported([graph], problem)
    a, d = graph.arrays, problem.devices
    n, t = a.num_ops, a.num_tensors
    places = n + t * (d - 1) + 2
    ops, tensors = np.zeros(n + 1, OP), np.zeros(t + 1, TENSOR)
    np.add.at(ops["bytes"], a.producer, a.tensor_bytes)
    ops["workspace"][:n], ops["runtime"][:n] = a.workspace_bytes, a.runtime
    ops["waits"] = np.bincount(a.use_op, minlength=n + 1) + np.bincount(a.control_target, minlength=n + 1)
    ops["writes"] = np.searchsorted(a.producer, np.arange(n + 1))
    ops["waiters"] = np.searchsorted(a.control_source, np.arange(n + 1))
    tensors["bytes"][:t], tensors["freed"][:t] = a.tensor_bytes, a.tensor_bytes * ~a.kept
    tensors["seconds"][:t] = [problem.transfer_seconds(num_bytes) for num_bytes in a.tensor_bytes.tolist()]
    tensors["producer"][:t] = a.producer
    tensors["readers"] = np.searchsorted(a.use_tensor, np.arange(t + 1))
    return Graph(
        devices=d,
        transfer=TRANSFERS[problem.transfer],
        timed=timed,
        memory=memory,
        bits=31 - key_bits(n, t, d),
        ops=ops,
        tensors=tensors,
        readers=a.use_op.astype(np.uint32),
        waiters=a.control_target.astype(np.uint32),
        read=a.use_tensor.astype(np.uint32),
        sent=np.repeat(np.arange(t, dtype=np.uint32), d - 1),
        now=np.zeros(n, NOW),
        heap=np.zeros(places, np.int32),
        clocks=np.zeros(2 * d, np.float32),
        place=np.zeros(n, np.int32),
        last=np.zeros(t * d, np.int32),
        change=np.zeros(d * places, np.int64),
        extra=np.zeros(d * places if a.workspace_bytes.any() else 0, np.int64),
        peak=np.zeros(d, np.int64),
    )


def check_supported(graphs: Sequence[ComputationGraph], problem: Problem) -> None:
    """Refuses what yardsticks leave out.

    Raises:
      GraphrlError: an alias, a reuse, resident weights or a memory limit.
    """
    for graph in graphs:
        if (graph.arrays.alias >= 0).any() or (graph.arrays.reuses >= 0).any():
            raise GraphrlError(f"graph {graph.name!r} has aliases or reuses: the benchmark's yardsticks know none")
    if problem.resident_weights or problem.memory_limit is not None:
        raise GraphrlError("resident weights and memory limits: the benchmark's yardsticks know none")
