"""The Graph U-Net (Gao and Ji 2019) as in EGRL (section 3.2): attention, pooling to the half of the nodes with the best
scores, and unpooling. `BidirectionalAttention` is graph attention along the edges and against them, on a dense
adjacency matrix (EGRL, section 3.2; Velickovic et al. 2018).
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph

from graphrl.errors import ProblemError
from graphrl.networks.base import GraphObservation

_SLOPE = 0.2  # slope of the leaky ReLU
# nats, limit of the receiver's and the sender's part of a score. Scores minus this bound are from -42 to 30: e^30 times
# thousands of senders, and its square in the gradient, are finite in float32.
_BOUND = 30.0


class BidirectionalAttention(nn.Module):
    """Two graph attentions in parallel: one sends messages along the edges, one against them.

    Head k of one direction: o_i = sum over senders j of a_ij W_k x_j, with a_ij the softmax over i's senders, i itself
    among them, of LeakyReLU(r_k W_k x_i + s_k W_k x_j). Each direction gives one half of the outputs, each head an
    equal part of that; a bias is added. r and s are clipped at 30 nats, so that no softmax needs its maximum.

    Attributes:
      width: width of the outputs, w.
      heads: number of heads per direction.
    """

    width: int
    heads: int

    @nn.compact
    def __call__(self, nodes: jax.Array, senders: jax.Array) -> jax.Array:
        """Maps nodes `[n, F]` float32 to `[n, w]` float32; `senders` is `[n, n]` float32, 1 at `[i, j]` if i = j or an
        edge leads from j to i, else 0. A node without any senders (padding) gets the bias.
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


class Level(NamedTuple):
    """The graph at one depth of the U-Net, after pooling: n nodes, w channels."""

    nodes: jax.Array  # [n, w] float32
    senders: jax.Array  # [n, n] float32, 1 at [i, j] if i = j or an edge leads from j to i, else 0
    mask: jax.Array  # [n] bool, True for real nodes


class GraphUNet(nn.Module):
    """Embeds every op: attention on the graph, then `depth` times on half of the remaining nodes, and back up.

    Down: edges join all nodes within two edges of each other, which is the graph (A + I)^2. The half of the nodes with
    the largest projections y = x p / |p| on a learned vector p is kept, their vectors times sigmoid(y), and attends.
    Up: the vectors are written back to their nodes in the graph before pooling and added to its vectors, and all nodes
    attend again. Every attention is followed by ReLU (the last is not) and a normalisation.

    Choices that the paper leaves open: it has "graph attention operations" and cites Gao and Ji, whose gate is a
    sigmoid; the published code's is tanh. The code has batch normalisation, here replaced by layer normalisation: of
    every node over its channels, independent of other graphs. Depth is 4 in the paper's table of settings, 3 in the
    code.

    Ties between equal scores go to the lower index. Apart from ties, the network is equivariant to permutations of the
    ops.

    Attributes:
      width: width of all vectors, w: a multiple of 2 * heads.
      depth: number of poolings, each to half of the nodes; at least 0.
      heads: number of attention heads per direction.

    Raises:
      ProblemError: the heads do not divide the width, at the first use.
    """

    width: int = 128
    depth: int = 4
    heads: int = 4

    @nn.compact
    def __call__(self, observation: GraphObservation, actions: jax.Array | None = None) -> jax.Array:
        """Returns op embeddings, `[n, w]` float32; rows of padding ops are arbitrary.

        Args:
          observation: observation of one graph.
          actions: `[n, A]` float32, additional features of ops.
        """
        if self.heads < 1 or self.width < 1 or self.width % (2 * self.heads):
            raise ProblemError(f"width is {self.width}: must be a multiple of 2 x {self.heads} heads")
        nodes = observation.graph.nodes[:-1]
        nodes = nodes if actions is None else jnp.concatenate([nodes, actions], -1)
        level = self._attend(Level(nodes, senders_of(observation), observation.mask))
        stack: list[tuple[Level, jax.Array]] = []
        for depth in range(self.depth):
            wide = level._replace(senders=within_two(level.senders))
            score, selection = self._select(wide, depth)
            stack.append((level, selection))
            level = self._attend(_pool(wide, score, selection))
        while stack:
            (target, selection), small = stack.pop(), level.nodes
            level = self._attend(target._replace(nodes=target.nodes + selection.T @ small), last=not stack)
        return level.nodes

    def _attend(self, level: Level, last: bool = False) -> Level:
        nodes = BidirectionalAttention(self.width, self.heads)(level.nodes, level.senders)
        return level._replace(nodes=nn.LayerNorm()(nodes if last else nn.relu(nodes)))

    def _select(self, level: Level, depth: int) -> tuple[jax.Array, jax.Array]:
        """Returns the nodes' scores `[n]`, and a selection matrix `[k, n]` float32: 1 at `[i, j]` if kept node i is
        node j.
        """
        direction = self.param(f"direction_{depth}", nn.initializers.normal(1.0), (self.width,))
        score = level.nodes @ (direction * jax.lax.rsqrt(jnp.square(direction).sum()))
        return score, best(jax.lax.stop_gradient(score), level.mask)


def senders_of(observation: GraphObservation) -> jax.Array:
    """Computes the dense adjacency `senders` of a padded graph, see `Level`; all 0 for padding ops."""
    graph: jraph.GraphsTuple = observation.graph
    own = jnp.diag(observation.mask.astype(jnp.float32))
    n = own.shape[0]
    return jnp.pad(own, (0, 1)).at[graph.receivers, graph.senders].set(1.0)[:n, :n]


def within_two(senders: jax.Array) -> jax.Array:
    """Computes the adjacency of nodes within two edges of each other: 1 where (A + I)^2 is not 0."""
    return (senders @ senders > 0).astype(jnp.float32)


def best(score: jax.Array, mask: jax.Array) -> jax.Array:
    """Selects the half of the nodes of `mask`, rounded up, that has the largest scores; ties go to the lower index.

    Ranks are computed by comparing all pairs: no more work than one attention head, and no gather in the gradient.

    Returns:
      `[k, n]` float32, at `[i, j]` 1 if j is the i-th best and kept, else 0.
    """
    n = score.shape[0]
    score = jnp.where(mask, score, -jnp.inf)
    left, right = score[:, None], score[None]
    before = (left > right) | ((left == right) & jnp.triu(jnp.ones((n, n), bool), 1))
    rank = before.sum(0, dtype=jnp.int32)
    count = jnp.ceil(mask.sum(dtype=jnp.float32) / 2).astype(jnp.int32)
    places = jnp.arange(max(1, (n + 1) // 2), dtype=jnp.int32)
    return ((rank[None] == places[:, None]) & (places < count)[:, None]).astype(jnp.float32)


def _pool(level: Level, score: jax.Array, selection: jax.Array) -> Level:
    nodes = selection @ (level.nodes * nn.sigmoid(score)[:, None])
    return Level(nodes, selection @ level.senders @ selection.T, selection.sum(1) > 0)
