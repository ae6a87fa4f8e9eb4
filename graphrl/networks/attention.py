"""Attention whose heads see certain pairs of ops only (Topoformer, section 4.1)."""

import dataclasses
import functools
from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import ProblemError

Scoring = Literal["dot", "additive"]

_BOUND = 30.0  # nats; e^30 and its square, times thousands of senders, are finite in float32
_SLOPE = 0.2  # of GAT's leaky ReLU


@dataclasses.dataclass(frozen=True)
class HeadGroup:
    """Heads that attend to one graph.

    Attributes:
      codes: of `graphs.relations.RELATIONS`: which senders a receiver sees.
      heads: how many, at least 0; with none nothing passes along the graph.

    Raises:
      ProblemError: a value is out of range.
    """

    codes: tuple[int, ...]
    heads: int

    def __post_init__(self) -> None:
        if not self.codes or not set(self.codes) <= set(range(8)):
            raise ProblemError(f"codes are {self.codes}: must be one or more of 0 to 7")
        if self.heads < 0:
            raise ProblemError(f"heads is {self.heads}: must be at least 0")


class MaskedAttention(nn.Module):
    """All heads of all groups, side by side.

    Head k of a group whose graph has j -> i: o_i = sum over those j of a_ij v_j, a_ij = softmax over them of s_ij, with
    s_ij = q_i k_j / sqrt(head_width) ("dot") or LeakyReLU(a_r v_i + a_s v_j) ("additive", the graph attention network).
    An op without senders gets 0. Scores are clipped at 30 nats, so that no softmax needs its maximum (a pass over all
    pairs less).

    The weights of one head are in memory at a time, in training too, where they are made again for the gradient: a
    graph of 2,000 ops takes some 35 MB, and 85 with the gradient, whatever the number of heads.

    Attributes:
      groups: of heads.
      head_width: of queries, keys and values.
      scoring: "dot" or "additive".
      tied: head k of every group has the same parameters.
      dtype: of the products; sums and softmax are float32.
    """

    groups: tuple[HeadGroup, ...]
    head_width: int
    scoring: Scoring = "dot"
    tied: bool = False
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(self, nodes: jax.Array, relation: jax.Array) -> jax.Array:
        """`[n, w]` float32 and `[n, n]` uint8 to `[n, heads * head_width]` float32."""
        if self.scoring not in get_args(Scoring):
            raise ProblemError(f"scoring is {self.scoring!r}: must be one of {', '.join(get_args(Scoring))}")
        counts = [group.heads for group in self.groups]
        senders = [sum(1 << code for code in set(group.codes)) for group in self.groups]  # a bit a code
        seen = jnp.asarray(np.repeat(senders, counts), jnp.uint16)
        own = np.concatenate([np.arange(count) for count in counts]) if self.tied else np.arange(sum(counts))
        values = self._projected("value", nodes, own)
        left, right = self._scored(nodes, values, own)

        def head(one: tuple[jax.Array, ...]) -> jax.Array:
            return _head(self.scoring, relation, *one)

        each = jax.lax.map(head, (seen, left, right, values))
        return jnp.moveaxis(each, 0, 1).reshape(len(nodes), -1)

    def _scored(self, nodes: jax.Array, values: jax.Array, own: np.ndarray) -> tuple[jax.Array, jax.Array]:
        """What the scores are made of, for receivers and for senders: `[heads, n, head_width]` or `[heads, n, 1]`."""
        if self.scoring == "dot":
            queries = self._projected("query", nodes, own) * np.asarray(self.head_width**-0.5, self.dtype)
            return queries, self._projected("key", nodes, own)
        init = nn.initializers.lecun_normal(in_axis=1, out_axis=0)
        ends = [self.param(name, init, (int(own.max()) + 1, self.head_width)) for name in ("receiver", "sender")]
        left, right = (jnp.einsum("hnd,hd->hn", values.astype(jnp.float32), end[own])[..., None] for end in ends)
        return left, right

    def _projected(self, name: str, nodes: jax.Array, own: np.ndarray) -> jax.Array:
        """`[heads, n, head_width]` of `dtype`."""
        dense = nn.DenseGeneral((int(own.max()) + 1, self.head_width), use_bias=False, dtype=self.dtype, name=name)
        projected = jnp.moveaxis(dense(nodes), 1, 0)
        return projected[own] if self.tied else projected


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _head(
    scoring: Scoring, relation: jax.Array, bits: jax.Array, left: jax.Array, right: jax.Array, values: jax.Array
) -> jax.Array:
    """One head's outputs `[n, d]` float32: the mean of the senders' values, weighted by the softmax of the scores."""
    return _head_forward(scoring, relation, bits, left, right, values)[0]


def _head_forward(
    scoring: Scoring, relation: jax.Array, bits: jax.Array, left: jax.Array, right: jax.Array, values: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    weights = _weights(_scores(scoring, left, right), relation, bits)
    # a column of ones: the weights' sums come out of the product, and the weights are made once
    sums = _dot(weights.astype(values.dtype), _with_ones(values))
    share = 1 / jnp.where(sums[:, -1:] > 0, sums[:, -1:], 1.0)
    out = sums[:, :-1] * share
    return out, (relation, bits, left, right, values, out, share)


def _head_backward(scoring: Scoring, kept: tuple[jax.Array, ...], slope: jax.Array) -> tuple[jax.Array | None, ...]:
    """As autodiff does, but without the weights' sums again and with fewer passes over all pairs."""
    relation, bits, left, right, values, out, share = kept
    scores = _scores(scoring, left, right)
    weights = _weights(scores, relation, bits)
    shared = slope * share
    to_values = _transposed_dot(weights.astype(values.dtype), shared.astype(values.dtype)).astype(values.dtype)
    # values less the output, times the slope: the output's part is one more column of the product
    less = jnp.concatenate([shared, -(shared * out).sum(1, keepdims=True)], 1).astype(values.dtype)
    of_scores = weights * _dot(less, _with_ones(values).T)
    if scoring == "additive":
        return None, None, *jax.vjp(functools.partial(_scores, scoring), left, right)[1](of_scores), to_values
    of_scores = jnp.where(jnp.abs(scores) < _BOUND, of_scores, 0.0).astype(left.dtype)
    to_left, to_right = _dot(of_scores, right), _transposed_dot(of_scores, left)
    return None, None, to_left.astype(left.dtype), to_right.astype(right.dtype), to_values


def _transposed_dot(pairs: jax.Array, vectors: jax.Array) -> jax.Array:
    """pairs^T vectors, as the transpose of vectors^T pairs: XLA for CPUs would copy the pairs `[n, n]` to transpose
    them (512 ops, 16 columns, one core: 377 us in all, against 69), and without the barrier would undo this.
    """
    return jax.lax.optimization_barrier(_dot(vectors.T, pairs)).T


_head.defvjp(_head_forward, _head_backward)


def _scores(scoring: Scoring, left: jax.Array, right: jax.Array) -> jax.Array:
    scores = _dot(left, right.T) if scoring == "dot" else nn.leaky_relu(left + right.T, _SLOPE)
    return jnp.clip(scores, -_BOUND, _BOUND)


def _weights(scores: jax.Array, relation: jax.Array, bits: jax.Array) -> jax.Array:
    allowed = (bits >> relation.astype(jnp.uint16)) & 1 == 1
    return jnp.where(allowed, jnp.exp(scores), 0.0)


def _with_ones(values: jax.Array) -> jax.Array:
    return jnp.pad(values, ((0, 0), (0, 1)), constant_values=1)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.dot(left, right, preferred_element_type=jnp.float32)
