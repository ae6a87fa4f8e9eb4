"""What HDP learns on: one graph on the device, with what its grouper reads. NumPy, on the host."""

from typing import NamedTuple

import jax
import numpy as np

from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.graphs.features import node_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.op_types import type_features
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.simple import breadth_first


class Instance(NamedTuple):
    """One graph of n ops (padding included), e uses and F features."""

    graph: PaddedGraph  # a batch of one
    problem: DeviceProblem
    features: jax.Array | np.ndarray  # [n, F] float32; 0 for padding
    leader: jax.Array | np.ndarray  # [n] int32, the first of the ops that each one is colocated with
    decides: jax.Array | np.ndarray  # [n] bool, whether it is its own leader, and real
    keys: jax.Array | np.ndarray  # [n] float32, of the order: first in, first out


def instance(graph: ComputationGraph, problem: Problem) -> Instance:
    """A graph as an instance.

    The grouper reads what other networks here read of an op, and where it stands in the order. (TensorFlow's reads its
    type, the shapes of its outputs, and the numbers of ten of its neighbours.)
    """
    padded, n = pad_batch([graph]), len(graph.ops)
    place = np.empty(n)
    place[breadth_first(Flow(graph))] = (np.arange(n) + 0.5) / n
    leader = np.arange(padded.sizes.ops)
    leader[:n] = graph.leaders
    features = np.column_stack([node_features(graph), type_features(graph), place])
    rest = padded.sizes.ops - n
    return Instance(
        graph=padded,
        problem=DeviceProblem.of(problem),
        features=np.pad(features, ((0, rest), (0, 0))).astype(np.float32),
        leader=leader.astype(np.int32),
        decides=(leader == np.arange(len(leader))) & (np.arange(len(leader)) < n),
        keys=np.pad(1 - place, (0, rest)).astype(np.float32),
    )
