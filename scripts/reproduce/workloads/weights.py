"""Parameters by name: a model asks for each where it uses it, so that its shapes stand in one place."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


class Weights:
    """What `loss(weights, batch)` of a model gets its parameters from.

    Args:
      values: the parameters; None, under `jax.eval_shape` only, writes down which there are.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.shapes: dict[str, jax.ShapeDtypeStruct] = {}
        self._values = values

    def __call__(self, name: str, *shape: int) -> jax.Array:
        """The parameter of this name: matrices and kernels have their output channels first."""
        self.shapes[name] = jax.ShapeDtypeStruct(shape, "float32")
        return jnp.zeros(shape) if self._values is None else self._values[name]


def initial(shapes: Mapping[str, jax.ShapeDtypeStruct], key: jax.Array) -> dict[str, jax.Array]:
    """Values to start from: normal over the square root of the fan-in; scales 1, biases 0."""
    keys = jax.random.split(key, len(shapes))
    return {name: _initial(name, shape.shape, k) for (name, shape), k in zip(shapes.items(), keys, strict=True)}


def _initial(name: str, shape: tuple[int, ...], key: jax.Array) -> jax.Array:
    if len(shape) == 1:
        return jnp.ones(shape) if name.endswith("scale") else jnp.zeros(shape)
    return jax.random.normal(key, shape) / math.sqrt(math.prod(shape[1:]))
