"""Settings of PPO, and distributions over actions that consist of many choices.

Logits and actions are pytrees: `[..., options]` float32 logits and `[...]` int32 options for each array.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from graphrl.errors import GraphrlError, ProblemError
from graphrl.learning.learner import MAX_COUNT, check_ranges
from graphrl.networks.base import NEVER, Network

Ratio = Literal["joint", "choice"]


@dataclasses.dataclass(frozen=True)
class PpoSettings:
    """Settings of PPO. Defaults are the usual ones for small control problems.

    Attributes:
      steps: t, the number of steps in a roll-out.
      environments: a, the number of environments per instance.
      epochs: number of passes over a roll-out.
      minibatches: number of minibatches per epoch; each has an equal part of every instance's steps.
      discount: gamma, discount of future rewards. Without effect on episodes of one step, as GO's.
      gae_lambda: lambda of generalised advantage estimation: 0 uses one-step values, 1 the observed returns. Without
        effect on episodes of one step.
      ratio: the probability ratio to clip: "joint", that of the whole action, or "choice", that of each of its choices
        (ours). With hundreds of choices the joint ratio leaves the clipping range immediately, which stops learning.
      clip_epsilon: clipping range of probability ratios around 1.
      normalize_advantage: True standardises advantages to mean 0 and deviation 1 over an instance's steps.
      entropy_coefficient: weight of the entropy bonus, per nat; the entropy is summed over an action's choices.
      value_coefficient: weight of the squared error of values.
      learning_rate: Adam's learning rate.
      decay_steps: number of gradient steps over which it falls to a twentieth along a cosine; 0 keeps it.
      max_grad_norm: gradients are clipped to this global norm.

    Raises:
      ProblemError: a value is out of range, or minibatches do not divide the steps of an instance.
    """

    steps: int = 128
    environments: int = 8
    epochs: int = 4
    minibatches: int = 4
    discount: float = 0.99
    gae_lambda: float = 0.95
    ratio: Ratio = "joint"
    clip_epsilon: float = 0.2
    normalize_advantage: bool = True
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    learning_rate: float = 5e-4
    decay_steps: int = 0
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        counts = ("steps", "environments", "epochs", "minibatches")
        check_ranges(
            self,
            integers=dict.fromkeys(counts, (1, MAX_COUNT)) | {"decay_steps": (0, MAX_COUNT)},
            above_zero=("clip_epsilon", "learning_rate", "max_grad_norm"),
            not_below_zero=("entropy_coefficient", "value_coefficient"),
            fractions=("discount", "gae_lambda"),
            options={"ratio": Ratio},
        )
        if self.steps * self.environments % self.minibatches:
            raise ProblemError(
                f"minibatches is {self.minibatches}: must divide steps * environments "
                f"({self.steps} * {self.environments})"
            )


def masked(policy: Network, mask_of: Callable[[Any], Any]) -> Network:
    """Wraps a policy so that it never draws forbidden options.

    Args:
      policy: observation -> logits.
      mask_of: observation -> allowed options, bool, of the logits' structure and shapes.

    Raises:
      GraphrlError: when it is applied, if the logits have another structure or other shapes.
    """

    def apply(params: Any, observation: Any) -> Any:
        logits, mask = policy.apply(params, observation), mask_of(observation)
        shape, expected = (jax.tree.map(jnp.shape, one) for one in (logits, mask))
        if shape != expected:  # those that broadcast, too
            raise GraphrlError(f"the policy's output has shape {shape}: must be {expected}, that of the action mask")
        return jax.tree.map(lambda permitted, logit: jnp.where(permitted, logit, NEVER), mask, logits)

    return Network(policy.init, apply)


def sample(key: jax.Array, logits: Any) -> Any:
    """Samples an option for every choice; see the module for the shapes."""
    leaves, structure = jax.tree.flatten(logits)
    keys = jax.random.split(key, len(leaves))
    samples = [jax.random.categorical(*pair).astype(jnp.int32) for pair in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, samples)


def likeliest(logits: Any) -> Any:
    """Returns the most likely option of every choice."""
    return jax.tree.map(lambda leaf: leaf.argmax(-1).astype(jnp.int32), logits)


def log_probs(logits: Any, action: Any) -> Any:
    """Computes the log-probability of each choice: float32 with the action's structure and shapes."""

    def one(logit: jax.Array, option: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(logit), option[..., None], -1)[..., 0]

    return jax.tree.map(one, logits, action)


def entropy(logits: Any) -> jax.Array:
    """Computes the entropy in nats, summed over all choices: `[]` float32."""

    def one(logit: jax.Array) -> jax.Array:
        each = jax.nn.log_softmax(logit)
        return -(jnp.exp(each) * each).sum()

    return total(jax.tree.map(one, logits))


def choice_count(logits: Any) -> jax.Array:
    """Counts the choices with more than one allowed option (see `masked`): `[]` float32."""
    return total(jax.tree.map(lambda leaf: ((leaf > NEVER / 2).sum(-1) > 1).astype(jnp.float32), logits))


def total(values: Any) -> jax.Array:
    """Sums all elements of all arrays in a pytree: `[]` float32."""
    return sum((leaf.sum() for leaf in jax.tree.leaves(values)), start=jnp.float32(0))
