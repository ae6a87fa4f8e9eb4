"""Memory maps as the domain of EGRL's search: `MemoryMap-v0` of one step, as pure functions of padded problems.

A step is an op in the order in which the chip runs them. `step_features` computes its features: those of the paper's
table 1, and its cost in each memory of the chip (ours). The shifts and scales of features are the same for all graphs.
`layers` adds the hint, a map that the networks see. `observe` and `evaluate` compute a map's observation and reward.

Letters: N steps, padded; n steps of one graph; F features of a step; M memories; E reads, padded.
"""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphrl.agents.egrl.placement import TensorVisits, visits
from graphrl.costs.maps import device
from graphrl.costs.maps.device import READS, MapSizes, PaddedMapProblem, common_sizes, pad
from graphrl.costs.maps.problem import MapProblem, live_pages
from graphrl.graphs.features import layer_features
from graphrl.learning.sac import Domain
from graphrl.solvers.maps.task import evaluate_all, maps_of

# Approximate mean and deviation of the 19 features of `layer_features` over the layers of common models.
_SHIFT = np.array([1.0, 7, 2, 2, 4, 2, 2, 4, 12, 12, 4, 15, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], np.float32)
_SCALE = np.array([1.0, 6, 2, 2, 3, 2, 2, 3, 3, 3, 1, 3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], np.float32)
_SECOND, _SHARE = 1e-7, 1 / 64  # units of times (seconds) and of shares of a memory


def step_features(problem: MapProblem) -> np.ndarray:
    """Computes the features of each step: `[n, 24 + 3 M + 9 (M - 1)]` float32."""
    table = (layer_features(problem.graph, problem.order) - _SHIFT) / _SCALE
    more = [each(problem) for each in (_time_features, _page_features, _lifetime_features, _value_features)]
    return np.concatenate([table, *more], 1).astype(np.float32)


def _time_features(problem: MapProblem) -> np.ndarray:
    """Computes logarithms of the seconds, `[n, 2 + 3 M]`, for a step's operations and external inputs, and, in each
    memory, for its weights, outputs and reads.
    """
    reads = np.zeros_like(problem.output_seconds)
    np.add.at(reads, problem.read_step, problem.read_seconds)
    alone = np.stack([problem.compute, problem.input_seconds], 1)
    seconds = np.concatenate([alone, problem.weight_seconds, problem.output_seconds, reads], 1)
    return np.log1p(seconds / _SECOND) / 4 - 1


def _page_features(problem: MapProblem) -> np.ndarray:
    """Computes logarithms of numbers of pages, relative to each memory except the largest, `[n, 5 (M - 1)]`: a step's
    weights and outputs, all live outputs, all weights so far, and all weights.
    """
    live = live_pages(problem, np.ones(len(problem.writer), bool))
    weights = problem.weight_pages
    total = np.full(problem.steps, weights.sum())
    pages = np.stack([weights, _output_pages(problem), live, weights.cumsum(), total], 1)
    share = pages[:, :, None] / np.maximum(_capacity(problem), 1)
    return (np.log1p(share / _SHARE) / 3 - 1).reshape(problem.steps, -1)


def _lifetime_features(problem: MapProblem) -> np.ndarray:
    """Computes each step's position and the lifetime of its outputs, both as shares of all steps, and the logarithm of
    that lifetime in steps: `[n, 3]`.
    """
    n, life = problem.steps, _lifetimes(problem)
    return np.stack([np.arange(n) / n, life / n, np.log(life) / 2], 1)


def _value_features(problem: MapProblem) -> np.ndarray:
    """Computes two features of the benefit of each memory except the largest, for a step's weights and for its outputs,
    `[n, 4 (M - 1)]`. One is the logarithm of the seconds that the memory saves. The other is the logarithm of the share
    of its capacity, over time, taken by tensors that save at least the same per byte and step of their lifetime.

    Assumes that all other tensors are in memory 0. Savings are at most the time that a step takes there beyond its
    operations.
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
    room = np.concatenate([problem.weight_pages * n, _output_pages(problem) * _lifetimes(problem)])
    order = np.argsort(-saved / np.maximum(room, 1)[:, None], axis=0, kind="stable")
    taken = np.empty_like(saved)
    np.put_along_axis(taken, order, room[order].cumsum(0), 0)
    share = taken / (np.maximum(_capacity(problem), 1) * n)
    columns = np.concatenate([np.log1p(saved / _SECOND) / 4 - 1, np.log(share + _SHARE) / 2], 1)
    return np.concatenate([columns[:n], columns[n:]], 1)


def _lifetimes(problem: MapProblem) -> np.ndarray:
    """Computes how many steps the outputs of each step live: `[n]` int64, at least 1."""
    last = np.arange(problem.steps)
    np.maximum.at(last, problem.writer, problem.last)
    return last - np.arange(problem.steps) + 1


def _output_pages(problem: MapProblem) -> np.ndarray:
    """Computes the number of pages that each step's outputs take: `[n]` int64."""
    pages = np.zeros(problem.steps, np.int64)
    np.add.at(pages, problem.writer, problem.tensor_pages)
    return pages


def _capacity(problem: MapProblem) -> np.ndarray:
    """Returns the number of pages in each memory except the largest: `[M - 1]` float64."""
    sizes = [memory.capacity for memory in problem.chip.memories[1:]]
    return np.array([np.inf if size is None else size / problem.chip.page for size in sizes])


Reward = Literal["valid", "rectified"]
Hint = Literal["none", "compiler", "uniform"]
Placement = Literal["independent", "sequential"]


class Layers(NamedTuple):
    """One problem and its features for networks; a batch has a leading axis g."""

    graph: jraph.GraphsTuple  # nodes [N + 1, F], an edge [E] from each step to each reader of its output
    placed: jax.Array  # [N, 2] bool, True if a step has weights, or outputs, to place
    problem: PaddedMapProblem
    before: jax.Array  # [N, 2] int32, the map in the first observation
    preferred: jax.Array  # [N, 2] int32, the map that an initial independent network requests
    visits: TensorVisits | None  # for sequential networks


class Observation(NamedTuple):
    """Observation of a problem and the previous map."""

    graph: jraph.GraphsTuple  # nodes [N + 1, F + 2 M]: the features, and the memories of the previous map, one-hot
    mask: jax.Array  # [N] bool, True for real steps
    placed: jax.Array  # [N, 2] bool, as in `Layers`
    preferred: jax.Array  # [N, 2] int32, as in `Layers`
    visits: TensorVisits | None  # as in `Layers`


def layers(
    problems: Sequence[MapProblem],
    to: MapSizes | None = None,
    hint: Hint = "none",
    placement: Placement = "independent",
) -> Layers:
    """Converts problems with the same number of memories to a batch, padded to common sizes (NumPy).

    Args:
      problems: the problems; `step_features` computes their features.
      to: the sizes; by default the smallest that cover all.
      hint: see `hint_maps`.
      placement: of the networks.

    Raises:
      ProblemError: `to` is too small for a problem.
    """
    to = common_sizes(problems) if to is None else to
    each = [_layers(problem, hint, to, placement) for problem in problems]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *each)


def _layers(problem: MapProblem, hint: Hint, to: MapSizes, placement: Placement) -> Layers:
    n, features = problem.steps, step_features(problem)
    nodes = np.zeros((to.steps + 1, features.shape[1]), np.float32)
    nodes[:n] = features
    placed = np.zeros((to.steps, 2), bool)
    placed[:n] = np.stack([problem.has_weights, problem.has_outputs], 1)
    before, preferred = np.zeros((2, to.steps, 2), np.int32)
    before[:n], preferred[:n] = hint_maps(problem, hint)
    before[~placed] = 0
    most = READS * (to.steps + to.reads)
    ends = np.full((2, most), to.steps, np.int32)
    ends[:, : len(problem.read_step)] = problem.read_source, problem.read_step
    counts = np.array([[n, to.steps + 1 - n], [len(problem.read_step), most - len(problem.read_step)]], np.int32)
    graph = jraph.GraphsTuple(nodes, None, ends[1], ends[0], None, *counts)
    turns = visits(problem, to.steps, before[:n]) if placement == "sequential" else None
    return Layers(graph, placed, pad(problem, to), before, preferred, turns)  # type: ignore[arg-type]


def uniform(problem: MapProblem, hint: Hint) -> np.ndarray:
    """Returns the requested maps `[k, n, 2]` from which the hint is chosen, each with one memory for all weights and
    one for all outputs.
    """
    fastest = problem.memories - 1
    if hint != "uniform":
        return np.full((1, problem.steps, 2), fastest)
    pairs = [(weights, outputs) for weights in range(fastest, -1, -1) for outputs in range(fastest, -1, -1)]
    return np.broadcast_to(np.array(pairs)[:, None], (len(pairs), problem.steps, 2))


def hint_maps(problem: MapProblem, hint: Hint) -> tuple[np.ndarray, np.ndarray]:
    """Returns the map `[n, 2]` int64 in the first observation, and the one that an initial network requests.

    With a hint, the request is the one of `uniform` whose map, after the compiler has made it valid, is the fastest;
    the observation has that map. Without a hint the observation has everything in memory 0 (the paper's initial
    mapping).
    """
    maps = uniform(problem, hint)
    if hint == "none":
        return np.zeros_like(maps[0]), maps[0]
    requested = np.ascontiguousarray(maps.swapaxes(1, 2).reshape(len(maps), -1))
    valid_maps, seconds = np.empty_like(requested), np.empty(len(requested))
    evaluate_all(maps_of(problem), requested, valid_maps, seconds, np.empty(len(requested), np.int64))
    best = int(seconds.argmin())
    return valid_maps[best].reshape(2, -1).T, maps[best]


def start(problem: Layers) -> jax.Array:
    """Returns the map in the first observation: `[N, 2]` int32."""
    return jnp.asarray(problem.before)


def observe(problem: Layers, before: jax.Array) -> Observation:
    """Returns the observation of a problem after the map `before`."""
    n = before.shape[0]
    last = jax.nn.one_hot(before, problem.problem.memories).reshape(n, -1)
    nodes = jnp.concatenate([jnp.asarray(problem.graph.nodes), jnp.pad(last, ((0, 1), (0, 0)))], -1)
    mask = jnp.arange(n, dtype=jnp.int32) < problem.problem.num_steps
    graph = problem.graph._replace(nodes=nodes)
    return Observation(graph, mask, jnp.asarray(problem.placed), jnp.asarray(problem.preferred), problem.visits)


def evaluate(problem: Layers, action: jax.Array, reward: Reward = "valid") -> jax.Array:
    """Computes the reward of a map: `[]` float32.

    "valid" is the environment's (algorithm 1): negative if the compiler moved anything. "rectified" is the reward of
    the compiler's valid version of the map, independent of the bytes that moved (ours).
    """
    requested = jnp.where(problem.placed, action, 0)
    costs = device.evaluate(problem.problem, requested[:, :1], requested[:, 1:])
    if reward == "rectified":
        costs = costs._replace(valid=jnp.ones_like(costs.valid))
    return device.reward(problem.problem, costs)[0]


def speedup(problem: Layers, action: jax.Array) -> jax.Array:
    """Computes the speed-up of a map, as changed by the compiler, over the compiler's own map: `[]` float32."""
    return jnp.sqrt(evaluate(problem, action, "rectified"))


@functools.cache
def domain(memories: int, reward: Reward) -> Domain:
    """Returns the search domain of memory maps for chips with the given number of memories."""
    return Domain(memories, start, observe, functools.partial(evaluate, reward=reward))
