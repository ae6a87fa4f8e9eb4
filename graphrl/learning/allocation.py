"""Which learner of a portfolio plays next: an upper confidence bound (CERL, Khadka et al. 2019, section 3)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_MEMORY = 0.2  # weight of the newest return in a learner's mean (ours)
_EXPLORATION = 0.9  # of the bound (ours)


class Returns(NamedTuple):
    """What the learners' roll-outs brought."""

    value: jax.Array  # [l] float32, moving mean
    plays: jax.Array  # [l] float32


def init(learners: int) -> Returns:
    """Nothing was played."""
    return Returns(jnp.zeros(learners), jnp.zeros(learners))


def draw(key: jax.Array, returns: Returns, count: int) -> jax.Array:
    """Learners of the next roll-outs `[count]` int32, with probability in proportion to

      v + c sqrt(log(plays of all) / plays),  v the mean return from 0, the least of all learners, to 1, the largest.

    A learner that never played counts as one that did once.
    """
    plays = jnp.maximum(returns.plays, 1.0)
    spread = returns.value.max() - returns.value.min()
    value = (returns.value - returns.value.min()) / jnp.maximum(spread, 1e-6)
    bound = value + _EXPLORATION * jnp.sqrt(jnp.log(plays.sum() + 1) / plays)
    return jax.random.categorical(key, jnp.log(bound), shape=(count,)).astype(jnp.int32)


def record(returns: Returns, learner: jax.Array, reward: jax.Array) -> Returns:
    """After roll-outs of learners `[count]` that brought rewards `[count]`."""
    count = jnp.zeros_like(returns.plays).at[learner].add(1.0)
    total = jnp.zeros_like(returns.value).at[learner].add(reward)
    mean = total / jnp.maximum(count, 1.0)
    moved = jnp.where(returns.plays > 0, (1 - _MEMORY) * returns.value + _MEMORY * mean, mean)
    return Returns(jnp.where(count > 0, moved, returns.value), returns.plays + count)
