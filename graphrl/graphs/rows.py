"""What decoding walks: a graph's successors in rows, and its places in the ready queue.

A **row** is a piece of the list of what an op releases when it ends: at most `ROW_WIDTH` ops that read one of its
tensors, or that wait for it (control successors). Every tensor has at least one row, and an op's rows are
consecutive, so that decoding walks them one row a step whatever the largest out-degree is: 1.05 to 1.36 rows an
op on layered graphs, where rows as wide as the largest out-degree (290) cost up to 70 times as much.

A **slot** is a place in the ready queue. Op v has slot v; when it has run, the transfers of its first tensor take
that slot over. Only the second and later tensors of an op need slots of their own.
"""

import weakref

import numpy as np

from graphrl.compiled import late_entry
from graphrl.compiled.records import rows_by
from graphrl.graphs.arrays import NONE, GraphArrays

ROW_WIDTH = 4  # a power of two keeps index arithmetic to shifts; measured against 2, 3 and 8
READS, WAITS = 1, 2  # what an entry of a row is: an op that reads the row's tensor, or a control successor
NEVER = 1 << 20  # in-degree of what must not become ready by itself


class Rows:
    """The rows of a graph, as NumPy arrays (see `PaddedGraph` for their meaning; entry and tensor are NONE-padded)."""

    def __init__(self, a: GraphArrays):
        n, t = a.num_ops, a.num_tensors
        reading = _Reading(a)
        rest, waiter = _fill_with_waiting(a, reading)
        own = -(-rest // ROW_WIDTH)  # [n] rows of what only waits
        own[(own == 0) & (np.bincount(reading.owner, minlength=n) == 0)] = 1  # an op has a row
        begins = np.append(0, np.cumsum(np.bincount(reading.owner, minlength=n) + own))
        place = np.arange(len(reading.owner)) + (np.cumsum(own) - own)[reading.owner]  # among all rows
        rows = int(begins[-1])
        is_second = np.append(False, a.producer[1:] == a.producer[:-1])[:t]  # or later, of its op's tensors
        slot = np.where(is_second, n - 1 + np.cumsum(is_second), a.producer)
        self.extra_slots = int(is_second.sum())
        self.owner = np.repeat(np.arange(n, dtype=np.int32), np.diff(begins))
        last = np.full(n, NONE)  # tensor of each op
        last[a.producer] = np.arange(t)
        self.tensor = last[self.owner].astype(np.int32)
        self.tensor[place] = reading.tensor
        self.slot = np.where(self.tensor == NONE, self.owner, slot[self.tensor] if t else 0).astype(np.int32)
        self.entry, self.kind = np.full((rows, ROW_WIDTH), NONE, np.int32), np.zeros((rows, ROW_WIDTH), np.int8)
        self.entry[place], self.kind[place] = reading.entry, reading.kind
        # what found no place stands in the op's last rows, which only wait, one entry after the other
        at = np.repeat((begins[1:] - own) * ROW_WIDTH - np.cumsum(rest) + rest, rest) + np.arange(len(waiter))
        self.entry.reshape(-1)[at], self.kind.reshape(-1)[at] = waiter, WAITS
        self.ends_tensor = np.ones(rows, bool)
        self.ends_tensor[place] = np.append(reading.tensor[1:] != reading.tensor[:-1], True)[: len(place)]
        self.ends_op = np.append(self.owner[1:] != self.owner[:-1], True)[:rows]
        self.op_row = begins[:-1].astype(np.int32)
        self.op_rows = np.diff(begins)
        self.tensor_row = place[reading.first].astype(np.int32)
        self.tensor_rows = reading.count


class _Reading:
    """Rows of ops that read tensors, at least one a tensor."""

    def __init__(self, a: GraphArrays) -> None:
        readers = np.bincount(a.use_tensor, minlength=a.num_tensors)
        self.count = np.maximum(1, -(-readers // ROW_WIDTH))  # [t]
        self.first = np.cumsum(self.count) - self.count  # [t]
        self.tensor = np.repeat(np.arange(a.num_tensors), self.count)  # [r]
        self.owner = a.producer[self.tensor]  # [r]
        place = np.arange(len(a.use_op)) - (np.cumsum(readers) - readers)[a.use_tensor]
        at = self.first[a.use_tensor] + place // ROW_WIDTH, place % ROW_WIDTH
        self.entry = np.full((len(self.tensor), ROW_WIDTH), NONE, np.int32)
        self.kind = np.zeros_like(self.entry, np.int8)
        self.entry[at], self.kind[at] = a.use_op, READS


def _fill_with_waiting(a: GraphArrays, reading: _Reading) -> tuple[np.ndarray, np.ndarray]:
    """Puts control successors into free entries of their op's rows: how many of each op `[n]` find none, and these."""
    begins = np.searchsorted(reading.owner, np.arange(a.num_ops + 1))
    waits, targets = rows_by(a.control_source, a.control_target, a.num_ops)
    rest = np.zeros(a.num_ops, np.int64)
    _fill(reading.entry, reading.kind, begins, targets, waits, rest)
    place = np.arange(len(targets)) - np.repeat(waits[:-1], np.diff(waits))
    return rest, targets[place < np.repeat(rest, np.diff(waits))]


@late_entry
def _fill(
    entries: np.ndarray, kinds: np.ndarray, begins: np.ndarray, targets: np.ndarray, waits: np.ndarray, rest: np.ndarray
) -> None:
    """Writes entries and kinds of rows; those of an op's targets that find no place go to its first ones.

    Args:
      entries, kinds: `[r, ROW_WIDTH]`.
      begins, waits: `[n + 1]` where rows of an op begin, and its targets.
      targets: `[f]`.
      rest: `[n]`, how many find no place.
    """
    for op in range(len(rest)):
        first, count = waits[op], waits[op + 1] - waits[op]
        for row in range(begins[op], begins[op + 1]):
            used = 0
            while used < ROW_WIDTH and kinds[row, used] != 0:
                used += 1
            reads, left = used, 0
            for target in range(first, first + count):
                # an op stands once in a row: a step writes its entries in no particular order
                fits = used < ROW_WIDTH
                for column in range(reads):
                    fits = fits and entries[row, column] != targets[target]
                if fits:
                    entries[row, used], kinds[row, used] = targets[target], WAITS
                    used += 1
                else:
                    targets[first + left] = targets[target]
                    left += 1
            count = left
        rest[op] = count


_rows: weakref.WeakKeyDictionary[GraphArrays, Rows] = weakref.WeakKeyDictionary()


def rows_of(a: GraphArrays) -> Rows:
    """The rows of a graph, made once and kept as long as the graph: its sizes and every padding of it ask for them."""
    rows = _rows.get(a)
    if rows is None:
        rows = _rows[a] = Rows(a)
    return rows
