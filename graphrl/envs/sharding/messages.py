"""Min-sum messages with multipliers of memory, in pure JAX: all edges in parallel, many instances or seeds.

A dual method. Messages on edges move costs between nodes, as in TRW-S (Kolmogorov 2006), but all edges in parallel: the
bound of the linear relaxation never falls, and news travels an edge a round. Multipliers price bytes at each time: they
rise where the last plan exceeds the limit, and fall where it does not. Labels are decoded in the order of edges: a node
takes the strategy that is best for the labels of nodes before it and the messages of those after it. That takes a round
for each edge of a path, so labels, too, are carried from round to round. Each decoded plan is polished: nodes that gain
more than all their neighbours change their strategy, at prices of bytes. The best that fits is kept.

    search = jax.jit(jax.vmap(functools.partial(min_sum, rounds=400), (None, 0)))
    plans, costs = search(instance, jnp.geomspace(1e-5, 1, 16))  # 16 first prices
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.indexing import take
from graphrl.envs.sharding.generator import ShardingInstance
from graphrl.envs.sharding.reward import (
    Costs,
    conditional,
    ends,
    evaluate,
    fits,
    given_first,
    is_real,
    memory,
    over_span,
)

DEAR = 1.0  # cost units to which costs are cut in messages: a plan with a larger one is not better than the baseline's


class _Search(NamedTuple):
    to_first: jax.Array  # [E, S] float32, messages to the first nodes of edges
    to_last: jax.Array  # [E, S] float32
    label: jax.Array  # [N] int32
    multiplier: jax.Array  # [T] float32, cost units per byte unit
    best: jax.Array  # [N] int32
    best_cost: jax.Array  # [] float32, cost units


def min_sum(
    instance: ShardingInstance, price: jax.Array, *, rounds: int, polish: int = 4, step: float = 0.1
) -> tuple[jax.Array, Costs]:
    """Searches a plan, from the baseline's.

    Args:
      instance: the problem, without a batch axis.
      price: `[]` float32, the first multiplier of all times: cost units per byte unit.
      rounds: number of rounds.
      polish: number of parallel changes of each decoded plan.
      step: by how much logs of multipliers change in the first rounds; later rounds change them less.

    Returns:
      The plan of least cost of those that fit, or the baseline's, `[N]` int32, and its costs.
    """
    edges, most = instance.edges.shape[0], instance.cost.shape[1]
    zeros = jnp.zeros((edges, most), jnp.float32)
    started = evaluate(instance, instance.start)
    first_cost = jnp.where(fits(instance, started), started.cost, jnp.inf)
    first = _Search(
        zeros, zeros, instance.start, jnp.full(instance.time_event.shape, price), instance.start, first_cost
    )

    def one(number: jax.Array, search: _Search) -> _Search:
        own = _priced(instance, search.multiplier)
        search = _decoded(instance, own, _passed(instance, own, search))
        plan = lax.fori_loop(0, polish, lambda _, plan: _polished(instance, own, plan), search.label)
        costs = evaluate(instance, plan)
        is_better = fits(instance, costs) & (costs.cost < search.best_cost)
        size = step / (1 + number.astype(jnp.float32) / 50)
        return search._replace(
            multiplier=_updated(instance, search.multiplier, plan, size),
            best=jnp.where(is_better, plan, search.best),
            best_cost=jnp.where(is_better, costs.cost, search.best_cost),
        )

    last = lax.fori_loop(0, rounds, one, first)
    return last.best, evaluate(instance, last.best)


def _priced(instance: ShardingInstance, multiplier: jax.Array) -> jax.Array:
    """Returns costs of strategies with the price of their bytes, `[N, S]`; infinite for those that are not allowed."""
    priced = instance.cost + instance.usage * over_span(instance, multiplier)[:, None]
    return jnp.where(instance.allowed, priced, jnp.inf)


def _passed(instance: ShardingInstance, own: jax.Array, search: _Search) -> _Search:
    """Passes messages to the last nodes of all edges, then to the first ones."""
    to_last = _sent(instance, own, search, forward=True)
    search = search._replace(to_last=to_last)
    return search._replace(to_first=_sent(instance, own, search, forward=False))


def _sent(instance: ShardingInstance, own: jax.Array, search: _Search, *, forward: bool) -> jax.Array:
    """Returns the messages to the last nodes of edges, or to the first ones: `[E, S]`, the least of each 0."""
    first, last, _ = ends(instance)
    source, back = (first, search.to_first) if forward else (last, search.to_last)
    ids = (instance.pair_first, instance.pair_last)
    out, into = ids if forward else ids[::-1]
    real = is_real(instance)[:, None]
    number = [jax.ops.segment_sum(real[:, 0].astype(jnp.float32), end, own.shape[0]) for end in (first, last)]
    share = 1 / jnp.maximum(jnp.maximum(*number), 1)
    belief = _beliefs(instance, own, search) * share[:, None]
    given = (take(belief, source) - back).ravel()
    edges, most = back.shape
    cost = jnp.minimum(instance.pair_cost, DEAR) + jnp.append(given, 0.0)[out]
    least = jax.ops.segment_min(cost, into, edges * most).reshape(edges, most)
    lowest = least.min(1, keepdims=True)
    return jnp.where(real & jnp.isfinite(least), least - lowest, 0)


def _beliefs(instance: ShardingInstance, own: jax.Array, search: _Search) -> jax.Array:
    first, last, _ = ends(instance)
    return own.at[first].add(search.to_first).at[last].add(search.to_last)


def _decoded(instance: ShardingInstance, own: jax.Array, search: _Search) -> _Search:
    """Decodes labels: own costs, costs of edges from the labels of first nodes, messages from last nodes."""
    first, last, _ = ends(instance)
    known = jnp.minimum(given_first(instance, search.label), DEAR)
    total = own.at[first].add(search.to_first).at[last].add(known)
    return search._replace(label=total.argmin(1).astype(jnp.int32))


def _polished(instance: ShardingInstance, own: jax.Array, plan: jax.Array) -> jax.Array:
    """Changes the strategies of all nodes that gain more than each of their neighbours, at prices of bytes; of equal
    gains, that of the lower node counts as larger.
    """
    cost = conditional(instance, plan) - instance.cost + own
    now = jnp.take_along_axis(cost, plan[:, None], 1)[:, 0]
    gain = now - cost.min(1)
    first, last, _ = ends(instance)
    at_first, at_last = take(gain, first), take(gain, last)
    first_wins, real = at_first >= at_last, is_real(instance)
    loses = jnp.zeros(plan.shape, bool).at[first].max(real & ~first_wins).at[last].max(real & first_wins)
    moves = (gain > 1e-7 * jnp.abs(now)) & ~loses
    return jnp.where(moves, cost.argmin(1).astype(jnp.int32), plan)


def _updated(instance: ShardingInstance, multiplier: jax.Array, plan: jax.Array, step: jax.Array) -> jax.Array:
    """Changes the multipliers by the memory of a plan: up where it exceeds the limit, else all of them down."""
    share = memory(instance, plan) / jnp.maximum(instance.limit, 1e-6)
    excess = jnp.clip((share - 1) * 20, 0, 1)
    raised = multiplier * jnp.exp(step * excess)
    lowered = multiplier * jnp.exp(-step * jnp.clip((1 - share) * 20, 0.05, 0.5))
    return jnp.where(excess.max() > 0, raised, lowered)
