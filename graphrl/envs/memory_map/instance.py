"""The problem instances of `MemoryMap-v0`: padded map problems with what a network sees of them. NumPy, on the host."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from graphrl.costs.maps.padding import MapSizes, PaddedMapProblem, common_sizes, pad
from graphrl.costs.maps.problem import MapProblem
from graphrl.graphs.layers.features import FEATURES, layer_features


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MapParams:
    """One problem of N steps and M memories and what the network sees of it; a batch has a leading axis g."""

    problem: PaddedMapProblem
    nodes: jax.Array | np.ndarray  # [N, F] float32, features of steps (graphs/layers/features.py); 0 for padding
    reads: jax.Array | np.ndarray  # [N, N] bool, whether step i reads an output of step j
    placed: jax.Array | np.ndarray  # [N, 2] bool, whether a step has weights, and outputs, to be placed


def instance(problem: MapProblem, to: MapSizes | None = None) -> MapParams:
    """A map problem as an instance, padded to `to` (by default its bucket).

    Raises:
      ProblemError: `to` is too small for it.
    """
    to, n = common_sizes([problem]) if to is None else to, problem.steps
    nodes = np.zeros((to.steps, len(FEATURES)), np.float32)
    reads = np.zeros((to.steps, to.steps), bool)
    placed = np.zeros((to.steps, 2), bool)
    padded = pad(problem, to)
    nodes[:n] = layer_features(problem.graph, problem.order)
    reads[problem.read_step, problem.read_source] = True
    placed[:n] = np.stack([problem.has_weights, problem.has_outputs], axis=1)
    return MapParams(padded, nodes, reads, placed)


def instances(problems: Sequence[MapProblem], to: MapSizes | None = None) -> MapParams:
    """A batch of instances (leading axis g) of equally many memories, padded to common sizes.

    Raises:
      ProblemError: `to` is too small for one.
    """
    to = common_sizes(problems) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(instance(problem, to) for problem in problems))
