"""Topoformer's decoder head: a priority for every op (Gagrani et al. 2022, eqs 7 and 17)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.networks.base import PairObservation
from graphrl.networks.mlp import MLP


class Priorities(nn.Module):
    """y = MLP(h) with ReLU (eq. 7), normalised over the real ops (eq. 17).

    Attributes:
      encoder: observation -> `[n, w]`.
      width: of the hidden layer.
      alpha: the standard deviation of the priorities.
    """

    encoder: nn.Module
    width: int
    alpha: float = 5.0

    @nn.compact
    def __call__(self, observation: PairObservation) -> jax.Array:
        """`[n]` float32, nats; those of padding ops mean nothing."""
        raw = MLP(self.width, 1, name="priority")(self.encoder(observation))[:, 0]
        return normalised(raw, observation.mask, self.alpha)


def normalised(priorities: jax.Array, mask: jax.Array, alpha: float = 5.0) -> jax.Array:
    """Eq. 17: mean 0 and standard deviation `alpha` over the ops of `mask` `[n]` bool; equal priorities become 0."""
    real = mask.astype(jnp.float32)
    count = jnp.maximum(real.sum(), 1.0)
    centred = (priorities - (priorities * real).sum() / count) * real
    variance = (centred**2).sum() / count
    return alpha * centred * jax.lax.rsqrt(variance + 1e-12)
