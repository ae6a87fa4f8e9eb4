"""Arguments to run a program with when only their shapes are known: random numbers that keep values finite."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LEAST_SCALE = 0.02  # standard deviation of large arrays: embeddings, images


def random_arguments(args: Any, seed: int = 0) -> Any:
    """`args` with every `jax.ShapeDtypeStruct` replaced by an array of that shape and type; arrays stay.

    Vectors and scalars (scales, variances, biases) are 1 + 0.1 N(0, 1): variances must be positive. Larger arrays are
    normal with He's standard deviation for kernels, sqrt(2 / product of all dimensions but the last), and at least
    `LEAST_SCALE`. Integers are 0 or 1: valid as token, index, mask and key.

    Args:
      args: a pytree.
      seed: equal seeds give equal arrays.
    """
    generator = np.random.default_rng(seed)

    def fill(leaf: Any) -> Any:
        return _draw(leaf.shape, leaf.dtype, generator) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.tree_util.tree_map(fill, args)


def _draw(shape: tuple[int, ...], dtype: Any, generator: np.random.Generator) -> jax.Array:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(int(generator.integers(2**31)), impl=dtype._impl.name), math.prod(shape))
        return keys.reshape(shape)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(generator.integers(0, 2, shape, np.int8), dtype)
    numbers = generator.standard_normal(shape, np.float32)
    if len(shape) < 2:
        return jnp.asarray(1 + 0.1 * numbers, dtype)
    return jnp.asarray(numbers * max(LEAST_SCALE, math.sqrt(2 / max(1, math.prod(shape[:-1])))), dtype)
