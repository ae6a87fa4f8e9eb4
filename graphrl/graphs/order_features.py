"""What Topoformer's network sees of an op (Gagrani et al. 2022, appendix C.5): NumPy, on the host.

Eight features, each over its largest value in the graph, so that neither units nor the size of the graph matter, and
20 Laplacian encodings. The paper's graphs have one source, one target and one output an op; for all others we say:

- output bytes are of all outputs; an alias has none, a tensor that reuses a buffer has its own; that a tensor is kept
  to the end is not seen;
- an op's parameters p are its `workspace_bytes`, memory held only while it runs; `weight_bytes` do not depend on the
  order and are not seen;
- degrees and distances are of `GraphArrays.dependencies`, data and control: pairs of ops, not of tensors;
- distances are from the nearest (least) and the farthest (largest) of all ops without predecessors, and likewise to
  ops without successors;
- a feature that is 0 everywhere stays 0.
"""

import numpy as np

from graphrl.errors import GraphError
from graphrl.graphs.features import buffer_bytes, ratio, total
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.laplacian import laplacian_encodings

OP_FEATURES = (
    "output_bytes",
    "workspace_bytes",
    "in_degree",
    "out_degree",
    "least_from_source",  # hops
    "largest_from_source",
    "least_to_sink",
    "largest_to_sink",
)
ENCODINGS = 20
ORDER_FEATURES = (*OP_FEATURES, *(f"laplacian_{i}" for i in range(ENCODINGS)))


def order_features(graph: ComputationGraph) -> np.ndarray:
    """`[n, len(ORDER_FEATURES)]` float32, a row per op in the graph's order; the first eight in [0, 1]."""
    a = graph.arrays
    n = a.num_ops
    source, target = a.dependencies()
    columns = {
        "output_bytes": total(a.producer, buffer_bytes(a), n),
        "workspace_bytes": a.workspace_bytes,
        "in_degree": np.bincount(target, minlength=n),
        "out_degree": np.bincount(source, minlength=n),
        "least_from_source": _least_hops(a.topological, a.predecessors),
        "largest_from_source": a.depth,
        "least_to_sink": _least_hops(a.topological[::-1], a.successors),
        "largest_to_sink": a.height,
    }
    features = [ratio(columns[name], columns[name].max()) for name in OP_FEATURES]
    encodings = laplacian_encodings(source, target, a.depth - a.height, ENCODINGS)
    return np.column_stack([*features, encodings]).astype(np.float32)


def padded_order_features(graph: ComputationGraph, ops: int) -> np.ndarray:
    """`[ops, len(ORDER_FEATURES)]` float32: `order_features` with zeros for padding ops.

    Raises:
      GraphError: the graph has more than `ops` ops.
    """
    features = order_features(graph)
    if len(features) > ops:
        raise GraphError(f"graph {graph.name!r} has {len(features)} ops: must be at most the {ops} it is padded to")
    return np.pad(features, ((0, ops - len(features)), (0, 0)))


def _least_hops(order: np.ndarray, before: list[list[int]]) -> np.ndarray:
    """Edges of the shortest path to each op from one with nothing before it: `[n]` int64."""
    hops = [0] * len(before)
    for op in order.tolist():
        hops[op] = min((hops[other] + 1 for other in before[op]), default=0)
    return np.array(hops)
