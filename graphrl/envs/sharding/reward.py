"""Cost, memory and reward of plans in pure JAX: gathers and segment sums; `jax.vmap` over plans or instances.

Everything is float32, in the instance's units. The exact twin is `ShardingProblem.total_cost` and `peak`: costs and
peaks agree to 1e-5, relative. So a plan whose peak is that close to the limit may fit here, and not there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from graphrl.costs.device.indexing import add, take
from graphrl.envs.sharding.generator import ShardingInstance


class Costs(NamedTuple):
    """Costs of a plan; prohibitive ones are counted, and not in the sum."""

    cost: jax.Array  # [] float32, cost units
    prohibitive: jax.Array  # [] int32, number of prohibitive costs
    peak: jax.Array  # [] float32, byte units


def possible(instance: ShardingInstance, action: jax.Array) -> jax.Array:
    """Returns an action `[N]` as a plan: strategies that are not allowed are replaced by the first that is."""
    plan = jnp.clip(action, 0, instance.cost.shape[1] - 1)
    is_allowed = jnp.take_along_axis(instance.allowed, plan[:, None], 1)[:, 0]
    return jnp.where(is_allowed, plan, instance.allowed.argmax(1).astype(jnp.int32))


def evaluate(instance: ShardingInstance, plan: jax.Array) -> Costs:
    """Computes the costs of a plan `[N]` int32 of strategies that are there."""
    of_nodes, of_edges = _of(instance.cost, plan), take(instance.pair_cost, _pairs(instance, plan))
    of_edges = jnp.where(is_real(instance), of_edges, 0)
    parts = [(jnp.where(x < instance.prohibitive, x, 0).sum(), x >= instance.prohibitive) for x in (of_nodes, of_edges)]
    (nodes, dear_nodes), (edges, dear_edges) = parts
    number = dear_nodes.sum(dtype=jnp.int32) + dear_edges.sum(dtype=jnp.int32)
    return Costs(nodes + edges, number, jnp.maximum(_running(instance, plan).max(), 0))


def reward(instance: ShardingInstance, costs: Costs) -> jax.Array:
    """Computes the reward of `Sharding-v0`: `[]` float32."""
    excess = jnp.maximum(costs.peak - instance.limit, 0)
    places = instance.num_ops + is_real(instance).sum(dtype=jnp.int32)
    share = costs.prohibitive.astype(jnp.float32) / jnp.maximum(places, 1).astype(jnp.float32)
    return jnp.where(fits(instance, costs), -costs.cost, -1 - excess - share)


def fits(instance: ShardingInstance, costs: Costs) -> jax.Array:
    """True for plans within the limit and without a prohibitive cost: `[]` bool."""
    return (costs.peak <= instance.limit) & (costs.prohibitive == 0)


def memory(instance: ShardingInstance, plan: jax.Array) -> jax.Array:
    """Computes the memory from each time to the next under a plan `[N]`: `[T]` float32, byte units; 0 for padding."""
    return take(_running(instance, plan), instance.time_event)


def conditional(instance: ShardingInstance, plan: jax.Array) -> jax.Array:
    """Computes the cost of each strategy of each node if all other nodes keep the plan `[N]`: own cost and edges,
    `[N, S]` float32, cost units. Strategies that are not there have the node's own costs of 0 and wrong edges.
    """
    first, last, _ = ends(instance)
    return add(add(instance.cost, first, given_last(instance, plan)), last, given_first(instance, plan))


def given_first(instance: ShardingInstance, plan: jax.Array) -> jax.Array:
    """Returns the costs of each edge for the strategies of its last node, if the first one keeps the plan: `[E, S]`."""
    first, _, width = ends(instance)
    return _rows(instance, take(plan, first) * width, jnp.ones_like(width))


def given_last(instance: ShardingInstance, plan: jax.Array) -> jax.Array:
    """Returns the costs of each edge for the strategies of its first node, if the last one keeps the plan: `[E, S]`."""
    _, last, width = ends(instance)
    return _rows(instance, take(plan, last), width)


def _rows(instance: ShardingInstance, place: jax.Array, stride: jax.Array) -> jax.Array:
    """Returns the costs of S pairs of each edge, from a place in its matrix on: `[E, S]`; 0 for padding."""
    strategy = jnp.arange(instance.cost.shape[1], dtype=jnp.int32)
    pair = (instance.edge_pair + place)[:, None] + stride[:, None] * strategy[None]
    cost = take(instance.pair_cost, jnp.minimum(pair, instance.pair_cost.shape[0] - 1))
    return jnp.where(is_real(instance)[:, None], cost, 0)


def over_span(instance: ShardingInstance, values: jax.Array) -> jax.Array:
    """Computes the sum of values `[T, ...]` of times over the times at which each node lives: `[N, ...]`."""
    upto = jnp.concatenate([jnp.zeros_like(values[:1]), jnp.cumsum(values, 0)])
    return take(upto, instance.span[:, 1]) - take(upto, instance.span[:, 0])


def _of(rows: jax.Array, plan: jax.Array) -> jax.Array:
    return jnp.take_along_axis(rows, plan[:, None], 1)[:, 0]


def _running(instance: ShardingInstance, plan: jax.Array) -> jax.Array:
    """Computes the memory after each event: `[2 N]` float32."""
    usage = _of(instance.usage, plan)
    return jnp.cumsum(take(jnp.concatenate([usage, -usage]), instance.event))


def is_real(instance: ShardingInstance) -> jax.Array:
    return instance.edges[:, 0] < instance.cost.shape[0]


def ends(instance: ShardingInstance) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the two nodes of each edge, any for padding, and the last one's number of strategies: `[E]` int32."""
    first, last = jnp.minimum(instance.edges, instance.cost.shape[0] - 1).T
    return first, last, take(instance.strategies, last)


def _pairs(instance: ShardingInstance, plan: jax.Array) -> jax.Array:
    """Returns the pair of each edge under a plan, `[E]` int32; for padding any that is there."""
    first, last, width = ends(instance)
    place = instance.edge_pair + take(plan, first) * width + take(plan, last)
    return jnp.where(is_real(instance), place, 0)
