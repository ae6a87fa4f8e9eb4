"""GAS, graph as sequence: REGAL's baseline that reads the ops in a topological order (ICLR paper, section 5.2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.graphs.features import NODE_FEATURES
from graphrl.networks.base import GraphObservation
from graphrl.networks.mlp import MLP

_DEPTH = NODE_FEATURES.index("depth")


class Recurrent(nn.Module):
    """A vector for every op from two gated recurrent networks, one along a topological order and one against it.

    The order is by depth, which rises along every edge, and at equal depth by the op's place. The papers name neither
    the cell, nor the order, nor whether both directions are read: those are ours.

    Attributes:
      width: w, even; each direction has half of it.
    """

    width: int

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """`[n, w]` float32; rows of padding ops mean nothing."""
        features, mask = observation.graph.nodes[:-1], observation.mask
        order = jnp.argsort(jnp.where(mask, features[:, _DEPTH], jnp.inf), stable=True)
        sequence = MLP(self.width, self.width, name="node_in")(features[order])[None]
        half = self.width // 2
        both = nn.Bidirectional(nn.RNN(nn.GRUCell(half)), nn.RNN(nn.GRUCell(half)), name="both")
        read = both(sequence, seq_lengths=mask.sum(dtype=jnp.int32)[None])[0]
        return jnp.zeros_like(read).at[order].set(read, unique_indices=True)
