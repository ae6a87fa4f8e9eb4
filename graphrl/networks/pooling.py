"""What is said of many ops together: their mean, and each beside the others."""

import jax
import jax.numpy as jnp


def mean_of(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of the rows `[n, w]` float32 that `mask` `[n]` has: `[w]`; 0 of none."""
    real = mask[:, None].astype(jnp.float32)
    return (rows * real).sum(0) / jnp.maximum(real.sum(), 1.0)


def standardised(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """Each feature of the rows `[n, w]` float32 shifted and scaled to mean 0 and deviation 1 over those of `mask`.

    What all rows have in common goes, what tells them apart stays; deviations far below 0.01 are not blown up.
    """
    centred = rows - mean_of(rows, mask)[None]
    return centred * jax.lax.rsqrt(mean_of(jnp.square(centred), mask)[None] + 1e-4)
