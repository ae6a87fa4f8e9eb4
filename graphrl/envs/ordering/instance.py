"""The problem instances of `Ordering-v0`: padded graphs with what a network sees of them. NumPy, on the host."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.order_features import padded_order_features
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad
from graphrl.graphs.relations import padded_relations


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OrderingParams:
    """One graph and what the network sees of it; a batch has a leading axis g on every array."""

    graph: PaddedGraph
    nodes: jax.Array | np.ndarray  # [n, F] float32, features of ops (graphs/order_features.py); 0 for padding
    relation: jax.Array | np.ndarray  # [n, n] uint8, how op j stands to op i (graphs/relations.py)


def instance(graph: ComputationGraph, to: Sizes | None = None) -> OrderingParams:
    """A graph as an instance, padded to `to` (by default its bucket).

    Raises:
      GraphError: `to` is too small for the graph.
    """
    to = common_sizes([graph]) if to is None else to
    return OrderingParams(pad(graph, to), padded_order_features(graph, to.ops), padded_relations(graph, to.ops))


def instances(graphs: Sequence[ComputationGraph], to: Sizes | None = None) -> OrderingParams:
    """A batch of instances (leading axis g), padded to `to` (by default the bucket that holds them all).

    Raises:
      GraphError: `to` is too small for a graph.
    """
    to = common_sizes(graphs) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(instance(graph, to) for graph in graphs))
