"""Features of ops, edges and pairs of ops for networks: NumPy and SciPy, on the host.

Features do not depend on the units of bytes or seconds, except `layer_features`, nor on the names or indices of ops:
the features of a renumbered graph are the renumbered features. An amount divided by a zero mean is 0. An alias counts
as 0 bytes because it has no buffer.

- `node_features`, `edge_features`: REGAL's (section 3.2 and the workshop paper: tensor sizes and run times of ops), and
  the structure that a list scheduler uses: degrees, depths, top and bottom levels. Amounts are divided by the graph's
  own mean, then log1p, or divided by its own longest path or largest value.
- `type_features`: an op's type as numbers; it is any text ("dot_general", "Conv"), also one not in the training data.
  The three-letter parts of the name, in lower case, are counted in `BUCKETS` buckets by a hash, with a sign by another,
  and scaled to length 1. Names with parts in common ("reduce_max" and "reduce_sum") are close, others nearly
  orthogonal. Two indicators, for types in `LIGHT` and in `REDUCTIONS`, are added.
- `layer_features`: EGRL's layer features (table 1 of its paper).
- `order_features`: Topoformer's features (Gagrani et al. 2022, appendix C.5): eight, each divided by its largest value
  in the graph, and 20 Laplacian encodings.
- `laplacian_encodings`: those of Dwivedi and Bresson (2020).
- `relations`: Topoformer's seven graphs over pairs of ops (section 4.1), from `GraphArrays.dependencies`. Two ops with
  several tensors between them have one dependency. `relations` of 2,000 ops take 11 to 21 ms.
"""

import dataclasses
import functools
import zlib
from collections.abc import Iterator

import numpy as np
from scipy.sparse import coo_array, csr_array, diags_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from graphrl.errors import GraphError
from graphrl.graphs.graph import NONE, ComputationGraph, GraphArrays
from graphrl.graphs.layers import LIGHT, REDUCTIONS, Layer
from graphrl.graphs.padding import Sizes
from graphrl.graphs.topology import bit_matrix

NODE_FEATURES = (
    "runtime",  # log1p of seconds over the mean of the ops
    "runtime_of_largest",  # seconds over the largest op's
    "flops",  # log1p of FLOPs over the mean of the ops
    "input_bytes",  # log1p of the distinct inputs' bytes over the mean tensor's (all five byte features use this unit)
    "output_bytes",
    "released_bytes",  # the inputs' bytes, each divided by the number of its consumers
    "workspace_bytes",
    "weight_bytes",
    "need_of_largest",  # inputs + outputs + workspace over the largest op's
    "kept_share",  # fraction of the output bytes that stay to the end
    "outputs",  # log1p of the count
    "inputs",  # log1p of the count of distinct tensors
    "uses",  # log1p of the count of (output, consumer) pairs
    "control_in",  # log1p of the count of control predecessors
    "control_out",  # log1p of the count of control successors
    "depth",  # longest path from a source in ops, over the graph's longest
    "height",  # longest path to a sink in ops, over the graph's longest
    "top_level",  # earliest start on unlimited devices without transfers, over the critical path
    "bottom_level",  # longest run time from the op's start to the end, over the critical path
    "slack",  # delay of the op that does not lengthen the critical path, over the critical path
)

LAYER_FEATURES = (
    *("op_id", "weight_size", "ifm_x", "ifm_y", "ifm_z", "ofm_x", "ofm_y", "ofm_z", "ifm_size", "ofm_size"),
    *("n_ops_left", "n_w_left", "groups", "kernel_x", "kernel_y", "stride", "pad", "dilation", "batch"),
)
# Substrings of type names: the id of an op is 2 plus the index of the first substring that its type contains.
_KINDS = ("conv", "dot", "matmul", "gemm", "pool", "window", "norm", "softmax", "gather", "quantize")

EDGE_FEATURES = (
    "bytes",  # log1p of the tensor's bytes over the mean tensor's
    "bytes_of_largest",  # over the largest tensor's
    "share_of_inputs",  # this tensor's fraction of the consumer's input bytes
    "consumers",  # log1p of the count of the tensor's consumers
    "kept",  # 1 if the tensor stays to the end
    "span",  # difference of depths between producer and consumer, over the graph's longest path
    "only_in",  # 1 if it is the consumer's only input
)

BUCKETS = 16
TYPE_FEATURES = ("light", "reduction", *(f"name_{i}" for i in range(BUCKETS)))

_DENSE = 150  # up to this number of ops, LAPACK's whole spectrum is faster than ARPACK's largest eigenvalues
_RESTARTS = 100  # of ARPACK, before shift-invert mode: long chains have tiny gaps between eigenvalues
_SHIFT = 1.01  # just above the largest eigenvalue of D^-1/2 A D^-1/2
_TINY = 1e-6

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

RELATIONS = (
    "self",
    "from_reduction",  # sender -> receiver is an edge of the transitive reduction (TR)
    "from_dependency",  # sender -> receiver is a dependency outside of TR
    "from_closure",  # the sender is an ancestor of the receiver, but not a dependency: closure minus graph
    "to_reduction",  # the same three with receiver and sender exchanged: the backward graphs
    "to_dependency",
    "to_closure",
    "incomparable",  # neither is an ancestor of the other
)
SELF, FROM_REDUCTION, FROM_DEPENDENCY, FROM_CLOSURE = range(4)
TO_REDUCTION, TO_DEPENDENCY, TO_CLOSURE, INCOMPARABLE = range(4, 8)
PADDING = 8  # receiver or sender is a padding op

_BACKWARD = 4  # both directions of a pair in one number: forward + 4 * backward, at least one of which is 0
_CODE_OF = np.array([INCOMPARABLE, 1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 0, 6], np.uint8)


def node_features(graph: ComputationGraph) -> np.ndarray:
    """Computes `NODE_FEATURES` for each op, in the graph's order: `[n, len(NODE_FEATURES)] float32`."""
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
    """Computes `EDGE_FEATURES` for each use, a (tensor, consumer) pair: `[e, len(EDGE_FEATURES)] float32`."""
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


def type_features(graph: ComputationGraph) -> np.ndarray:
    """Computes `TYPE_FEATURES` for each op, in the graph's order: `[n, len(TYPE_FEATURES)]` float32."""
    return np.array([_features(op.type) for op in graph.ops], np.float32).reshape(-1, len(TYPE_FEATURES))


def order_features(graph: ComputationGraph) -> np.ndarray:
    """Computes Topoformer's features for each op: `[n, len(ORDER_FEATURES)]` float32, the first eight in [0, 1].

    The paper's graphs have one source, one target and one output per op. Definitions for all other graphs:

    - output bytes are summed over all outputs; an alias counts as 0, a tensor that reuses a buffer with its own bytes;
      no feature shows that a tensor is kept to the end;
    - an op's parameters p are its `workspace_bytes`, memory allocated only while it runs; `weight_bytes` do not depend
      on the order and are not a feature;
    - degrees and distances (in hops) count `GraphArrays.dependencies`, data and control: pairs of ops, not of tensors;
    - distances are from the nearest (least) and the farthest (largest) of all ops without predecessors, and likewise to
      ops without successors;
    - a feature that is 0 everywhere stays 0.
    """
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
    """Computes `order_features`, padded to `ops` rows of zeros: `[ops, len(ORDER_FEATURES)]` float32.

    Raises:
      GraphError: the graph has more than `ops` ops.
    """
    features = order_features(graph)
    if len(features) > ops:
        raise GraphError(f"graph {graph.name!r} has {len(features)} ops: must be at most the {ops} it is padded to")
    return np.pad(features, ((0, ops - len(features)), (0, 0)))


def layer_features(graph: ComputationGraph, order: np.ndarray | None = None) -> np.ndarray:
    """Computes the layer features of EGRL's policy (table 1 of its paper): `[n, 19]` float32.

    Rows are in the given order, by default the graph's topological order. Each feature x becomes log(1 + x), because
    sizes and counts span many orders of magnitude. In a graph without shapes, all features that need them are 0, except
    the sizes of inputs and outputs, which are then bytes.
    """
    a = graph.arrays
    order = a.topological if order is None else order
    layers = [graph.ops[op].layer or Layer() for op in order]
    shapes = np.array([dataclasses.astuple(layer) for layer in layers], np.float64).reshape(-1, 13)
    batch, ifm, ofm, window = shapes[:, :1], shapes[:, 1:4], shapes[:, 4:7], shapes[:, 7:]
    read, written = np.zeros(a.num_ops), np.zeros(a.num_ops)
    np.add.at(read, a.use_op, a.tensor_bytes[a.use_tensor])
    outside = {tensor.name: tensor.bytes for tensor in graph.inputs}
    read += [sum(outside.get(name, 0) for name in set(op.inputs)) for op in graph.ops]
    np.add.at(written, a.producer, a.tensor_bytes)
    weights = a.weight_bytes[order].astype(np.float64)
    left = np.arange(a.num_ops)[::-1]
    columns = [
        np.array([_op_id(graph.ops[op].type) for op in order]),
        weights,
        *ifm.T,
        *ofm.T,
        np.where(ifm.any(1), ifm.prod(1), read[order]),
        np.where(ofm.any(1), ofm.prod(1), written[order]),
        left,
        weights[::-1].cumsum()[::-1],
        *window.T,
        *batch.T,
    ]
    return np.log1p(np.stack(columns, axis=1)).astype(np.float32)


def relations(graph: ComputationGraph) -> np.ndarray:
    """Classifies every pair of ops: `[n, n]` uint8, at `[i, j]` the relation of sender j to receiver i.

    Codes are indices of `RELATIONS`. Each pair has exactly one, and `[j, i]` has the reverse of `[i, j]`.
    """
    after, edges, reduced = _after(graph.arrays)
    before = 3 * after - edges - reduced  # [j, i]: 1 to 3 as in FROM_*, 0 if j is not before i
    codes = _CODE_OF[np.ascontiguousarray(before.T) + _BACKWARD * before]
    np.fill_diagonal(codes, SELF)
    return codes


def padded_relations(graph: ComputationGraph, ops: int) -> np.ndarray:
    """Computes `relations`, with the code `PADDING` in the rows and columns of padding ops: `[ops, ops]` uint8.

    Raises:
      GraphError: the graph has more than `ops` ops.
    """
    n = graph.arrays.num_ops
    if n > ops:
        raise GraphError(f"graph {graph.name!r} has {n} ops: must be at most the {ops} that it is padded to")
    padded = np.full((ops, ops), PADDING, np.uint8)
    padded[:n, :n] = relations(graph)
    return padded


def laplacian_encodings(source: np.ndarray, target: np.ndarray, level: np.ndarray, dimension: int = 20) -> np.ndarray:
    """Computes Laplacian positional encodings: `[n, dimension]` float64, from -1 to 1.

    These are the eigenvectors of I - D^-1/2 A D^-1/2 of the undirected graph for the smallest eigenvalues above 0:
    smooth functions on the graph. Choices that Dwivedi and Bresson leave open, and deviations:

    - each component has one vector of eigenvalue 0, which only identifies the component: these are dropped. The others
      are computed one component at a time, so that equal components do not mix;
    - signs, which the paper draws at random in every step, are fixed. A vector increases with `level`. If it neither
      increases nor decreases, its longer tail is above 0. Without a longer tail, its largest entry (the first such) is
      positive;
    - a vector is divided by its largest absolute entry: numbers from -1 to 1 for every size of graph;
    - if there are fewer vectors than `dimension`, the remaining columns are 0.

    Vectors of equal eigenvalues are any basis of their space and depend on the numbering of ops. So does the last sign
    rule, in symmetric graphs.

    Args:
      source, target: `[m]` ops at both ends of each edge; pairs are distinct, their direction is ignored.
      level: `[n]` values that determine the signs, such as the ops' depth - height.
      dimension: number of encodings.
    """
    n = len(level)
    encodings = np.zeros((n, dimension))
    if n <= _DENSE:
        adjacency = np.zeros((n, n))
        adjacency[source, target] = adjacency[target, source] = 1.0
        values, vectors = _largest(_normalised(adjacency), dimension + 1)
        if n > 1 and values[1] < 1 - _TINY:  # one component, the usual case: no search for components needed
            encodings[:, : len(values) - 1] = _canonical(vectors[:, 1:], level)
            return encodings
    one_way = coo_array((np.ones(len(source)), (source, target)), shape=(n, n)).tocsr()
    modes = sorted(_spectrum(one_way + one_way.T, dimension), key=lambda pair: pair[0])
    for column, (_, members, vector) in zip(encodings.T, modes, strict=False):
        column[members] = _canonical(vector[:, None], level[members])[:, 0]
    return encodings


def padded_features(graph: ComputationGraph, to: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Computes node features `[n, F]` and edge features `[e, H]`, float32, padded with zeros to the sizes `to`."""
    nodes, edges = node_features(graph), edge_features(graph)
    return _padded(nodes, to.ops), _padded(edges, to.uses)


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))


def buffer_bytes(a: GraphArrays) -> np.ndarray:
    """Returns the bytes of every tensor's own buffer, 0 for an alias: `[t] float64`."""
    return np.where(a.alias == NONE, a.tensor_bytes, 0).astype(np.float64)


def _mean(amounts: np.ndarray) -> float:
    return float(amounts.sum(dtype=np.float64) / len(amounts)) if len(amounts) else 0.0


def total(index: np.ndarray, amounts: np.ndarray, count: int) -> np.ndarray:
    """Sums the amounts that have the same index, for indices 0 to `count` - 1: `[count] float64`."""
    return np.bincount(index, weights=amounts, minlength=count)


def ratio(amounts: np.ndarray, unit: float | np.ndarray) -> np.ndarray:
    """Returns `amounts / unit`, and 0 where the unit is 0."""
    unit = np.asarray(unit, np.float64)
    return np.divide(amounts, unit, out=np.zeros(len(amounts)), where=unit > 0)


@functools.lru_cache(maxsize=4096)
def _features(type: str) -> tuple[float, ...]:
    """Computes the features of one op type; the name features are 0 for an empty name."""
    name = np.zeros(BUCKETS)
    text = f"<{type.lower()}>"
    for i in range(len(text) - 2 if type else 0):
        hashed = zlib.crc32(text[i : i + 3].encode())
        name[hashed % BUCKETS] += 1.0 if hashed >> 31 else -1.0
    length = np.sqrt(np.square(name).sum())
    return float(type in LIGHT), float(type in REDUCTIONS), *(name / max(length, 1.0))


def _spectrum(adjacency: csr_array, dimension: int) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Yields (eigenvalue, component's ops, eigenvector) for the smallest eigenvalues above 0 of every component."""
    components, label = connected_components(adjacency, directed=False)
    by_label = np.argsort(label, kind="stable")
    for members in np.split(by_label, np.cumsum(np.bincount(label, minlength=components))[:-1]):
        if len(members) > 1:
            part = adjacency if components == 1 else adjacency[members][:, members]
            part = part.toarray() if len(members) <= _DENSE else part
            values, vectors = _largest(_normalised(part), min(dimension + 1, len(members)))
            for value, vector in zip(values[1:].tolist(), vectors.T[1:], strict=True):
                yield round(1 - value, 9), members, vector


def _normalised(adjacency: np.ndarray | csr_array) -> np.ndarray | csr_array:
    """Returns D^-1/2 A D^-1/2; isolated ops of a dense matrix have 1 on the diagonal: components have eigenvalue 1."""
    degree = adjacency.sum(axis=1)
    scale = 1 / np.sqrt(np.maximum(degree, 1.0))
    if isinstance(adjacency, np.ndarray):
        return adjacency * scale[:, None] * scale + np.diag((degree == 0).astype(float))
    diagonal = diags_array(scale)
    return (diagonal @ adjacency @ diagonal).tocsr()


def _largest(matrix: np.ndarray | csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes up to `count` of the largest eigenvalues, descending, and their eigenvectors as columns."""
    if isinstance(matrix, np.ndarray):
        values, vectors = np.linalg.eigh(matrix)
    else:
        start = np.random.default_rng(0).random(matrix.shape[0])
        try:
            values, vectors = eigsh(matrix, count, which="LA", v0=start, tol=1e-9, maxiter=_RESTARTS)
        except ArpackNoConvergence:
            shifted = _SHIFT * eye_array(matrix.shape[0], format="csc") - matrix.tocsc()
            values, vectors = eigsh(shifted, count, sigma=0, which="LM", v0=start, tol=1e-9)
            values = _SHIFT - values
    best = np.argsort(-values, kind="stable")[:count]
    return values[best], vectors[:, best]


def _canonical(vectors: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Applies the signs and the scale that `laplacian_encodings` defines to vectors `[m, k]` of norm 1."""
    centred = level - level.mean()
    size = np.abs(vectors)
    largest = size.max(0)
    first = np.argmax(size > (1 - _TINY) * largest, axis=0)
    rises = centred @ vectors / (np.linalg.norm(centred) + _TINY)
    tail = (vectors**3).sum(0)
    decides = np.where(
        np.abs(rises) > _TINY, rises, np.where(np.abs(tail) > _TINY, tail, vectors[first, range(len(first))])
    )
    return vectors * (np.sign(decides) / largest)


def _least_hops(order: np.ndarray, before: list[list[int]]) -> np.ndarray:
    """Counts the edges on the shortest path to each op from an op without predecessors: `[n]` int64."""
    hops = [0] * len(before)
    for op in order.tolist():
        hops[op] = min((hops[other] + 1 for other in before[op]), default=0)
    return np.array(hops)


def _after(a: GraphArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes reachability, successors and the transitive reduction: three `[n, n]` uint8 matrices.

    `[j, i]` is 1 if i is after j, if i is a successor of j, and if j -> i is in the reduction. A successor is in the
    reduction unless another successor is before it.
    """
    n = a.num_ops
    after, direct, through = [0] * n, [0] * n, [0] * n
    for op in reversed(a.topological.tolist()):
        own = indirect = 0
        for successor in a.successors[op]:
            own |= 1 << successor
            indirect |= after[successor]
        direct[op], through[op], after[op] = own, indirect, own | indirect
    closure, edges, indirectly = (bit_matrix(sets) for sets in (after, direct, through))
    return closure, edges, edges & (1 - indirectly)


def _op_id(type: str) -> int:
    """Returns EGRL's number of a type: 0 light, 1 reduction, from 2 on the kinds in `_KINDS`, then all others."""
    name = type.lower()
    kind = next((i for i, part in enumerate(_KINDS) if part in name), len(_KINDS))
    return 0 if type in LIGHT else 1 if type in REDUCTIONS else 2 + kind
