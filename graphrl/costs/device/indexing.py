"""Arrays of fixed sizes: padding, and reads and writes at indices that are known to be inside.

These neither clamp indices nor wrap negative ones, as jnp does: that would cost one or two kernels for each read in the
decoder's step.
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

_INSIDE: dict[str, Any] = {"mode": "promise_in_bounds", "wrap_negative_indices": False}


def filled(values: ArrayLike, size: int, dtype: type, fill: float = 0) -> np.ndarray:
    """Pads values `[k, ...]` along the first axis with `fill` at the end: `[size, ...]`, on the host."""
    values = np.asarray(values)
    array: np.ndarray = np.full((size, *values.shape[1:]), fill, dtype)
    array[: len(values)] = values
    return array


def take(array: jax.Array, index: jax.Array) -> jax.Array:
    """Returns `array[index]`, along the first axis."""
    return array.at[index].get(**_INSIDE)


def put(array: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    """Returns a copy of `array` with `values` at `index`; where indices repeat, the values must be equal."""
    return array.at[index].set(values, **_INSIDE)


def put_max(array: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    """Returns a copy of `array` with the maximum of its elements and `values` at `index`."""
    return array.at[index].max(values, **_INSIDE)


def add(array: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    """Returns a copy of `array` with `values` added at `index`."""
    return array.at[index].add(values, **_INSIDE)
