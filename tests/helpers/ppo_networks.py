"""Small networks for the environments that PPO is tried on."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.learning import ppo
from graphrl.learning.ppo.settings import masked
from graphrl.networks.base import network


class Mlp(nn.Module):
    """Two hidden layers; one output is a number."""

    outputs: int
    width: int = 64

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        last = nn.initializers.orthogonal(0.01)
        for _ in range(2):
            x = nn.tanh(nn.Dense(self.width)(x))
        x = nn.Dense(self.outputs, kernel_init=last)(x)
        return x if self.outputs > 1 else x[..., 0]


class WalkLogits(nn.Module):
    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        return Mlp(2, 16)(seen.seen)


class WalkValue(nn.Module):
    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        return Mlp(1, 16)(seen.seen)


class OpLogits(nn.Module):
    """Of `Ordering-v0`: a logit an op."""

    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        now = jnp.broadcast_to(jnp.stack([seen.live, seen.peak]), (seen.nodes.shape[0], 2))
        last = (jnp.arange(seen.nodes.shape[0]) == seen.last).astype(jnp.float32)
        is_next = (seen.relation == 1).astype(jnp.float32) @ last
        return Mlp(1, 32)(jnp.concatenate([seen.nodes, now, is_next[:, None]], -1))


class OrderValue(nn.Module):
    @nn.compact
    def __call__(self, seen: Any) -> jax.Array:
        real = seen.mask[:, None].astype(jnp.float32)
        mean = (seen.nodes * real).sum(0) / real.sum()
        left = (seen.mask & ~seen.scheduled).sum(dtype=jnp.float32) / real.sum()
        return Mlp(1, 32)(jnp.concatenate([mean, jnp.stack([seen.live, seen.peak, left])]))


def _with_masks(policy: nn.Module, value: nn.Module) -> ppo.PolicyValue:
    return ppo.PolicyValue(masked(network(policy), lambda seen: seen.action_mask), network(value))


CONTROL = ppo.PolicyValue(network(Mlp(2)), network(Mlp(1)))
WALK = _with_masks(WalkLogits(), WalkValue())
ORDERING = _with_masks(OpLogits(), OrderValue())
