"""Graph algorithms on the dependencies between ops: orders, neighbours, longest paths, ancestors.

`GraphArrays` caches most of their results.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from graphrl.compiled import late_entry
from graphrl.compiled.structures import rows_by
from graphrl.errors import GraphError


def grouped(keys: np.ndarray, values: np.ndarray, size: int) -> list[list[int]]:
    """Groups values by key, an integer from 0 to `size` - 1; each group keeps the given order."""
    by_key = np.argsort(keys, kind="stable")
    bounds = np.searchsorted(keys[by_key], np.arange(size + 1)).tolist()
    flat = values[by_key].tolist()
    return [flat[bounds[i] : bounds[i + 1]] for i in range(size)]


def numbered(keys: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers the distinct keys among integers from 0 to size - 1.

    If `size` is at most the number of keys, a table replaces the sort, which takes half the time.

    Returns:
      The distinct keys `[k]`, ascending; the index of each one's first occurrence `[k]`; the number of every key among
        the distinct ones `[n]`.
    """
    if size > len(keys):
        by_key = np.argsort(keys, kind="stable")
        is_first = np.diff(keys[by_key], prepend=-1) != 0
        number = np.empty(len(keys), np.int64)
        number[by_key] = np.cumsum(is_first) - 1
        first = by_key[is_first]
        return keys[first], first, number
    table = np.full(size, -1)
    table[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)  # of equal keys the last assignment remains
    present = np.flatnonzero(table >= 0)
    first = table[present]
    table[present] = np.arange(len(present))
    return present, first, table[keys]


def distinct(values: np.ndarray) -> np.ndarray:
    """Returns the distinct integers in ascending order, ten times as fast as `np.unique`, which hashes them."""
    values = np.sort(values, axis=None)
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]]


def rings(group: np.ndarray) -> np.ndarray:
    """Returns the next item of the same group, cyclically, for groups `[n]`: `[n] int64`, the item itself if alone."""
    by_group = np.argsort(group, kind="stable")
    is_last = np.diff(group[by_group], append=-1) != 0
    is_first = np.roll(is_last, 1)
    following = np.roll(by_group, -1)
    following[is_last] = by_group[is_first]
    ring = np.empty(len(group), np.int64)
    ring[by_group] = following
    return ring


def topological_order(names: Sequence[str], sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Sorts ops topologically, every source before its targets and the lowest ready index first (Kahn): `[n] int32`.

    Raises:
      GraphError: no such order exists; one cycle is printed.
    """
    n = len(names)
    order = least_first(np.arange(n), Waiting(np.bincount(targets, minlength=n).tolist(), grouped(sources, targets, n)))
    if len(order) < n:
        raise GraphError("cycle: " + " -> ".join(_cycle(names, sources, targets, set(range(n)) - set(order))))
    return np.array(order, np.int32)


class Waiting:
    """Counters of unfinished predecessors, for simulating items that run one after the other.

    Args:
      counts: number of predecessors of each item.
      successors: list of successors of each item.

    Attributes:
      left: number of predecessors of each item that have not run.
    """

    def __init__(self, counts: Iterable[int], successors: Sequence[Sequence[int]]) -> None:
        self.left, self._successors = list(counts), successors

    def ready(self) -> list[int]:
        """Returns the items whose predecessors have all run, ascending; includes items that have run themselves."""
        return [item for item, left in enumerate(self.left) if left == 0]

    def finish(self, item: int) -> list[int]:
        """Records that an item has run; returns the items that become ready, in the order of its successors."""
        ready = []
        for after in self._successors[item]:
            self.left[after] -= 1
            if self.left[after] == 0:
                ready.append(after)
        return ready


def least_first(values: np.ndarray, waiting: Waiting) -> list[int]:
    """Sorts items so that the ready one of least value `[n]` always runs next; ties go to the lower index.

    Items that never become ready are left out.
    """
    by_value = np.argsort(values, kind="stable").tolist()
    rank = [0] * len(by_value)
    for place, item in enumerate(by_value):
        rank[item] = place
    queue = [rank[item] for item in waiting.ready()]
    heapq.heapify(queue)
    order = []
    while queue:
        order.append(by_value[heapq.heappop(queue)])
        for item in waiting.finish(order[-1]):
            heapq.heappush(queue, rank[item])
    return order


def post_order(num_ops: int, roots: Sequence[int], waits_for: Callable[[int], Sequence[int]]) -> list[int]:
    """Sorts ops in the post-order of a depth-first search, without recursion: predecessors come first.

    Args:
      num_ops: number of ops.
      roots: in the order of the search; every op must be reachable from one of them.
      waits_for: returns the predecessors of an op, in the order of the search; called once for each op.
    """
    order: list[int] = []
    entered = [False] * num_ops
    stack = list(reversed(roots))
    while stack:
        op = stack.pop()
        if op < 0:
            order.append(-1 - op)
        elif not entered[op]:
            entered[op] = True
            stack.append(-1 - op)  # appended to the order after all of its predecessors
            stack += [before for before in reversed(waits_for(op)) if not entered[before]]
    return order


def longest_paths(
    order: np.ndarray, before: np.ndarray, after: np.ndarray, runtime: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the longest path that ends before each op, in edges and in run time.

    Args:
      order: `[n]` a topological order of the ops.
      before, after: `[m]` each, the ops of every edge.
      runtime: `[n] float64` run times of the ops.

    Returns:
      Largest number of edges of a path `[n] int64`; largest total run time of its ops `[n] float64`.
    """
    n = len(order)
    begins, rows = rows_by(after, before, n)
    hops, seconds = np.zeros(n, np.int64), np.zeros(n)
    _walk_paths(order.astype(np.int64), begins, rows, runtime, hops, seconds)
    return hops, seconds


@late_entry
def _walk_paths(
    order: np.ndarray,
    begins: np.ndarray,
    rows: np.ndarray,
    runtime: np.ndarray,
    hops: np.ndarray,
    seconds: np.ndarray,
) -> None:
    """Compiled loop of `longest_paths`: writes `hops` and `seconds`, which must be 0 before."""
    for place in range(len(order)):
        op = order[place]
        for row in range(begins[op], begins[op + 1]):
            other = rows[row]
            hops[op] = max(hops[op], hops[other] + 1)
            seconds[op] = max(seconds[op], seconds[other] + runtime[other])


def reached(order: Sequence[int], before: Sequence[Sequence[int]]) -> list[int]:
    """Computes the ancestors of each op, direct and indirect: `[n]` sets of ops.

    Each set is a Python integer whose bit i means op i, because their unions are faster than those of packed arrays (by
    2.5 times at 2,000 ops).
    """
    sets = [0] * len(before)
    for op in order:
        for other in before[op]:
            sets[op] |= sets[other] | 1 << other
    return sets


def bit_matrix(sets: Sequence[int]) -> np.ndarray:
    """Expands n integers into a matrix of their lowest n bits: `[n, n]` uint8, row i from integer i."""
    n, size = len(sets), -(-len(sets) // 8)
    packed = np.frombuffer(b"".join(one.to_bytes(size, "little") for one in sets), np.uint8)
    return np.unpackbits(packed.reshape(n, size), axis=1, count=n, bitorder="little")


def _cycle(names: Sequence[str], sources: np.ndarray, targets: np.ndarray, left: set[int]) -> list[str]:
    """Finds a cycle among the remaining ops; returns its names, the first repeated at the end, shortened beyond ten."""
    pairs = zip(sources.tolist(), targets.tolist(), strict=True)
    predecessor = {target: source for source, target in pairs if source in left and target in left}
    node = min(left)
    seen: dict[int, int] = {}
    path: list[int] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = predecessor[node]
    cycle = path[: seen[node] - 1 : -1] if seen[node] else path[::-1]
    first = cycle.index(min(cycle))
    listed = [repr(names[i]) for i in (*cycle[first:], *cycle[:first], cycle[first])]
    return listed if len(listed) <= 10 else [*listed[:5], f"... ({len(listed) - 6} more)", *listed[-1:]]
