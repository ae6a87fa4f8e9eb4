"""EGRL's actor and critic on an encoder of graphs: several choices at every op, and what they are worth."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.networks.base import GraphObservation


class Encoder(Protocol):
    """A module that gives a vector for every op, as `GraphUNet` and `NeighbourMeans` do."""

    width: int

    def __call__(self, observation: GraphObservation, actions: jax.Array | None = None) -> jax.Array:
        """`[n, width]` float32; `actions` `[n, A]` float32 are more features of ops."""


class Acted(NamedTuple):
    """What a critic looks at."""

    observation: GraphObservation
    action: jax.Array  # [n, heads, options] float32, one-hot or near it


class SubActionLogits(nn.Module):
    """The actor: the encoder, layers of tanh, and a linear layer for each of an op's choices.

    Attributes:
      encoder: of the graph.
      choices: of an op, the heads.
      options: of each.
      hidden: layers of tanh; EGRL's Graph U-Net has two behind it.
      last_init: initial weights of the linear layer.
    """

    encoder: Encoder
    choices: int
    options: int
    hidden: int = 2
    last_init: Callable[..., jax.Array] = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """`[n, choices, options]` float32."""
        nodes = self.encoder(observation)
        for _ in range(self.hidden):
            nodes = nn.tanh(nn.Dense(self.encoder.width)(nodes))
        return nn.DenseGeneral((self.choices, self.options), kernel_init=self.last_init, name="logits")(nodes)


class TwinValue(nn.Module):
    """The critic: an encoder that sees the action beside the features, the maximum over ops, and two perceptrons.

    Attributes:
      encoder: of the graph and the action.
    """

    encoder: Encoder

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
