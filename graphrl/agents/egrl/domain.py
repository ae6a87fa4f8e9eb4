"""Memory maps as what EGRL's search decides: `MemoryMap-v0` of one step, as pure functions of padded problems.

Letters: N steps, padded; F features of a step; M memories; E reads, padded.
"""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphrl.costs.maps import device
from graphrl.costs.maps.padding import READS, MapSizes, PaddedMapProblem, common_sizes
from graphrl.costs.maps.problem import MapProblem
from graphrl.envs.memory_map.instance import instance
from graphrl.learning.rollouts import Domain

Reward = Literal["valid", "rectified"]


class Layers(NamedTuple):
    """One problem, and what networks see of it; a batch has a leading axis g."""

    graph: jraph.GraphsTuple  # nodes [N + 1, F], an edge [E] for each pair of a step and one that reads its output
    placed: jax.Array  # [N, 2] bool, whether a step has weights, and outputs, to be placed
    problem: PaddedMapProblem


class Seen(NamedTuple):
    """What networks see of a problem and the map before."""

    graph: jraph.GraphsTuple  # nodes [N + 1, F + 2 M]: the features, and the memories of the map before, one-hot
    mask: jax.Array  # [N] bool, real steps
    placed: jax.Array  # [N, 2] bool, as in `Layers`


def layers(problems: Sequence[MapProblem], to: MapSizes | None = None) -> Layers:
    """A batch of problems of equally many memories, padded to common sizes (NumPy).

    Features are the environment's, of every graph shifted and scaled to mean 0 and deviation 1 over its steps.

    Raises:
      ProblemError: `to` is too small for one.
    """
    to = common_sizes(problems) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(_layers(problem, to) for problem in problems))


def _layers(problem: MapProblem, to: MapSizes) -> Layers:
    params, n = instance(problem, to), problem.steps
    real = np.asarray(params.nodes[:n])
    nodes = np.zeros((to.steps + 1, real.shape[1]), np.float32)
    nodes[:n] = (real - real.mean(0)) / np.maximum(real.std(0), 1e-6)
    most = READS * (to.steps + to.reads)
    ends = np.full((2, most), to.steps, np.int32)
    ends[:, : len(problem.read_step)] = problem.read_source, problem.read_step
    counts = np.array([[n, to.steps + 1 - n], [len(problem.read_step), most - len(problem.read_step)]], np.int32)
    graph = jraph.GraphsTuple(nodes, None, ends[1], ends[0], None, *counts)
    return Layers(graph, np.asarray(params.placed), params.problem)  # type: ignore[arg-type]


def start(problem: Layers) -> jax.Array:
    """Everything is in memory 0 (the paper's initial mapping): `[N, 2]` int32."""
    return jnp.zeros(problem.placed.shape, jnp.int32)


def observe(problem: Layers, before: jax.Array) -> Seen:
    """The features beside the map before."""
    n = before.shape[0]
    last = jax.nn.one_hot(before, problem.problem.memories).reshape(n, -1)
    nodes = jnp.concatenate([jnp.asarray(problem.graph.nodes), jnp.pad(last, ((0, 1), (0, 0)))], -1)
    mask = jnp.arange(n, dtype=jnp.int32) < problem.problem.num_steps
    return Seen(problem.graph._replace(nodes=nodes), mask, jnp.asarray(problem.placed))


def evaluate(problem: Layers, action: jax.Array, reward: Reward = "valid") -> jax.Array:
    """What a map earns: `[]` float32.

    "valid" is the environment's (algorithm 1): less than 0 if the compiler moved anything. "rectified" is that of the
    map that the compiler makes of it, whatever moved (ours).
    """
    asked = jnp.where(problem.placed, action, 0)
    costs = device.evaluate(problem.problem, asked[:, :1], asked[:, 1:])
    if reward == "rectified":
        costs = costs._replace(valid=jnp.ones_like(costs.valid))
    return device.reward(problem.problem, costs)[0]


@functools.cache
def domain(memories: int, reward: Reward) -> Domain:
    """Maps of chips with so many memories."""
    return Domain(memories, start, observe, functools.partial(evaluate, reward=reward))
