"""Whole training steps in the forms in which people write them: Optax, Flax NNX, Equinox.

Each function builds a `Whole`: its `step` takes a rule for layers and a number of microbatches, both written by hand.
Steps donate weights and optimizer states. Arguments are shapes; nothing is computed.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from reproduce.models import language
from reproduce.models.losses import Program, Wrap, shaped_on

_RULE = optax.adamw(3e-4)


class Whole(NamedTuple):
    """A training step.

    Attributes:
      step: function from a rule for layers and a number of microbatches to the jitted step.
      args: its arguments, as shapes.
      batch_axis: for the arguments that have the batch, its axis.
    """

    step: Callable[[Wrap, int], Callable[..., Any]]
    args: tuple[Any, ...]
    batch_axis: dict[str, int]


def averaged(
    value_and_grad: Callable[..., Any],
    params: Any,
    batch: Any,
    count: int,
    split: Callable[[Any], Any] = lambda parts: parts,
) -> Any:
    """Returns value and gradient of a mean over the batch, in microbatches; `split` splits these over devices."""
    if count == 1:
        return value_and_grad(params, batch)
    parts = split(jax.tree.map(lambda x: x.reshape(count, x.shape[0] // count, *x.shape[1:]), batch))
    first = jax.tree.map(lambda x: x[0], parts)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: value_and_grad(params, first)))

    def add(sums: Any, part: Any) -> Any:
        return jax.tree.map(jnp.add, sums, value_and_grad(params, part)), None

    return jax.tree.map(lambda total: total / count, lax.scan(add, zeros, parts)[0])


def optax_decoder(**sizes: Any) -> Whole:
    """Decoder with dropout in plain JAX, its layers in sequence, under Optax's AdamW."""
    program = language.transformer(**sizes, scanned=False)

    def of(wrap: Wrap, count: int) -> Callable[..., Any]:
        loss = program.loss(wrap)

        def step(params: Any, moments: Any, texts: jax.Array, key: jax.Array) -> Any:
            gradient_of = jax.value_and_grad(lambda params, texts: loss(params, texts, key))
            value, gradient = averaged(gradient_of, params, texts, count)
            updates, moments = _RULE.update(gradient, moments, params)
            return optax.apply_updates(params, updates), moments, value

        return jax.jit(step, donate_argnums=(0, 1))

    params, texts, key = program.args
    return Whole(of, (params, jax.eval_shape(_RULE.init, params), texts, key), {"texts": 0})


def sharded_decoder(program: Program, shardings: tuple[Any, ...], constrain: Wrap) -> Whole:
    """Decoder that several devices share, under Optax's AdamW; gradients are constrained to the split of the weights.

    Args:
      program: its loss.
      shardings: how its weights, its texts and what else it takes are split.
      constrain: wrapper for layers, whose results are split as the batch is.
    """
    of_params, of_texts, *others = shardings
    parts = NamedSharding(of_texts.mesh, PartitionSpec(None, *of_texts.spec))

    def of(wrap: Wrap, count: int) -> Callable[..., Any]:
        loss = program.loss(lambda layer: wrap(constrain(layer)))

        def step(params: Any, moments: Any, texts: jax.Array, *key: jax.Array) -> Any:
            def gradient_of(params: Any, texts: jax.Array) -> Any:
                value, gradient = jax.value_and_grad(loss)(params, texts, *key)
                return value, lax.with_sharding_constraint(gradient, of_params)

            split = functools.partial(lax.with_sharding_constraint, shardings=parts)
            value, gradient = averaged(gradient_of, params, texts, count, split)
            updates, moments = _RULE.update(gradient, moments, params)
            return optax.apply_updates(params, updates), moments, value

        return jax.jit(step, donate_argnums=(0, 1))

    params, texts, *key = program.args
    whole = NamedSharding(of_texts.mesh, PartitionSpec())
    of_moments = optax.tree.map_params(
        _RULE, lambda _, own: own, jax.eval_shape(_RULE.init, params), of_params, transform_non_params=lambda _: whole
    )
    args = params, jax.eval_shape(_RULE.init, params), texts, *key
    return Whole(of, shaped_on(args, (of_params, of_moments, of_texts, *others)), {"texts": 0})


class _NnxLayer(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class _NnxImages(nnx.Module):
    def __init__(self, *, patch: int, depth: int, width: int, heads: int) -> None:
        rngs = nnx.Rngs(0)
        self.patches = nnx.Conv(3, width, (patch, patch), (patch, patch), rngs=rngs)
        self.layers = nnx.List([_NnxLayer(width, heads, rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, 1000, rngs=rngs)

    def __call__(self, images: jax.Array, wrap: Wrap) -> jax.Array:
        x = self.patches(images).reshape(images.shape[0], -1, self.patches.out_features)
        for layer in self.layers:
            x = wrap(_NnxLayer.__call__)(layer, x)
        return self.head(x.mean(1))


def nnx_images(*, batch: int, side: int, **sizes: Any) -> Whole:
    """Vision transformer in Flax NNX, under `nnx.Optimizer` with AdamW."""

    def make() -> Any:
        model = _NnxImages(**sizes)
        return model, nnx.Optimizer(model, _RULE, wrt=nnx.Param)

    def of(wrap: Wrap, count: int) -> Callable[..., Any]:
        def loss(model: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
            logits = model(images, wrap)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        def step(model: Any, optimizer: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
            if count == 1:
                value, gradient = nnx.value_and_grad(loss)(model, images, labels)
            else:
                graph, params = nnx.split(model, nnx.Param)
                gradient_of = jax.value_and_grad(lambda params, batch: loss(nnx.merge(graph, params), *batch))
                value, gradient = averaged(gradient_of, params, (images, labels), count)
            optimizer.update(model, gradient)
            return value

        return nnx.jit(step, donate_argnums=(0, 1))

    images = jax.ShapeDtypeStruct((batch, side, side, 3), jnp.float32)
    args = (*nnx.eval_shape(make), images, jax.ShapeDtypeStruct((batch,), jnp.int32))
    return Whole(of, args, {"images": 0, "labels": 0})


class _EqxLayer(eqx.Module):
    norms: list[eqx.nn.RMSNorm]
    attention: eqx.nn.MultiheadAttention
    gate: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, heads: int, hidden: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.norms = [eqx.nn.RMSNorm(width) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=keys[0])
        self.gate, self.up = (eqx.nn.Linear(width, hidden, use_bias=False, key=own) for own in keys[1:3])
        self.down = eqx.nn.Linear(hidden, width, use_bias=False, key=keys[3])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Runs the layer on the tokens of one text, `[tokens, width]`."""
        y, causal = jax.vmap(self.norms[0])(x), jnp.tril(jnp.ones((len(x), len(x)), bool))
        x = x + self.attention(y, y, y, causal)
        y = jax.vmap(self.norms[1])(x)
        return x + jax.vmap(self.down)(jax.nn.silu(jax.vmap(self.gate)(y)) * jax.vmap(self.up)(y))


class _EqxDecoder(eqx.Module):
    embed: jax.Array
    layers: _EqxLayer  # stacked

    def __init__(self, *, depth: int, width: int, heads: int, hidden: int, words: int) -> None:
        own, *keys = jax.random.split(jax.random.key(0), depth + 1)
        self.embed = jax.random.normal(own, (words, width)) / width**0.5
        self.layers = eqx.filter_vmap(lambda key: _EqxLayer(width, heads, hidden, key))(jnp.stack(keys))

    def __call__(self, texts: jax.Array, wrap: Wrap) -> jax.Array:
        arrays, rest = eqx.partition(self.layers, eqx.is_array)

        def layer(arrays: Any, x: jax.Array) -> jax.Array:
            return jax.vmap(eqx.combine(arrays, rest))(x)

        run = wrap(layer)
        x, _ = lax.scan(lambda x, own: (run(own, x), None), self.embed[texts], arrays)
        return x @ self.embed.T


def equinox_decoder(*, batch: int, tokens: int, **sizes: Any) -> Whole:
    """Decoder with gated networks in Equinox, its layers in a `lax.scan`, under Optax's AdamW."""

    def make() -> Any:
        model = _EqxDecoder(**sizes)
        return model, _RULE.init(eqx.filter(model, eqx.is_array))

    def of(wrap: Wrap, count: int) -> Callable[..., Any]:
        def loss(model: Any, texts: jax.Array) -> jax.Array:
            logits = jax.nn.log_softmax(model(texts, wrap))
            return -jnp.take_along_axis(logits[:, :-1], texts[:, 1:, None], -1).mean()

        def step(texts: jax.Array, model: Any, moments: Any) -> Any:
            value, gradient = averaged(eqx.filter_value_and_grad(loss), model, texts, count)
            updates, moments = _RULE.update(gradient, moments, model)
            return eqx.apply_updates(model, updates), moments, value

        return eqx.filter_jit(step, donate="all-except-first")

    texts = jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
    return Whole(of, (texts, *eqx.filter_eval_shape(make)), {"texts": 0})
