"""Graphs whose least peak memory on one device is known, drawn at random: what trees and series-parallel graphs share.

Every edge is a tensor of its own with one reader, of random size; ops have a random workspace and run times of 1 to 9
seconds. Sizes are whole bytes, log-uniform, so that a few large ones dominate as they do in real graphs.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets import hill_valley
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

Edges = list[tuple[int, int]]  # (source op, target op), a tensor each


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Where sizes are drawn from: log-uniform from `least` to `most` bytes.

    Attributes:
      least, most: at least 1.
      workspace: probability that an op has a workspace (of the same distribution), 0 bytes otherwise.

    Raises:
      ProblemError: a value is out of range.
    """

    least: int = 16
    most: int = 2048
    workspace: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= 2**40:
            raise ProblemError(f"bytes are from {self.least} to {self.most}: must be from 1 to 2^40, ascending")
        if not 0 <= self.workspace <= 1:
            raise ProblemError(f"workspace is {self.workspace}: must be a probability")


LOG_UNIFORM = Bytes()


class KnownPeak(NamedTuple):
    """A graph and the least peak of all its orders on one device."""

    graph: ComputationGraph
    peak: int  # bytes that no order stays below
    order: np.ndarray  # [n] int64, ops in an order of that peak


class Weights(NamedTuple):
    """Random sizes of the n ops and e edges of a graph."""

    edge_bytes: np.ndarray  # [e] int64
    workspace: np.ndarray  # [n] int64, bytes
    runtime: np.ndarray  # [n] int64, seconds

    @classmethod
    def draw(cls, num_ops: int, num_edges: int, sizes: Bytes, rng: np.random.Generator) -> "Weights":
        """Independent of the graph's shape but for its counts."""
        lowest, highest = np.log(sizes.least), np.log(sizes.most + 1)
        drawn = np.exp(rng.uniform(lowest, highest, num_edges + num_ops)).astype(np.int64)
        drawn = np.clip(drawn, sizes.least, sizes.most)
        has_workspace = rng.random(num_ops) < sizes.workspace
        return cls(drawn[:num_edges], drawn[num_edges:] * has_workspace, rng.integers(1, 10, num_ops))

    def segments(self, num_ops: int, edges: Edges) -> list[hill_valley.Segment]:
        """What each op does to the memory: `[num_ops]`."""
        reads, writes = [0] * num_ops, [0] * num_ops
        for (source, target), size in zip(edges, self.edge_bytes.tolist(), strict=True):
            writes[source] += size
            reads[target] += size
        sizes = enumerate(zip(reads, writes, self.workspace.tolist(), strict=True))
        return [hill_valley.op_segment(op, *own) for op, own in sizes]


def known_peak(
    name: str, num_ops: int, edges: Edges, weights: Weights, segments: list[hill_valley.Segment]
) -> KnownPeak:
    """The graph of the edges, with the optimum that `segments` (of the whole graph) hold.

    Ops are numbered in a topological order by the caller; their names are op0, op1 and so on.
    """
    inputs: list[list[str]] = [[] for _ in range(num_ops)]
    outputs: list[list[Tensor]] = [[] for _ in range(num_ops)]
    for k, ((source, target), size) in enumerate(zip(edges, weights.edge_bytes.tolist(), strict=True)):
        inputs[target].append(f"t{k}")
        outputs[source].append(Tensor(f"t{k}", size))
    ops = tuple(
        Op(f"op{i}", "", float(seconds), tuple(inputs[i]), tuple(outputs[i]), workspace_bytes=workspace)
        for i, (seconds, workspace) in enumerate(zip(weights.runtime.tolist(), weights.workspace.tolist(), strict=True))
    )
    graph = ComputationGraph(name, ops)
    return KnownPeak(graph, hill_valley.peak(segments), np.array(hill_valley.order(segments), np.int64))
