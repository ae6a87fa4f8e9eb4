"""Topoformer's encoder and its ablations: transformer layers whose attention heads each follow one graph on the ops.

Gagrani et al., "Neural Topological Ordering for Computation Graphs" (NeurIPS 2022), section 4.1, eqs 4 and 5; table 3
for the ablations. `MaskedAttention` restricts each head to the pairs of ops that its graph joins.
"""

import dataclasses
import functools
from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.features import (
    FROM_CLOSURE,
    FROM_DEPENDENCY,
    FROM_REDUCTION,
    INCOMPARABLE,
    SELF,
    TO_CLOSURE,
    TO_DEPENDENCY,
    TO_REDUCTION,
)
from graphrl.networks.base import PairObservation

Scoring = Literal["dot", "additive"]

_BOUND = 30.0  # nats; e^30 and its square, times thousands of senders, are finite in float32
_SLOPE = 0.2  # of GAT's leaky ReLU


@dataclasses.dataclass(frozen=True)
class HeadGroup:
    """Attention heads that attend along one graph.

    Attributes:
      codes: the graph, as codes of `graphs.features.RELATIONS`: an op attends to the ops in one of these relations.
      heads: number of heads, at least 0; with 0 the graph has no effect.

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
    """Multi-head attention in which each group of heads attends along its own graph; outputs are concatenated.

    Head k of a group whose graph has j -> i: o_i = sum over those j of a_ij v_j, a_ij = softmax over them of s_ij, with
    s_ij = q_i k_j / sqrt(head_width) ("dot") or LeakyReLU(a_r v_i + a_s v_j) ("additive", the graph attention network).
    An op without senders gets 0. Scores are clipped at 30 nats, so that no softmax needs its maximum, which saves a
    pass over all pairs.

    The weights of only one head are in memory at a time. In training they are recomputed for the gradient. A graph of
    2,000 ops takes about 35 MB, and 85 MB with the gradient, independent of the number of heads.

    Attributes:
      groups: groups of heads.
      head_width: width of each head's queries, keys and values.
      scoring: "dot" or "additive".
      tied: True if head k of every group has the same parameters.
      dtype: dtype of the matrix products; sums and softmax are float32.
    """

    groups: tuple[HeadGroup, ...]
    head_width: int
    scoring: Scoring = "dot"
    tied: bool = False
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(self, nodes: jax.Array, relation: jax.Array) -> jax.Array:
        """Maps nodes `[n, w]` float32, with relation codes `[n, n]` uint8, to `[n, heads * head_width]` float32."""
        if self.scoring not in get_args(Scoring):
            raise ProblemError(f"scoring is {self.scoring!r}: must be one of {', '.join(get_args(Scoring))}")
        counts = [group.heads for group in self.groups]
        senders = [sum(1 << code for code in set(group.codes)) for group in self.groups]  # one bit per code
        sender_bits = jnp.asarray(np.repeat(senders, counts), jnp.uint16)
        index = np.concatenate([np.arange(count) for count in counts]) if self.tied else np.arange(sum(counts))
        values = self._project("value", nodes, index)
        left, right = self._score_factors(nodes, values, index)

        def head(one: tuple[jax.Array, ...]) -> jax.Array:
            return _head(self.scoring, relation, *one)

        each = jax.lax.map(head, (sender_bits, left, right, values))
        return jnp.moveaxis(each, 0, 1).reshape(len(nodes), -1)

    def _score_factors(self, nodes: jax.Array, values: jax.Array, index: np.ndarray) -> tuple[jax.Array, jax.Array]:
        """Returns the receivers' and the senders' parts of the scores: factors `[heads, n, head_width]` ("dot"), or
        summands `[heads, n, 1]` ("additive").
        """
        if self.scoring == "dot":
            queries = self._project("query", nodes, index) * np.asarray(self.head_width**-0.5, self.dtype)
            return queries, self._project("key", nodes, index)
        init = nn.initializers.lecun_normal(in_axis=1, out_axis=0)
        ends = [self.param(name, init, (int(index.max()) + 1, self.head_width)) for name in ("receiver", "sender")]
        left, right = (jnp.einsum("hnd,hd->hn", values.astype(jnp.float32), end[index])[..., None] for end in ends)
        return left, right

    def _project(self, name: str, nodes: jax.Array, index: np.ndarray) -> jax.Array:
        """Projects nodes `[n, w]` for each head: `[heads, n, head_width]` of `dtype`."""
        dense = nn.DenseGeneral((int(index.max()) + 1, self.head_width), use_bias=False, dtype=self.dtype, name=name)
        heads = jnp.moveaxis(dense(nodes), 1, 0)
        return heads[index] if self.tied else heads


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _head(
    scoring: Scoring, relation: jax.Array, bits: jax.Array, left: jax.Array, right: jax.Array, values: jax.Array
) -> jax.Array:
    """Computes one head's outputs `[n, d]` float32: the senders' values, weighted by the softmax of the scores."""
    return _head_forward(scoring, relation, bits, left, right, values)[0]


def _head_forward(
    scoring: Scoring, relation: jax.Array, bits: jax.Array, left: jax.Array, right: jax.Array, values: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    weights = _weights(_scores(scoring, left, right), relation, bits)
    # a column of ones: the product also yields the weights' sums, so that the weights are computed once
    sums = _dot(weights.astype(values.dtype), _with_ones(values))
    share = 1 / jnp.where(sums[:, -1:] > 0, sums[:, -1:], 1.0)
    out = sums[:, :-1] * share
    return out, (relation, bits, left, right, values, out, share)


def _head_backward(
    scoring: Scoring, saved: tuple[jax.Array, ...], cotangent: jax.Array
) -> tuple[jax.Array | None, ...]:
    """Computes `_head`'s gradient, in fewer passes over all pairs than autodiff and without summing weights again."""
    relation, bits, left, right, values, out, share = saved
    scores = _scores(scoring, left, right)
    weights = _weights(scores, relation, bits)
    scaled = cotangent * share
    to_values = _transposed_dot(weights.astype(values.dtype), scaled.astype(values.dtype)).astype(values.dtype)
    # (values - output) times the slope: the output's part is an additional column of the product
    extended = jnp.concatenate([scaled, -(scaled * out).sum(1, keepdims=True)], 1).astype(values.dtype)
    score_gradient = weights * _dot(extended, _with_ones(values).T)
    if scoring == "additive":
        return None, None, *jax.vjp(functools.partial(_scores, scoring), left, right)[1](score_gradient), to_values
    score_gradient = jnp.where(jnp.abs(scores) < _BOUND, score_gradient, 0.0).astype(left.dtype)
    left_gradient, right_gradient = _dot(score_gradient, right), _transposed_dot(score_gradient, left)
    return None, None, left_gradient.astype(left.dtype), right_gradient.astype(right.dtype), to_values


def _transposed_dot(pairs: jax.Array, vectors: jax.Array) -> jax.Array:
    """Computes pairs^T vectors as the transpose of vectors^T pairs. XLA for CPUs would copy `pairs` `[n, n]` to
    transpose it (512 ops, 16 columns, one core: 377 us in all, against 69). The barrier prevents XLA from undoing this.
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


EncoderName = Literal["topoformer", "topoformer-dag", "transformer", "gat", "gat-both", "mlp"]

_FORWARD, _BACKWARD = (FROM_REDUCTION, FROM_DEPENDENCY), (TO_REDUCTION, TO_DEPENDENCY)
_SEVEN = (FROM_REDUCTION, FROM_DEPENDENCY, FROM_CLOSURE, TO_REDUCTION, TO_DEPENDENCY, TO_CLOSURE, INCOMPARABLE)
GRAPHS: dict[EncoderName, tuple[tuple[int, ...], ...]] = {
    "topoformer": tuple((code,) for code in _SEVEN),
    "topoformer-dag": (_FORWARD, _BACKWARD),
    "transformer": ((SELF, *_SEVEN),),
    "gat": ((SELF, *_FORWARD),),
    "gat-both": ((SELF, *_FORWARD, *_BACKWARD),),
    "mlp": (),
}


class TopologicalEncoder(nn.Module):
    """Embeds every op by `layers` pre-layer-norm layers of attention and perceptron (eqs 4 and 5):

    h = W x + b; then for every layer h = h + W_o concat of the heads of LN(h); h = h + MLP(LN(h)), GELU.

    Deviations from the paper: eq. 4 adds the heads' outputs themselves; C.2's sizes (10 heads of 64 on each of seven
    graphs, width 256) need W_o, as in any transformer. The last h is layer-normalised, as in the paper's [31].

    Attributes:
      groups: groups of heads; without heads the layers are perceptrons on each op alone.
      layers: number of layers, at least 0.
      width: w, width of the vectors and of the perceptrons' hidden layers.
      head_width: width of queries, keys and values.
      scoring, tied, dtype: see `MaskedAttention`; dtype is the perceptrons' too.
    """

    groups: tuple[HeadGroup, ...]
    layers: int
    width: int
    head_width: int
    scoring: Scoring = "dot"
    tied: bool = False
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(self, observation: PairObservation) -> jax.Array:
        """Returns op embeddings, `[n, w]` float32; rows of padding ops are arbitrary and do not affect real ops."""
        nodes = nn.Dense(self.width, name="node_in")(observation.nodes)
        groups = tuple(group for group in self.groups if group.heads)
        for layer in range(self.layers):
            if groups:
                attention = MaskedAttention(
                    groups, self.head_width, self.scoring, self.tied, self.dtype, name=f"attention_{layer}"
                )
                heads = attention(nn.LayerNorm(name=f"norm_attention_{layer}")(nodes), observation.relation)
                nodes += self._dense(f"attention_out_{layer}", heads)
            hidden = nn.gelu(self._dense(f"mlp_in_{layer}", nn.LayerNorm(name=f"norm_mlp_{layer}")(nodes)))
            nodes += self._dense(f"mlp_out_{layer}", hidden)
        return nn.LayerNorm(name="norm_out")(nodes)

    def _dense(self, name: str, x: jax.Array) -> jax.Array:
        return nn.Dense(self.width, dtype=self.dtype, name=name)(x).astype(jnp.float32)


def encoder(
    name: EncoderName,
    *,
    layers: int = 3,
    width: int = 64,
    heads: int | tuple[int, ...] = 2,
    head_width: int = 16,
    tied: bool = False,
    dtype: str = "float32",
) -> TopologicalEncoder:
    """Creates an encoder by name; the paper's sizes are layers=4, width=256, heads=10, head_width=64.

    Args:
      name: name in `GRAPHS`: "topoformer" (seven graphs), "topoformer-dag" (the dependencies and their reverses),
        "transformer" (all pairs), "gat" and "gat-both" (an op itself and the dependencies; and their reverses; additive
        scores), "mlp" (each op alone).
      layers, width, head_width, tied: see `TopologicalEncoder`.
      heads: number of heads for every graph, or one number per graph of the encoder.
      dtype: dtype of the products, "float32" or "bfloat16".

    Raises:
      ProblemError: the name is unknown, or heads do not fit the graphs.
    """
    if name not in GRAPHS:
        raise ProblemError(f"encoder is {name!r}: must be one of {', '.join(get_args(EncoderName))}")
    graphs = GRAPHS[name]
    counts = (heads,) * len(graphs) if isinstance(heads, int) else heads
    if len(counts) != len(graphs):
        raise ProblemError(f"heads are {counts}: must be one number or {len(graphs)}, one for each graph of {name!r}")
    groups = tuple(HeadGroup(codes, count) for codes, count in zip(graphs, counts, strict=True))
    scoring: Scoring = "additive" if name.startswith("gat") else "dot"
    return TopologicalEncoder(groups, layers, width, head_width, scoring, tied, jnp.dtype(dtype))
