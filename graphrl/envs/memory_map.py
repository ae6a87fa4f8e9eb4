"""`MemoryMap-v0`: choose the memory of every weight and output (EGRL).

Instances are padded map problems with features for a network, computed on the host in NumPy.
"""

import dataclasses
import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.maps import device
from graphrl.costs.maps.chip import NNP_I, MemoryChip, find_chip
from graphrl.costs.maps.device import MapSizes, PaddedMapProblem, common_sizes, pad
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.graph_environment import GraphEnvironment, stacked
from graphrl.errors import ProblemError
from graphrl.graphs.coarsen import coarsened
from graphrl.graphs.datasets.sets import load_layers
from graphrl.graphs.features import LAYER_FEATURES, layer_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan.memory_map import MemoryMap


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MemoryMapInstance:
    """One problem of N steps (ops in running order) and M memories, with features; a batch has a leading axis g."""

    problem: PaddedMapProblem
    nodes: jax.Array | np.ndarray  # [N, F] float32, features of steps (`layer_features`); 0 for padding
    reads: jax.Array | np.ndarray  # [N, N] bool, True if step i reads an output of step j
    placed: jax.Array | np.ndarray  # [N, 2] bool, True if a step has weights, or outputs, to place

    @property
    def num_ops(self) -> jax.Array:
        """Number of real ops: `[]` int32."""
        return self.problem.num_steps


def make_instance(problem: MapProblem, to: MapSizes | None = None) -> MemoryMapInstance:
    """Converts a map problem to an instance, padded to `to` (by default its size bucket).

    Raises:
      ProblemError: `to` is too small for the problem.
    """
    to, n = common_sizes([problem]) if to is None else to, problem.steps
    nodes = np.zeros((to.steps, len(LAYER_FEATURES)), np.float32)
    reads = np.zeros((to.steps, to.steps), bool)
    placed = np.zeros((to.steps, 2), bool)
    padded = pad(problem, to)
    nodes[:n] = layer_features(problem.graph, problem.order)
    reads[problem.read_step, problem.read_source] = True
    placed[:n] = np.stack([problem.has_weights, problem.has_outputs], axis=1)
    return MemoryMapInstance(padded, nodes, reads, placed)


def make_instances(problems: Sequence[MapProblem], to: MapSizes | None = None) -> MemoryMapInstance:
    """Converts map problems with the same number of memories to a batch (leading axis g), padded to common sizes.

    Raises:
      ProblemError: `to` is too small for a problem.
    """
    to = common_sizes(problems) if to is None else to
    return stacked([make_instance(problem, to) for problem in problems])


class Observation(NamedTuple):
    """Observation of a problem with N steps (ops in the order in which they run), F features and M memories.

    All fields but `previous` are constant within an episode.

    Attributes:
      nodes: `[N, F]` float32, features of steps (`graphs.features.LAYER_FEATURES`); 0 for padding. Constant.
      reads: `[N, N]` bool, True if step i reads an output of step j. Constant.
      mask: `[N]` bool, True for real steps. Constant.
      action_mask: `[N, 2, M]` bool, for weights and outputs: True for all memories, or only for memory 0 where there is
        no tensor to place. Constant.
      previous: `[N, 2]` int32, the last requested memories of weights and outputs; 0 before the first action.
    """

    nodes: jax.Array
    reads: jax.Array
    mask: jax.Array
    action_mask: jax.Array
    previous: jax.Array


class State(NamedTuple):
    """State of one episode."""

    previous: jax.Array  # [N, 2] int32, the last requested map
    step: jax.Array  # [] int32, number of environment steps so far


@dataclasses.dataclass(frozen=True)
class MemoryMapEnv(GraphEnvironment[MemoryMapInstance]):
    """`MemoryMap-v0`: choose the memory of every op's weights and outputs, for a low latency (EGRL, algorithm 1).

    - Observation: features of the steps, their dependencies, and the last requested map (`Observation`).
    - Action: a memory for the weights and one for the outputs of each step, int32 `[N, 2]`. Values without a tensor to
      place, and for padding, have no effect.
    - Reward: -error if the compiler had to move anything, where the error is the share of all bytes that moved; else
      (latency of the compiler's own map / latency)^2, or without the square.
    - End: terminated after `episode_steps` steps, each of which sets the whole map.
    - State: the last action. No random numbers are drawn.
    - Info: "latency" of the compiler's valid version of the action, seconds, "error", and "speedup" over the compiler's
      own map, 0 for an invalid map (as in the paper's figures). After `reset`, these are for everything in memory 0.

    Instances of files, names and functions are graphs of layers, as in `graphrl map`; those of a `ComputationGraph`
    have its ops. The ops run in the graph's topological order.

    Attributes:
      episode_steps: number of steps per episode; 1, 5 or 10 in the paper.
      squared: True rewards valid maps with the square of the speed-up.
      chip: the chip of instances: a name in `costs.maps.chip.CHIPS`, the path of a file, or a `MemoryChip`.

    Version history: v0, the first.

    Raises:
      GraphrlError: `episode_steps` is not an integer of at least 1, or there is no such chip.
    """

    episode_steps: int = 1
    squared: bool = True
    chip: str | os.PathLike[str] | MemoryChip = NNP_I

    def __post_init__(self) -> None:
        if type(self.episode_steps) is not int or self.episode_steps < 1:
            raise ProblemError(f"episode_steps is {self.episode_steps!r}: must be an integer of at least 1")
        object.__setattr__(self, "chip", find_chip(self.chip))

    @property
    def problem(self) -> MemoryChip:
        """The chip of its maps."""
        return find_chip(self.chip)

    def reset(self, key: jax.Array, instance: MemoryMapInstance) -> tuple[State, TimeStep[Observation]]:
        """Starts with everything in memory 0. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        state = State(jnp.zeros(instance.placed.shape, jnp.int32), jnp.int32(0))
        _, info = _costs(instance, state.previous, squared=self.squared)
        no = jnp.asarray(False)
        return state, TimeStep(_observe(state, instance), jnp.float32(0), no, no, info)

    def step(
        self, key: jax.Array, state: State, action: jax.Array, instance: MemoryMapInstance
    ) -> tuple[State, TimeStep[Observation]]:
        """Requests a map, which the compiler makes valid and costs. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        state = State(jnp.where(instance.placed, action, 0), state.step + jnp.int32(1))
        reward, info = _costs(instance, state.previous, squared=self.squared)
        over = state.step >= self.episode_steps
        return state, TimeStep(_observe(state, instance), reward, over, jnp.asarray(False), info)

    def observation_spec(self, instance: MemoryMapInstance) -> Any:
        """See `Environment`."""
        n, features = instance.nodes.shape
        memories = instance.problem.memories
        fields: dict[str, Any] = dict(  # noqa: C408  (reads as the constructor that it fills)
            nodes=specs.floats((n, features)),
            reads=specs.booleans((n, n)),
            mask=specs.booleans((n,)),
            action_mask=specs.booleans((n, 2, memories)),
            previous=specs.choices((n, 2), memories),
        )
        return Observation(**fields)

    def action_spec(self, instance: MemoryMapInstance) -> specs.ArraySpec:
        """See `Environment`."""
        return specs.choices(instance.placed.shape, instance.problem.memories)

    def make_instances(self, graphs: Sequence[ComputationGraph], to: Any = None) -> MemoryMapInstance:
        """See `GraphEnvironment`."""
        return make_instances([self._problem(graph) for graph in graphs], to)

    def _plan(self, graph: ComputationGraph, instance: MemoryMapInstance, state: State) -> MemoryMap:
        weights, outputs = state.previous[: len(graph.ops)].T
        return MemoryMap.from_memories(
            self._problem(graph), weights, outputs, method="MemoryMap-v0", seconds=0.0, evaluations=1, seed=0
        )

    def load(self, names: Sequence[str]) -> list[ComputationGraph]:
        """Loads graphs of layers; see `GraphEnvironment`."""
        return load_layers(names)

    def sizes(self, graphs: Sequence[ComputationGraph]) -> MapSizes:
        """See `GraphEnvironment`."""
        return common_sizes([self._problem(graph) for graph in graphs])

    def _graphs(self, model: Any, **options: Any) -> list[ComputationGraph]:
        graphs = super()._graphs(model, **options)
        if not callable(model) and not isinstance(model, tuple):
            return graphs
        layers = [coarsened(graph) for graph in graphs]
        if not any(op.weight_bytes for graph in layers for op in graph.ops):
            function = layers[0].name
            warnings.warn(
                f"graph {function!r} has no weights to place: all arguments of a function are inputs. To have some, "
                f"use env.instance({function}, ..., weights_argnums=...); in a batch, pass "
                f"graphrl.graphs.coarsen.coarsened(graphrl.from_jax({function}, ..., weights_argnums=...))",
                stacklevel=4,
            )
        return layers

    def _problem(self, graph: ComputationGraph) -> MapProblem:
        return map_problem(graph, self.problem)


def _observe(state: State, instance: MemoryMapInstance) -> Observation:
    n, memories = instance.nodes.shape[0], instance.problem.memories
    first = jnp.arange(memories, dtype=jnp.int32) == 0
    return Observation(
        nodes=jnp.asarray(instance.nodes),
        reads=jnp.asarray(instance.reads),
        mask=jnp.arange(n, dtype=jnp.int32) < instance.problem.num_steps,
        action_mask=jnp.asarray(instance.placed)[:, :, None] | first[None, None],
        previous=state.previous,
    )


def _costs(
    instance: MemoryMapInstance, requested: jax.Array, *, squared: bool
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes the reward of a map `[N, 2]`, and the info of `MemoryMapEnv`."""
    costs = device.evaluate(instance.problem, requested[:, :1], requested[:, 1:])
    reward = device.reward(instance.problem, costs, squared=squared)[0]
    speedup = device.reward(instance.problem, costs, squared=False)[0]
    info = {"latency": costs.latency[0], "error": costs.error[0], "speedup": jnp.maximum(speedup, 0)}
    return reward, info
