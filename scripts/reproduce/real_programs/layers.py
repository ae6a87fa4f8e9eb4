"""What the programs of `scanned.py`, `unrolled.py` and `agents.py` share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

Update = tuple[Callable[[Any, Any], tuple[Any, jax.Array]], Any, Any]


def drawn(*shape: int) -> jax.Array:
    """Weights: normal, with the deviation of the second last dimension's root."""
    numbers = np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape, np.float32)
    return jnp.asarray(numbers / np.sqrt(shape[-2]))


def normed(x: jax.Array) -> jax.Array:
    """Layer normalisation without weights."""
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def attention(qkv: jax.Array, heads: int) -> jax.Array:
    """Causal attention of `[texts, tokens, 3 width]`."""
    texts, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (part.reshape(texts, tokens, heads, -1) for part in jnp.split(qkv, 3, -1))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / (width // heads) ** 0.5
    shares = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -1e9))
    return jnp.einsum("bhts,bshd->bthd", shares, v).reshape(texts, tokens, width)


def trained(loss: Callable[[Any, Any], jax.Array], weights: Any, batch: Any, rule: Any) -> Update:
    """A training step whose state is the weights and what Optax keeps beside them."""

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, moments = state
        value, gradient = jax.value_and_grad(loss)(weights, batch)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), moments), value

    return step, (weights, rule.init(weights)), batch


def trained_model(model: nn.Module, inputs: Any, rule: Any) -> Update:
    """A training step of a Flax module; the loss is the mean of its outputs' squares."""

    def loss(weights: Any, inputs: Any) -> jax.Array:
        outputs: Any = model.apply(weights, inputs)
        return jnp.square(outputs).mean()

    return trained(loss, jax.jit(model.init)(jax.random.key(0), inputs), inputs, rule)


def trained_with_statistics(model: nn.Module, inputs: jax.Array, rule: Any) -> Update:
    """The same of a module with batch normalisation, whose statistics are part of the state."""
    variables = jax.jit(model.init)(jax.random.key(0), inputs)

    def loss(weights: Any, statistics: Any, inputs: jax.Array) -> tuple[jax.Array, Any]:
        held = {"params": weights, "batch_stats": statistics}
        outputs, changed = model.apply(held, inputs, mutable=["batch_stats"])
        return jnp.square(outputs).mean(), changed["batch_stats"]

    def step(state: Any, inputs: jax.Array) -> tuple[Any, jax.Array]:
        weights, statistics, moments = state
        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(weights, statistics, inputs)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), statistics, moments), value

    return step, (variables["params"], variables["batch_stats"], rule.init(variables["params"])), inputs


class Mixer(nn.Module):
    """A block of an MLP-Mixer (Tolstikhin et al., 2021), as a scan wants it."""

    tokens: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
        x = x + jnp.swapaxes(nn.Dense(self.tokens)(nn.gelu(nn.Dense(self.width)(y))), 1, 2)
        y = nn.LayerNorm()(x)
        return x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(y))), None
