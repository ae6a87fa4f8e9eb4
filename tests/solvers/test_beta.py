"""The tabulated Beta sampler against the distribution itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import betainc

from graphrl.random_bits import random_words, unit_interval
from graphrl.solvers.chromosomes.brkga import beta_quantile, beta_table

SHAPES = [(1, 1), (0.3, 2), (2, 2), (0.5, 0.5), (5, 1), (30, 70), (200, 200), (1000, 3), (0.2, 0.6)]


def table(shapes: list) -> tuple:
    alpha, beta = (jnp.asarray([[pair[i]] for pair in shapes], jnp.float32) for i in (0, 1))
    return beta_table(alpha, beta), alpha, beta


def test_quantiles_have_the_right_distribution() -> None:
    betas, alpha, beta = table(SHAPES)
    uniform = (jnp.arange(4000, dtype=jnp.float32) + 0.5) / 4000
    wanted = jnp.broadcast_to(uniform, (len(SHAPES), 1, 4000))
    quantiles = beta_quantile(betas, wanted)
    assert bool(jnp.all((quantiles >= 0) & (quantiles < 1)))
    assert bool(jnp.all(jnp.diff(quantiles, axis=-1) >= 0))
    below = betainc(
        jnp.broadcast_to(alpha[..., None], quantiles.shape),
        jnp.broadcast_to(beta[..., None], quantiles.shape),
        quantiles,
    )
    # float32 cannot tell values near 1: there a distribution with much mass at 1 looks discrete
    inside = quantiles < 1 - 1e-6
    assert float(jnp.max(jnp.where(inside, jnp.abs(below - wanted), 0.0))) < 0.003


@pytest.mark.parametrize("shape", SHAPES[:7])
def test_moments_of_samples(shape: tuple[float, float]) -> None:
    betas, _, _ = table([shape])
    words = random_words(jnp.asarray([[1, 2]], jnp.uint32), 1, 200_000)
    samples = np.asarray(beta_quantile(betas, unit_interval(words)), np.float64).ravel()
    a, b = shape
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert abs(samples.mean() - mean) < 5 * np.sqrt(variance / samples.size) + 0.002 * np.sqrt(variance)
    assert abs(samples.var() / variance - 1) < 0.025


def test_uniform_words_are_uniform_and_independent() -> None:
    seeds = jax.random.bits(jax.random.key(0), (3, 2))
    words = np.asarray(random_words(seeds, 500, 64))
    values = np.asarray(unit_interval(jnp.asarray(words)), np.float64)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, 64, (0, 1))[0]
    expected = values.size / 64
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 63 + 5 * np.sqrt(2 * 63)
    bits = ((words[..., None] >> np.arange(32, dtype=np.uint32)) & 1).mean((0, 1, 2))
    assert np.all(np.abs(bits - 0.5) < 5 * 0.5 / np.sqrt(words.size))
    for axis in (0, 1, 2):  # neighbours along genes, graphs and lanes do not go together
        a, b = (np.take(values, range(k, values.shape[axis] - 1 + k), axis).ravel() for k in (0, 1))
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)
