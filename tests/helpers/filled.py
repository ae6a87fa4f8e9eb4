"""Parameters of which none is special: no bias that is 0 and no layer that starts small."""

from typing import Any

import flax.linen as nn
import jax
import numpy as np


def filled(module: nn.Module, *arguments: Any) -> Any:
    """Of a Linen module, without compiling its `init`."""
    return drawn(jax.eval_shape(module.init, jax.random.key(0), *arguments)["params"])


def applied(module: nn.Module, params: Any, *arguments: Any) -> Any:
    """The module's output."""
    return module.apply({"params": params}, *arguments)


def drawn(shapes: Any) -> Any:
    """Arrays of these shapes, from normal distributions, each as large as keeps the size of what it is multiplied with.

    Those of equal names and shapes are not equal.
    """
    generator = np.random.default_rng(0)

    def one(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return (generator.standard_normal(leaf.shape) * max(1, leaf.shape[0]) ** -0.5).astype(np.float32)

    return jax.tree.map(one, shapes)
