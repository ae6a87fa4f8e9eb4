"""Training steps as people write them in plain JAX, small enough that a first call is what one waits for.

Each is a function `() -> (step, state, batch)` with `step(state, batch) -> (state, loss)`.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Update = tuple[Callable[[Any, Any], tuple[Any, jax.Array]], Any, Any]

_RATE, _DECAY, _SQUARE_DECAY, _EPSILON = 3e-4, 0.9, 0.999, 1e-8  # of Adam, without its correction of the first steps


def ppo() -> Update:
    """PPO (Schulman et al., 2017): 4 epochs of 4 minibatches on 2,048 steps, the loops unrolled."""
    steps, part, epochs = 2048, 512, 4
    networks = {"policy": _layers([64, 256, 256, 8]), "value": _layers([64, 256, 256, 1])}

    def loss(weights: Any, batch: Any) -> jax.Array:
        log_policy = jax.nn.log_softmax(_mlp(weights["policy"], batch["observation"]))
        log_action = jnp.take_along_axis(log_policy, batch["action"][:, None], 1)[:, 0]
        ratio, advantage = jnp.exp(log_action - batch["log_action"]), batch["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()
        errors = _mlp(weights["value"], batch["observation"])[:, 0] - batch["return"]
        entropy = -(jnp.exp(log_policy) * log_policy).sum(-1).mean()
        return -gain + 0.5 * jnp.square(errors).mean() - 0.01 * entropy

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        adam, key = state
        last = jnp.zeros(())
        for _ in range(epochs):
            key, shuffle = jax.random.split(key)
            places = jax.random.permutation(shuffle, steps)
            for first in range(0, steps, part):
                chosen = places[first : first + part]
                adam, last = _adam(loss, adam, {name: values[chosen] for name, values in batch.items()})
        return (adam, key), last

    batch = {name: jnp.ones(steps) for name in ("log_action", "advantage", "return")}
    batch |= {"observation": jnp.ones((steps, 64)), "action": jnp.zeros(steps, jnp.int32)}
    return step, (_moments(networks), jax.random.PRNGKey(0)), batch


def neural_ode() -> Update:
    """A neural ODE (Chen et al., 2018), differentiated through 20 steps of fourth-order Runge-Kutta in a scan."""
    length = 0.05

    def forward(weights: Any, x: jax.Array) -> jax.Array:
        slope = functools.partial(_mlp, weights)

        def advance(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            first = slope(x)
            second = slope(x + length / 2 * first)
            third = slope(x + length / 2 * second)
            fourth = slope(x + length * third)
            return x + length / 6 * (first + 2 * second + 2 * third + fourth), None

        return lax.scan(advance, x, None, length=20)[0]

    def loss(weights: Any, batch: Any) -> jax.Array:
        return jnp.square(forward(weights, batch["x"]) - batch["y"]).mean()

    batch = {"x": jnp.ones((256, 64)), "y": jnp.zeros((256, 64))}
    return functools.partial(_adam, loss), _moments(_layers([64, 512, 512, 64])), batch


def llama() -> Update:
    """A language model with Llama's layers (Touvron et al., 2023): 4 of width 256, 8 heads, 4 texts of 128 tokens."""
    vocabulary, width, depth, heads, hidden, texts, tokens = 4096, 256, 4, 8, 704, 4, 128
    head = width // heads
    layer = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    layer |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width), "norms": (2, width)}
    shapes = {"embed": (vocabulary, width), "norm": (width,), "head": (width, vocabulary), "layers": [layer] * depth}
    weights = jax.tree.map(lambda shape: jnp.full(shape, 0.02), shapes, is_leaf=lambda node: isinstance(node, tuple))
    angles = jnp.arange(tokens)[:, None] * 1e4 ** (-jnp.arange(0, head, 2) / head)
    cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    past = jnp.tril(jnp.ones((tokens, tokens), bool))

    def turned(x: jax.Array) -> jax.Array:
        even, odd = x[..., ::2], x[..., 1::2]
        return jnp.concatenate([even * cosine - odd * sine, even * sine + odd * cosine], -1)

    def attend(layer: Any, x: jax.Array) -> jax.Array:
        q, k, v = ((x @ layer[name]).reshape(texts, tokens, heads, head) for name in "qkv")
        scores = jnp.einsum("bthd,bshd->bhts", turned(q), turned(k)) / head**0.5
        shares = jax.nn.softmax(jnp.where(past, scores, -1e9))
        return jnp.einsum("bhts,bshd->bthd", shares, v).reshape(texts, tokens, width) @ layer["o"]

    def loss(weights: Any, batch: jax.Array) -> jax.Array:
        x = weights["embed"][batch]
        for layer in weights["layers"]:
            x = x + attend(layer, _normed(x, layer["norms"][0]))
            y = _normed(x, layer["norms"][1])
            x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
        logits = jax.nn.log_softmax(_normed(x, weights["norm"]) @ weights["head"])
        return -jnp.take_along_axis(logits[:, :-1], batch[:, 1:, None], -1).mean()

    return functools.partial(_adam, loss), _moments(weights), jnp.zeros((texts, tokens), jnp.int32)


UPDATES: dict[str, Callable[[], Update]] = {"PPO": ppo, "neural ODE": neural_ode, "Llama": llama}


def _moments(weights: Any) -> tuple[Any, Any, Any]:
    """Weights and both moments, each in buffers of their own."""
    return weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights)


def _adam(loss: Callable[[Any, Any], jax.Array], state: Any, batch: Any) -> tuple[Any, jax.Array]:
    weights, mean, square = state
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    mean = jax.tree.map(lambda m, g: _DECAY * m + (1 - _DECAY) * g, mean, gradient)
    square = jax.tree.map(lambda s, g: _SQUARE_DECAY * s + (1 - _SQUARE_DECAY) * g * g, square, gradient)
    weights = jax.tree.map(lambda w, m, s: w - _RATE * m / (jnp.sqrt(s) + _EPSILON), weights, mean, square)
    return (weights, mean, square), value


def _layers(sizes: Sequence[int]) -> list[tuple[jax.Array, jax.Array]]:
    return [(jnp.full((a, b), 0.01), jnp.zeros(b)) for a, b in itertools.pairwise(sizes)]


def _mlp(layers: Any, x: jax.Array) -> jax.Array:
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def _normed(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * gain
