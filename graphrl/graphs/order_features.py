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
    in_degree, out_degree = np.bincount(target, minlength=n), np.bincount(source, minlength=n)
    least_from, depth = _hops(source, target, a.topological)
    least_to, height = _hops(target, source, a.topological[::-1])
    columns = {
        "output_bytes": total(a.producer, buffer_bytes(a), n),
        "workspace_bytes": a.workspace_bytes,
        "in_degree": in_degree,
        "out_degree": out_degree,
        "least_from_source": least_from,
        "largest_from_source": depth,
        "least_to_sink": least_to,
        "largest_to_sink": height,
    }
    features = [ratio(columns[name], columns[name].max()) for name in OP_FEATURES]
    encodings = laplacian_encodings(source, target, depth - height, ENCODINGS)
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


def _hops(source: np.ndarray, target: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the shortest and of the longest path to each op from an op that is no target: two `[n]` int64."""
    n = len(order)
    by_target = np.argsort(target, kind="stable")
    begin = np.searchsorted(target[by_target], np.arange(n + 1)).tolist()
    predecessors = source[by_target].tolist()
    least, largest = [0] * n, [0] * n
    for op in order.tolist():
        before = predecessors[begin[op] : begin[op + 1]]
        if before:
            least[op] = 1 + min([least[one] for one in before])
            largest[op] = 1 + max([largest[one] for one in before])
    return np.array(least), np.array(largest)
