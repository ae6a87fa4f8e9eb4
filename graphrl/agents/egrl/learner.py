"""EGRL's learner: a generation of the search on all training graphs is a step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, domain, speedup
from graphrl.agents.egrl.network import likeliest, networks
from graphrl.learning.collaborative.mesh import on_mesh
from graphrl.learning.collaborative.search import State
from graphrl.learning.learner import Learner


def learner(config: EgrlConfig, mesh: Mesh, instances: Layers) -> Learner:
    """The learner of a configuration, whose population and replay the devices of a mesh share.

    Args:
      instances: the training graphs, the batch of every step: the replay knows them by their places.
    """
    memories = instances.problem.memories
    parts = domain(memories, config.reward), networks(config, memories)
    begin, generation = on_mesh(config.settings, *parts, mesh)

    def init(key: jax.Array, policy: Any = None) -> State:
        state: State = begin(instances, key, policy)
        return state

    def update(state: State, key: jax.Array, batch: Layers) -> tuple[State, dict[str, jax.Array]]:
        state, metrics, _ = generation(state, key, batch)
        return state, metrics

    return Learner(init, update, jax.jit(functools.partial(evaluate, config)), score="speedup")


def evaluate(config: EgrlConfig, params: Any, key: jax.Array, batch: Layers) -> dict[str, jax.Array]:
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
