"""What decoding walks: a graph's successors in rows, and its places in the ready queue.

A **row** is a piece of the list of what an op releases when it ends: at most `ROW_WIDTH` ops that read one of its
tensors, or that wait for it (control successors). Every tensor has at least one row, and an op's rows are
consecutive, so that decoding walks them one row a step whatever the largest out-degree is: 1.05 to 1.36 rows an
op on layered graphs, where rows as wide as the largest out-degree (290) cost up to 70 times as much.

A **slot** is a place in the ready queue. Op v has slot v; when it has run, the transfers of its first tensor take
that slot over. Only the second and later tensors of an op need slots of their own.
"""

import weakref
from collections.abc import Sequence

import numpy as np

from graphrl.graphs.arrays import NONE, GraphArrays

ROW_WIDTH = 4  # a power of two keeps index arithmetic to shifts; measured against 2, 3 and 8
READS, WAITS = 1, 2  # what an entry of a row is: an op that reads the row's tensor, or a control successor
NEVER = 1 << 20  # in-degree of what must not become ready by itself


class Rows:
    """The rows of a graph, as NumPy arrays (see `PaddedGraph` for their meaning; entry and tensor are NONE-padded)."""

    def __init__(self, a: GraphArrays):
        readers = np.split(a.use_op, np.searchsorted(a.use_tensor, np.arange(1, a.num_tensors)))
        waiters = np.split(a.control_target, np.searchsorted(a.control_source, np.arange(1, a.num_ops)))
        first_tensor = np.searchsorted(a.producer, np.arange(a.num_ops + 1))
        self._entry: list[list[int]] = []
        self._kind: list[list[int]] = []
        owner: list[int] = []
        tensor: list[int] = []
        slot: list[int] = []
        ends_tensor: list[bool] = []
        self.op_row, self.tensor_row = np.zeros(a.num_ops, np.int32), np.zeros(a.num_tensors, np.int32)
        self.extra_slots = 0
        for op in range(a.num_ops):
            self.op_row[op] = len(self._entry)
            row_slot, row_tensor = op, NONE
            for row_tensor in range(first_tensor[op], first_tensor[op + 1]):
                if row_tensor > first_tensor[op]:
                    row_slot = a.num_ops + self.extra_slots
                    self.extra_slots += 1
                self.tensor_row[row_tensor] = len(self._entry)
                self._append(readers[row_tensor].tolist(), READS)
                ends_tensor += [False] * (len(self._entry) - len(ends_tensor) - 1) + [True]
                _extend_all((owner, tensor, slot), (op, row_tensor, row_slot), len(self._entry))
            self._append_waiting(int(self.op_row[op]), waiters[op].tolist())
            ends_tensor += [True] * (len(self._entry) - len(ends_tensor))
            _extend_all((owner, tensor, slot), (op, row_tensor, row_slot), len(self._entry))
        self.owner, self.tensor, self.slot = (np.array(x, np.int32) for x in (owner, tensor, slot))
        self.entry = np.array(self._entry, np.int32).reshape(-1, ROW_WIDTH)
        self.kind = np.array(self._kind, np.int8).reshape(-1, ROW_WIDTH)
        self.ends_tensor = np.array(ends_tensor, bool)
        self.ends_op = np.append(self.owner[1:] != self.owner[:-1], True)
        self.op_rows = np.bincount(self.owner, minlength=a.num_ops)
        last = np.flatnonzero(self.ends_tensor & (self.tensor != NONE))
        first_last = last[np.searchsorted(last, self.tensor_row)] if a.num_tensors else self.tensor_row
        self.tensor_rows = first_last - self.tensor_row + 1
        del self._entry, self._kind  # several times as large as the arrays, and rows are kept

    def _append(self, ops: list[int], kind: int) -> None:
        """Rows of `ops`; at least one row, maybe empty."""
        for start in range(0, max(1, len(ops)), ROW_WIDTH):
            piece = ops[start : start + ROW_WIDTH]
            free = ROW_WIDTH - len(piece)
            self._entry.append(piece + [NONE] * free)
            self._kind.append([kind] * len(piece) + [0] * free)

    def _append_waiting(self, first_row: int, ops: list[int]) -> None:
        """Control successors go to free entries of the op's rows; the rest, and every op without a row, to new rows."""
        left = ops
        for row in range(first_row, len(self._entry)):
            # an op stands once in a row: a step writes its entries in no particular order
            free = self._kind[row].count(0)
            if not free:
                continue
            taken = [op for op in left if op not in self._entry[row]][:free]
            for place, op in zip(range(ROW_WIDTH - free, ROW_WIDTH), taken, strict=False):
                self._entry[row][place], self._kind[row][place] = op, WAITS
            left = [op for op in left if op not in taken] if taken else left
        if left or len(self._entry) == first_row:
            self._append(left, WAITS)


_rows: weakref.WeakKeyDictionary[GraphArrays, Rows] = weakref.WeakKeyDictionary()


def rows_of(a: GraphArrays) -> Rows:
    """The rows of a graph, made once and kept as long as the graph: its sizes and every padding of it ask for them."""
    rows = _rows.get(a)
    if rows is None:
        rows = _rows[a] = Rows(a)
    return rows


def _extend_all(lists: Sequence[list[int]], values: Sequence[int], length: int) -> None:
    """Extends each list with its value up to `length`."""
    for items, value in zip(lists, values, strict=True):
        items.extend([value] * (length - len(items)))
