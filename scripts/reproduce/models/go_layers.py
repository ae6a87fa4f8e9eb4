"""Layers, named parameters and the model type of GO's workloads.

Each layer is one op of the jaxpr for each op of the framework's layer. Matrices are `[output, input]`, kernels
`[output, height, width, input]`, so that their gradients need no transposes. A model requests each parameter where it
uses it, so that its shapes are defined in one place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

EPSILON = 1e-3  # of normalisations

Batch = dict[str, jax.Array]


class Weights:
    """Named parameters, for `loss(weights, batch)` of a model; see `__call__`.

    Args:
      values: the parameters; None, under `jax.eval_shape` only, records the shapes.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.shapes: dict[str, jax.ShapeDtypeStruct] = {}
        self._values = values

    def __call__(self, name: str, *shape: int) -> jax.Array:
        """Returns the parameter of this name and shape; matrices and kernels have their output channels first."""
        self.shapes[name] = jax.ShapeDtypeStruct(shape, "float32")
        return jnp.zeros(shape) if self._values is None else self._values[name]


class Model(NamedTuple):
    """A model at one size.

    Attributes:
      loss: function of weights and batch; returns a scalar, and the next step's state (a Transformer-XL's memory or
        empty).
      batch: shapes of the batch's arrays, by name; int32 arrays contain numbers below `classes`.
      classes: number of classes.
    """

    loss: Callable[[Weights, Batch], tuple[jax.Array, Any]]
    batch: dict[str, jax.ShapeDtypeStruct]
    classes: int

    def parameters(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of the parameters, in the order of use."""
        weights = Weights()
        jax.eval_shape(lambda batch: self.loss(weights, batch), self.batch)
        return weights.shapes


def tokens(count: int) -> jax.ShapeDtypeStruct:
    """Returns the shape of `count` int32 tokens."""
    return jax.ShapeDtypeStruct((count,), "int32")


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Returns the abstract float32 array of this shape."""
    return jax.ShapeDtypeStruct(shape, "float32")


def spread(vector: jax.Array, like: jax.Array) -> jax.Array:
    """Broadcasts a vector over the last axis to the shape of `like`."""
    return lax.broadcast_in_dim(vector, like.shape, (like.ndim - 1,))


def linear(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiplies the last axis of `x` by a matrix `[output, input]`."""
    return lax.dot_general(x, matrix, (((x.ndim - 1,), (1,)), ((), ())))


def dense(w: Weights, name: str, x: jax.Array, units: int) -> jax.Array:
    """Applies a dense layer: a matrix and a bias."""
    y = linear(x, w(f"{name}/kernel", units, x.shape[-1]))
    return y + spread(w(f"{name}/bias", units), y)


def embed(w: Weights, name: str, tokens: jax.Array, classes: int, units: int) -> jax.Array:
    """Looks up the embedding of every token in a table: `[tokens, units]`."""
    return w(name, classes, units).at[tokens].get(mode="promise_in_bounds")


def lstm(w: Weights, name: str, x: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Runs one step of an LSTM; returns output and cell, each `[batch, units]`.

    Zaremba et al., "Recurrent neural network regularization", 2014, without peepholes.
    """
    h, c = state
    units = h.shape[-1]
    gates = linear(x, w(f"{name}/input", 4 * units, x.shape[-1])) + linear(h, w(f"{name}/hidden", 4 * units, units))
    gates = gates + spread(w(f"{name}/bias", 4 * units), gates)
    forget, write, candidate, read = lax.split(gates, (units,) * 4, axis=1)
    c = lax.logistic(forget) * c + lax.logistic(write) * lax.tanh(candidate)
    return lax.logistic(read) * lax.tanh(c), c


def resting(batch: int, units: int) -> tuple[jax.Array, jax.Array]:
    """Returns the LSTM state before the first step, zeros."""
    zeros = jnp.zeros((batch, units))
    return zeros, zeros


def steps_of(rows: jax.Array, steps: int) -> list[jax.Array]:
    """Splits rows in the order of steps into one array for each step."""
    return list(lax.split(rows, (len(rows) // steps,) * steps, axis=0))


def layer_norm(w: Weights, name: str, x: jax.Array) -> jax.Array:
    """Applies layer normalisation over the last axis."""
    return _normal(w, name, x, (x.ndim - 1,))


def batch_norm(w: Weights, name: str, x: jax.Array) -> jax.Array:
    """Applies batch normalisation over all axes but the last, by the batch's own statistics (no moving averages)."""
    return _normal(w, name, x, tuple(range(x.ndim - 1)))


def _normal(w: Weights, name: str, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    centred = x - jnp.mean(x, axes, keepdims=True)
    factor = lax.rsqrt(jnp.mean(lax.square(centred), axes, keepdims=True) + EPSILON)
    normal = centred * factor * spread(w(f"{name}/scale", x.shape[-1]), x)
    return normal + spread(w(f"{name}/shift", x.shape[-1]), x)


def conv(
    w: Weights,
    name: str,
    x: jax.Array,
    channels: int,
    window: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str = "SAME",
) -> jax.Array:
    """Convolves images `[batch, height, width, channels]`, without bias."""
    kernel = w(f"{name}/kernel", channels, *window, x.shape[-1])
    strides = (stride, stride) if isinstance(stride, int) else tuple(stride)
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "OHWI", "NHWC"))


def max_pool(x: jax.Array, size: int, stride: int, padding: str = "SAME") -> jax.Array:
    """Takes the maximum over square windows."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), padding)


def average_pool(x: jax.Array, size: int, stride: int, padding: str = "SAME") -> jax.Array:
    """Takes the mean over square windows, including zeros beyond the border."""
    return lax.reduce_window(x, 0.0, lax.add, (1, size, size, 1), (1, stride, stride, 1), padding) / size**2


def softmax(x: jax.Array) -> jax.Array:
    """Applies softmax over the last axis."""
    exponentials = lax.exp(x - lax.stop_gradient(jnp.max(x, -1, keepdims=True)))
    return exponentials / jnp.sum(exponentials, -1, keepdims=True)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Computes the mean cross-entropy over rows: logits `[rows, classes]`, labels `[rows]`."""
    shifted = logits - lax.stop_gradient(jnp.max(logits, -1, keepdims=True))
    total = lax.log(jnp.sum(lax.exp(shifted), -1))
    return jnp.mean(total - shifted.at[jnp.arange(len(labels)), labels].get(mode="promise_in_bounds"))
