"""Means and standardised rows over the real ones of a graph."""

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.networks.base import mean_of, standardised

ROWS = jnp.array([[1.0, 5.0], [3.0, 5.0], [100.0, -7.0]])


def test_only_real_rows_count() -> None:
    mask = jnp.array([True, True, False])
    np.testing.assert_allclose(np.asarray(mean_of(ROWS, mask)), np.array([2.0, 5.0]))
    np.testing.assert_allclose(np.asarray(standardised(ROWS, mask))[:2], np.array([[-1.0, 0.0], [1.0, 0.0]]), rtol=1e-3)
    np.testing.assert_array_equal(np.asarray(mean_of(ROWS, ~mask & mask)), np.zeros(2))


def test_the_gradient_is_finite_where_nothing_differs() -> None:
    slope = jax.grad(lambda rows: jnp.square(standardised(rows, jnp.ones(2, bool))).sum())(jnp.ones((2, 3)))
    assert bool(jnp.isfinite(slope).all())
