"""Observations of pairs, as `Ordering-v0` makes them, for tests of the networks that look at them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.graphs.features import padded_order_features, padded_relations
from graphrl.graphs.graph import ComputationGraph


class Pairs(NamedTuple):
    """What a network sees of one graph."""

    nodes: jax.Array  # [n, F]
    relation: jax.Array  # [n, n] uint8
    mask: jax.Array  # [n] bool


def pairs(graph: ComputationGraph, ops: int | None = None) -> Pairs:
    """Of a graph, padded to `ops`."""
    ops = len(graph.ops) if ops is None else ops
    real = np.arange(ops) < len(graph.ops)
    seen = Pairs(padded_order_features(graph, ops), padded_relations(graph, ops), real)  # type: ignore[arg-type]
    return jax.tree.map(jnp.asarray, seen)


def renumbered(seen: Pairs, order: np.ndarray) -> Pairs:
    """The same graph with op `order[i]` at place i."""
    return Pairs(seen.nodes[order], seen.relation[order][:, order], seen.mask[order])
