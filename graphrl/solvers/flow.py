"""Flow: a graph as Python lists, for methods that walk over its ops one by one.

Shared buffers (alias) count once; that an output may reuse an input's buffer is left to the exact costs, which judge.
"""

from collections.abc import Iterable

import numpy as np

from graphrl.costs.exact.memory import MemoryWalk, SharedBuffers
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting, grouped


class Flow:
    """A graph as lists, for passes over its ops. Buffers are those of one device, named by the tensor that allocates
    them.

    Attributes:
      topological: ops.
      predecessors, successors, after: by op, ops: all dependencies, and those by control alone.
      inputs: by op, tensors.
      reads, writes: by op, buffers.
      of: by tensor, its buffer.
      users: by buffer, ops.
      size: by buffer, bytes.
      pinned: by buffer, whether it is never freed.
      reuses: by buffer (if any), the buffer that it may take over.
      evaluations: orders whose peak was computed.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        a = graph.arrays
        n = a.num_ops
        self.graph, self.num_ops = graph, n
        self.routes = Routes(graph, Problem(), np.zeros(n, np.int64))
        buffers = SharedBuffers(graph, Problem(), self.routes)
        self.topological = a.topological.tolist()
        self.predecessors, self.successors = a.predecessors, a.successors
        self.after = grouped(a.control_target, a.control_source, n)
        self.inputs = grouped(a.use_op, a.use_tensor, n)
        users = np.unique(np.stack([buffers.of[a.use_tensor], a.use_op.astype(np.int64)], 1), axis=0)
        self.users = grouped(users[:, 0], users[:, 1], a.num_tensors)
        self.reads = grouped(users[:, 1], users[:, 0], n)
        own = np.flatnonzero(buffers.of == np.arange(a.num_tensors))
        self.writes = grouped(a.producer[own], own, n)
        self.of, self.size, self.pinned = buffers.of.tolist(), buffers.bytes.tolist(), buffers.pinned.tolist()
        self.reuses = {t: self.of[a.reuses[t]] for t in np.flatnonzero(a.reuses >= 0).tolist()}
        self.evaluations = 0

    def waiting(self) -> Waiting:
        """For an order of the ops, from its first one."""
        return self.graph.arrays.waiting()

    def held(self, op: int) -> int:
        """Bytes that an op allocates and leaves behind."""
        return sum(self.size[b] for b in self.writes[op] if self.users[b] or self.pinned[b])

    def peak(self, order: list[int]) -> int:
        """Exact peak of one device, bytes, without resident weights."""
        self.evaluations += 1
        return max(map(MemoryWalk(self.graph, Problem(), self.routes).step, order))

    def least_peak(self, orders: Iterable[list[int]]) -> list[int]:
        """The order of least peak, the first of equals."""
        return min(orders, key=self.peak)
