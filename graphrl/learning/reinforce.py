"""REINFORCE for a contextual bandit (Williams 1992): an action for a graph consists of many choices and has one reward.

`policy_term` supports any policy; `loss` is for policies whose choices are independent (REGAL, ICLR paper, section 4).
Both receive one device's graphs; means are over the graphs of all devices. Letters: g graphs, a sampled
actions of each graph; `[..., options]` are the logits of a graph's choices.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.learning.learner import count, device_count, explained_variance, mean

Baseline = Literal["learned", "leave-one-out"]


class Batch(NamedTuple):
    """Sampled actions and their rewards."""

    log_prob: jax.Array  # [g, a] float32, log-probability of each action: sum over its real choices; differentiable
    entropy: jax.Array  # [g] float32, nats: the sum over a graph's real choices; differentiable
    choices: jax.Array  # [g] float32, the number of real choices of a graph
    value: jax.Array  # [g] float32, the learned baseline; differentiable
    reward: jax.Array  # [g, a] float32


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of the loss's terms.

    Attributes:
      baseline: "learned", the paper's; "leave-one-out", the mean reward of the graph's other actions.
      entropy_coefficient: weight of the entropy bonus: normalised advantage per nat.
      value_coefficient: weight of the learned baseline's squared error.
      clip: largest absolute value of normalised advantages.
    """

    baseline: Baseline
    entropy_coefficient: float
    value_coefficient: float
    clip: float


def sample(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Samples an option for every choice: `[..., options]` float32 to `[...]` int32."""
    return jax.random.categorical(key, logits, -1).astype(jnp.int32)


def log_prob(logits: jax.Array, action: jax.Array, real: jax.Array | np.ndarray) -> jax.Array:
    """Computes the log-probability of an action: `[]` float32, the sum over its real choices.

    Args:
      logits: `[n, ..., options]` float32.
      action: `[n, ...]` int32.
      real: `[n]` bool; choices of padding ops are ignored.
    """
    each = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), action[..., None], -1)[..., 0]
    return _sum_real(each, real)


def entropy(logits: jax.Array, real: jax.Array | np.ndarray) -> jax.Array:
    """Computes the entropy of an action in nats: `[]` float32, the sum over its real choices (see `log_prob`)."""
    each = jax.nn.log_softmax(logits, -1)
    return _sum_real(-(jnp.exp(each) * each).sum(-1), real)


def loss(batch: Batch, weights: Weights) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes the loss: the mean over graphs and actions of

      -A log p(action) / c  -  entropy_coefficient * H / c  +  value_coefficient * (reward - b(G))^2

    where A = (reward - baseline) / deviation, and c is the batch's mean number of choices per graph. With this
    constant, one learning rate and one entropy weight suit graphs of all sizes. The sum over choices, and with it the
    direction of the policy's gradient, is the paper's. Deviations from the paper: advantages are divided by their root
    mean square over the whole batch and clipped (rewards of BRKGA differ by a few percent, and by less as learning
    progresses); an entropy bonus; the baseline may be the mean reward of the graph's other actions, which is unbiased
    as well.

    Args:
      batch: this device's graphs.
      weights: weights of the terms.

    Returns:
      This device's part of the loss, `[]` float32, whose gradients are summed over the devices; and means over the
      batch.
    """

    if weights.baseline == "learned":
        expected = jnp.broadcast_to(jax.lax.stop_gradient(batch.value)[:, None], batch.reward.shape)
    else:
        expected = others_mean(batch.reward)
    policy, metrics = policy_term(batch.log_prob, batch.reward, expected, batch.choices, weights.clip)
    choices = mean(batch.choices)
    terms = {
        "entropy": -weights.entropy_coefficient * batch.entropy.mean() / choices,
        "value": weights.value_coefficient * jnp.square(batch.reward - batch.value[:, None]).mean(),
    }
    metrics["entropy"] = mean(batch.entropy / batch.choices)
    value = jnp.broadcast_to(batch.value[:, None], batch.reward.shape)
    metrics["value_error"] = jnp.sqrt(mean(jnp.square(batch.reward - value)))
    metrics["explained_variance"] = explained_variance(value, batch.reward)
    return policy + sum(terms.values(), start=jnp.float32(0.0)) / device_count(), metrics


def others_mean(reward: jax.Array) -> jax.Array:
    """Computes the baseline "leave-one-out": for each action `[g, a]` the mean reward of the graph's other actions."""
    return (reward.sum(1, keepdims=True) - reward) / max(1, reward.shape[1] - 1)


def policy_term(
    log_prob: jax.Array, reward: jax.Array, expected: jax.Array, choices: jax.Array, clip: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Computes the first term of `loss`, whose gradient is REINFORCE's.

    Args:
      log_prob, reward, choices: see `Batch`.
      expected: `[g, a]` float32, the baseline of each action.
      clip: see `Weights`.

    Returns:
      See `loss`; "entropy" is estimated by the mean of -log p per choice, "env_steps" the number of actions.
    """
    advantage = reward - expected
    deviation = jnp.sqrt(mean(jnp.square(advantage)))
    scaled = jnp.clip(advantage / jnp.maximum(deviation, 1e-6), -clip, clip)
    term = -(scaled * log_prob).mean() / mean(choices)
    return term / device_count(), {
        "return": mean(reward),
        "entropy": -mean(log_prob / choices[:, None]),
        "advantage_deviation": deviation,
        "env_steps": count(reward),
    }


def _sum_real(each: jax.Array, real: jax.Array | np.ndarray) -> jax.Array:
    return jnp.where(real.reshape(-1, *[1] * (each.ndim - 1)), each, 0.0).sum()
