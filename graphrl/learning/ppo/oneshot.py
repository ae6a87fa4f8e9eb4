"""PPO for episodes of one step that begin alike: all environments of an instance share one call of the networks.

GO's network takes longer than its environment, so an update is nearly as fast with many environments as with one.
Otherwise it is the same as `update`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.envs.base import Environment
from graphrl.learning import learner
from graphrl.learning.learner import LearnerState, Metrics
from graphrl.learning.ppo.rollout import PolicyValue
from graphrl.learning.ppo.settings import PpoSettings, entropy, log_probs, sample, total
from graphrl.learning.ppo.update import clipped_gain, minibatches, movement, normalised, optimiser
from graphrl.mesh import AXIS


class Tried(NamedTuple):
    """What a actions of each of g instances earned."""

    observation: Any  # [g, ...]
    action: Any  # [g, a, ...]
    log_prob: Any  # [g, a, ...], of each choice, under the policy that made it
    value: jax.Array  # [g] float32, of the observation
    reward: jax.Array  # [g, a] float32


def attempt(
    settings: PpoSettings,
    env: Environment[Any, Any, Any],
    networks: PolicyValue,
    params: dict[str, Any],
    keys: jax.Array,
    instances: Any,
) -> Tried:
    """Samples actions and takes each as the first step of an episode.

    Args:
      settings: say how many actions, `environments`.
      env: of one instance; what it begins with must not be random.
      networks, params: policy and value.
      keys: `[g]` typed keys.
      instances: `[g, ...]` each.
    """

    def one(key: jax.Array, instance: Any) -> Tried:
        reset_key, action_key, step_key = jax.random.split(key, 3)
        state, first = env.reset(reset_key, instance)

        def earned(action: Any) -> jax.Array:
            return env.step(step_key, state, action, instance)[1].reward

        return tried(settings, networks, params, action_key, first.observation, earned)

    return jax.vmap(one)(keys, instances)


def tried(
    settings: PpoSettings,
    networks: PolicyValue,
    params: dict[str, Any],
    key: jax.Array,
    observation: Any,
    earned: Callable[[Any], jax.Array],
) -> Tried:
    """What sampled actions of one instance earn, without g: `earned` gives an action's reward, `[]` float32."""
    logits = networks.policy.apply(params["policy"], observation)
    action = jax.vmap(sample, (0, None))(jax.random.split(key, settings.environments), logits)
    log_prob = jax.vmap(log_probs, (None, 0))(logits, action)
    value = networks.value.apply(params["value"], observation)
    return Tried(observation, action, log_prob, value, jax.vmap(earned)(action))


def learn(
    settings: PpoSettings, networks: PolicyValue, state: LearnerState, keys: jax.Array, actions: Tried
) -> tuple[LearnerState, Metrics]:
    """Epochs of gradient steps on actions that were tried; the metrics are those of `improve`. `keys` `[g]` shuffle
    them.

    Raises:
      ValueError: episodes have more than one step.
    """
    if settings.steps != 1:
        raise ValueError(f"steps is {settings.steps}: must be 1")
    advantage = actions.reward - actions.value[:, None]
    if settings.normalised:
        advantage = normalised(advantage[None])[0]

    def step(state: LearnerState, places: jax.Array) -> tuple[LearnerState, Metrics]:
        chosen = (actions.action, actions.log_prob, advantage, actions.reward)
        of_graph = jax.vmap(lambda one, place: jax.tree.map(lambda leaf: leaf[place], one))(chosen, places)
        loss = functools.partial(_loss, settings, networks)
        gradient, metrics = jax.grad(loss, has_aux=True)(state.params, actions.observation, *of_graph)
        state, metrics["gradient_norm"] = learner.descend(optimiser(settings), state, gradient)
        return state, metrics

    state, metrics = jax.lax.scan(step, state, minibatches(settings, keys))
    means = {name: values.mean() for name, values in metrics.items()}
    means["value_error"] = jnp.sqrt(means["value_error"])
    return state, means | {"reward": learner.mean(actions.reward)}


def _loss(
    settings: PpoSettings,
    networks: PolicyValue,
    params: dict[str, Any],
    observation: Any,
    action: Any,
    log_prob: Any,
    advantage: jax.Array,
    reward: jax.Array,
) -> tuple[jax.Array, Metrics]:
    """This device's part of the loss of a minibatch, whose gradients add up over the devices."""

    def one(seen: Any, action: Any, log_prob: Any, advantage: jax.Array, reward: jax.Array) -> Metrics:
        logits = networks.policy.apply(params["policy"], seen)

        def of_action(action: Any, log_prob: Any, advantage: jax.Array) -> Metrics:
            moved = jax.tree.map(jnp.subtract, log_probs(logits, action), log_prob)
            if settings.ratio == "joint":
                moved = total(moved)
            return {"gain": clipped_gain(settings.clip, moved, advantage), **movement(settings.clip, moved)}

        terms = {name: values.mean() for name, values in jax.vmap(of_action)(action, log_prob, advantage).items()}
        error = jnp.square(networks.value.apply(params["value"], seen) - reward).mean()
        return terms | {"value_error": error, "entropy": entropy(logits)}

    each = jax.vmap(one)(observation, action, log_prob, advantage, reward)
    loss = settings.value * each["value_error"] - each.pop("gain") - settings.entropy * each["entropy"]
    return loss.mean() / jax.lax.psum(1, AXIS), {name: learner.mean(values) for name, values in each.items()}
