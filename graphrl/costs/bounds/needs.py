"""What every op needs at least, whatever the order: the figures that the bounds of peak memory start from.

Buffers that are shared are counted once, and with the least size they can have: an alias and its source are one buffer
(on several devices it may also be a copy, with the declared bytes of any of them); an output that may take over an
input's buffer is not counted beside it at its own op, and afterwards counts as the smaller of the two. Afterwards the
two cannot be the same memory while both are live, since a buffer changes hands only after its last use.
"""

import numpy as np

from graphrl.costs.exact.memory import SharedBuffers
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.arrays import EXTERNAL, NONE
from graphrl.graphs.graph import ComputationGraph


class Needs:
    """Least sizes and users of the buffers of a graph of n ops and t tensors, a buffer named by its first tensor.

    Attributes:
      least: `[t]` int64, the least bytes that the buffer of each tensor can have; 0 for aliases.
      pinned: `[t]` bool, never freed.
      users: `[u, 2]` int64, distinct (buffer, op that uses it), sorted.
      own: `[n]` int64, bytes that an op needs beside what is live: its workspace, and outputs that take over nothing.
    """

    def __init__(self, graph: ComputationGraph, devices: int = 1) -> None:
        a = graph.arrays
        buffers = SharedBuffers(graph, Problem(), Routes(graph, Problem(), np.zeros(a.num_ops, int)))
        self.least = _least_bytes(graph, buffers, devices)
        self.pinned = buffers.pinned
        self.users = np.unique(np.stack([buffers.of[a.use_tensor], a.use_op.astype(np.int64)], 1), axis=0)
        self.own = a.workspace_bytes.copy()
        np.add.at(self.own, a.producer, np.where((a.alias == NONE) & (a.reuses < 0), a.tensor_bytes, 0))


def _least_bytes(graph: ComputationGraph, buffers: SharedBuffers, devices: int) -> np.ndarray:
    a = graph.arrays
    least = np.where(a.alias == EXTERNAL, 0, a.tensor_bytes)
    sharing = np.flatnonzero((a.alias >= 0) | (a.reuses >= 0))
    for tensor in sharing[np.argsort(a.rank[a.producer[sharing]], kind="stable")].tolist():
        if a.alias[tensor] >= 0 and devices == 1:  # no copies
            least[tensor] = least[a.alias[tensor]]
        else:
            least[tensor] = min(least[tensor], least[max(a.alias[tensor], a.reuses[tensor])])
    smallest = least.copy()
    np.minimum.at(smallest, buffers.of, least)
    return np.where(buffers.of == np.arange(a.num_tensors), smallest, 0)
