"""What a move of an op in an order needs to know of the graph, as padded tables: built once on the host.

Buffers here are those that moves weigh. A buffer that an op always takes over (`reuses`, where the op is the source's
only user) is one buffer with its source; where taking over depends on the order, the moves count the
output as allocated, and the exact costs of the finished plan judge.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.graphs.padding import bucket
from graphrl.solvers.flow import Flow

# Neighbours of an op (predecessors, successors and other users of what it reads) and buffers that it reads: a graph has
# the first of these pairs that is enough for all its ops. They are few, for each is a program of every bucket of ops.
TABLES = ((48, 16), (96, 32), (192, 32), (512, 32), (512, 64))
MAX_ENTRIES, MAX_SLOTS = TABLES[-1]
LEVELS = 2.0**22  # of memory that are told apart: float32 sums of whole numbers below 2^24 are exact


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moves:
    """Tables for n ops, padded to N, with e entries and s slots an op; the row N is of no op."""

    num_ops: jax.Array  # [] int32, n
    entry: jax.Array  # [N + 1, e] int32, op; N for padding
    role: jax.Array  # [N + 1, e] int32, slot of a buffer that the entry uses too, s: predecessor, s + 1: successor
    slot_bytes: jax.Array  # [N + 1, s] float32, quanta, of the buffers that the op reads and may be the last to use
    held: jax.Array  # [N + 1] float32, quanta that the op allocates and leaves behind
    needed: jax.Array  # [N + 1] float32, quanta beside what is live that the op needs while it runs
    fixed: jax.Array  # [N + 1] bool, ops that are not moved themselves: padding, and those with too many neighbours


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


def build_moves(flow: Flow, buffers: WeighedBuffers, quantum: float) -> Moves:
    """The tables of a graph.

    Args:
      flow, buffers: of the graph.
      quantum: bytes; sizes are rounded to whole quanta.
    """
    n = flow.num_ops
    size = np.rint(buffers.size / quantum)
    reads: list[list[int]] = [[] for _ in range(n)]
    held, needed = np.zeros(n), np.rint(buffers.workspace / quantum)
    for buffer, writer in enumerate(buffers.writer):
        needed[writer] += size[buffer]
        if buffers.users[buffer] or buffers.pinned[buffer]:
            held[writer] += size[buffer]
        if size[buffer] and not buffers.pinned[buffer]:
            for user in buffers.users[buffer]:
                reads[user].append(buffer)
    neighbours = [_neighbours(flow, buffers, reads[op], op) for op in range(n)]
    most = max(len(one.ops) for one in neighbours), max(len(one.slots) for one in neighbours)
    entries, slots = next(table for table in TABLES if most[0] <= table[0] and most[1] <= table[1])
    return _padded(neighbours, size, held, needed, bucket(n), entries, slots)


class _Neighbours(NamedTuple):
    ops: list[int]
    roles: list[int]  # slot of each, or _BEFORE or _AFTER
    slots: list[int]  # buffers
    fixed: bool


_BEFORE, _AFTER = -2, -1


def _neighbours(flow: Flow, buffers: WeighedBuffers, reads: list[int], op: int) -> _Neighbours:
    """The entries of an op. Buffers with most users go last and are left out where they do not fit: while a move is
    weighed, such a buffer counts as held by others. An op whose own dependencies do not fit is fixed.
    """
    before, after = flow.predecessors[op], flow.successors[op]
    ops, roles = [*before, *after], [_BEFORE] * len(before) + [_AFTER] * len(after)
    if len(ops) > MAX_ENTRIES:
        return _Neighbours([], [], [], True)
    slots: list[int] = []
    for buffer in sorted(reads, key=lambda buffer: len(buffers.users[buffer])):
        others = [user for user in buffers.users[buffer] if user != op]
        if len(slots) == MAX_SLOTS or len(ops) + len(others) > MAX_ENTRIES:
            break
        ops += others
        roles += [len(slots)] * len(others)
        slots.append(buffer)
    return _Neighbours(ops, roles, slots, False)


def _padded(
    neighbours: list[_Neighbours], size: np.ndarray, held: np.ndarray, needed: np.ndarray, rows: int, e: int, s: int
) -> Moves:
    n = len(neighbours)
    entry, role = np.full((rows + 1, e), rows, np.int32), np.full((rows + 1, e), s + 2, np.int32)
    slot_bytes, fixed = np.zeros((rows + 1, s), np.float32), np.ones(rows + 1, bool)
    for op, (ops, roles, slots, too_many) in enumerate(neighbours):
        entry[op, : len(ops)] = ops
        role[op, : len(ops)] = roles
        slot_bytes[op, : len(slots)] = size[slots]
        fixed[op] = too_many
    role = np.where(role < 0, role + s + 2, role)  # _BEFORE is s, _AFTER is s + 1
    pad = (0, rows + 1 - n)
    return Moves(
        num_ops=jnp.int32(n),
        entry=jnp.asarray(entry),
        role=jnp.asarray(role, jnp.int32),
        slot_bytes=jnp.asarray(slot_bytes),
        held=jnp.asarray(np.pad(held, pad), jnp.float32),
        needed=jnp.asarray(np.pad(needed, pad), jnp.float32),
        fixed=jnp.asarray(fixed),
    )
