"""Actions of many choices, as pytrees: `[..., options]` float32 logits and `[...]` int32 options for each array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from graphrl.networks.base import Network

NEVER = -1e9  # logit of what may not be chosen


def masked(policy: Network, mask_of: Callable[[Any], Any]) -> Network:
    """A policy that keeps to masks.

    Args:
      policy: observation -> logits.
      mask_of: observation -> what may be chosen, bool, of the logits' structure and shapes.
    """

    def apply(params: Any, observation: Any) -> Any:
        logits = policy.apply(params, observation)
        return jax.tree.map(lambda may, logit: jnp.where(may, logit, NEVER), mask_of(observation), logits)

    return Network(policy.init, apply)


def sample(key: jax.Array, logits: Any) -> Any:
    """An option of every choice."""
    leaves, structure = jax.tree.flatten(logits)
    keys = jax.random.split(key, len(leaves))
    drawn = [jax.random.categorical(*pair).astype(jnp.int32) for pair in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def likeliest(logits: Any) -> Any:
    """The likeliest option of every choice."""
    return jax.tree.map(lambda leaf: leaf.argmax(-1).astype(jnp.int32), logits)


def log_probs(logits: Any, action: Any) -> Any:
    """Of each choice: float32 of the action's structure and shapes."""

    def one(logit: jax.Array, option: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(logit), option[..., None], -1)[..., 0]

    return jax.tree.map(one, logits, action)


def entropy(logits: Any) -> jax.Array:
    """In nats, the sum over all choices: `[]` float32."""

    def one(logit: jax.Array) -> jax.Array:
        each = jax.nn.log_softmax(logit)
        return -(jnp.exp(each) * each).sum()

    return total(jax.tree.map(one, logits))


def total(values: Any) -> jax.Array:
    """The sum of all elements of all arrays: `[]` float32."""
    return sum((leaf.sum() for leaf in jax.tree.leaves(values)), start=jnp.float32(0))
