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

from graphrl.agents.egrl.features import step_features
from graphrl.costs.maps import device
from graphrl.costs.maps.padding import READS, MapSizes, PaddedMapProblem, common_sizes, pad
from graphrl.costs.maps.problem import MapProblem
from graphrl.learning.rollouts import Domain
from graphrl.solvers.maps.evaluation import evaluate_all, maps_of

Reward = Literal["valid", "rectified"]
Hint = Literal["none", "compiler", "uniform"]


class Layers(NamedTuple):
    """One problem, and what networks see of it; a batch has a leading axis g."""

    graph: jraph.GraphsTuple  # nodes [N + 1, F], an edge [E] for each pair of a step and one that reads its output
    placed: jax.Array  # [N, 2] bool, whether a step has weights, and outputs, to be placed
    problem: PaddedMapProblem
    before: jax.Array  # [N, 2] int32, the map that is seen first
    preferred: jax.Array  # [N, 2] int32, the map that an untrained network asks for


class Seen(NamedTuple):
    """What networks see of a problem and the map before."""

    graph: jraph.GraphsTuple  # nodes [N + 1, F + 2 M]: the features, and the memories of the map before, one-hot
    mask: jax.Array  # [N] bool, real steps
    placed: jax.Array  # [N, 2] bool, as in `Layers`
    preferred: jax.Array  # [N, 2] int32, as in `Layers`


def layers(problems: Sequence[MapProblem], to: MapSizes | None = None, hint: Hint = "none") -> Layers:
    """A batch of problems of equally many memories, padded to common sizes (NumPy).

    Args:
      problems: their features are those of `step_features`.
      to: the sizes; by default the least that hold all.
      hint: see `hinted`.

    Raises:
      ProblemError: `to` is too small for one.
    """
    to = common_sizes(problems) if to is None else to
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(_layers(problem, hint, to) for problem in problems))


def _layers(problem: MapProblem, hint: Hint, to: MapSizes) -> Layers:
    n, features = problem.steps, step_features(problem)
    nodes = np.zeros((to.steps + 1, features.shape[1]), np.float32)
    nodes[:n] = features
    placed = np.zeros((to.steps, 2), bool)
    placed[:n] = np.stack([problem.has_weights, problem.has_outputs], 1)
    before, preferred = np.zeros((2, to.steps, 2), np.int32)
    before[:n], preferred[:n] = hinted(problem, hint)
    before[~placed] = 0
    most = READS * (to.steps + to.reads)
    ends = np.full((2, most), to.steps, np.int32)
    ends[:, : len(problem.read_step)] = problem.read_source, problem.read_step
    counts = np.array([[n, to.steps + 1 - n], [len(problem.read_step), most - len(problem.read_step)]], np.int32)
    graph = jraph.GraphsTuple(nodes, None, ends[1], ends[0], None, *counts)
    return Layers(graph, placed, pad(problem, to), before, preferred)  # type: ignore[arg-type]


def uniform(problem: MapProblem, hint: Hint) -> np.ndarray:
    """The maps that a hint is chosen from, each of one memory for all weights and one for all outputs: `[k, n, 2]`."""
    fastest = problem.memories - 1
    if hint != "uniform":
        return np.full((1, problem.steps, 2), fastest)
    pairs = [(weights, outputs) for weights in range(fastest, -1, -1) for outputs in range(fastest, -1, -1)]
    return np.broadcast_to(np.array(pairs)[:, None], (len(pairs), problem.steps, 2))


def hinted(problem: MapProblem, hint: Hint) -> tuple[np.ndarray, np.ndarray]:
    """The maps `[n, 2]` int64 that networks see first, and that an untrained one asks for.

    With a hint what is asked for is the fastest of `uniform`, as the compiler makes it valid, and that is seen. With
    none everything in memory 0 is seen (the paper's initial mapping).
    """
    maps = uniform(problem, hint)
    if hint == "none":
        return np.zeros_like(maps[0]), maps[0]
    asked = np.ascontiguousarray(maps.swapaxes(1, 2).reshape(len(maps), -1))
    given, seconds = np.empty_like(asked), np.empty(len(asked))
    evaluate_all(maps_of(problem), asked, given, seconds, np.empty(len(asked), np.int64))
    best = int(seconds.argmin())
    return given[best].reshape(2, -1).T, maps[best]


def start(problem: Layers) -> jax.Array:
    """The map that is seen first: `[N, 2]` int32."""
    return jnp.asarray(problem.before)


def observe(problem: Layers, before: jax.Array) -> Seen:
    """The features beside the map before."""
    n = before.shape[0]
    last = jax.nn.one_hot(before, problem.problem.memories).reshape(n, -1)
    nodes = jnp.concatenate([jnp.asarray(problem.graph.nodes), jnp.pad(last, ((0, 1), (0, 0)))], -1)
    mask = jnp.arange(n, dtype=jnp.int32) < problem.problem.num_steps
    return Seen(problem.graph._replace(nodes=nodes), mask, jnp.asarray(problem.placed), jnp.asarray(problem.preferred))


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


def speedup(problem: Layers, action: jax.Array) -> jax.Array:
    """How many times what the compiler makes of a map is as fast as its own map: `[]` float32."""
    return jnp.sqrt(evaluate(problem, action, "rectified"))


@functools.cache
def domain(memories: int, reward: Reward) -> Domain:
    """Maps of chips with so many memories."""
    return Domain(memories, start, observe, functools.partial(evaluate, reward=reward))
