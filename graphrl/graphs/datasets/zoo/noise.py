"""Variants of a graph: same ops and edges, other sizes and times (REGAL, section 4.1 "Tasks and datasets")."""

import dataclasses

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.seeds import generator
from graphrl.graphs.graph import ComputationGraph


def augmented(graph: ComputationGraph, seed: int, sigma: float = 0.3) -> ComputationGraph:
    """The graph with multiplicative noise on run times and bytes: a pure function of its arguments.

    REGAL applies "multiplicative noise to tensor sizes and op running times" without naming the distribution. Ours is
    log-normal: factors exp(sigma z), z standard normal, independent for each run time, workspace, weight and buffer.
    Tensors that share a buffer through `alias` or `reuses` get one factor together, so that what reuses a buffer still
    fits it. What is 0 stays 0, any other size at least 1 byte. FLOPs and external inputs stay.

    Args:
      graph: any.
      seed: at least 0.
      sigma: of the logarithm, at least 0; at 0.3 two thirds of the factors are from 0.74 to 1.35.

    Raises:
      ProblemError: the seed or sigma is out of range.
    """
    if not 0 <= sigma <= 3:
        raise ProblemError(f"sigma is {sigma!r}: must be from 0 to 3")
    random = generator("augmented", seed)
    n = len(graph.ops)
    runtime, workspace, weights = np.exp(sigma * random.standard_normal((3, n)))
    buffers = _buffers(graph)
    factor = np.exp(sigma * random.standard_normal(len(buffers)))
    factors = iter(factor[buffers].tolist())
    ops = [
        dataclasses.replace(
            op,
            runtime=op.runtime * float(runtime[i]),
            workspace_bytes=_scaled(op.workspace_bytes, float(workspace[i])),
            weight_bytes=_scaled(op.weight_bytes, float(weights[i])),
            outputs=tuple(dataclasses.replace(t, bytes=_scaled(t.bytes, next(factors))) for t in op.outputs),
        )
        for i, op in enumerate(graph.ops)
    ]
    return ComputationGraph(f"{graph.name}~{seed}", tuple(ops), graph.inputs, graph.outputs)


def _scaled(size: int, factor: float) -> int:
    return max(1, round(size * factor)) if size else 0


def _buffers(graph: ComputationGraph) -> np.ndarray:
    """A representative of each tensor's class under `alias` and `reuses`: `[t] int`."""
    a = graph.arrays
    parent = list(range(a.num_tensors))

    def root(tensor: int) -> int:
        while parent[tensor] != tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    for shared in (a.alias.tolist(), a.reuses.tolist()):
        for tensor, source in enumerate(shared):
            if source >= 0:
                parent[root(tensor)] = root(source)
    return np.array([root(tensor) for tensor in range(a.num_tensors)], np.int64)
