"""A loss to be differentiated, whose layers a rule can wrap."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

Loss = Callable[..., jax.Array]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Program(NamedTuple):
    """A loss and its arguments.

    Attributes:
      loss: with what goes around each of its layers, a pure function, gives the loss: a scalar of parameters, by
        which it is differentiated, and inputs.
      params: a pytree of `jax.ShapeDtypeStruct`s.
      inputs: a key -> the other arguments: the batch, and a key if the loss draws numbers.
    """

    loss: Callable[[Wrap], Loss]
    params: Any
    inputs: Callable[[jax.Array], Sequence[Any]]

    @property
    def args(self) -> tuple[Any, ...]:
        """All arguments as `jax.ShapeDtypeStruct`s."""
        return self.params, *jax.eval_shape(self.inputs, jax.random.key(0))

    def draw(self, seed: int) -> tuple[Any, ...]:
        """Arguments: matrices of normal numbers, scaled by their inputs; what is no matrix near 1."""
        numbers = np.random.default_rng(seed)

        def drawn(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            values = numbers.standard_normal(leaf.shape, np.float32)
            matrix = leaf.ndim > 1
            return jnp.asarray(values / np.prod(leaf.shape[:-1]) ** 0.5 if matrix else 1 + values / 10, leaf.dtype)

        return jax.tree.map(drawn, self.params), *self.inputs(jax.random.key(seed))


def undecorated(layer: Callable[..., Any]) -> Callable[..., Any]:
    """The `Wrap` that leaves a layer as it is."""
    return layer


def shaped(tree: Any) -> Any:
    """Tuples of sizes in nested dicts and lists as float32 `jax.ShapeDtypeStruct`s."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), tree, is_leaf=lambda x: type(x) is tuple
    )


class Network(NamedTuple):
    """How a forward pass calls its modules: `module, *inputs -> outputs`.

    Attributes:
      layer: for those that a rule wraps.
      part: for all others: what comes before the first layer, between two and after the last.
    """

    layer: Callable[..., Any]
    part: Callable[..., Any]


def flax_program(forward: Callable[..., jax.Array], inputs: Callable[[jax.Array], Sequence[Any]]) -> Program:
    """The program of a forward pass through Flax modules, each with parameters of its own.

    Args:
      forward: `network, *inputs -> loss`, which calls the same modules in the same order whatever the inputs.
      inputs: a key -> the arguments after the parameters.
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
    """The module as a function of its parameters; statistics of batches are used, and not kept."""
    return lambda params, *xs: module.apply({"params": params}, *xs, mutable=["batch_stats"])[0]
