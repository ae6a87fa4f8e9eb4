"""What a graph takes under some choices: priorities as keys, and the cost model of `graphrl.costs` on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.fitness import measured
from graphrl.envs.compile.instance import Choices, CompileParams
from graphrl.graphs.padding import PaddedGraph


class Run(NamedTuple):
    """One run of a graph."""

    makespan: jax.Array  # [] float32, second units
    valid: jax.Array  # [] bool, every device stays within the memory limit


def run(params: CompileParams, chosen: Choices) -> Run:
    """Runs an instance; choices are of devices that are there. Memory is linear in n + d t."""
    graph, problem = params.graph, params.problem
    placement, priority = (jnp.asarray(option) for option in chosen)
    keys = op_keys(params, priority)
    decisions = Decisions(placement, keys, transfer_keys(graph, placement, keys, problem.devices))
    alone = jax.tree.map(lambda leaf: leaf[None], graph)
    costs = measured(alone, jax.tree.map(lambda leaf: leaf[..., None, None], decisions), problem)
    limit = jnp.inf if problem.memory_limit is None else problem.memory_limit / graph.byte_unit
    return Run(costs.makespan[0, 0], costs.peak_memory.max() <= limit)


def op_keys(params: CompileParams, priority: jax.Array) -> jax.Array:
    """`[n]` float32 in [0, 1): of the ready ops the highest level comes first, of equal ones the first in the order."""
    n, count = params.order.shape[0], jnp.maximum(params.graph.num_ops, 1)
    rank = jnp.zeros(n, jnp.int32).at[params.order].set(jnp.arange(n, dtype=jnp.int32))
    place = jnp.where(rank < count, priority * count + count - 1 - rank, 0)
    return place.astype(jnp.float32) / (params.levels.shape[0] * count).astype(jnp.float32)


def transfer_keys(graph: PaddedGraph, placement: jax.Array, keys: jax.Array, devices: int) -> jax.Array:
    """`[d, t]` float32 in [0, 1): a transfer is as urgent as the most urgent op that waits for it."""
    t, n = graph.sizes.tensors, graph.sizes.ops
    op = jnp.minimum(graph.use_op, n - 1)
    index = jnp.where(graph.use_op < n, placement[op] * t + graph.use_tensor, devices * t)
    return jnp.zeros(devices * t).at[index].max(keys[op], mode="drop").reshape(devices, t)
