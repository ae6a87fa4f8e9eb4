"""A large graph as GO's policy sees it: a graph of some hundred clusters, as large as those that it has learned on.

A change of a cluster moves a whole part. What is seen is coarse, what plans cost is not: they are expanded, a cluster's
device to each of its ops in the order of the whole graph, and costed there. So clusters may depend on one another in a
circle. They stand in the order of their ops' mean places, and what goes against that order is not seen.
"""

from typing import NamedTuple

import numpy as np

from graphrl.agents.go.decode import Decoder
from graphrl.agents.go.settings import GoSettings
from graphrl.costs.problem import Problem
from graphrl.envs.compile.instance import Choices, CompileParams, instance
from graphrl.envs.compile.played import Played
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import octave_sizes


class Coarse(NamedTuple):
    """k clusters of a graph of n ops."""

    graph: ComputationGraph  # k ops, in a topological order
    cluster: np.ndarray  # [n] int64, of each op


def coarse(graph: ComputationGraph, group: np.ndarray, place: np.ndarray) -> Coarse:
    """The graph of clusters.

    Args:
      group: `[n]`, equal numbers are one cluster.
      place: `[n]`, of each op in an order.
    """
    a, (_, cluster) = graph.arrays, np.unique(group, return_inverse=True)
    mean = np.bincount(cluster, place) / np.bincount(cluster)
    rank = np.empty(len(mean), np.int64)
    rank[np.argsort(mean, kind="stable")] = np.arange(len(mean))
    cluster = rank[cluster]
    source, target = cluster[a.producer[a.use_tensor]], cluster[a.use_op]
    onward = source < target
    uses = np.unique(np.stack([source[onward], target[onward], a.use_tensor[onward]], 1), axis=0)
    pairs, pair = np.unique(uses[:, :2], axis=0, return_inverse=True)
    sizes = np.bincount(pair.ravel(), a.tensor_bytes[uses[:, 2]], len(pairs)).astype(np.int64)
    outputs: list[list[Tensor]] = [[] for _ in mean]
    inputs: list[list[str]] = [[] for _ in mean]
    for number, ((one, other), size) in enumerate(zip(pairs.tolist(), sizes.tolist(), strict=True)):
        outputs[one].append(Tensor(f"t{number}", size))
        inputs[other].append(f"t{number}")
    runtime = np.bincount(cluster, a.runtime).tolist()
    ops = (
        Op(f"c{i}", runtime=seconds, inputs=tuple(inputs[i]), outputs=tuple(outputs[i]))
        for i, seconds in enumerate(runtime)
    )
    return Coarse(ComputationGraph(graph.name, tuple(ops)), cluster)


def seen(coarse: Coarse, problem: Problem, placement: np.ndarray, settings: GoSettings) -> tuple[CompileParams, Played]:
    """The instance of the clusters that begins at a placement `[n]` of the ops, and how that runs. Each cluster must be
    on one device.
    """
    k = len(coarse.graph.ops)
    devices, level = np.zeros(k, np.int64), np.full(k, settings.levels // 2)
    devices[coarse.cluster] = placement
    params = instance(
        coarse.graph,
        problem,
        octave_sizes(coarse.graph),
        devices=max(problem.devices, *settings.devices),
        levels=settings.levels,
        baseline=1.0,
        start=Choices(devices, level),
        order=np.arange(k),
        reach=settings.reach,
    )
    return params, Decoder(coarse.graph, problem, params).played(devices, level)
