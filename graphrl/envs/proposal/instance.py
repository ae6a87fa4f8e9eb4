"""The problem instances of `Proposal-v0`: padded graphs with their features. NumPy, on the host."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.costs.problem import Problem
from graphrl.graphs.features import padded_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad
from graphrl.solvers.rules.list_scheduling import quick_schedule


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


def hint(graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """What the genes of `quick_schedule`'s plan would be, `[n, d + 1] float32` between 0 and 1.

    REGAL knows nothing of the kind: its network sees sizes, times and edges, which are alike for all devices, so that
    it cannot tell one half of a graph from the other, and a plan is made of such halves.

    Returns:
      For each op, the affinity of each device (1 where the plan has the op, else 0), and its priority: its place among
      the ops, near 1 for the first and near 0 for the last. Ops that are alike are told apart by the graph's order.
    """
    placement, order = quick_schedule(graph, problem)
    n = len(placement)
    columns = np.zeros((n, problem.devices + 1), np.float32)
    columns[np.arange(n), placement] = 1
    columns[order[order < n], -1] = 1 - (np.arange(n) + 0.5) / n
    return columns
