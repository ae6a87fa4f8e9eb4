"""Specifications of observations and actions: pytrees with an `ArraySpec` for each array of the value.

An `ArraySpec` is a leaf of `jax.tree`, so that a specification has the tree structure of its values.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import GraphrlError


class SpecError(GraphrlError):
    """A value does not fit its specification."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype and range of an array; static and hashable.

    Attributes:
      shape: shape of the array.
      dtype: dtype of the array.
      minimum, maximum: bounds of every element, both inclusive; None is unbounded. Integers have both or neither.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    minimum: float | None = None
    maximum: float | None = None

    @property
    def num_values(self) -> int:
        """Number of values that an element can take.

        Raises:
          SpecError: the array does not have bounded integers.
        """
        if not np.issubdtype(self.dtype, np.integer) or self.minimum is None or self.maximum is None:
            raise SpecError(f"{self} has no number of values: only bounded integers have one")
        return int(self.maximum - self.minimum) + 1

    def fault(self, value: Any) -> str:
        """Describes how `value` violates the specification; "" if it fits. For a tracer only shape and dtype count."""
        shape, dtype = jnp.shape(value), jnp.result_type(value)
        if shape != self.shape or dtype != self.dtype:
            return f"has shape {shape} and dtype {dtype}: must be {self.shape} and {self.dtype}"
        if isinstance(value, jax.core.Tracer) or not np.size(value) or self.dtype == np.bool_:
            return ""
        array = np.asarray(value)
        if not np.all(np.isfinite(array)):
            return "has an element that is not finite"
        low, high = array.min().item(), array.max().item()
        if (self.minimum is not None and low < self.minimum) or (self.maximum is not None and high > self.maximum):
            return f"has elements from {low} to {high}: must be from {self.minimum} to {self.maximum}"
        return ""


def floats(shape: tuple[int, ...], minimum: float | None = None, maximum: float | None = None) -> ArraySpec:
    """Creates the specification of a float32 array."""
    return ArraySpec(shape, np.dtype(np.float32), minimum, maximum)


def integers(shape: tuple[int, ...], minimum: int, maximum: int) -> ArraySpec:
    """Creates the specification of an int32 array of values from `minimum` to `maximum`, both inclusive."""
    return ArraySpec(shape, np.dtype(np.int32), minimum, maximum)


def booleans(shape: tuple[int, ...]) -> ArraySpec:
    """Creates the specification of a bool array."""
    return ArraySpec(shape, np.dtype(np.bool_))


def choices(shape: tuple[int, ...], num_values: int) -> ArraySpec:
    """Creates the specification of an int32 array of indices from 0 to `num_values` - 1."""
    return integers(shape, 0, num_values - 1)


def validate(spec: Any, value: Any, what: str = "value") -> None:
    """Checks a value against its specification; inside `jax.jit`, its structure, shapes and dtypes.

    Raises:
      SpecError: a part of `value` does not fit `spec`; the message names the first one.
    """
    structures: tuple[Any, Any] = jax.tree.structure(spec), jax.tree.structure(value)
    expected, structure = structures
    if expected != structure:
        raise SpecError(f"{what} has the structure {structure}: must be {expected}")
    for (path, one), leaf in zip(jax.tree.leaves_with_path(spec), jax.tree.leaves(value), strict=True):
        if fault := one.fault(leaf):
            raise SpecError(f"{what}{jax.tree_util.keystr(path)} {fault}")


def sample(spec: Any, key: jax.Array) -> Any:
    """Draws a random value that fits: uniform in the specified range, standard normal if that is unbounded."""
    leaves, structure = jax.tree.flatten(spec)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [_sample(one, k) for one, k in zip(leaves, keys, strict=True)])


def sample_masked(mask: Any, key: jax.Array) -> Any:
    """Draws a random choice for every row of every mask, uniformly among those that are allowed.

    Args:
      mask: a pytree of `[..., o]` bool: the allowed ones of o options. A row without any gives option 0.
      key: `[]` typed key.

    Returns:
      The same pytree, `[...]` int32 each.
    """
    leaves, structure = jax.tree.flatten(mask)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [_sample_row(*pair) for pair in zip(keys, leaves, strict=True)])


def _sample_row(key: jax.Array, mask: jax.Array) -> jax.Array:
    """Draws an option of every row of a mask `[..., o]`, from one random number each: `[...]` int32."""
    upto = jnp.cumsum(mask, -1, dtype=jnp.int32)
    count = upto[..., -1]
    place = jnp.floor(jax.random.uniform(key, count.shape) * count.astype(jnp.float32)).astype(jnp.int32)
    return (upto > jnp.minimum(place, count - 1)[..., None]).argmax(-1).astype(jnp.int32)


def _sample(spec: ArraySpec, key: jax.Array) -> jax.Array:
    if spec.dtype == np.bool_:
        return jax.random.bernoulli(key, 0.5, spec.shape)
    if np.issubdtype(spec.dtype, np.integer):
        values = spec.num_values
        return jax.random.randint(key, spec.shape, 0, values, spec.dtype) + jnp.asarray(spec.minimum, spec.dtype)
    if spec.minimum is None or spec.maximum is None:
        return jax.random.normal(key, spec.shape, spec.dtype)
    return jax.random.uniform(key, spec.shape, spec.dtype, spec.minimum, spec.maximum)
