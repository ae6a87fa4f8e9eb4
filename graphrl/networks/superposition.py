"""One network for many kinds of graphs: its features are rescaled by what the graph is (GO, section 4.3)."""

from typing import Literal

import flax.linen as nn
import jax

from graphrl.networks.mlp import SMALL
from graphrl.networks.pooling import mean_of
from graphrl.networks.segment_attention import SegmentLayer

Superposition = Literal["graph", "ops", "none"]


class Modulation(nn.Module):
    """m(h_G) of x^(l+1) = a^l(m(h_G) * x^l): factors of the features that enter each layer.

    One more transformer layer reads the vectors of the graph's ops; an affine map of what it gives are the factors.
    The paper leaves open whether every op has factors of its own ("ops") or the graph has one for each feature, of the
    mean over its ops ("graph"). Ours is that the untrained factors are near 1.

    Attributes:
      layer: the transformer layer.
      of: "graph" or "ops".
    """

    layer: SegmentLayer
    of: Superposition

    @nn.compact
    def __call__(self, ops: jax.Array, mask: jax.Array) -> jax.Array:
        """`[n, w]` float32, in the order of the sequence, and which are real, `[n]` bool, to `[1 or n, w]` float32."""
        read = nn.LayerNorm(name="norm")(self.layer(ops, mask))
        if self.of == "graph":
            read = mean_of(read, mask)[None]
        return nn.Dense(ops.shape[1], kernel_init=SMALL, bias_init=nn.initializers.ones, name="factors")(read)
