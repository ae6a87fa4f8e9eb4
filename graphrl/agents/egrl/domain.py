"""Memory maps as the domain of EGRL's search: `MemoryMap-v0` of one step, as pure functions of padded problems.

`step_features` are the features of a step: those of the paper's table 1, and its cost in each memory of the chip
(ours). All graphs' features are shifted and scaled by the same numbers, so that sizes keep their meaning from one graph
to the next. `layers` adds the hint, a map that the networks see. `observe` and `evaluate` give observation and reward
of a map.

Letters: N steps, padded; n steps of one graph; F features of a step; M memories; E reads, padded.
"""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphrl.costs.maps import device
from graphrl.costs.maps.device import READS, MapSizes, PaddedMapProblem, common_sizes, pad
from graphrl.costs.maps.problem import MapProblem, live_pages
from graphrl.graphs.features import layer_features
from graphrl.learning.sac import Domain
from graphrl.solvers.maps.task import evaluate_all, maps_of

# Of the 19 features of `layer_features`, about their mean and deviation over the layers of common models.
_SHIFT = np.array([1.0, 7, 2, 2, 4, 2, 2, 4, 12, 12, 4, 15, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], np.float32)
_SCALE = np.array([1.0, 6, 2, 2, 3, 2, 2, 3, 3, 3, 1, 3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], np.float32)
_SECOND, _SHARE = 1e-7, 1 / 64  # what times and shares of a memory are counted in


def step_features(problem: MapProblem) -> np.ndarray:
    """Of each step: `[n, 24 + 3 M + 9 (M - 1)]` float32."""
    table = (layer_features(problem.graph, problem.order) - _SHIFT) / _SCALE
    return np.concatenate([table, _times(problem), _room(problem), _life(problem), _worth(problem)], 1).astype(
        np.float32
    )


def _times(problem: MapProblem) -> np.ndarray:
    """Logarithms of seconds, `[n, 2 + 3 M]`: of operations, of external inputs, and in each memory of weights, of
    outputs and of what is read.
    """
    reads = np.zeros_like(problem.output_seconds)
    np.add.at(reads, problem.read_step, problem.read_seconds)
    alone = np.stack([problem.compute, problem.input_seconds], 1)
    seconds = np.concatenate([alone, problem.weight_seconds, problem.output_seconds, reads], 1)
    return np.log1p(seconds / _SECOND) / 4 - 1


def _room(problem: MapProblem) -> np.ndarray:
    """Logarithms of the share that pages are of each memory but the largest, `[n, 5 (M - 1)]`: those of weights, of
    outputs, of all outputs that are live, of all weights so far, and of all weights.
    """
    live = live_pages(problem, np.ones(len(problem.writer), bool))
    weights = problem.weight_pages
    everything = np.full(problem.steps, weights.sum())
    pages = np.stack([weights, _output_pages(problem), live, weights.cumsum(), everything], 1)
    share = pages[:, :, None] / np.maximum(_capacity(problem), 1)
    return (np.log1p(share / _SHARE) / 3 - 1).reshape(problem.steps, -1)


def _life(problem: MapProblem) -> np.ndarray:
    """`[n, 3]`: how far along a step is, what part of all steps its outputs live, and the logarithm of these steps."""
    n, life = problem.steps, _lives(problem)
    return np.stack([np.arange(n) / n, life / n, np.log(life) / 2], 1)


def _worth(problem: MapProblem) -> np.ndarray:
    """What each memory but the largest is worth to weights and to outputs, `[n, 4 (M - 1)]`: the logarithm of the
    seconds that it saves, and that of the share of its room, over time, that tensors take which it saves more for their
    bytes and the steps that they live.

    As if all else were in memory 0, and no more than what a step there takes beyond its operations.
    """
    n = problem.steps
    reads = np.zeros(n)
    np.add.at(reads, problem.read_step, problem.read_seconds[:, 0])
    slowest = problem.input_seconds + problem.weight_seconds[:, 0] + problem.output_seconds[:, 0] + reads
    slack = np.maximum(slowest - problem.compute, 0)[:, None]
    weights, written, read = (
        each[:, :1] - each[:, 1:] for each in (problem.weight_seconds, problem.output_seconds, problem.read_seconds)
    )
    outputs = np.minimum(written, slack)
    np.add.at(outputs, problem.read_source, np.minimum(read, slack[problem.read_step]))
    saved = np.concatenate([np.minimum(weights, slack), outputs])
    room = np.concatenate([problem.weight_pages * n, _output_pages(problem) * _lives(problem)])
    order = np.argsort(-saved / np.maximum(room, 1)[:, None], axis=0, kind="stable")
    taken = np.empty_like(saved)
    np.put_along_axis(taken, order, room[order].cumsum(0), 0)
    share = taken / (np.maximum(_capacity(problem), 1) * n)
    worth = np.concatenate([np.log1p(saved / _SECOND) / 4 - 1, np.log(share + _SHARE) / 2], 1)
    return np.concatenate([worth[:n], worth[n:]], 1)


def _lives(problem: MapProblem) -> np.ndarray:
    """How many steps the outputs of each step live: `[n]` int64, at least 1."""
    last = np.arange(problem.steps)
    np.maximum.at(last, problem.writer, problem.last)
    return last - np.arange(problem.steps) + 1


def _output_pages(problem: MapProblem) -> np.ndarray:
    """Of each step: `[n]` int64."""
    pages = np.zeros(problem.steps, np.int64)
    np.add.at(pages, problem.writer, problem.tensor_pages)
    return pages


def _capacity(problem: MapProblem) -> np.ndarray:
    """Pages of each memory but the largest: `[M - 1]` float64."""
    sizes = [memory.capacity for memory in problem.chip.memories[1:]]
    return np.array([np.inf if size is None else size / problem.chip.page for size in sizes])


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
