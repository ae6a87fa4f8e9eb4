"""GraphSAGE with max pooling (Hamilton et al. 2017) as GO has it (Zhou et al. 2020, section 4.1, eqs 3 and 4)."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

Neighbours = Literal["together", "apart"]


class GraphSage(nn.Module):
    """A vector for every op, of its neighbourhood within `rounds` edges. In each round, with weights of its own,

    h_N(v) = max over v's neighbours u of sigmoid(W h_u + b)  (eq. 3),
    h_v = ReLU(W' [h_v, h_N(v)] + b')  (eq. 4).

    Without neighbours h_N(v) is 0, which is below every sigmoid. The first h is an affine map of the features. Edges
    have no features here: the bytes that one carries are among those of the op that it leaves.

    Deviations from the paper: h is layer-normalised (GraphSAGE scales it to length 1), and by default the ops before v
    and those after it are pooled apart, with weights of their own: who waits for whom is what a schedule is about.

    Attributes:
      width: of all vectors, w.
      rounds: at least 0; 0 sees ops alone.
      neighbours: "together", the paper's, or "apart" (ours).
    """

    width: int
    rounds: int
    neighbours: Neighbours = "apart"

    @nn.compact
    def __call__(self, nodes: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        """`[n, w]` float32.

        Args:
          nodes: `[n, F]` float32.
          senders, receivers: `[e]` int32, ops that edges lead from and to; n for padding.
        """
        h = nn.LayerNorm(name="norm_in")(nn.Dense(self.width, name="node_in")(nodes))
        ways = [(senders, receivers), (receivers, senders)]
        if self.neighbours == "together":
            ways = [(jnp.concatenate([senders, receivers]), jnp.concatenate([receivers, senders]))]
        for number in range(self.rounds):
            pooled = [
                largest(nn.sigmoid(nn.Dense(self.width, name=f"pool_{number}_{way}")(h)), *ends)
                for way, ends in enumerate(ways)
            ]
            h = nn.relu(nn.Dense(self.width, name=f"update_{number}")(jnp.concatenate([h, *pooled], -1)))
            h = nn.LayerNorm(name=f"norm_{number}")(h)
        return h


def largest(values: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Of each receiver the elementwise maximum of its senders' values `[n, w]`, all above 0; 0 where there are none."""
    arriving = values.at[senders].get(mode="fill", fill_value=0)
    return jnp.zeros_like(values).at[receivers].max(arriving, mode="drop")
