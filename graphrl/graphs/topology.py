"""What the dependencies of ops say: orders, neighbours, longest paths, ancestors. `GraphArrays` holds them, each
computed once.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from graphrl.errors import GraphError


def grouped(keys: np.ndarray, values: np.ndarray, size: int) -> list[list[int]]:
    """Values by key, each group in the given order."""
    by_key = np.argsort(keys, kind="stable")
    bounds = np.searchsorted(keys[by_key], np.arange(size + 1)).tolist()
    flat = values[by_key].tolist()
    return [flat[bounds[i] : bounds[i + 1]] for i in range(size)]


def topological_order(names: Sequence[str], sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Ops in an order that runs every source before its targets, the lowest ready index first (Kahn): `[n] int32`.

    Raises:
      GraphError: there is none; one cycle is printed.
    """
    n = len(names)
    successors = grouped(sources, targets, n)
    left = np.bincount(targets, minlength=n).tolist()
    ready = [i for i in range(n) if left[i] == 0]
    order = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for target in successors[op]:
            left[target] -= 1
            if left[target] == 0:
                heapq.heappush(ready, target)
    if len(order) < n:
        raise GraphError("cycle: " + " -> ".join(_cycle(names, sources, targets, left)))
    return np.array(order, np.int32)


def longest_paths(
    order: Sequence[int], before: Sequence[Sequence[int]], runtime: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """The longest path that ends before each op, over the ops `before` each: in edges `[n] int64`, and in the run times
    of the ops on it `[n] float64`.
    """
    hops, seconds = [0] * len(before), [0.0] * len(before)
    for op in order:
        hops[op] = max((hops[other] + 1 for other in before[op]), default=0)
        seconds[op] = max((seconds[other] + runtime[other] for other in before[op]), default=0.0)
    return np.array(hops), np.array(seconds)


def reached(order: Sequence[int], before: Sequence[Sequence[int]]) -> np.ndarray:
    """Whether the column op stands before the row op, directly or through others: `[n, n]` bool.

    Sets of ops are the bits of Python's integers, whose unions are quicker than those of packed arrays (by 2.5 times at
    2,000 ops).
    """
    sets = [0] * len(before)
    for op in order:
        for other in before[op]:
            sets[op] |= sets[other] | 1 << other
    return bit_matrix(sets).astype(bool)


def bit_matrix(sets: Sequence[int]) -> np.ndarray:
    """`[n, n]` uint8, row i the bits of the i-th of n numbers."""
    n, size = len(sets), -(-len(sets) // 8)
    packed = np.frombuffer(b"".join(one.to_bytes(size, "little") for one in sets), np.uint8)
    return np.unpackbits(packed.reshape(n, size), axis=1, count=n, bitorder="little")


def _cycle(names: Sequence[str], sources: np.ndarray, targets: np.ndarray, left: Sequence[int]) -> list[str]:
    """Names along one cycle, the first repeated at the end; at most ten are shown."""
    pairs = zip(sources.tolist(), targets.tolist(), strict=True)
    predecessor = {target: source for source, target in pairs if left[source] > 0 and left[target] > 0}
    node = next(i for i in range(len(names)) if left[i] > 0)
    seen: dict[int, int] = {}
    path: list[int] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = predecessor[node]
    cycle = path[: seen[node] - 1 : -1] if seen[node] else path[::-1]
    first = cycle.index(min(cycle))
    shown = [repr(names[i]) for i in (*cycle[first:], *cycle[:first], cycle[first])]
    return shown if len(shown) <= 10 else [*shown[:5], f"... ({len(shown) - 6} more)", *shown[-1:]]
