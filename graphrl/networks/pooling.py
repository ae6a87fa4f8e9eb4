"""One vector for many ops."""

import jax
import jax.numpy as jnp


def mean_of(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of the rows `[n, w]` float32 that `mask` `[n]` has: `[w]`; 0 of none."""
    real = mask[:, None].astype(jnp.float32)
    return (rows * real).sum(0) / jnp.maximum(real.sum(), 1.0)
