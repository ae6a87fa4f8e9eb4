"""What a model is here: a loss of its weights and a batch, and the shapes of both."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from reproduce.workloads.weights import Weights

Batch = dict[str, jax.Array]


class Model(NamedTuple):
    """A model at one size.

    Attributes:
      loss: of weights and batch: a scalar, and what the next step is given (empty but for a Transformer-XL's memory).
      batch: shapes by name; int32 arrays hold numbers below `classes`.
      classes: see above.
    """

    loss: Callable[[Weights, Batch], tuple[jax.Array, Any]]
    batch: dict[str, jax.ShapeDtypeStruct]
    classes: int

    def parameters(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Their shapes, in the order of use."""
        weights = Weights()
        jax.eval_shape(lambda batch: self.loss(weights, batch), self.batch)
        return weights.shapes


def tokens(count: int) -> jax.ShapeDtypeStruct:
    """So many integers."""
    return jax.ShapeDtypeStruct((count,), "int32")


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """One float32 array of this shape."""
    return jax.ShapeDtypeStruct(shape, "float32")
