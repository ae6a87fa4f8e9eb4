"""The features of layers that EGRL's policy sees (table 1 of the paper), for a graph in an order.

Sizes and counts run over many powers of ten: each feature x is log(1 + x). Where a graph has no shapes, all that needs
them is 0, but the sizes of inputs and outputs, which are then bytes.
"""

import dataclasses

import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.layers.kinds import LIGHT, REDUCTIONS
from graphrl.graphs.layers.layer import Layer

FEATURES = (
    *("op_id", "weight_size", "ifm_x", "ifm_y", "ifm_z", "ofm_x", "ofm_y", "ofm_z", "ifm_size", "ofm_size"),
    *("n_ops_left", "n_w_left", "groups", "kernel_x", "kernel_y", "stride", "pad", "dilation", "batch"),
)
# What an op is, by parts of its type's name, the first that is there: its id is the place, from 2 on.
KINDS = ("conv", "dot", "matmul", "gemm", "pool", "window", "norm", "softmax", "gather", "quantize")


def layer_features(graph: ComputationGraph, order: np.ndarray | None = None) -> np.ndarray:
    """The features of each op: `[n, 19]` float32, in the order given (by default the graph's topological one)."""
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


def _op_id(type: str) -> int:
    """0 for what moves data or works element by element, 1 for reductions, 2 on by `KINDS`, the next for the rest."""
    name = type.lower()
    kind = next((i for i, part in enumerate(KINDS) if part in name), len(KINDS))
    return 0 if type in LIGHT else 1 if type in REDUCTIONS else 2 + kind
