"""Transformer-XL: attention over a segment and the memory of the one before, with relative positions (Dai et al. 2019,
section 3 and appendix B).

Sizes follow the authors' large model of enwik8 (1,024 wide, 8 heads, 3,072 inside), of 2, 4 or 8 layers; ours, where
GO's supplement could not be had: 16 segments of 512 characters out of 204 with as long a memory, no dropout.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from reproduce.workloads.layers import cross_entropy, dense, embed, layer_norm, linear, softmax
from reproduce.workloads.model import Batch, Model, floats, tokens
from reproduce.workloads.weights import Weights

BLOCKED = -1e30  # the score of what lies ahead


def transformer_xl(
    layers: int, width: int = 1024, heads: int = 8, inner: int = 3072, length: int = 512, batch: int = 16,
    characters: int = 204,
) -> Model:  # fmt: skip
    """`layers`; characters and labels segment after segment, `[batch * length]`; positions are sinusoids, farthest
    first, `[2 * length, width]`; the memory of every layer is `[batch, length, width]`. Gives the next memory.
    """

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, list[jax.Array]]:
        with jax.named_scope("embedding"):
            x = embed(w, "embedding", data["characters"], characters, width).reshape(batch, length, width)
        memory = []
        for layer in range(layers):
            memory.append(x)
            with jax.named_scope(f"layer{layer}/attention"):
                x = _attention(w, f"layer{layer}", x, data[f"memory{layer}"], data["positions"], heads)
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


def _attention(w: Weights, name: str, x: jax.Array, memory: jax.Array, positions: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape
    size = width // heads

    def projected(part: str, rows: jax.Array) -> jax.Array:
        return linear(rows, w(f"{name}/{part}", width, width)).reshape(*rows.shape[:-1], heads, size)

    seen = lax.concatenate([memory, x], 1)
    query, key, value = projected("query", x), projected("key", seen), projected("value", seen)
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
    """Sums over an axis of each; `batch_a` and `batch_b` go side by side and come first."""
    return lax.dot_general(a, b, (((over_a,), (over_b,)), (batch_a, batch_b)))


def _biased(w: Weights, name: str, query: jax.Array) -> jax.Array:
    """The part of a score that does not depend on the query (u and v in the paper)."""
    heads, size = query.shape[-2:]
    return lax.broadcast_in_dim(w(name, heads, size), query.shape, (2, 3))


def _shifted(scores: jax.Array) -> jax.Array:
    """Scores by distance as scores by place: row i moves left by what its queries are ahead of the last one."""
    batch, heads, length, seen = scores.shape
    padded = lax.pad(scores, 0.0, ((0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0)))
    turned = padded.reshape(batch, heads, seen + 1, length)
    return lax.slice_in_dim(turned, 1, seen + 1, axis=2).reshape(batch, heads, length, seen)
