"""Runs a fixed number of steps in every environment, with automatic resets (`rollout`), or greedy episodes (`play`)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs.base import FINAL, AutoReset, Environment
from graphrl.learning.ppo.settings import PpoSettings, choice_count, likeliest, log_probs, sample
from graphrl.networks.base import Network


class PolicyValue(NamedTuple):
    """Policy and value networks."""

    policy: Network  # observation -> logits, a pytree of the action's structure
    value: Network  # observation -> [] float32


class Runner(NamedTuple):
    """Current state of the environments: `[g, a, ...]` each."""

    state: Any
    observation: Any
    episode_return: jax.Array  # [g, a] float32, return of the episode so far


class Trajectory(NamedTuple):
    """Transitions of a roll-out: `[t, g, a, ...]` each."""

    observation: Any
    action: Any
    log_prob: Any  # log-probability of each choice under the policy that sampled it
    choices: jax.Array  # float32, see `choice_count`
    value: jax.Array  # float32, value of the observation
    next_value: jax.Array  # float32, value of the next observation; 0 if the episode terminated
    reward: jax.Array  # float32
    done: jax.Array  # bool, the episode ended with the step
    episode_return: jax.Array  # float32, return of the episode so far, including this step


def reset_all(env: Environment[Any, Any, Any], keys: jax.Array, instances: Any, settings: PpoSettings) -> Runner:
    """Resets `settings.environments` environments per instance.

    Args:
      env: environment of one instance.
      keys: `[g]` typed keys.
      instances: `[g, ...]` each.
      settings: define the number of environments per instance.
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
    """Runs `settings.steps` steps in every environment, with sampled actions.

    Args:
      env, keys, instances, settings: as for `reset_all`.
      networks: policy and value networks.
      params: parameters of both, "policy" and "value".
      runner: current state of the environments.
    """

    def act(key: jax.Array, runner: Runner, instance: Any) -> tuple[Runner, Trajectory]:
        action_key, step_key = jax.random.split(key)
        observation = runner.observation
        logits = networks.policy.apply(params["policy"], observation)
        action = sample(action_key, logits)
        state, timestep = AutoReset(env).step(step_key, runner.state, action, instance)
        next_value = networks.value.apply(params["value"], timestep.info[FINAL]) * timestep.discount
        value, log_prob = networks.value.apply(params["value"], observation), log_probs(logits, action)
        total, done = runner.episode_return + timestep.reward, timestep.done
        choices, reward = choice_count(logits), timestep.reward
        transition = Trajectory(observation, action, log_prob, choices, value, next_value, reward, done, total)
        return Runner(state, timestep.observation, jnp.where(done, 0.0, total)), transition

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
    """Plays episodes with the most likely actions, and computes their returns: `[g, episodes]` float32.

    Args:
      env: environment of one instance.
      policy, params: the policy; see `PolicyValue`.
      instances: `[g, ...]` each.
      key: key of the environments' random numbers.
      steps: maximum number of steps; longer episodes are cut off.
      episodes: number of episodes per instance.
    """

    def one(key: jax.Array, instance: Any) -> jax.Array:
        reset_key, play_key = jax.random.split(key)
        state, first = env.reset(reset_key, instance)

        def step(carry: tuple[Any, ...], key: jax.Array) -> tuple[tuple[Any, ...], None]:
            state, observation, episode_return, over = carry
            action = likeliest(policy.apply(params, observation))
            state, timestep = env.step(key, state, action, instance)
            episode_return += jnp.where(over, 0.0, timestep.reward)
            return (state, timestep.observation, episode_return, over | timestep.done), None

        carry = state, first.observation, jnp.float32(0), jnp.asarray(False)
        (_, _, episode_return, _), _ = jax.lax.scan(step, carry, jax.random.split(play_key, steps))
        return episode_return

    graphs = jax.tree.leaves(instances)[0].shape[0]
    keys = jax.random.split(key, (graphs, episodes))
    return jax.vmap(jax.vmap(one, (0, None)))(keys, instances)
