"""What a policy earns without exploring."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from graphrl.envs.base import Environment
from graphrl.learning.ppo.choices import likeliest
from graphrl.networks.base import Network


@functools.partial(jax.jit, static_argnames=("env", "policy", "steps", "episodes"))
def play(
    env: Environment[Any, Any, Any],
    policy: Network,
    params: Any,
    instances: Any,
    key: jax.Array,
    *,
    steps: int,
    episodes: int = 1,
) -> jax.Array:
    """The returns of episodes whose actions are the likeliest: `[g, episodes]` float32.

    Args:
      env: of one instance.
      policy, params: who plays; see `PolicyValue`.
      instances: `[g, ...]` each.
      key: of what is random in the environments.
      steps: after which an episode is left, if it is not over.
      episodes: of each instance.
    """

    def one(key: jax.Array, instance: Any) -> jax.Array:
        reset_key, play_key = jax.random.split(key)
        state, first = env.reset(reset_key, instance)

        def step(carry: tuple[Any, ...], key: jax.Array) -> tuple[tuple[Any, ...], None]:
            state, observation, earned, over = carry
            action = likeliest(policy.apply(params, observation))
            state, timestep = env.step(key, state, action, instance)
            earned += jnp.where(over, 0.0, timestep.reward)
            return (state, timestep.observation, earned, over | timestep.done), None

        begun = state, first.observation, jnp.float32(0), jnp.asarray(False)
        (_, _, earned, _), _ = jax.lax.scan(step, begun, jax.random.split(play_key, steps))
        return earned

    graphs = jax.tree.leaves(instances)[0].shape[0]
    keys = jax.random.split(key, (graphs, episodes))
    return jax.vmap(jax.vmap(one, (0, None)))(keys, instances)
