"""A step of gradient descent: Adam, no gradient too long."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from graphrl.mesh import AXIS

# Adam's: gradients that cancel to rounding errors (below 1e-7; a gradient's elements are some 1e-4) must not become
# steps of full length, which another order of summation, on other devices, would turn round.
EPSILON = 1e-6


def optimiser(learning_rate: optax.ScalarOrSchedule, longest: float) -> optax.GradientTransformation:
    """Adam; gradients longer than `longest` are shortened."""
    return optax.chain(optax.clip_by_global_norm(longest), optax.adam(learning_rate, eps=EPSILON))


def descend(optimiser: optax.GradientTransformation, state: Any, gradient: Any) -> tuple[Any, jax.Array]:
    """One step with the gradients of all devices of a mesh.

    Args:
      optimiser: see above.
      state: `LearnerState`, or with more fields.
      gradient: of this device's graphs, of `state.params`; those of the devices are added up.

    Returns:
      The state after it, and the gradient's length, `[]` float32.
    """
    gradient = jax.lax.psum(gradient, AXIS)
    params, moments = moved(optimiser, state.params, state.optimiser, gradient)
    length = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    return state._replace(params=params, optimiser=moments, step=state.step + 1), length


def moved(optimiser: optax.GradientTransformation, params: Any, moments: Any, gradient: Any) -> tuple[Any, Any]:
    """Parameters and the optimiser's moments after one step with a gradient."""
    with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to the power of its integer count
        updates, moments = optimiser.update(gradient, moments, params)
    return optax.apply_updates(params, updates), moments
