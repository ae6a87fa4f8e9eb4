"""EGRL's actor and critic on problems of memory maps."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, observe, start
from graphrl.learning.sac import ActorCritic
from graphrl.networks.base import Network, network
from graphrl.networks.graph_unet import GraphUNet
from graphrl.networks.mlp import SMALL
from graphrl.networks.neighbour_means import NeighbourMeans
from graphrl.networks.sub_actions import Acted, SubActionLogits, TwinValue

_NEVER = -20.0  # logit of a memory for what is not there


@functools.cache
def networks(config: EgrlConfig, memories: int) -> ActorCritic:
    """On the configuration's encoder of graphs; without parameters.

    What is not there lies in memory 0: the actor gives other memories next to no probability, and the critic sees
    nothing of them, whoever chose.
    """
    if config.encoder == "unet":
        encoder: Any = functools.partial(GraphUNet, config.width, config.depth, config.heads)
        actor = network(SubActionLogits(encoder(), 2, memories))
    else:
        encoder = functools.partial(NeighbourMeans, config.width)
        # a preference is not to drown in what an untrained network says by chance; searches without one start wide
        last_init = SMALL if config.preference else nn.initializers.lecun_normal()
        actor = network(SubActionLogits(encoder(), 2, memories, hidden=0, last_init=last_init))
    critic = network(TwinValue(encoder()))

    def logits(params: Any, seen: Any) -> jax.Array:
        preferred = config.preference * jax.nn.one_hot(seen.preferred, memories)
        is_free = seen.placed[:, :, None] | (jnp.arange(memories) == 0)[None, None]
        return jnp.where(is_free, actor.apply(params, seen) + preferred, _NEVER)

    def value(params: Any, acted: Any) -> jax.Array:
        action = jnp.where(acted.observation.placed[:, :, None], acted.action, 0.0)
        return critic.apply(params, Acted(acted.observation, action))  # type: ignore[arg-type]

    return ActorCritic(Network(actor.init, logits), Network(critic.init, value))


def likeliest(config: EgrlConfig, actor: Any, problem: Layers) -> jax.Array:
    """The map that an actor asks for in the only step of an episode: `[N, 2]` int32."""
    apply = networks(config, problem.problem.memories).actor.apply
    return apply(actor, observe(problem, start(problem))).argmax(-1).astype(jnp.int32)
