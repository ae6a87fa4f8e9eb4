"""Differentiable losses whose layers a rule can wrap; training steps of losses and of Flax modules."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

Loss = Callable[..., jax.Array]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
# `step(state, batch) -> (state, loss)`, its first state and its batch
Update = tuple[Callable[[Any, Any], tuple[Any, jax.Array]], Any, Any]


class Program(NamedTuple):
    """A loss and its arguments.

    Attributes:
      loss: function from a wrapper, which is applied to each layer (a pure function), to the loss. The loss is a scalar
        function of parameters, by which it is differentiated, and inputs.
      params: a pytree of `jax.ShapeDtypeStruct`s.
      inputs: function from a key to the other arguments: the batch, and a key if the loss draws numbers.
    """

    loss: Callable[[Wrap], Loss]
    params: Any
    inputs: Callable[[jax.Array], Sequence[Any]]

    @property
    def args(self) -> tuple[Any, ...]:
        """All arguments as `jax.ShapeDtypeStruct`s."""
        return self.params, *jax.eval_shape(self.inputs, jax.random.key(0))

    def draw(self, seed: int) -> tuple[Any, ...]:
        """Draws random arguments: matrices are normal, scaled by their inputs; other parameters are near 1."""
        numbers = np.random.default_rng(seed)

        def drawn(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            values = numbers.standard_normal(leaf.shape, np.float32)
            matrix = leaf.ndim > 1
            return jnp.asarray(values / np.prod(leaf.shape[:-1]) ** 0.5 if matrix else 1 + values / 10, leaf.dtype)

        return jax.tree.map(drawn, self.params), *self.inputs(jax.random.key(seed))


def undecorated(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the layer unchanged: the wrapper for a loss without a rule."""
    return layer


def shaped(tree: Any) -> Any:
    """Converts tuples of sizes in nested dicts and lists to float32 `jax.ShapeDtypeStruct`s."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), tree, is_leaf=lambda x: type(x) is tuple
    )


def shaped_on(args: Any, shardings: Any) -> Any:
    """Returns arguments as `jax.ShapeDtypeStruct`s with shardings."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), args, shardings)


class Network(NamedTuple):
    """Calls of modules in a forward pass: `module, *inputs -> outputs`.

    Attributes:
      layer: for modules that a rule wraps.
      part: for all others: before the first layer, between layers and after the last.
    """

    layer: Callable[..., Any]
    part: Callable[..., Any]


def flax_program(forward: Callable[..., jax.Array], inputs: Callable[[jax.Array], Sequence[Any]]) -> Program:
    """Builds the program of a forward pass through Flax modules, which share no parameters.

    Args:
      forward: `network, *inputs -> loss`. It calls the same modules in the same order for all inputs.
      inputs: function from a key to the arguments after the parameters.
    """

    def init(key: jax.Array) -> list[Any]:
        params: list[Any] = []

        def first_call(module: nn.Module, *xs: Any) -> Any:
            outputs, variables = module.init_with_output(key, *xs)
            params.append(variables.get("params", {}))
            return outputs

        forward(Network(first_call, first_call), *inputs(key))
        return params

    def loss(wrap: Wrap) -> Loss:
        def of_params(params: Any, *inputs: Any) -> jax.Array:
            left = iter(params)
            return forward(
                Network(
                    lambda module, *xs: wrap(_apply(module))(next(left), *xs),
                    lambda module, *xs: _apply(module)(next(left), *xs),
                ),
                *inputs,
            )

        return of_params

    return Program(loss, jax.eval_shape(init, jax.random.key(0)), inputs)


def _apply(module: nn.Module) -> Callable[..., Any]:
    """Converts a module to a function of its parameters, which uses batch statistics without storing them."""
    return lambda params, *xs: module.apply({"params": params}, *xs, mutable=["batch_stats"])[0]


def drawn(*shape: int) -> jax.Array:
    """Draws random weights: normal, divided by the root of the second last dimension."""
    numbers = np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape, np.float32)
    return jnp.asarray(numbers / np.sqrt(shape[-2]))


def updated(program: Program, rule: Any) -> Update:
    """Builds the training step of a loss; its inputs are those of one batch."""
    params, *batch = program.draw(0)
    loss = program.loss(undecorated)
    return trained(lambda params, batch: loss(params, *batch), params, batch, rule)


def trained(loss: Callable[[Any, Any], jax.Array], weights: Any, batch: Any, rule: Any) -> Update:
    """Builds a training step whose state is the weights and Optax's state."""

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        weights, moments = state
        value, gradient = jax.value_and_grad(loss)(weights, batch)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), moments), value

    return step, (weights, rule.init(weights)), batch


def trained_model(model: nn.Module, inputs: Any, rule: Any) -> Update:
    """Builds the training step of a Flax module, whose batch statistics are part of the state.

    The loss is the mean of its outputs' squares.
    """
    variables = dict(jax.jit(model.init)(jax.random.key(0), inputs))
    weights = variables.pop("params")

    def loss(weights: Any, statistics: Any, inputs: Any) -> tuple[jax.Array, Any]:
        outputs, changed = model.apply({"params": weights, **statistics}, inputs, mutable=["batch_stats"])
        return jnp.square(outputs).mean(), changed

    def step(state: Any, inputs: Any) -> tuple[Any, jax.Array]:
        weights, statistics, moments = state
        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(weights, statistics, inputs)
        updates, moments = rule.update(gradient, moments, weights)
        return (optax.apply_updates(weights, updates), statistics, moments), value

    return step, (weights, variables, rule.init(weights)), inputs


def normed(x: jax.Array) -> jax.Array:
    """Applies layer normalisation without weights."""
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def attention(qkv: jax.Array, heads: int) -> jax.Array:
    """Applies causal attention to queries, keys and values, joined as `[texts, tokens, 3 width]`."""
    texts, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (part.reshape(texts, tokens, heads, -1) for part in jnp.split(qkv, 3, -1))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / (width // heads) ** 0.5
    shares = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -1e9))
    return jnp.einsum("bhts,bshd->bthd", shares, v).reshape(texts, tokens, width)
