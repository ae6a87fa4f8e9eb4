"""Node and edge features of a computation graph for graph networks: NumPy, on the host.

What REGAL gives its network (section 3.2 and the workshop paper: tensor sizes and run times of ops) and the structure
that a list scheduler reads: degrees, depths, top and bottom levels. Nothing depends on the units of bytes or seconds
(amounts are over the graph's own mean, then log1p, or over its own longest path or largest value), on the names of ops
or on their places: the features of a renumbered graph are the renumbered features. An amount over a zero mean is 0. A
tensor that is an alias counts no bytes: it has no buffer of its own.
"""

import numpy as np

from graphrl.graphs.arrays import NONE, GraphArrays
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes

NODE_FEATURES = (
    "runtime",  # log1p of seconds over the mean of the ops
    "runtime_of_largest",  # seconds over the largest op's
    "flops",  # log1p of FLOPs over the mean of the ops
    "input_bytes",  # log1p of the distinct inputs' bytes over the mean tensor's (all five bytes: the same unit)
    "output_bytes",
    "released_bytes",  # the inputs' bytes, each shared out among its consumers
    "workspace_bytes",
    "weight_bytes",
    "need_of_largest",  # inputs + outputs + workspace over the largest op's
    "kept_share",  # of the output bytes, those that stay to the end
    "outputs",  # log1p of the count
    "inputs",  # log1p of the count of distinct tensors
    "uses",  # log1p of the count of (output, consumer) pairs
    "control_in",  # log1p of the count of control predecessors
    "control_out",  # log1p of the count of control successors
    "depth",  # longest path from a source in ops, over the graph's longest
    "height",  # longest path to a sink in ops, over the graph's longest
    "top_level",  # earliest start on unlimited devices without transfers, over the critical path
    "bottom_level",  # longest run time from the op's start to the end, over the critical path
    "slack",  # by how much the op may be late without lengthening the critical path, over the critical path
)

EDGE_FEATURES = (
    "bytes",  # log1p of the tensor's bytes over the mean tensor's
    "bytes_of_largest",  # over the largest tensor's
    "share_of_inputs",  # of the consumer's input bytes, this tensor's
    "consumers",  # log1p of the count of the tensor's consumers
    "kept",  # 1 if the tensor stays to the end
    "span",  # difference of depths between producer and consumer, over the graph's longest path
    "only_in",  # 1 if it is the consumer's only input
)


def node_features(graph: ComputationGraph) -> np.ndarray:
    """`[n, len(NODE_FEATURES)] float32`, a row per op in the graph's order."""
    a = graph.arrays
    n, t = a.num_ops, a.num_tensors
    sizes = buffer_bytes(a)
    unit = _mean(sizes)
    consumers = np.bincount(a.use_tensor, minlength=t)
    uses, inputs = consumers[a.use_tensor], np.bincount(a.use_op, minlength=n)
    input_bytes = total(a.use_op, sizes[a.use_tensor], n)
    output_bytes = total(a.producer, sizes, n)
    kept_bytes = total(a.producer, sizes * a.kept, n)
    need = input_bytes + output_bytes + a.workspace_bytes
    bottom = a.tail + a.runtime
    hops, path = float(a.depth.max()), float((a.head + bottom).max())
    columns = {
        "runtime": np.log1p(ratio(a.runtime, _mean(a.runtime))),
        "runtime_of_largest": ratio(a.runtime, a.runtime.max()),
        "flops": np.log1p(ratio(a.flops, _mean(a.flops))),
        "input_bytes": np.log1p(ratio(input_bytes, unit)),
        "output_bytes": np.log1p(ratio(output_bytes, unit)),
        "released_bytes": np.log1p(ratio(total(a.use_op, sizes[a.use_tensor] / uses, n), unit)),
        "workspace_bytes": np.log1p(ratio(a.workspace_bytes, unit or _mean(a.workspace_bytes))),
        "weight_bytes": np.log1p(ratio(a.weight_bytes, unit or _mean(a.weight_bytes))),
        "need_of_largest": ratio(need, need.max()),
        "kept_share": ratio(kept_bytes, output_bytes),
        "outputs": np.log1p(np.bincount(a.producer, minlength=n)),
        "inputs": np.log1p(inputs),
        "uses": np.log1p(total(a.producer, consumers, n)),
        "control_in": np.log1p(np.bincount(a.control_target, minlength=n)),
        "control_out": np.log1p(np.bincount(a.control_source, minlength=n)),
        "depth": ratio(a.depth, hops),
        "height": ratio(a.height, hops),
        "top_level": ratio(a.head, path),
        "bottom_level": ratio(bottom, path),
        "slack": ratio(path - a.head - bottom, path),
    }
    return np.stack([columns[name] for name in NODE_FEATURES], axis=1).astype(np.float32)


def edge_features(graph: ComputationGraph) -> np.ndarray:
    """`[e, len(EDGE_FEATURES)] float32`, a row per use in the order of `arrays.use_tensor` and `arrays.use_op`."""
    a = graph.arrays
    sizes = buffer_bytes(a)
    used = sizes[a.use_tensor]
    columns = {
        "bytes": np.log1p(ratio(used, _mean(sizes))),
        "bytes_of_largest": ratio(used, sizes.max(initial=0.0)),
        "share_of_inputs": ratio(used, total(a.use_op, used, a.num_ops)[a.use_op]),
        "consumers": np.log1p(np.bincount(a.use_tensor, minlength=a.num_tensors)[a.use_tensor]),
        "kept": a.kept[a.use_tensor].astype(np.float64),
        "span": ratio(a.depth[a.use_op] - a.depth[a.producer[a.use_tensor]], float(a.depth.max())),
        "only_in": (np.bincount(a.use_op, minlength=a.num_ops)[a.use_op] == 1).astype(np.float64),
    }
    return np.stack([columns[name] for name in EDGE_FEATURES], axis=1).astype(np.float32)


def padded_features(graph: ComputationGraph, to: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Both, padded with zeros: `[n, F]` float32 of ops and `[e, H]` float32 of uses."""
    nodes, edges = node_features(graph), edge_features(graph)
    return _padded(nodes, to.ops), _padded(edges, to.uses)


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))


def buffer_bytes(a: GraphArrays) -> np.ndarray:
    """Bytes of every tensor's own buffer: `[t] float64`."""
    return np.where(a.alias == NONE, a.tensor_bytes, 0).astype(np.float64)


def _mean(amounts: np.ndarray) -> float:
    return float(amounts.sum(dtype=np.float64) / len(amounts)) if len(amounts) else 0.0


def total(index: np.ndarray, amounts: np.ndarray, count: int) -> np.ndarray:
    """Sums of the amounts of each index below `count`: `[count] float64`."""
    return np.bincount(index, weights=amounts, minlength=count)


def ratio(amounts: np.ndarray, unit: float | np.ndarray) -> np.ndarray:
    """`amounts / unit`, and 0 where the unit is 0."""
    unit = np.asarray(unit, np.float64)
    return np.divide(amounts, unit, out=np.zeros(len(amounts)), where=unit > 0)
