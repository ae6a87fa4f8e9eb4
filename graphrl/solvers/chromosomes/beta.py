"""Samples of many Beta distributions, each drawn from often: every gene's mutants (REGAL's proposal distributions).

REGAL reports that sampling, not its network, was its overhead. Here each distribution's quantile function is tabulated
once, however many genes have it, and a sample is a look-up with linear interpolation. Uniform genes need no table and
are exact: proposals that are all uniform make the very run that none make.

With x = sigmoid(y), the density of y is e^(alpha y) / (1 + e^y)^(alpha + beta): smooth, without the poles that
Beta(alpha, beta) has at 0 and 1 for small parameters, and with exponential tails of rates alpha and beta. So y is
what is tabulated; in the first and last cell the tails are inverted in closed form.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma

from graphrl.costs.device.indexing import take

_CELLS = 128
_POINTS = 128  # of the numerical integral, over 10 standard deviations
_LARGEST = 1 - 2.0**-24
UNIFORM = -1


class BetaTable(NamedTuple):
    """The Beta distribution of each gene of each graph, among c tabulated ones or uniform."""

    logit: jax.Array  # [c, cells + 1] float32, logit of the quantile at i / cells; the ends hold their neighbours'
    lower_rate: jax.Array  # [c] float32, density over mass at the lowest tabulated quantile
    upper_rate: jax.Array  # [c] float32, the same at the highest, for the mass above it
    choice: jax.Array  # [k, g] int32, which of them; UNIFORM for none


def beta_table(alpha: jax.Array, beta: jax.Array) -> BetaTable:
    """Tabulates Beta(alpha, beta), elementwise: each gene has its own, c = k * g.

    Args:
      alpha, beta: `[k, g]` float32, from 0.05 to 1,000. (1, 1) is the uniform distribution.
    """
    spread = jnp.sqrt(_variance_bound(alpha) + _variance_bound(beta))
    middle = digamma(alpha) - digamma(beta)
    offset = jnp.linspace(-5.0, 5.0, _POINTS, dtype=jnp.float32)
    y = middle[..., None] + spread[..., None] * offset[None, None, :]
    log_density = _log_density(y, alpha, beta)
    largest = log_density.max(-1, keepdims=True)
    density = jnp.exp(log_density - largest)
    step = (y[..., 1:2] - y[..., :1]) / 2
    inside = jnp.cumsum((density[..., 1:] + density[..., :-1]) * step, -1)
    below = density[..., :1] / alpha[..., None]
    above = density[..., -1:] / beta[..., None]
    total = below + inside[..., -1:] + above
    mass = jnp.concatenate([below, below + inside], -1) / total
    wanted = jnp.arange(1, _CELLS, dtype=jnp.float32) / _CELLS
    logit = jax.vmap(jax.vmap(lambda f, v: jnp.interp(wanted, f, v)))(mass, y)
    outermost = logit[..., jnp.array([0, -1])]
    rate = jnp.exp(_log_density(outermost, alpha, beta) - largest) / total * _CELLS
    logit = jnp.concatenate([logit[..., :1], logit, logit[..., -1:]], -1)
    each = jnp.arange(alpha.size, dtype=jnp.int32).reshape(alpha.shape)
    return BetaTable(logit.reshape(-1, _CELLS + 1), rate[..., 0].reshape(-1), rate[..., 1].reshape(-1), each)


def shared_betas(shapes: Sequence[tuple[float, float]], genes: int, uniform: int, graphs: int) -> BetaTable:
    """Tabulates one Beta(alpha, beta) for the first `genes` genes of a graph; the `uniform` after them are that.

    The first `graphs` graphs have the first pair of `shapes`, the next ones the second, and so on.
    """
    table = beta_table(*jnp.asarray(shapes, jnp.float32).T[..., None])
    by_graph = jnp.repeat(table.choice[:, 0], graphs)
    real = jnp.arange(genes + uniform, dtype=jnp.int32) < genes
    return table._replace(choice=jnp.where(real[:, None], by_graph[None], jnp.int32(UNIFORM)))


def beta_quantile(table: BetaTable, uniform: jax.Array) -> jax.Array:
    """The quantiles at `uniform` `[k, g, m]` in [0, 1) of each gene's distribution: `[k, g, m]` float32 in [0, 1)."""
    choice = jnp.maximum(table.choice, 0)
    scaled = uniform * _CELLS
    cell = jnp.minimum(scaled.astype(jnp.int32), _CELLS - 1)
    part = scaled - cell.astype(jnp.float32)
    entry = choice[..., None] * (_CELLS + 1) + cell
    flat = table.logit.reshape(-1)
    low, high = take(flat, entry), take(flat, entry + 1)
    # beyond the outermost quantiles the distribution function is exponential in the logit
    first, last = cell == 0, cell == _CELLS - 1
    tail = jnp.log(jnp.where(first, part, 1 - part))
    lower, upper = (take(rate, choice)[..., None] for rate in (table.lower_rate, table.upper_rate))
    logit = jnp.where(first | last, low + tail / jnp.where(first, lower, -upper), low + part * (high - low))
    quantile = jnp.minimum(jax.nn.sigmoid(logit), jnp.float32(_LARGEST))
    return jnp.where(table.choice[..., None] == UNIFORM, uniform, quantile)


def _log_density(logit: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """Of the logit of a Beta variable, up to a constant: `[k, g, x]`."""
    return alpha[..., None] * logit - (alpha + beta)[..., None] * jax.nn.softplus(logit)


def _variance_bound(shape: jax.Array) -> jax.Array:
    """A bound of the trigamma function: 1/x + 1/x^2."""
    return 1 / shape + 1 / jnp.square(shape)
