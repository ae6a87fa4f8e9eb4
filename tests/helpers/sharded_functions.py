"""Functions that `graphrl.shard` splits over eight devices: run as a program, since tests have two devices.

Prints for each function the greatest difference of its results from those on one device, relative to the largest
number, and the share of its estimated time that is left.
"""

import json
import os
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    os.environ |= {"JAX_NUM_CPU_DEVICES": "8", "JAX_ENABLE_X64": "1"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import graphrl
from graphrl.graphs.roofline import Interconnect

SLOW = graphrl.Chip("slow", 1e6, 1e6)  # so slow that all is split
FAST = Interconnect(1e-9, 1e12, "a test")
WIDTH, WORDS, LAYERS, BATCH, TOKENS = 16, 64, 2, 8, 8


def attention(weights: Any, texts: jax.Array) -> jax.Array:
    """Loss of a language model of one layer: gathers, products of four dimensions, a checkpoint, softmax, scatters."""
    x = weights["embed"][texts]
    q, k, v = (part.reshape(BATCH, TOKENS, 4, -1) for part in jnp.split(x @ weights["qkv"], 3, -1))
    shares = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
    x = x + jax.checkpoint(jnp.tanh)(jnp.einsum("bhts,bshd->bthd", shares, v).reshape(x.shape))
    logits = jax.nn.log_softmax(x @ weights["embed"].T)
    return -jnp.take_along_axis(logits[:, :-1], texts[:, 1:, None], -1).mean()


def scanned(weights: Any, x: jax.Array) -> jax.Array:
    """Residual layers in a loop, with what each layer returns."""

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, jax.Array]:
        x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
        return x, x.sum(-1)

    x, sums = jax.lax.scan(layer, x, weights)
    return jnp.square(x).mean() + jnp.sin(sums).sum()


def step(state: Any, x: jax.Array) -> Any:
    """A step of training with momentum, and a sort, which is not among the weights' equations."""
    weights, momentum = state
    value, gradient = jax.value_and_grad(scanned)(weights, jnp.sort(x, axis=0))
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return (jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum), momentum), value


def functions() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Builds all functions, with their arguments."""
    keys = jax.random.split(jax.random.key(0), 5)
    layers = {
        "up": jax.random.normal(keys[0], (LAYERS, WIDTH, 2 * WIDTH)) / 4,
        "down": jax.random.normal(keys[1], (LAYERS, 2 * WIDTH, WIDTH)) / 6,
    }
    words = {"embed": jax.random.normal(keys[2], (WORDS, WIDTH)), "qkv": jax.random.normal(keys[3], (WIDTH, 3 * WIDTH))}
    texts = jax.random.randint(keys[4], (BATCH, TOKENS), 0, WORDS)
    x = jax.random.normal(keys[4], (2 * BATCH, WIDTH))
    return {
        "attention": (jax.value_and_grad(attention), (words, texts)),
        "scan": (jax.value_and_grad(scanned), (layers, x)),
        "step": (step, ((layers, jax.tree.map(jnp.zeros_like, layers)), x)),
    }


def placed(mesh: Any, args: Any) -> Any:
    """Splits the last dimension of arguments, in ways that do not fit together."""
    split = (
        NamedSharding(mesh, PartitionSpec(*[None] * (leaf.ndim - 1), "ab"[leaf.ndim % 2]))
        for leaf in jax.tree.leaves(args)
    )
    return jax.device_put(args, jax.tree.unflatten(jax.tree.structure(args), split))


def main() -> None:
    """Prints the figures of all functions."""
    mesh, figures = jax.make_mesh((2, 4), ("a", "b")), {}  # with explicit axes
    for name, (fn, args) in functions().items():
        own = graphrl.shard(fn, mesh, *placed(mesh, args), chip=SLOW, link=FAST, seconds=1, memory="1GiB")
        results, expected = own(*jax.device_put(args, own.in_shardings)), jax.jit(fn)(*args)
        worst = max(
            float(np.abs(one - other).max() / np.abs(other).max())
            for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True)
        )
        figures[name] = {"difference": worst, "share": own.report.seconds / own.report.unsplit_seconds}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
