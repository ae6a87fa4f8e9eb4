"""Graph attention along the edges and against them (EGRL, section 3.2; Velickovic et al. 2018), on dense adjacency."""

import flax.linen as nn
import jax
import jax.numpy as jnp

_SLOPE = 0.2  # of the leaky ReLU
# nats, of an end's part of a score. Less so many, a score is from -42 to 30: e^30 times thousands of senders, and what
# its gradient divides by, the square, are numbers in float32.
_BOUND = 30.0


class BidirectionalAttention(nn.Module):
    """Two graph attentions side by side: one has messages go along the edges, one against them.

    Head k of one direction: o_i = sum over senders j of a_ij W_k x_j, with a_ij the softmax over i's senders, i itself
    among them, of LeakyReLU(r_k W_k x_i + s_k W_k x_j). Each direction gives one half of the outputs, each head an
    equal part of that; a bias is added. r and s are clipped at 30 nats, so that no softmax needs its maximum.

    Attributes:
      width: of the outputs, w.
      heads: of each direction.
    """

    width: int
    heads: int

    @nn.compact
    def __call__(self, nodes: jax.Array, senders: jax.Array) -> jax.Array:
        """`[n, F]` float32 and `[n, n]` float32, 1 at `[i, j]` if i = j or an edge leads from j to i and else 0, to
        `[n, w]` float32; a node without senders, not even itself, gets the bias.
        """
        n, heads = len(nodes), 2 * self.heads
        each = (heads, self.width // heads)
        values = nn.Dense(self.width, use_bias=False, name="value")(nodes).reshape(n, *each).swapaxes(0, 1)
        init = nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        ends = [self.param(name, init, each) for name in ("receiver", "sender")]
        receive, send = (jnp.clip(jnp.einsum("hnc,hc->hn", values, end), -_BOUND, _BOUND) for end in ends)
        scores = nn.leaky_relu(receive[:, :, None] + send[:, None, :], _SLOPE)  # [2 * heads, n, n]
        weights = jnp.exp(scores - _BOUND) * jnp.repeat(jnp.stack([senders, senders.T]), self.heads, 0)
        total = weights.sum(-1, keepdims=True)
        out = (weights @ values) / jnp.where(total > 0, total, 1.0)
        return out.swapaxes(0, 1).reshape(n, -1) + self.param("bias", nn.initializers.zeros, (self.width,))[None]
