"""The problem instances of `Proposal-v0`: padded graphs with their features. NumPy, on the host."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.costs.problem import Problem
from graphrl.envs.proposal.hint import hint
from graphrl.graphs.features import padded_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ProposalParams:
    """One graph and what the network sees of it; a batch has a leading axis g on every array."""

    graph: PaddedGraph
    nodes: jax.Array | np.ndarray  # [n, F] float32, features of ops, then the d + 1 of a hint if any; 0 for padding
    edges: jax.Array | np.ndarray  # [e, H] float32, features of uses; 0 for padding


def instance(graph: ComputationGraph, to: Sizes | None = None, hint_for: Problem | None = None) -> ProposalParams:
    """A graph as an instance, padded to `to` (by default its bucket); with a problem, the ops' features end with what
    list scheduling would do (`hint`).

    Raises:
      GraphError: `to` is too small for the graph.
    """
    to = common_sizes([graph]) if to is None else to
    nodes, edges = padded_features(graph, to)
    if hint_for is not None:
        columns = hint(graph, hint_for)
        nodes = np.concatenate([nodes, np.pad(columns, ((0, to.ops - len(columns)), (0, 0)))], 1)
    return ProposalParams(pad(graph, to), nodes, edges)


def instances(
    graphs: Sequence[ComputationGraph], to: Sizes | None = None, hint_for: Problem | None = None
) -> ProposalParams:
    """A batch of instances (leading axis g), padded to `to` (by default the bucket that holds them all).

    Raises:
      GraphError: `to` is too small for a graph.
    """
    to = common_sizes(graphs) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(instance(graph, to, hint_for) for graph in graphs))
