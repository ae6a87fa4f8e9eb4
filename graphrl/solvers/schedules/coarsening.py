"""Smaller graphs that stand for a large one: their ops are segments of one topological order of its ops.

Segments of an order can run one after the other, whatever they hold, so that what is made of them has no cycle. They
grow in rounds, each of which joins pairs of neighbours: first those between which most seconds of transfers would lie
(heavy-edge matching, Karypis & Kumar 1998), up to a size that leaves enough of them for every device.
"""

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.topology import distinct
from graphrl.solvers.base import PlacedOrder

MOST = 3.0  # run time of a segment at most, in averages
LEAST_JOINED = 0.05  # of the segments in a round, below which neighbours that share nothing are joined, too


def segments(graph: ComputationGraph, problem: Problem, order: np.ndarray, count: int) -> np.ndarray:
    """The segment `[n]` of every op: some `count` of them, numbered along the order `[n]` of the ops."""
    a = graph.arrays
    segment = np.empty(a.num_ops, np.int64)
    segment[order] = np.arange(a.num_ops)
    moving = np.array([problem.transfer_seconds(num_bytes) for num_bytes in a.tensor_bytes.tolist()])
    most = MOST * a.runtime.sum() / count
    anyone = False
    while (size := int(segment.max(initial=-1)) + 1) > count:
        begin, end = segment[a.producer[a.use_tensor]], segment[a.use_op]
        beside = end - begin == 1
        # a little above 0 for each use: a transfer may cost nothing and still make devices wait for one another
        weight = np.bincount(begin[beside], moving[a.use_tensor[beside]] + 1e-12, minlength=size)
        runtime = np.bincount(segment, a.runtime, minlength=size)
        fits = runtime[:-1] + runtime[1:] <= most
        allowed = np.flatnonzero(fits & (anyone | (weight[:-1] > 0)))
        joined = _matching(allowed[np.argsort(-weight[allowed], kind="stable")], size)[: size - count]
        if len(joined) < LEAST_JOINED * size:
            if anyone:
                most *= 2
            anyone = True
        follows = np.zeros(size, np.int64)
        follows[joined + 1] = 1
        segment = (np.arange(size) - np.cumsum(follows))[segment]
    return segment


def _matching(pairs: np.ndarray, size: int) -> np.ndarray:
    """Of the pairs (i, i + 1), the first ones that have no segment in common with one before them."""
    free = [True] * size
    chosen = []
    for i in pairs.tolist():
        if free[i] and free[i + 1]:
            free[i] = free[i + 1] = False
            chosen.append(i)
    return np.array(chosen, np.int64)


def coarse_graph(graph: ComputationGraph, segment: np.ndarray) -> ComputationGraph:
    """The graph of segments `[n]`: an op runs as long as all of its own do, and writes what other segments read. What
    tensors share with one another is left out, and workspace is the largest of a segment.
    """
    a = graph.arrays
    size = int(segment.max()) + 1
    begin, end = segment[a.producer[a.use_tensor]], segment[a.use_op]
    outside = begin != end
    tensors = distinct(np.concatenate([a.use_tensor[outside], np.flatnonzero(a.kept)]))
    outputs: list[list[Tensor]] = [[] for _ in range(size)]
    for t, num_bytes in zip(tensors.tolist(), a.tensor_bytes[tensors].tolist(), strict=True):
        outputs[segment[a.producer[t]]].append(Tensor(f"t{t}", num_bytes))
    inputs: list[list[str]] = [[] for _ in range(size)]
    readers, read = np.divmod(distinct(end[outside] * a.num_tensors + a.use_tensor[outside]), max(1, a.num_tensors))
    for reader, t in zip(readers.tolist(), read.tolist(), strict=True):
        inputs[reader].append(f"t{t}")
    after: list[list[str]] = [[] for _ in range(size)]
    control = np.stack([segment[a.control_target], segment[a.control_source]], 1)
    for later, earlier in np.unique(control[control[:, 0] != control[:, 1]], axis=0).tolist():
        after[later].append(f"s{earlier}")
    runtime, weights = (np.bincount(segment, x, minlength=size).tolist() for x in (a.runtime, a.weight_bytes))
    workspace = np.zeros(size, np.int64)
    np.maximum.at(workspace, segment, a.workspace_bytes)
    ops = tuple(
        Op(
            f"s{i}",
            runtime=runtime[i],
            inputs=tuple(inputs[i]),
            outputs=tuple(outputs[i]),
            after=tuple(after[i]),
            workspace_bytes=int(workspace[i]),
            weight_bytes=int(weights[i]),
        )
        for i in range(size)
    )
    return ComputationGraph(graph.name, ops, outputs=tuple(f"t{t}" for t in np.flatnonzero(a.kept).tolist()))


def expanded(
    graph: ComputationGraph, devices: int, order: np.ndarray, segment: np.ndarray, coarse: PlacedOrder
) -> PlacedOrder:
    """The plan of a graph whose segments `[n]`, of the order `[n]` of its ops, run as a plan of `coarse_graph` says;
    every transfer comes right before the first op that needs it.
    """
    a = graph.arrays
    n, (devices_of, nodes) = a.num_ops, coarse
    rank, at, place = np.empty(len(devices_of), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    rank[nodes[nodes < len(rank)]] = np.arange(len(rank))
    at[order] = np.arange(n)
    ops = np.lexsort((at, rank[segment]))
    place[ops] = np.arange(n)
    placement = devices_of[segment]
    away = placement[a.use_op] != placement[a.producer[a.use_tensor]]
    copies = a.use_tensor[away].astype(np.int64) * devices + placement[a.use_op[away]]
    first = np.full(a.num_tensors * devices, n)
    np.minimum.at(first, copies, place[a.use_op[away]])
    copies = distinct(copies)
    keys = np.concatenate([copies, np.full(n, len(first))]), np.concatenate([first[copies], place])
    return placement, np.concatenate([n + copies, np.arange(n)])[np.lexsort(keys)]
