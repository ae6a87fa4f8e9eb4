"""The buffers that moves of an op in an order weigh, as arrays for compiled code: made once for a graph.

A buffer that an op always takes over (`reuses`, where the op is the source's only user) is one buffer with its source;
where taking over depends on the order, the moves count the output as allocated, and the exact costs of the finished
plan judge.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphrl.solvers.flow import Flow

# Rows are parts of `Weighed.rows`, from their begin to that of the next record's.
OP = np.dtype(
    [
        ("held", np.float64),  # bytes that the op allocates and leaves behind
        ("needed", np.float64),  # bytes beside what is live that it needs while it runs
        ("before", np.int64),  # row of predecessors
        ("after", np.int64),  # row of successors
        ("reads", np.int64),  # row of buffers that it may be the last to use
    ],
    align=True,
)
BUFFER = np.dtype([("size", np.float64), ("users", np.int64)], align=True)  # bytes, row of ops


class Weighed(NamedTuple):
    """A graph of n ops and b buffers, as moves see it."""

    ops: np.ndarray  # [n + 1] OP
    buffers: np.ndarray  # [b + 1] BUFFER
    rows: np.ndarray  # int64


class WeighedBuffers:
    """The buffers that moves weigh.

    Attributes:
      writer: `[b]` op of each.
      users: `[b]` lists of ops.
      size: `[b]` float64, bytes.
      pinned: `[b]` bool, never freed.
      workspace: `[n]` int64, bytes.
    """

    def __init__(self, flow: Flow) -> None:
        taken: dict[int, int] = {}  # buffer -> the one that it always takes over
        for buffer, source in flow.reuses.items():
            writer = int(flow.graph.arrays.producer[buffer])
            if flow.users[source] == [writer] and not flow.pinned[source] and source not in taken.values():
                taken[buffer] = source
        index: dict[int, int] = {}
        users: list[set[int]] = []
        sizes: list[int] = []
        pinned: list[bool] = []
        self.writer: list[int] = []
        for op in flow.topological:
            for buffer in flow.writes[op]:
                if buffer in taken:
                    index[buffer] = index[taken[buffer]]
                    users[index[buffer]] |= set(flow.users[buffer])
                    pinned[index[buffer]] |= flow.pinned[buffer]
                    continue
                index[buffer] = len(users)
                self.writer.append(op)
                users.append(set(flow.users[buffer]))
                sizes.append(flow.size[buffer])
                pinned.append(flow.pinned[buffer])
        self.users = [sorted(ops) for ops in users]
        self.size, self.pinned = np.array(sizes, np.float64), np.array(pinned, bool)
        self.workspace = flow.graph.arrays.workspace_bytes

    def arrays(self, flow: Flow) -> Weighed:
        """What compiled moves read."""
        n = flow.num_ops
        reads: list[list[int]] = [[] for _ in range(n)]
        ops, buffers = np.zeros(n + 1, OP), np.zeros(len(self.users) + 1, BUFFER)
        buffers["size"][:-1], ops["needed"][:n] = self.size, self.workspace
        np.add.at(ops["needed"], self.writer, self.size)
        for buffer, users in enumerate(self.users):
            if users or self.pinned[buffer]:
                ops["held"][self.writer[buffer]] += self.size[buffer]
            if self.size[buffer] and not self.pinned[buffer]:
                for user in users:
                    reads[user].append(buffer)
        rows: list[int] = []
        for records, field, lists in (
            (ops, "before", flow.predecessors),
            (ops, "after", flow.successors),
            (ops, "reads", reads),
            (buffers, "users", self.users),
        ):
            records[field] = len(rows) + _begins(lists)
            rows += [entry for row in lists for entry in row]
        return Weighed(ops, buffers, np.array(rows, np.int64))


def _begins(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """Where rows begin that follow one another, and where the last ends."""
    return np.cumsum([0, *map(len, lists)])
