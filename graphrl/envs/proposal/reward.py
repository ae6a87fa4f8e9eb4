"""What a search of `Proposal-v0` is worth: its best fitness (device/fitness.py) as an objective and as a reward."""

import jax
import jax.numpy as jnp

from graphrl.costs.device.evaluate import node_seconds
from graphrl.costs.device.problem import DeviceProblem
from graphrl.graphs.padding import PaddedGraph


def reward(fitness: jax.Array, standard: jax.Array, graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """-o_a / o_s: `[]` float32, of the fitness `[]` with and without proposals.

    A standard of 0 (no op takes time) is reached, -1, or missed, -2.
    """
    cost, base = (_cost(value, graph, problem) for value in (fitness, standard))
    missed = 1 + (cost > 0).astype(jnp.float32)
    return -jnp.where(base > 0, cost / jnp.where(base > 0, base, 1), missed)


def objective(fitness: jax.Array, graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Bytes or seconds of a fitness: `[]` float32; inf where it exceeds the memory limit."""
    if problem.objective == "peak_memory":
        return fitness * graph.byte_unit
    if problem.memory_limit is None:
        return fitness * graph.second_unit
    return jnp.where(fitness < 0, _makespan(fitness) * graph.second_unit, jnp.inf)


def _cost(fitness: jax.Array, graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """What the reward compares, `[]` float32 in the graph's units: the objective, or what stands for none."""
    if problem.memory_limit is None:
        return fitness
    limit = problem.memory_limit / graph.byte_unit
    return jnp.where(fitness < 0, _makespan(fitness), _serial(graph, problem) * (1 + fitness / limit))


def _makespan(fitness: jax.Array) -> jax.Array:
    """Of a fitness under a memory limit, where it fits; 1 where it does not."""
    return -1 / jnp.where(fitness < 0, fitness, -1)


def _serial(graph: PaddedGraph, problem: DeviceProblem) -> jax.Array:
    """Second units of all ops and of all possible transfers, one after the other: `[]` float32."""
    batch: PaddedGraph = jax.tree.map(lambda x: jnp.asarray(x)[None], graph)
    n, foreign = graph.sizes.ops, problem.devices - 1
    node = jnp.arange(n + foreign * graph.sizes.tensors, dtype=jnp.int32)
    real = (node < n) | (node - n < graph.num_tensors * foreign)
    return jnp.where(real, node_seconds(batch, problem)[0, : len(node)], 0).sum()
