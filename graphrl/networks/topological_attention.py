"""Topoformer's encoder and its ablations: one stack of layers, whose heads see one graph or another.

Gagrani et al., "Neural Topological Ordering for Computation Graphs" (NeurIPS 2022), section 4.1, eqs 4 and 5;
table 3 for the ablations.
"""

from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.errors import ProblemError
from graphrl.graphs.relations import (
    FROM_CLOSURE,
    FROM_DEPENDENCY,
    FROM_REDUCTION,
    INCOMPARABLE,
    SELF,
    TO_CLOSURE,
    TO_DEPENDENCY,
    TO_REDUCTION,
)
from graphrl.networks.attention import HeadGroup, MaskedAttention, Scoring
from graphrl.networks.base import PairObservation

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
    """A vector for every op after `layers` pre-layer-norm layers of attention and perceptron (eqs 4 and 5):

    h = W x + b; then for every layer h = h + W_o concat of the heads of LN(h); h = h + MLP(LN(h)), GELU.

    Deviations from the paper: eq. 4 adds the heads' outputs themselves; C.2's sizes (10 heads of 64 on each of seven
    graphs, width 256) need W_o, as in any transformer. The last h is layer-normalised, as in the paper's [31].

    Attributes:
      groups: of heads; without heads the layers are perceptrons on each op alone.
      layers: at least 0.
      width: w, of the vectors and of the perceptrons' hidden layers.
      head_width: of queries, keys and values.
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
        """`[n, w]` float32; rows of padding ops mean nothing and reach no real op."""
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
    """The encoder of a name; the paper's sizes are layers=4, width=256, heads=10, head_width=64.

    Args:
      name: of `GRAPHS`: "topoformer" (seven graphs), "topoformer-dag" (the dependencies and their reverses),
        "transformer" (all pairs), "gat" and "gat-both" (an op itself and the dependencies; and their reverses;
        additive scores), "mlp" (each op alone).
      layers, width, head_width, tied: see `TopologicalEncoder`.
      heads: on each graph, or one number for every graph of the encoder.
      dtype: of the products, "float32" or "bfloat16".

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
