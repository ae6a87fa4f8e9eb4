"""Roll-outs of a fixed number of steps of every environment, with automatic resets, and returns without exploration."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs.base import FINAL, AutoReset, Environment
from graphrl.learning.ppo.settings import PpoSettings, likeliest, log_probs, sample
from graphrl.networks.base import Network


class PolicyValue(NamedTuple):
    """Two networks."""

    policy: Network  # observation -> logits, a pytree of the action's structure
    value: Network  # observation -> [] float32


class Runner(NamedTuple):
    """Where the environments stand: `[g, a, ...]` each."""

    state: Any
    observation: Any
    earned: jax.Array  # [g, a] float32, in the episode so far


class Trajectory(NamedTuple):
    """What happened: `[t, g, a, ...]` each."""

    observation: Any
    action: Any
    log_prob: Any  # of each choice, under the policy that made it
    value: jax.Array  # float32, of the observation
    following: jax.Array  # float32, of the observation that the step led to; 0 where no reward follows
    reward: jax.Array  # float32
    done: jax.Array  # bool, the episode was over after the step
    earned: jax.Array  # float32, in the episode up to and with the step


def begin(env: Environment[Any, Any, Any], keys: jax.Array, instances: Any, settings: PpoSettings) -> Runner:
    """Environments after their reset.

    Args:
      env: of one instance.
      keys: `[g]` typed keys.
      instances: `[g, ...]` each.
      settings: say how many environments an instance has.
    """
    split = jax.vmap(lambda key: jax.random.split(key, settings.environments))(keys)
    reset = jax.vmap(jax.vmap(AutoReset(env).reset, (0, None)))
    state, timestep = reset(split, instances)
    return Runner(state, timestep.observation, jnp.zeros(split.shape, jnp.float32))


def rollout(
    env: Environment[Any, Any, Any],
    networks: PolicyValue,
    params: dict[str, Any],
    runner: Runner,
    keys: jax.Array,
    instances: Any,
    settings: PpoSettings,
) -> tuple[Runner, Trajectory]:
    """The steps of a roll-out, with sampled actions.

    Args:
      env, keys, instances, settings: as for `begin`.
      networks: policy and value.
      params: theirs, "policy" and "value".
      runner: where the environments stand.
    """

    def act(key: jax.Array, runner: Runner, instance: Any) -> tuple[Runner, Trajectory]:
        action_key, step_key = jax.random.split(key)
        seen = runner.observation
        logits = networks.policy.apply(params["policy"], seen)
        action = sample(action_key, logits)
        state, timestep = AutoReset(env).step(step_key, runner.state, action, instance)
        following = networks.value.apply(params["value"], timestep.info[FINAL]) * timestep.discount
        value, log_prob = networks.value.apply(params["value"], seen), log_probs(logits, action)
        earned = runner.earned + timestep.reward
        happened = Trajectory(seen, action, log_prob, value, following, timestep.reward, timestep.done, earned)
        return Runner(state, timestep.observation, jnp.where(timestep.done, 0.0, earned)), happened

    def step(runner: Runner, number: jax.Array) -> tuple[Runner, Trajectory]:
        now = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
        split = jax.vmap(lambda key: jax.random.split(key, settings.environments))(now)
        return jax.vmap(jax.vmap(act, (0, 0, None)))(split, runner, instances)

    return jax.lax.scan(step, runner, jnp.arange(settings.steps))


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
