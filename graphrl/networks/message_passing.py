"""REGAL's graph network: messages along the edges and against them (workshop paper, appendix A.3, eq. 1)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph

from graphrl.networks.base import GraphObservation
from graphrl.networks.mlp import MLP


class MessagePassing(nn.Module):
    """A vector for every op after T rounds of messages, of its neighbourhood within T edges (eq. 1):

    h_v = MLP_n(x_v); h_e = MLP_e(x_e); then T times, with the same weights,
    m_e = MLP_msg([h_s, h_t, h_e]) for an edge from s to t, m'_e = MLP'_msg([h_s, h_t, h_e]),
    h_v = MLP_node([h_v, sum of m_e that arrive at v + sum of m'_e of edges that leave v]).

    T = 0 sees ops alone. Deviations from the paper: the sums are layer-normalised before MLP_node, and its output is
    added to h_v and normalised again, because sums over many edges else grow with every round; widths are ours.

    Attributes:
      width: of all vectors and hidden layers, w.
      rounds: T, at least 0.
    """

    width: int
    rounds: int

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """`[n, w]` float32; rows of padding ops mean nothing."""
        graph = observation.graph
        nodes = MLP(self.width, self.width, name="node_in")(graph.nodes)
        nodes = nn.LayerNorm(name="norm_in")(nodes)
        if self.rounds > 0:
            nodes = self._passed(graph, nodes)
        return nodes[:-1]

    def _passed(self, graph: jraph.GraphsTuple, nodes: jax.Array) -> jax.Array:
        edges = MLP(self.width, self.width, name="edge_in")(graph.edges)
        forward = MLP(self.width, self.width, name="message_forward")
        backward = MLP(self.width, self.width, name="message_backward")
        update = MLP(self.width, self.width, name="node_update")
        norm_sum, norm_node = nn.LayerNorm(name="norm_sum"), nn.LayerNorm(name="norm_node")

        def messages(_: object, source: jax.Array, target: jax.Array, __: object) -> dict[str, jax.Array]:
            ends = jnp.concatenate([source, target, edges], -1)
            return {"forward": forward(ends), "backward": backward(ends)}

        def node(h: jax.Array, sent: dict[str, jax.Array], received: dict[str, jax.Array], _: object) -> jax.Array:
            total = norm_sum(received["forward"] + sent["backward"])
            return norm_node(h + update(jnp.concatenate([h, total], -1)))

        one_round = jraph.GraphNetwork(messages, node)
        for _ in range(self.rounds):
            nodes = one_round(graph._replace(nodes=nodes)).nodes
        return nodes
