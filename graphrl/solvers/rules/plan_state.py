"""State of a plan builder: a graph, and the clocks and memory of a partial plan, as flat arrays of records."""

import weakref
from typing import NamedTuple

import numpy as np

from graphrl.compiled.structures import set_rows
from graphrl.costs.exact.memory import SharedBuffers
from graphrl.costs.exact.routes import Routes
from graphrl.costs.host.clocks import TRANSFERS
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import NONE, ComputationGraph, GraphArrays
from graphrl.graphs.topology import distinct

PENDING, AVAILABLE, LOCAL = range(3)  # queues; one LOCAL queue per device

# Rows are parts of `Builder.rows`; they end at the start of the next record's row.
OP = np.dtype(
    [
        ("runtime", np.float64),  # seconds
        ("end", np.float64),  # seconds
        ("workspace", np.int64),  # bytes
        ("weight", np.int64),  # bytes that it keeps on its device from the start
        ("device", np.int64),  # NONE before it is placed
        ("leader", np.int64),  # the first op of those that it is colocated with, itself if it is alone
        ("home", np.int64),  # for a leader: the device of the first placed op of its group, or NONE
        ("inputs", np.int64),  # row of tensors
        ("awaits", np.int64),  # row of control predecessors
        ("after", np.int64),  # row of successors
        ("reads", np.int64),  # row of buffers
        ("writes", np.int64),  # row of buffers
        ("waits", np.int64),  # number of predecessors
        ("left", np.int64),  # number of predecessors that are not placed
    ],
    align=True,
)
# A buffer is named by the tensor that allocates it on one device. The fields from `size` on are those of buffers.
TENSOR = np.dtype(
    [
        ("seconds", np.float64),  # duration of a transfer
        ("bytes", np.int64),
        ("producer", np.int64),  # op
        ("buffer", np.int64),
        ("size", np.int64),  # bytes
        ("pinned", np.int64),  # 1 if it is never freed
        ("source", np.int64),  # the buffer that it may take over, or NONE
        ("takes", np.int64),  # 1 if no earlier buffer of the op takes over the same source
        ("users", np.int64),  # number of ops that read the buffer
        ("left", np.int64),  # number of users that are not placed
    ],
    align=True,
)
COPY = np.dtype([("arrival", np.float64), ("bytes", np.int64)], align=True)  # seconds, and a buffer's bytes, or NONE
DEVICE = np.dtype(
    [
        ("sender", np.int64),  # in a trial, the i-th sending device is in entry i
        ("live", np.int64),  # bytes
        ("peak", np.int64),  # bytes, without weights
        ("weights", np.int64),  # bytes
    ],
    align=True,
)


class Builder(NamedTuple):
    """A partial plan of n ops, t tensors and e uses on d devices, and queues of the ops that may be placed next."""

    transfer: int
    ops: np.ndarray  # [n + 1] OP
    tensors: np.ndarray  # [t] TENSOR
    copies: np.ndarray  # [t * d] COPY, of tensors and buffers on devices
    devices: np.ndarray  # [d] DEVICE
    rows: np.ndarray  # uint32
    clocks: np.ndarray  # [2, d] float64, see `costs.host.clocks`
    trial: np.ndarray  # [2, d] float64, the clocks after the transfers that an op would need
    rank: np.ndarray  # [n] int64, rank of each op by level (longest path to the end), then index; 0 is the highest
    ready: np.ndarray  # [n] float64, end of the last of an op's predecessors, seconds
    queues: np.ndarray  # [2 + d, n] int64, heaps of ops: PENDING by `ready`, the others by `rank`
    lengths: np.ndarray  # [2 + d] int64, of the queues
    inputs: np.ndarray  # [t] int64, sorted inputs of the op to place
    nodes: np.ndarray  # [n + e] int64, ids as in `costs`

    def clear(self) -> None:
        """Resets to the empty plan; the ops without predecessors are pending."""
        self.ops["left"], self.tensors["left"] = self.ops["waits"], self.tensors["users"]
        self.ops["home"] = NONE
        self.copies["arrival"], self.copies["bytes"] = -1.0, NONE
        for count in ("live", "peak", "weights"):
            self.devices[count] = 0
        self.clocks[:] = self.ready[:] = 0.0
        ready = np.flatnonzero(self.ops["waits"][:-1] == 0)
        self.lengths[:] = 0
        self.lengths[PENDING] = len(ready)
        self.queues[PENDING, : len(ready)] = ready

    @property
    def makespan(self) -> float:
        """Makespan in seconds, as in `exact.evaluate`."""
        return float(self.ops["end"][:-1].max())

    @property
    def peaks(self) -> np.ndarray:
        """Estimated peak memory of each device, in bytes `[d]`."""
        return self.devices["peak"] + self.devices["weights"]


class _SharedArrays(NamedTuple):
    """Arrays that builders of one graph share, whatever the problem."""

    ops: np.ndarray  # [n + 1] OP
    tensors: np.ndarray  # [t] TENSOR
    rows: np.ndarray  # uint32
    rank: np.ndarray  # [n] int64


def builder(graph: ComputationGraph, problem: Problem) -> Builder:
    """Returns an empty builder, which can build several plans of a problem in sequence."""
    a, d = graph.arrays, problem.devices
    n, t, shared = a.num_ops, a.num_tensors, _shared_arrays(graph)
    ops, tensors = shared.ops.copy(), shared.tensors.copy()
    ops["weight"][:n] = a.weight_bytes if problem.resident_weights else 0
    tensors["seconds"] = problem.latency + a.tensor_bytes / problem.bandwidth
    return Builder(
        transfer=TRANSFERS[problem.transfer],
        ops=ops,
        tensors=tensors,
        copies=np.zeros(t * d, COPY),
        devices=np.zeros(d, DEVICE),
        rows=shared.rows,
        clocks=np.zeros((2, d)),
        trial=np.zeros((2, d)),
        rank=shared.rank,
        ready=np.zeros(n),
        queues=np.zeros((2 + d, n), np.int64),
        lengths=np.zeros(2 + d, np.int64),
        inputs=np.zeros(t, np.int64),
        nodes=np.zeros(n + len(a.use_op), np.int64),
    )


_parts: weakref.WeakKeyDictionary[GraphArrays, _SharedArrays] = weakref.WeakKeyDictionary()


def _shared_arrays(graph: ComputationGraph) -> _SharedArrays:
    """Returns the shared arrays of a graph, computed once and cached as long as the graph exists."""
    if graph.arrays not in _parts:
        _parts[graph.arrays] = _build_shared(graph)
    return _parts[graph.arrays]


def _build_shared(graph: ComputationGraph) -> _SharedArrays:
    a = graph.arrays
    n, t = a.num_ops, a.num_tensors
    buffers = SharedBuffers(graph, Problem(), Routes(graph, Problem(), np.zeros(n, np.int64)))
    source, target = a.dependencies()
    used, user = np.divmod(distinct(buffers.of[a.use_tensor] * n + a.use_op), n)
    own = np.flatnonzero(buffers.of == np.arange(t))
    ops, tensors = np.zeros(n + 1, OP), np.zeros(t, TENSOR)
    ops["runtime"][:n], ops["workspace"][:n] = a.runtime, a.workspace_bytes
    rank = np.empty(n, np.int64)
    rank[np.argsort(-(a.tail + a.runtime), kind="stable")] = np.arange(n)
    ops["leader"] = np.append(graph.leaders, n)
    ops["waits"] = np.bincount(target, minlength=n + 1)
    tensors["bytes"], tensors["producer"], tensors["buffer"] = a.tensor_bytes, a.producer, buffers.of
    tensors["size"], tensors["pinned"] = buffers.bytes, buffers.pinned
    tensors["users"], tensors["source"] = np.bincount(used, minlength=t), _sources(a.reuses, buffers)
    taken = np.flatnonzero(tensors["source"] >= 0)
    _, first = np.unique(np.stack([a.producer[taken], tensors["source"][taken]]), axis=1, return_index=True)
    tensors["takes"][taken[first]] = 1
    rows = set_rows(
        (ops, "inputs", a.use_op, a.use_tensor),
        (ops, "awaits", a.control_target, a.control_source),
        (ops, "after", source, target),
        (ops, "reads", user, used),
        (ops, "writes", a.producer[own], own),
    )
    return _SharedArrays(ops, tensors, rows, rank)


def _sources(reuses: np.ndarray, buffers: SharedBuffers) -> np.ndarray:
    """Returns the buffer `[t]` that each buffer may take over; NONE if there is no such buffer or it is never freed."""
    source = np.full(len(reuses), NONE)
    inside = np.flatnonzero(reuses >= 0)
    inside = inside[~buffers.pinned[buffers.of[reuses[inside]]]]
    source[inside] = buffers.of[reuses[inside]]
    return source
