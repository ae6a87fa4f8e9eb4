"""Whole steps on eight devices under `graphrl.fit`: run as a program, since tests have two devices.

Prints for each step: the greatest difference of its results from those of the step as it is on one device, relative to
the largest number; the way chosen; and whether new weights are split as the weights are.
"""

import json
import os
from typing import Any

if __name__ == "__main__":
    os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import graphrl

LAYERS, WIDTH, N, EXPERTS = 3, 16, 256, 8
NAMES = ("up", "down", "experts")
KINDS: dict[str, Any] = {  # mesh, how the weights are split, and the share of the temporaries that may be used
    "fully sharded": ({"data": 8}, dict.fromkeys(NAMES, P(None, None, "data")), 0.2),
    "tensor parallel": ({"data": 2, "model": 4}, {"up": P(None, None, "model"), "down": P(None, "model")}, 0.5),
    "expert parallel": ({"data": 8}, {"experts": P(None, "data")}, 0.2),
}


def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Layers of two products and experts, in a loop."""

    def layer(x: jax.Array, own: Any) -> tuple[jax.Array, None]:
        x = x + jax.nn.gelu(jnp.tanh(x @ own["up"])) @ own["down"]
        chosen = jax.nn.one_hot(jnp.argmax(x[:, :EXPERTS], 1), EXPERTS, axis=0)
        return x + jnp.einsum("en,nd,edf->nf", chosen, x, jnp.tanh(own["experts"])), None

    return jnp.square(jax.lax.scan(layer, x, weights)[0].mean(1) - y).mean()


def step(weights: Any, momentum: Any, x: jax.Array, y: jax.Array) -> Any:
    """A training step with momentum."""
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum, value


def arguments() -> tuple[Any, ...]:
    """Draws the arguments of the step."""
    numbers = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(numbers.standard_normal(shape, np.float32) / 8)

    weights = {
        "up": drawn(LAYERS, WIDTH, WIDTH),
        "down": drawn(LAYERS, WIDTH, WIDTH),
        "experts": drawn(LAYERS, EXPERTS, WIDTH, WIDTH),
    }
    return weights, jax.tree.map(jnp.zeros_like, weights), drawn(N, WIDTH), drawn(N)


def difference(one: Any, other: Any) -> float:
    """Returns the greatest difference, relative to the largest number of each array."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(a)).max()) for a, b in pairs)


def fitted(axes: dict[str, int], splits: dict[str, P], share: float) -> dict[str, Any]:
    """Fits the step on a mesh; returns the figures of the module's first lines."""
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    of_weights = {name: NamedSharding(mesh, splits.get(name, P())) for name in NAMES}
    of_batch = NamedSharding(mesh, P("data"))
    args = jax.device_put(arguments(), (of_weights, of_weights, of_batch, of_batch))
    options: dict[str, Any] = {"batch_axis": {"x": 0, "y": 0}, "seconds": 0.1, "cache": False}
    plain = graphrl.fit(step, *args, memory="1GB", **options).report()
    limit = int(plain.outside_bytes + share * (plain.fitted.bytes - plain.outside_bytes))
    own = graphrl.fit(step, *args, memory=f"{limit}B", **options)
    way, result = own.report().fitted, own(*args)
    pairs = zip(jax.tree.leaves(result[0]), jax.tree.leaves(of_weights), strict=True)
    return {
        "difference": difference(jax.jit(step)(*arguments()), result),
        "microbatches": way.microbatches,
        "plan": way.plan,
        "is_split": all(leaf.sharding.is_equivalent_to(each, leaf.ndim) for leaf, each in pairs),
    }


if __name__ == "__main__":
    print(json.dumps({name: fitted(*kind) for name, kind in KINDS.items()}))
