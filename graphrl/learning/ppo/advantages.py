"""Generalised advantage estimation (Schulman et al. 2016), which tells episodes that ended from those that were cut."""

import jax
import jax.numpy as jnp

from graphrl.learning.ppo.rollout import Trajectory


def advantages(trajectory: Trajectory, discount: float, trace: float) -> jax.Array:
    """How much better than expected each action was: `[t, g, a]` float32.

    A_t = d_t + discount * trace * A_(t+1), d_t = r_t + discount * V(s_(t+1)) - V(s_t). Where an episode is over,
    A_(t+1) does not count; V(s_(t+1)) does where it was only cut, and is that of the state that it was cut in.
    """
    surprise = trajectory.reward + discount * trajectory.following - trajectory.value
    kept = discount * trace * (1 - trajectory.done.astype(jnp.float32))

    def back(later: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        now = step[0] + step[1] * later
        return now, now

    return jax.lax.scan(back, jnp.zeros_like(surprise[0]), (surprise, kept), reverse=True)[1]


def normalised(advantage: jax.Array) -> jax.Array:
    """`[t, g, a]`, shifted and scaled to mean 0 and deviation 1 over the steps of each instance."""
    centred = advantage - advantage.mean((0, 2), keepdims=True)
    deviation = jnp.sqrt(jnp.square(centred).mean((0, 2), keepdims=True))
    return centred / jnp.maximum(deviation, 1e-6)
