"""Attention along a sequence that is cut into segments (Transformer-XL, Dai et al. 2019; GO, section 4.2)."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.networks.mlp import MLP

_NEVER = -1e9  # score of what is not seen: weight 0 in float32


class SegmentAttention(nn.Module):
    """Multi-head attention of every element to those of its segment and of the segment before.

    There are no positions: what elements are in those two segments counts, not where. What is seen of the segment
    before is a cache, as it is for later segments of a text that is being read: no gradient flows into its vectors (but
    into the weights that make keys and values of them). A stack of k layers thus sees k segments back.

    Memory is linear in the sequence: one segment's weights are in memory at a time, in training too, where they are
    made again for the gradient.

    Attributes:
      width: of the outputs, w: a multiple of the heads.
      heads: at least 1.
      segment: elements of a segment.
      cached: whether the segment before is seen.
    """

    width: int
    heads: int
    segment: int
    cached: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """`[n, F]` float32 and which elements are real, `[n]` bool, to `[n, w]` float32; only real ones are seen."""
        each = (self.heads, self.width // self.heads)
        memory = nn.DenseGeneral((2, *each), use_bias=False, name="key_value")
        query = nn.DenseGeneral(each, use_bias=False, name="query")(x) * each[1] ** -0.5
        size = min(self.segment, len(x))
        segments = [_segments(part, size) for part in (query, memory(x), memory(jax.lax.stop_gradient(x)), mask)]
        nothing = jnp.zeros_like(segments[2][0]), jnp.zeros_like(segments[3][0])
        step = jax.checkpoint(functools.partial(_step, cached=self.cached), prevent_cse=False)
        attended = jax.lax.scan(step, nothing, tuple(segments))[1]
        return nn.Dense(self.width, name="out")(attended.reshape(-1, self.width)[: len(x)])


class SegmentLayer(nn.Module):
    """A layer of a transformer: x = x + attention(LN(x)); x = x + MLP(LN(x)).

    Where layers are normalised is ours.

    Attributes:
      attention: whose width is that of the layer, w.
    """

    attention: SegmentAttention

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """`[n, w]` float32 and which elements are real, `[n]` bool, to `[n, w]` float32."""
        width = self.attention.width
        x += self.attention(nn.LayerNorm(name="norm_attention")(x), mask)
        return x + MLP(2 * width, width, name="mlp")(nn.LayerNorm(name="norm_mlp")(x))


def _segments(part: jax.Array, size: int) -> jax.Array:
    """`[n, ...]` to `[segments, size, ...]`, with zeros at the end."""
    rest = [(0, 0)] * (part.ndim - 1)
    return jnp.pad(part, [(0, -len(part) % size), *rest]).reshape(-1, size, *part.shape[1:])


def _step(
    cache: tuple[jax.Array, jax.Array], segment: tuple[jax.Array, ...], *, cached: bool
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """One segment's outputs `[s, heads, c]`, and what the next one sees of it: keys and values, and what is real."""
    query, memory, kept, seen = segment
    next_cache = kept, seen
    if cached:
        memory, seen = jnp.concatenate([cache[0], memory]), jnp.concatenate([cache[1], seen])
    scores = jnp.einsum("qhc,khc->hqk", query, memory[:, 0])
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores, _NEVER))
    return next_cache, jnp.einsum("hqk,khc->qhc", weights, memory[:, 1])
