"""Boltzmann chromosomes: a prior and a temperature for every choice of one graph's ops (EGRL, section 3.2, appendix E).

Letters: b chromosomes, g graphs, n ops, h choices of an op, o options of each.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

Source = Literal["paper", "code"]

_COLDEST = 1e-3
_SPAN = 0.01  # the coldest of the first chromosomes, in the hottest: the code's 0.1 in 10
_DRIFT = 0.95  # of the code's temperatures


class Chromosomes(NamedTuple):
    """Policies that see nothing: an option is drawn with probability softmax(prior / temperature)."""

    prior: jax.Array  # [b, g, n, h, o] float32
    temperature: jax.Array  # [b, g, n, h] float32, above 0


def init(key: jax.Array, shape: tuple[int, ...], hottest: float) -> Chromosomes:
    """Random ones of shape [b, g, n, h, o]: priors that sum to 1, temperatures uniform up to `hottest`."""
    prior_key, temperature_key = jax.random.split(key)
    raw = jax.random.uniform(prior_key, shape)
    temperature = jax.random.uniform(temperature_key, shape[:-1], minval=_SPAN * hottest, maxval=hottest)
    return Chromosomes(raw / raw.sum(-1, keepdims=True), temperature)


def logits(chromosomes: Chromosomes) -> jax.Array:
    """`[b, g, n, h, o]` float32, of the options' distribution."""
    return chromosomes.prior / chromosomes.temperature[..., None]


def prior_of(network_logits: jax.Array, source: Source) -> jax.Array:
    """The prior that a network's policy seeds: `[..., o]` to the same.

    "paper" has the posterior probabilities of the options, "code" the logits themselves, less their least, as shares.
    """
    if source == "paper":
        return jax.nn.softmax(network_logits)
    raised = network_logits - network_logits.min((-3, -2, -1), keepdims=True)
    return raised / jnp.maximum(raised.sum(-1, keepdims=True), 1e-6)


def crossed(key: jax.Array, first: Chromosomes, second: Chromosomes, source: Source) -> Chromosomes:
    """Children `[b]` of parents `[b]`: the ops before a random one from the first, the others from the second.

    "code" copies the second's prior and keeps the first's temperature: its mask of genes is always empty.
    """
    if source == "code":
        return Chromosomes(second.prior, first.temperature)
    b, n = first.prior.shape[0], first.prior.shape[2]
    cut = jax.random.randint(key, (b, 1), 0, n + 1)
    early = jnp.arange(n)[None] < cut

    def mix(a: jax.Array, c: jax.Array) -> jax.Array:
        return jnp.where(early.reshape(b, 1, n, *[1] * (a.ndim - 3)), a, c)

    return jax.tree.map(mix, first, second)


def mutated(key: jax.Array, chromosomes: Chromosomes, strength: float, source: Source) -> Chromosomes:
    """All of them with noise.

    "paper" adds N(0, strength^2) to priors; temperatures, which must stay above 0, are multiplied by e to the power of
    such noise (ours). "code" multiplies priors by N(1, strength^2) and temperatures by N(0.95, strength^2): they sink.
    """
    prior_key, temperature_key = jax.random.split(key)
    noise = strength * jax.random.normal(prior_key, chromosomes.prior.shape)
    warmth = strength * jax.random.normal(temperature_key, chromosomes.temperature.shape)
    if source == "code":
        prior, factor = chromosomes.prior * (1 + noise), _DRIFT + warmth
    else:
        prior, factor = chromosomes.prior + noise, jnp.exp(warmth)
    return Chromosomes(prior, jnp.maximum(chromosomes.temperature * factor, _COLDEST))
