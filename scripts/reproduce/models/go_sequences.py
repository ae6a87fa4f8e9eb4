"""RNNLM, GNMT, Transformer-XL and WaveNet, as workloads of GO.

GO's supplement is not available, so sizes are our choice.

RNNLM: stacked LSTMs over words, unrolled (Zaremba et al. 2014; Jozefowicz et al. 2016): 2,048 units, 64 sequences of 40
words out of 10,000 (the Penn treebank's), no dropout, no projection, state zero at the start.

GNMT: LSTMs read a sentence, LSTMs with attention write its translation, both unrolled (Wu et al., "Google's neural
machine translation system", 2016, section 3). The first encoder layer runs in both directions, the others have residual
connections from the third on. The bottom decoder layer queries the attention (one hidden layer); every decoder layer
reads the resulting context. 1,024 units, 64 pairs of 60 words each out of 32,000, no dropout.

Transformer-XL: attention over a segment and the memory of the one before, with relative positions (Dai et al. 2019,
section 3 and appendix B). The authors' large model of enwik8 (1,024 wide, 8 heads, 3,072 inside), of 2, 4 or 8 layers:
16 segments of 512 characters out of 204 with a memory of the same length, no dropout.

WaveNet: stacks of dilated causal convolutions over raw audio (van den Oord et al. 2016, sections 2.1 to 2.4). "2-stack
18-layer" is read as 2 stacks of 18 layers, "4-stack 36-layer" as 4 of 36. Dilations cycle from 1 to 256, twice (four
times) in a stack. 8 pieces of 8,192 samples, 128 channels, 256 skip channels, 256 levels of mu-law.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.models.go_layers import (
    Batch,
    Model,
    Weights,
    cross_entropy,
    dense,
    embed,
    floats,
    layer_norm,
    linear,
    lstm,
    resting,
    softmax,
    spread,
    steps_of,
    tokens,
)


def rnnlm(layers: int, units: int = 2048, steps: int = 40, batch: int = 64, words: int = 10_000) -> Model:
    """Builds RNNLM of `layers` LSTMs; words and labels are in the order of steps, `[steps * batch]`."""

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        with jax.named_scope("embedding"):
            inputs = steps_of(embed(w, "embedding", data["words"], words, units), steps)
            states = [resting(batch, units)] * layers
        outputs = []
        for t, x in enumerate(inputs):
            for layer in range(layers):
                with jax.named_scope(f"lstm{layer}/t{t}"):
                    states[layer] = lstm(w, f"lstm{layer}", x, states[layer])
                    x = states[layer][0]
            outputs.append(x)
        with jax.named_scope("softmax"):
            logits = dense(w, "softmax", lax.concatenate(outputs, 0), words)
            return cross_entropy(logits, data["labels"]), None

    return Model(loss, {"words": tokens(steps * batch), "labels": tokens(steps * batch)}, words)


FIRST_RESIDUAL = 2


def gnmt(layers: int, units: int = 1024, steps: int = 60, batch: int = 64, words: int = 32_000) -> Model:
    """Builds GNMT of `layers` encoder and decoder layers (at least 2); words and labels by step, `[steps * batch]`."""

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
    forward = _lstm_layer(w, "encoder0/forward", source, units)
    backward = _lstm_layer(w, "encoder0/backward", source[::-1], units)[::-1]
    with jax.named_scope("encoder0/both"):
        x = [lax.concatenate(pair, 1) for pair in zip(forward, backward, strict=True)]
    for layer in range(1, layers):
        x = _lstm_layer(w, f"encoder{layer}", x, units, residual=layer >= FIRST_RESIDUAL)
    return x


def _lstm_layer(w: Weights, name: str, inputs: list[jax.Array], units: int, residual: bool = False) -> list[jax.Array]:
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
    """Attends to the memory: its rows' mean, weighted by a hidden layer of query and keys: `[batch, units]`."""
    units = query.shape[-1]
    rows = lax.broadcast_in_dim(linear(query, w("attention/query", units, units)), keys.shape, (0, 2))
    hidden = lax.tanh(rows + keys)
    scores = softmax(jnp.sum(hidden * spread(w("attention/score", units), hidden), -1))
    return lax.dot_general(scores, memory, (((1,), (1,)), ((0,), (0,))))


BLOCKED = -1e30  # the score of later positions


def transformer_xl(
    layers: int, width: int = 1024, heads: int = 8, inner: int = 3072, length: int = 512, batch: int = 16,
    characters: int = 204,
) -> Model:  # fmt: skip
    """Transformer-XL of `layers` layers. Its loss also returns the next memory.

    Characters and labels are in the order of segments, `[batch * length]`. Positions are sinusoids, farthest first, `[2
    * length, width]`. The memory of every layer is `[batch, length, width]`.
    """

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, list[jax.Array]]:
        with jax.named_scope("embedding"):
            x = embed(w, "embedding", data["characters"], characters, width).reshape(batch, length, width)
        memory = []
        for layer in range(layers):
            memory.append(x)
            with jax.named_scope(f"layer{layer}/attention"):
                x = _relative_attention(w, f"layer{layer}", x, data[f"memory{layer}"], data["positions"], heads)
            with jax.named_scope(f"layer{layer}/forward"):
                hidden = jax.nn.relu(dense(w, f"layer{layer}/inner", x, inner))
                x = layer_norm(w, f"layer{layer}/norm2", x + dense(w, f"layer{layer}/outer", hidden, width))
        with jax.named_scope("softmax"):
            logits = dense(w, "softmax", x.reshape(batch * length, width), characters)
            return cross_entropy(logits, data["labels"]), memory

    shapes = {"characters": tokens(batch * length), "labels": tokens(batch * length)}
    shapes |= {"positions": floats(2 * length, width)}
    shapes |= {f"memory{layer}": floats(batch, length, width) for layer in range(layers)}
    return Model(loss, shapes, characters)


def _relative_attention(
    w: Weights, name: str, x: jax.Array, memory: jax.Array, positions: jax.Array, heads: int
) -> jax.Array:
    batch, length, width = x.shape
    size = width // heads

    def projected(part: str, rows: jax.Array) -> jax.Array:
        return linear(rows, w(f"{name}/{part}", width, width)).reshape(*rows.shape[:-1], heads, size)

    context = lax.concatenate([memory, x], 1)
    query, key, value = projected("query", x), projected("key", context), projected("value", context)
    content = _dot(query + _biased(w, f"{name}/content", query), key, 3, 3, (0, 2), (0, 2))
    distance = _dot(
        query + _biased(w, f"{name}/position", query), projected("distance", positions), 3, 2, (2,), (1,)
    )  # [heads, batch, length, seen]
    scores = (content + _shifted(lax.transpose(distance, (1, 0, 2, 3)))) / math.sqrt(size)
    place, other = (lax.broadcasted_iota("int32", scores.shape, axis) for axis in (2, 3))
    shares = softmax(lax.select(other <= place + memory.shape[1], scores, jnp.full_like(scores, BLOCKED)))
    mixed = lax.transpose(_dot(shares, value, 3, 1, (0, 1), (0, 2)), (0, 2, 1, 3)).reshape(batch, length, width)
    return layer_norm(w, f"{name}/norm1", x + linear(mixed, w(f"{name}/output", width, width)))


def _dot(
    a: jax.Array, b: jax.Array, over_a: int, over_b: int, batch_a: tuple[int, ...], batch_b: tuple[int, ...]
) -> jax.Array:
    """Sums over an axis of each; `batch_a` and `batch_b` are matched batch axes and come first."""
    return lax.dot_general(a, b, (((over_a,), (over_b,)), (batch_a, batch_b)))


def _biased(w: Weights, name: str, query: jax.Array) -> jax.Array:
    """Adds a learned bias to the query of a score (u and v in the Transformer-XL paper)."""
    heads, size = query.shape[-2:]
    return lax.broadcast_in_dim(w(name, heads, size), query.shape, (2, 3))


def _shifted(scores: jax.Array) -> jax.Array:
    """Converts scores by distance to scores by position: row i moves left by its distance from the last row."""
    batch, heads, length, context = scores.shape
    padded = lax.pad(scores, 0.0, ((0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0)))
    turned = padded.reshape(batch, heads, context + 1, length)
    return lax.slice_in_dim(turned, 1, context + 1, axis=2).reshape(batch, heads, length, context)


CYCLE = 9  # dilations 2^0 to 2^8
LEVELS = 256


def wavenet(
    stacks: int, layers: int, samples: int = 8192, batch: int = 8, channels: int = 128, skips: int = 256
) -> Model:
    """Builds WaveNet of `stacks` with `layers` each; samples and labels in the order of pieces, `[batch * samples]`."""

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        with jax.named_scope("embedding"):
            x = embed(w, "embedding", data["samples"], LEVELS, channels).reshape(batch, samples, channels)
        total = None
        for stack in range(stacks):
            for layer in range(layers):
                with jax.named_scope(f"stack{stack}/layer{layer}"):
                    x, skip = _dilated_layer(w, f"stack{stack}/layer{layer}", x, 2 ** (layer % CYCLE), skips)
                    total = skip if total is None else total + skip
        assert total is not None
        with jax.named_scope("softmax"):
            hidden = jax.nn.relu(dense(w, "hidden", jax.nn.relu(total.reshape(batch * samples, skips)), skips))
            return cross_entropy(dense(w, "softmax", hidden, LEVELS), data["labels"]), None

    return Model(loss, {name: tokens(batch * samples) for name in ("samples", "labels")}, LEVELS)


def _dilated_layer(w: Weights, name: str, x: jax.Array, dilation: int, skips: int) -> tuple[jax.Array, jax.Array]:
    """Applies a dilated layer; returns the input of the next layer, and the skip output."""
    channels = x.shape[-1]
    both = lax.conv_general_dilated(
        x,
        w(f"{name}/kernel", 2 * channels, 2, channels),
        (1,),
        [(dilation, 0)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "OWI", "NWC"),
    )
    candidate, gate = lax.split(both + spread(w(f"{name}/bias", 2 * channels), both), (channels,) * 2, axis=2)
    gated = lax.tanh(candidate) * lax.logistic(gate)
    return x + dense(w, f"{name}/residual", gated, channels), dense(w, f"{name}/skip", gated, skips)
