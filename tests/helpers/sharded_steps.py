"""Losses on eight devices, and checks of their plans: run as a program, since tests have two devices.

Prints a line for each loss: the greatest difference of values and gradients from those on one device, relative to the
largest number; the number of segments that are computed again; the share of bytes of all arrays of the gradient that
are split as XLA splits them.
"""

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.environ |= {"JAX_NUM_CPU_DEVICES": "8", "JAX_ENABLE_X64": "1"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import graphrl
from graphrl.graphs.readers.jaxpr.work import array_bytes
from graphrl.xla.checkpoint.program import Piece, Values, inlined, variables
from graphrl.xla.checkpoint.settings import Settings
from graphrl.xla.checkpoint.shards import Shards, replicated

LAYERS, WIDTH, BATCH, TOKENS = 3, 16, 16, 8


class Step(NamedTuple):
    """A loss on a mesh: a function of weights and batch, and how these are split.

    Attributes:
      loss: the loss on the mesh.
      alone: the same on one device.
      mesh: the mesh.
      weights, batch: how they are split.
    """

    loss: Callable[..., jax.Array]
    alone: Callable[..., jax.Array]
    mesh: Mesh
    weights: Any
    batch: P


def weights_of(stacked: bool = False) -> Any:
    """Draws the weights of all layers, in a list or stacked."""
    keys = jax.random.split(jax.random.key(0), LAYERS)
    layers = [
        {"up": jax.random.normal(key, (WIDTH, 4 * WIDTH)) / 4, "down": jax.random.normal(key, (4 * WIDTH, WIDTH)) / 8}
        for key in keys
    ]
    return jax.tree.map(lambda *each: jnp.stack(each), *layers) if stacked else layers


def perceptron(constrain: Callable[[Any], Any], weights: Any, x: jax.Array) -> jax.Array:
    """Residual layers of two products, in sequence."""
    for w in weights:
        x = constrain(x + jax.nn.gelu(x @ w["up"]) @ w["down"])
    return jnp.square(x).mean()


def scanned(constrain: Callable[[Any], Any], weights: Any, x: jax.Array) -> jax.Array:
    """The same in a loop."""

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return constrain(x + jax.nn.gelu(x @ w["up"]) @ w["down"]), None

    return jnp.square(jax.lax.scan(layer, x, weights)[0]).mean()


def explicit(weights: Any, x: jax.Array) -> jax.Array:
    """Residual layers with explicit mesh axes, whose weights are gathered by `jax.reshard`."""
    for w in weights:
        up, down = (jax.reshard(w[name], P(None, None)) for name in ("up", "down"))
        x = x + jax.nn.gelu(x @ up) @ down
    return jnp.square(x).mean()


def in_shard_map(mesh: Mesh, weights: Any, x: jax.Array) -> jax.Array:
    """Residual layers on shards, whose weights are gathered by `jax.lax.all_gather`."""

    def on_shards(weights: Any, x: jax.Array) -> jax.Array:
        def loss(weights: Any, x: jax.Array) -> jax.Array:
            for w in weights:
                up, down = (jax.lax.all_gather(w[name], "data", tiled=True) for name in ("up", "down"))
                x = x + jax.nn.gelu(x @ up) @ down
            return jax.lax.pmean(jnp.square(x).mean(), "data")

        return graphrl.checkpoint(loss, budget=0.6, chip="h200", seconds=0.5, cache=False)(weights, x)

    return jax.shard_map(on_shards, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P())(weights, x)


def steps() -> dict[str, Step]:
    """Builds all steps."""
    devices = np.array(jax.devices())
    data, both = Mesh(devices, ("data",)), Mesh(devices.reshape(2, 4), ("data", "model"))
    typed = Mesh(devices, ("data",), axis_types=(AxisType.Explicit,))

    def at(mesh: Mesh) -> Callable[[Any], Any]:
        return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))

    def step(fn: Callable[..., Any], mesh: Mesh, weights: Any) -> Step:
        return Step(lambda *a: fn(at(mesh), *a), lambda *a: fn(lambda x: x, *a), mesh, weights, P("data"))

    megatron = {"up": P(None, "model"), "down": P("model", None)}
    return {
        "data": step(perceptron, data, P()),
        "fully sharded": step(perceptron, data, P("data")),
        "fully sharded loop": step(scanned, data, P(None, "data")),
        "tensor": step(perceptron, both, [megatron] * LAYERS),
        "explicit": Step(explicit, lambda *a: perceptron(lambda x: x, *a), typed, P("data"), P("data")),
    }


def checked(step: Step, loop: bool) -> dict[str, float]:
    """Runs a step on one device and on all, under a plan; returns the figures of the module's first lines."""
    weights = weights_of(loop)
    x = jax.random.normal(jax.random.key(1), (BATCH, TOKENS, WIDTH))
    expected = jax.jit(jax.value_and_grad(step.alone))(weights, x)
    is_typed = AxisType.Explicit in step.mesh.axis_types
    options: dict[str, Any] = {} if is_typed else {"in_shardings": (step.weights, step.batch), "mesh": step.mesh}
    own = graphrl.checkpoint(step.loss, budget=0.6, chip="h200", seconds=0.5, cache=False, **options)
    with jax.set_mesh(step.mesh):
        place = jax.tree.broadcast(step.weights, weights, is_leaf=lambda each: isinstance(each, P))
        placed = jax.tree.map(lambda w, spec: jax.device_put(w, NamedSharding(step.mesh, spec)), weights, place)
        batch = jax.device_put(x, NamedSharding(step.mesh, step.batch))
        value, gradient = jax.jit(jax.value_and_grad(own))(placed, batch)
        agreement = 1.0 if is_typed else agreed(step, options, placed, batch)
    for leaf, weight in zip(jax.tree.leaves(gradient), jax.tree.leaves(placed), strict=True):
        assert leaf.sharding.is_equivalent_to(weight.sharding, leaf.ndim), (leaf.sharding, weight.sharding)
    worst = difference(expected, (value, gradient))
    return {"difference": worst, "segments": own.report().segments, "agreed": agreement}


def difference(expected: Any, result: Any) -> float:
    """Returns the greatest difference of two pairs of value and gradients, relative to the largest number."""

    def flat(tree: Any) -> np.ndarray:
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    pairs = [(flat(a), flat(b)) for a, b in zip(expected, result, strict=True)]
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


def agreed(step: Step, options: Any, weights: Any, x: jax.Array) -> float:
    """Returns the share of bytes of a gradient's arrays that are split as XLA splits them; without constants."""
    closed = jax.make_jaxpr(jax.value_and_grad(step.loss))(weights, x)
    closed = inlined(closed)
    settings = Settings(slowdown=0.1, **options)
    layout = settings.layout(closed.in_avals)
    assert layout is not None
    specs = settings.arguments(layout, jax.tree.structure(((weights, x), {})), closed.in_avals)
    gradients = specs[: len(closed.out_avals) - 1]
    shards, found = Shards(closed, layout, specs, [replicated(closed.out_avals[0]), *gradients]), dict[Any, Any]()

    def run(*args: Any) -> list[Any]:
        values = Values.of(closed, args)
        for eqn in closed.jaxpr.eqns:
            piece = Piece.of([eqn])
            for var, value in zip(piece.writes, piece(*values.read(piece.reads)), strict=True):
                values.write([var], [value])
                if value.ndim and variables(eqn.invars):
                    jax.debug.inspect_array_sharding(value, callback=stored_in(found, var))
        return values.read(closed.jaxpr.outvars)

    outputs = [NamedSharding(step.mesh, P()), *(layout.sharding(spec) for spec in gradients)]
    jax.jit(run, out_shardings=outputs).lower(*jax.tree.leaves((weights, x))).compile()
    same = total = 0
    for var, sharding in found.items():
        own = NamedSharding(step.mesh, P(*(axes or None for axes in shards.spec(var)))).shard_shape(var.aval.shape)
        size = array_bytes(var.aval)
        same, total = same + size * (own == sharding.shard_shape(var.aval.shape)), total + size
    return same / total


def stored_in(found: dict[Any, Any], var: Any) -> Callable[[Any], None]:
    """Returns a callback that stores a sharding."""
    return lambda sharding: found.__setitem__(var, sharding)


def main() -> None:
    """Prints the figures of all steps."""
    figures = {name: checked(step, "loop" in name) for name, step in steps().items()}
    weights, x = weights_of(), jax.random.normal(jax.random.key(1), (BATCH, TOKENS, WIDTH))
    expected = jax.jit(jax.value_and_grad(lambda *a: perceptron(lambda y: y, *a)))(weights, x)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    result = jax.jit(jax.value_and_grad(lambda *a: in_shard_map(mesh, *a)))(weights, x)
    figures["shard_map"] = {"difference": difference(expected, result), "segments": 1, "agreed": 1.0}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
