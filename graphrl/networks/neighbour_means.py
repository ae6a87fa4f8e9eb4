"""A perceptron of ops and the means of their neighbours: the least that is a graph network."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.networks.base import GraphObservation


class NeighbourMeans(nn.Module):
    """A vector for every op: of its features, their mean over the ops before it, and that over the ops after it.

    Each layer is an affine map, a normalisation over channels, and ReLU. Work and memory are linear in ops and edges,
    where attention looks at all pairs. Ours: simplified graph convolution (Wu et al. 2019) has powers of one normalised
    adjacency in front of a linear map.

    Attributes:
      width: of all vectors, w.
      layers: at least 1.
    """

    width: int = 16
    layers: int = 2

    @nn.compact
    def __call__(self, observation: GraphObservation, actions: jax.Array | None = None) -> jax.Array:
        """`[n, w]` float32; rows of padding ops mean nothing.

        Args:
          observation: of one graph.
          actions: `[n, A]` float32, more features of ops.
        """
        graph = observation.graph
        nodes = graph.nodes[:-1]
        nodes = nodes if actions is None else jnp.concatenate([nodes, actions], -1)
        nodes = jnp.where(observation.mask[:, None], nodes, 0.0)
        ends = (graph.senders, graph.receivers), (graph.receivers, graph.senders)
        nodes = jnp.concatenate([nodes, *(neighbour_mean(nodes, *way) for way in ends)], -1)
        for _ in range(self.layers):
            nodes = nn.relu(nn.LayerNorm(use_bias=False, use_scale=False)(nn.Dense(self.width)(nodes)))
        return nodes


def neighbour_mean(values: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Of each receiver the mean of its senders' values `[n, w]`; 0 where there are none. Ends of n are padding."""
    counted = jnp.concatenate([values, jnp.ones_like(values[:, :1])], -1).at[senders].get(mode="fill", fill_value=0)
    total = jnp.zeros((values.shape[0], counted.shape[1])).at[receivers].add(counted, mode="drop")
    return total[:, :-1] / jnp.maximum(total[:, -1:], 1.0)
