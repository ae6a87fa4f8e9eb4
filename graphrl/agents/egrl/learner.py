"""EGRL's learner: a step is a generation of the search on all training graphs, or an update of PPO on them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from graphrl.agents.egrl import amortised
from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, domain, speedup
from graphrl.agents.egrl.network import likeliest, networks
from graphrl.learning.collaborative.mesh import on_mesh as search_on_mesh
from graphrl.learning.collaborative.search import State
from graphrl.learning.learner import Learner, Metrics
from graphrl.learning.spread import on_mesh


def learner(config: EgrlConfig, mesh: Mesh, instances: Layers) -> Learner:
    """The learner of a configuration on the devices of a mesh: a search, whose population and replay they share, or
    PPO, whose graphs they share.

    Args:
      config: its `learning` says which.
      mesh: the devices.
      instances: the training graphs, the batch of every step: the replay knows them by their places.
    """
    judge = jax.jit(functools.partial(evaluate, config))
    if config.learning == "search":
        return _search(config, mesh, instances, judge)
    begin, update = functools.partial(amortised.init, config, instances), functools.partial(amortised.update, config)
    return on_mesh(Learner(begin, update, judge, score="speedup"), mesh)._replace(evaluate=judge)


def _search(config: EgrlConfig, mesh: Mesh, instances: Layers, judge: Callable[..., Metrics]) -> Learner:
    memories = instances.problem.memories
    parts = domain(memories, config.reward), networks(config, memories)
    begin, generation = search_on_mesh(config.settings, *parts, mesh)

    def init(key: jax.Array, policy: Any = None) -> State:
        return begin(instances, key, policy)

    def update(state: State, key: jax.Array, batch: Layers) -> tuple[State, Metrics]:
        state, metrics, _ = generation(state, key, batch)
        return state, metrics

    return Learner(init, update, judge, score="speedup")


def evaluate(config: EgrlConfig, params: Any, key: jax.Array, batch: Layers) -> Metrics:
    """How good what `egrl-policy` plays is: the policy's map, or its hint where that is faster.

    See `Learner`; `key` is not used.

    Returns:
      "speedup" over the compiler's own map (the mean, and "speedup_least", "speedup_most"), and the means of the policy
      "alone" and of the "hint" alone.
    """
    del key
    alone = jax.vmap(lambda one: speedup(one, likeliest(config, params["policy"], one)))(batch)
    hint = jax.vmap(lambda one: speedup(one, jnp.asarray(one.preferred)))(batch)
    each = jnp.maximum(alone, hint)
    means = {"speedup": each.mean(), "alone": alone.mean(), "hint": hint.mean()}
    return means | {"speedup_least": each.min(), "speedup_most": each.max()}
