"""GNMT: LSTMs read a sentence, LSTMs with attention write its translation, both unrolled (Wu et al., "Google's neural
machine translation system", 2016, section 3).

The first encoder layer runs in both directions, the others have residual connections from the third on; the bottom
decoder layer asks the attention (one hidden layer), whose answer every decoder layer reads. Sizes are ours, where GO's
supplement could not be had: 1,024 units, 64 pairs of 60 words each out of 32,000, no dropout.
"""

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.workloads.layers import cross_entropy, dense, embed, linear, lstm, resting, softmax, spread, steps_of
from reproduce.workloads.model import Batch, Model, tokens
from reproduce.workloads.weights import Weights

FIRST_RESIDUAL = 2


def gnmt(layers: int, units: int = 1024, steps: int = 60, batch: int = 64, words: int = 32_000) -> Model:
    """`layers` (at least 2) of encoder and of decoder; source, target and labels step after step, `[steps * batch]`."""

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        with jax.named_scope("source"):
            source = steps_of(embed(w, "source", data["source"], words, units), steps)
        with jax.named_scope("target"):
            target = steps_of(embed(w, "target", data["target"], words, units), steps)
        encoded = _encode(w, source, layers, units)
        with jax.named_scope("memory"):
            memory = lax.concatenate([lax.expand_dims(x, (1,)) for x in encoded], 1)  # [batch, steps, units]
            keys = linear(memory, w("attention/keys", units, units))
        outputs = _decode(w, target, memory, keys, layers)
        with jax.named_scope("softmax"):
            logits = dense(w, "softmax", lax.concatenate(outputs, 0), words)
            return cross_entropy(logits, data["labels"]), None

    return Model(loss, {name: tokens(steps * batch) for name in ("source", "target", "labels")}, words)


def _encode(w: Weights, source: list[jax.Array], layers: int, units: int) -> list[jax.Array]:
    forward = _layer(w, "encoder0/forward", source, units)
    backward = _layer(w, "encoder0/backward", source[::-1], units)[::-1]
    with jax.named_scope("encoder0/both"):
        x = [lax.concatenate(pair, 1) for pair in zip(forward, backward, strict=True)]
    for layer in range(1, layers):
        x = _layer(w, f"encoder{layer}", x, units, residual=layer >= FIRST_RESIDUAL)
    return x


def _layer(w: Weights, name: str, inputs: list[jax.Array], units: int, residual: bool = False) -> list[jax.Array]:
    outputs = []
    with jax.named_scope(f"{name}/start"):
        state = resting(inputs[0].shape[0], units)
    for t, x in enumerate(inputs):
        with jax.named_scope(f"{name}/t{t}"):
            state = lstm(w, name, x, state)
            outputs.append(state[0] + x if residual else state[0])
    return outputs


def _decode(w: Weights, target: list[jax.Array], memory: jax.Array, keys: jax.Array, layers: int) -> list[jax.Array]:
    batch, _, units = memory.shape
    outputs = []
    with jax.named_scope("decoder/start"):
        states, context = [resting(batch, units)] * layers, jnp.zeros((batch, units))
    for t, x in enumerate(target):
        for layer in range(layers):
            with jax.named_scope(f"decoder{layer}/t{t}"):
                states[layer] = lstm(w, f"decoder{layer}", lax.concatenate([x, context], 1), states[layer])
                x = states[layer][0] + x if layer >= FIRST_RESIDUAL else states[layer][0]
            if layer == 0:
                with jax.named_scope(f"attention/t{t}"):
                    context = _attend(w, x, memory, keys)
        outputs.append(x)
    return outputs


def _attend(w: Weights, query: jax.Array, memory: jax.Array, keys: jax.Array) -> jax.Array:
    """The memory's rows by what a hidden layer of query and keys says of each: `[batch, units]`."""
    units = query.shape[-1]
    rows = lax.broadcast_in_dim(linear(query, w("attention/query", units, units)), keys.shape, (0, 2))
    hidden = lax.tanh(rows + keys)
    scores = softmax(jnp.sum(hidden * spread(w("attention/score", units), hidden), -1))
    return lax.dot_general(scores, memory, (((1,), (1,)), ((0,), (0,))))
