"""Logits of the options of an op that are told of each pair of the two: by a perceptron, the same for all pairs."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class PairLogits(nn.Module):
    """What an op's option is worth, by what is seen of the two together and of the option that the op has now; 0 for
    all when untrained. It does not depend on the options' numbers.

    Attributes:
      width: of the two hidden layers.
    """

    width: int

    @nn.compact
    def __call__(self, ops: jax.Array, pairs: jax.Array, chosen: jax.Array) -> jax.Array:
        """`[n, o]` float32.

        Args:
          ops: `[n, K]` float32, of each op.
          pairs: `[n, o, Q]` float32, of each op and option.
          chosen: `[n, o]` float32, the probabilities of options, or 1 for what was chosen.
        """
        own = jnp.einsum("no,noq->nq", chosen, pairs)[:, None]
        of_pairs = nn.Dense(self.width, name="pairs")(jnp.concatenate([pairs, pairs - own], -1))
        hidden = nn.relu(of_pairs + nn.Dense(self.width, name="ops")(ops)[:, None])
        hidden = nn.relu(nn.Dense(self.width, name="hidden")(hidden))
        return nn.Dense(1, kernel_init=nn.initializers.zeros, name="logit")(hidden)[..., 0]
