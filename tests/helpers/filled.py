"""Generic parameters: no bias is 0 and no layer starts small."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np


def filled(module: nn.Module, *arguments: Any) -> Any:
    """Random parameters of a Linen module, without compiling its `init`."""
    return drawn(jax.eval_shape(module.init, jax.random.key(0), *arguments)["params"])


def applied(module: nn.Module, params: Any, *arguments: Any) -> Any:
    """The module's output."""
    return module.apply({"params": params}, *arguments)


def drawn(shapes: Any) -> Any:
    """Normally distributed arrays of these shapes, scaled to preserve the size of the values that they multiply.

    Arrays of equal names and shapes differ.
    """
    generator = np.random.default_rng(0)

    def one(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return (generator.standard_normal(leaf.shape) * max((1, *leaf.shape[:1])) ** -0.5).astype(np.float32)

    return jax.tree.map(one, shapes)
