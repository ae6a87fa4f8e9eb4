"""The multilayer perceptron that all networks are made of."""

from collections.abc import Callable

import flax.linen as nn
import jax

SMALL = nn.initializers.variance_scaling(1e-2, "fan_in", "normal")  # of a last layer whose outputs begin near 0


class MLP(nn.Module):
    """One hidden layer, ReLU, and a linear output.

    Attributes:
      hidden: width of the hidden layer.
      outputs: of the last layer.
      last_init: initial weights of the last layer.
    """

    hidden: int
    outputs: int
    last_init: Callable[..., jax.Array] = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[..., F]` float32 to `[..., outputs]`."""
        x = nn.relu(nn.Dense(self.hidden)(x))
        return nn.Dense(self.outputs, kernel_init=self.last_init)(x)
