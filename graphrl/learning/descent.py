"""What learners begin with, and a step of gradient descent: Adam, no gradient too long."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from graphrl.errors import ProblemError
from graphrl.learning.policy import Policy
from graphrl.learning.spread import Spread

# Adam's: gradients that cancel to rounding errors (below 1e-7; a gradient's elements are some 1e-4) must not become
# steps of full length, which another order of summation, on other devices, would turn round.
EPSILON = 1e-6


def optimiser(learning_rate: optax.ScalarOrSchedule, longest: float) -> optax.GradientTransformation:
    """Adam; gradients longer than `longest` are shortened."""
    return optax.chain(optax.clip_by_global_norm(longest), optax.adam(learning_rate, eps=EPSILON))


def descend(
    optimiser: optax.GradientTransformation, gradient: Any, state: Any, params: Any, axis: str
) -> tuple[Any, Any, jax.Array]:
    """One step with the gradients of all devices of a mesh.

    Args:
      optimiser: see above.
      gradient: of this device's graphs; those of the devices are added up.
      state: of the optimiser.
      params: what `gradient` is of.
      axis: of the mesh.

    Returns:
      The new parameters and the optimiser's new state, and the gradient's length, `[]` float32.
    """
    gradient = jax.lax.psum(gradient, axis)
    with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to the power of its integer count
        updates, state = optimiser.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, _length(gradient)


def start_params(kind: type[Policy[Any]], config: Any, spread: Spread, alike: str) -> Any:
    """The parameters of the policy that `config.start` names, on every device.

    Args:
      kind: the agent's policies.
      config: of the learner.
      spread: its devices.
      alike: the settings of the network, for the message.

    Raises:
      GraphrlError: it cannot be read.
      ProblemError: it is the policy of another network.
    """
    params = kind.load(config.start).params
    if not kind.fits(params, config):
        raise ProblemError(f"agent.start={config.start} has another network: {alike} must be equal")
    return jax.device_put(params, spread.copies)


def _length(gradient: Any) -> jax.Array:
    """Of a gradient, all its arrays together: `[]` float32."""
    return jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
