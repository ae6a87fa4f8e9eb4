"""`graphrl.checkpoint` with modules of Flax NNX and Equinox: training, states and random numbers are the same."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from checkpoint_programs import WIDTH, X, assert_same
from flax import nnx
from xla_programs import loose_numerics

import graphrl

pytestmark = pytest.mark.usefixtures("loose_numerics")

__all__ = ["loose_numerics"]

quick = functools.partial(graphrl.checkpoint, budget=0.6, seconds=0.1, cache=False)
Loss = Callable[..., Any]


class Network(nnx.Module):
    """Layers, running means, a count of calls and a stream of random numbers, all of which training changes."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.up, self.down = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(WIDTH, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        return self.norm(self.dropout(jnp.tanh(self.down(jnp.tanh(self.up(x))))))


def trained(make: Callable[[Loss], Loss]) -> Any:
    """Losses of two steps, and the final state of the network and the optimizer."""
    model = Network()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    # Not against a constant: a normalized batch is equally far from each, and gradients would be pure rounding.
    loss = make(lambda model, x, scale: (jnp.square(model(x) - scale * x).mean(), model.calls[...]))

    @nnx.jit
    def step(model: Network, optimizer: nnx.Optimizer, x: jax.Array) -> Any:
        value, gradient = nnx.value_and_grad(loss, has_aux=True)(model, x, scale=0.5)
        optimizer.update(model, gradient)
        return value

    values = [step(model, optimizer, X) for _ in range(2)]
    keys = [jax.random.key_data(key) for key in jax.tree.leaves(nnx.state(model, nnx.RngKey))]
    return values, keys, nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngKey)))


def test_a_module_of_nnx_is_trained() -> None:
    ours, theirs = trained(quick), trained(lambda fn: fn)
    assert_same(ours[:2], theirs[:2])
    assert_same(ours[2], theirs[2])
    assert [int(calls) for (_, calls) in ours[0]] == [1, 2]
    fresh = [jax.random.key_data(key) for key in jax.tree.leaves(nnx.state(Network(), nnx.RngKey))]
    assert all(np.array_equal(now, then) for now, then in zip(ours[1], fresh, strict=True))


class Perceptron(eqx.Module):
    """Layers, a function, a number, and a loss method."""

    layers: list[eqx.nn.Linear]
    activation: Callable[[jax.Array], jax.Array]
    scale: float
    depth: int = eqx.field(static=True)

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0), 3)
        self.layers = [eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in keys]
        self.activation, self.scale, self.depth = jnp.tanh, 0.5, 3

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[: self.depth]:
            x = self.activation(layer(x)) * self.scale
        return x

    @graphrl.checkpoint(budget=0.6, seconds=0.1, cache=False)
    def loss(self, x: jax.Array) -> jax.Array:
        """A scalar."""
        return jnp.square(jax.vmap(self)(x)).mean()


def test_modules_of_equinox() -> None:
    def loss(model: Perceptron, x: jax.Array) -> Any:
        return jnp.square(jax.vmap(model)(x)).mean(), (model, "text", 3)

    def own_loss(model: Perceptron, x: jax.Array) -> Any:
        return model.loss(x)

    def values(fn: Loss) -> Any:
        (value, (model, *others)), gradient = eqx.filter_jit(eqx.filter_value_and_grad(fn, has_aux=True))(
            Perceptron(), X
        )
        assert others == ["text", 3]
        return value, eqx.filter(model, eqx.is_array), gradient

    ours, theirs = values(quick(loss)), values(loss)
    assert_same(ours, theirs)
    by_method = eqx.filter_jit(eqx.filter_value_and_grad(own_loss))(Perceptron(), X)
    assert_same(by_method, (theirs[0], theirs[2]))
