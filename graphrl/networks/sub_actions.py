"""EGRL's actor and critic on a Graph U-Net: several choices at every op, and what they are worth."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.networks.base import GraphObservation
from graphrl.networks.graph_unet import GraphUNet


class Acted(NamedTuple):
    """What a critic looks at."""

    observation: GraphObservation
    action: jax.Array  # [n, heads, options] float32, one-hot or near it


class SubActionLogits(nn.Module):
    """The actor: the U-Net, two layers of tanh, and a linear layer for each of an op's choices.

    Attributes:
      encoder: the U-Net.
      choices: of an op, the heads.
      options: of each.
    """

    encoder: GraphUNet
    choices: int
    options: int

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """`[n, choices, options]` float32."""
        nodes = self.encoder(observation)
        for _ in range(2):
            nodes = nn.tanh(nn.Dense(self.encoder.width)(nodes))
        return nn.DenseGeneral((self.choices, self.options), name="logits")(nodes)


class TwinValue(nn.Module):
    """The critic: a U-Net that sees the action beside the features, the maximum over ops, and two perceptrons.

    Attributes:
      encoder: the U-Net.
    """

    encoder: GraphUNet

    @nn.compact
    def __call__(self, acted: Acted) -> jax.Array:
        """`[2]` float32."""
        observation, action = acted
        actions = action.reshape(len(action), -1)
        nodes = self.encoder(observation, actions)
        graph = jnp.where(observation.mask[:, None], nodes, -jnp.inf).max(0)
        return jnp.concatenate([self._head(graph) for _ in range(2)])

    def _head(self, graph: jax.Array) -> jax.Array:
        for _ in range(2):
            graph = nn.relu(nn.Dense(self.encoder.width)(graph))
        return nn.Dense(1)(graph)
