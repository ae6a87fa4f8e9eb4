"""Small networks for the toy of toy_maps: every op for itself, so that they compile in a second."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from toy_maps import CHOICES, OPTIONS

from graphrl.learning.sac import ActorCritic
from graphrl.networks.base import MLP, network
from graphrl.networks.heads import Acted


class Actor(nn.Module):
    """A perceptron on each op's features."""

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        logits = MLP(16, CHOICES * OPTIONS)(observation.graph.nodes[:-1])
        return logits.reshape(-1, CHOICES, OPTIONS)


class Critic(nn.Module):
    """Twice the mean over ops of a perceptron on features and action."""

    @nn.compact
    def __call__(self, acted: Acted) -> jax.Array:
        nodes, mask = acted.observation.graph.nodes[:-1], acted.observation.mask.astype(jnp.float32)
        both = MLP(64, 2)(jnp.concatenate([nodes, acted.action.reshape(len(nodes), -1)], -1))
        return (both * mask[:, None]).sum(0) / mask.sum()


NETWORKS = ActorCritic(network(Actor()), network(Critic()))
