"""Runs a fixed number of steps in every environment, with automatic resets (`rollout`), or single episodes (`play` with
the most likely actions, `run_episode` with any).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs.base import FINAL, AutoReset, Environment, TimeStep
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
        return play_episode(env, policy, params, instance, key, steps=steps).episode_return

    graphs = jax.tree.leaves(instances)[0].shape[0]
    keys = jax.random.split(key, (graphs, episodes))
    return jax.vmap(jax.vmap(one, (0, None)))(keys, instances)


class Episode(NamedTuple):
    """An episode that has ended, or was cut off."""

    state: Any  # the last state
    steps: jax.Array  # [] int32, number of steps
    episode_return: jax.Array  # [] float32


def play_episode(
    env: Environment[Any, Any, Any], policy: Network, params: Any, instance: Any, key: jax.Array, *, steps: int
) -> Episode:
    """Plays one episode with the most likely actions. Arguments as for `play`, for one instance."""

    def act(_: jax.Array, timestep: TimeStep[Any]) -> Any:
        return likeliest(policy.apply(params, timestep.observation))

    return run_episode(env, act, instance, key, steps=steps)


def run_episode(
    env: Environment[Any, Any, Any],
    act: Callable[[jax.Array, TimeStep[Any]], Any],
    instance: Any,
    key: jax.Array,
    *,
    steps: int,
) -> Episode:
    """Runs one episode with the actions of a function (key, timestep) -> action, at most `steps` steps."""

    def step(carry: tuple[Episode, TimeStep[Any]]) -> tuple[Episode, TimeStep[Any]]:
        episode, timestep = carry
        act_key, step_key = jax.random.split(jax.random.fold_in(play_key, episode.steps))
        state, timestep = env.step(step_key, episode.state, act(act_key, timestep), instance)
        return Episode(state, episode.steps + 1, episode.episode_return + timestep.reward), timestep

    def goes_on(carry: tuple[Episode, TimeStep[Any]]) -> jax.Array:
        return ~carry[1].done & (carry[0].steps < steps)

    reset_key, play_key = jax.random.split(key)
    state, first = env.reset(reset_key, instance)
    return jax.lax.while_loop(goes_on, step, (Episode(state, jnp.int32(0), jnp.float32(0)), first))[0]
