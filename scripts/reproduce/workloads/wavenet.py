"""WaveNet: stacks of dilated causal convolutions over raw audio (van den Oord et al. 2016, sections 2.1 to 2.4).

"2-stack 18-layer" is read as 2 stacks of 18 layers, "4-stack 36-layer" as 4 of 36. Dilations go from 1 to 256 and
begin again, twice (four times) in a stack. Sizes are ours, where GO's supplement could not be had: 8 pieces of 8,192
samples, 128 channels, 256 skip channels, 256 levels of mu-law.
"""

import jax
from jax import lax

from reproduce.workloads.layers import cross_entropy, dense, embed, spread
from reproduce.workloads.model import Batch, Model, tokens
from reproduce.workloads.weights import Weights

CYCLE = 9  # dilations 2^0 to 2^8
LEVELS = 256


def wavenet(
    stacks: int, layers: int, samples: int = 8192, batch: int = 8, channels: int = 128, skips: int = 256
) -> Model:
    """`layers` in each of `stacks`; samples and labels piece after piece, `[batch * samples]`."""

    def loss(w: Weights, data: Batch) -> tuple[jax.Array, None]:
        with jax.named_scope("embedding"):
            x = embed(w, "embedding", data["samples"], LEVELS, channels).reshape(batch, samples, channels)
        total = None
        for stack in range(stacks):
            for layer in range(layers):
                with jax.named_scope(f"stack{stack}/layer{layer}"):
                    x, skip = _layer(w, f"stack{stack}/layer{layer}", x, 2 ** (layer % CYCLE), skips)
                    total = skip if total is None else total + skip
        assert total is not None
        with jax.named_scope("softmax"):
            hidden = jax.nn.relu(dense(w, "hidden", jax.nn.relu(total.reshape(batch * samples, skips)), skips))
            return cross_entropy(dense(w, "softmax", hidden, LEVELS), data["labels"]), None

    return Model(loss, {name: tokens(batch * samples) for name in ("samples", "labels")}, LEVELS)


def _layer(w: Weights, name: str, x: jax.Array, dilation: int, skips: int) -> tuple[jax.Array, jax.Array]:
    """What the next layer reads, and what is added to the skips."""
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
