"""Small graphs for the decoders of `Ordering-v0`, all of one padded size, and their orders by plain Python."""

import itertools
from collections.abc import Iterator

import numpy as np
from device_graphs import random_graphs

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, sizes

# without and with shared buffers, which cost compile time
SIZES = Sizes(ops=8, tensors=24, slots=8 + 24, rows=32, uses=40, controls=16, shares=0)
SHARING = Sizes(ops=24, tensors=40, slots=24 + 24, rows=72, uses=72, controls=40, shares=24)


def small_graphs(count: int, seed: int = 0) -> list[ComputationGraph]:
    """Graphs of at least 3 and at most 7 ops that fit `SIZES`, without shared buffers."""
    rng = np.random.default_rng(seed)
    drawn: list[ComputationGraph] = []
    while len(drawn) < count:
        for graph in random_graphs(rng, 20, SHARING):
            real = sizes(graph)
            if 3 <= real.ops <= 7 and real.shares == 0:
                drawn.append(graph)
    return drawn[:count]


def all_orders(graph: ComputationGraph) -> Iterator[tuple[int, ...]]:
    """All topological orders of its ops."""
    source, target = graph.arrays.dependencies()
    for order in itertools.permutations(range(graph.arrays.num_ops)):
        place = np.argsort(order)
        if np.all(place[source] < place[target]):
            yield order


def padded_orders(orders: list[tuple[int, ...]], ops: int) -> np.ndarray:
    """Orders `[s, ops]` int32, in the format of `Rollout.order`."""
    out = np.full((len(orders), ops), ops, np.int32)
    for row, order in zip(out, orders, strict=True):
        row[: len(order)] = order
    return out


def plain_log_prob(graph: ComputationGraph, priorities: np.ndarray, order: tuple[int, ...]) -> float:
    """Log-probability by eq. 8, step by step, in float64."""
    waits: dict[int, set[int]] = {op: set() for op in range(graph.arrays.num_ops)}
    for source, target in zip(*graph.arrays.dependencies(), strict=True):
        waits[int(target)].add(int(source))
    y, total = priorities.astype(np.float64), 0.0
    done: set[int] = set()
    for op in order:
        ready = [j for j in waits if j not in done and waits[j] <= done]
        total += y[op] - np.logaddexp.reduce(y[ready])
        done.add(op)
    return float(total)


def exact_peak(graph: ComputationGraph, order: np.ndarray) -> int:
    """Peak bytes by the host's exact cost."""
    placement = np.zeros(graph.arrays.num_ops, np.int64)
    return int(max(exact.evaluate(graph, Problem(), placement, order[: graph.arrays.num_ops]).peak_memory))
