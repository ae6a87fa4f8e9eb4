"""Graph encoders: they compute an embedding vector for each op.

- `GraphSage`: max pooling (Hamilton et al. 2017) as in GO (Zhou et al. 2020, section 4.1, eqs 3 and 4).
- `MessagePassing`: REGAL's encoder, along the edges and against them (workshop paper, appendix A.3, eq. 1).
- `NeighbourMeans`: a perceptron on each op's features and its neighbours' mean features, the simplest graph network.
- `OpEncoder`: messages along and against the edges, for the observations of all environments (ours).
- `Recurrent`: GAS, graph as sequence, REGAL's recurrent baseline over the ops in topological order (ICLR paper, section
  5.2).
"""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph

from graphrl.errors import ProblemError
from graphrl.graphs.features import FROM_DEPENDENCY, FROM_REDUCTION, NODE_FEATURES
from graphrl.networks.base import MLP, GraphObservation, mean_of

Neighbours = Literal["together", "apart"]


class GraphSage(nn.Module):
    """Embeds every op from its neighbourhood within `rounds` edges. In each round, with separate weights,

    h_N(v) = max over v's neighbours u of sigmoid(W h_u + b)  (eq. 3),
    h_v = ReLU(W' [h_v, h_N(v)] + b')  (eq. 4).

    Without neighbours h_N(v) is 0, which is below every sigmoid. The first h is an affine map of the features. Edges
    have no features here: the features of the op that writes a tensor include its bytes.

    Deviations from the paper: h is layer-normalised (GraphSAGE scales it to length 1), and by default the ops before v
    and those after it are pooled separately, with separate weights, since schedules depend on the direction of edges.

    Attributes:
      width: width of all vectors, w.
      rounds: number of rounds, at least 0; with 0 an op's vector depends only on its own features.
      neighbours: "together" pools predecessors and successors together, as in the paper; "apart" separately (ours).
    """

    width: int
    rounds: int
    neighbours: Neighbours = "apart"

    @nn.compact
    def __call__(self, nodes: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        """Returns the embeddings of the ops, `[n, w]` float32.

        Args:
          nodes: `[n, F]` float32, features of the ops.
          senders, receivers: `[e]` int32, ops that edges lead from and to; n for padding.
        """
        h = nn.LayerNorm(name="norm_in")(nn.Dense(self.width, name="node_in")(nodes))
        ways = [(senders, receivers), (receivers, senders)]
        if self.neighbours == "together":
            ways = [(jnp.concatenate([senders, receivers]), jnp.concatenate([receivers, senders]))]
        for number in range(self.rounds):
            pooled = [
                max_of_senders(nn.sigmoid(nn.Dense(self.width, name=f"pool_{number}_{way}")(h)), *ends)
                for way, ends in enumerate(ways)
            ]
            h = nn.relu(nn.Dense(self.width, name=f"update_{number}")(jnp.concatenate([h, *pooled], -1)))
            h = nn.LayerNorm(name=f"norm_{number}")(h)
        return h


def max_of_senders(values: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Returns for each op the elementwise maximum over its senders' values `[n, w]`, all above 0; 0 without senders."""
    messages = values.at[senders].get(mode="fill", fill_value=0)
    return jnp.zeros_like(values).at[receivers].max(messages, mode="drop")


class MessagePassing(nn.Module):
    """Embeds every op from its neighbourhood within T edges, by T rounds of messages (eq. 1):

    h_v = MLP_n(x_v); h_e = MLP_e(x_e); then T times, with the same weights,
    m_e = MLP_msg([h_s, h_t, h_e]) for an edge from s to t, m'_e = MLP'_msg([h_s, h_t, h_e]),
    h_v = MLP_node([h_v, sum of m_e that arrive at v + sum of m'_e of edges that leave v]).

    With T = 0 there are no messages. Deviations from the paper: the sums are layer-normalised before MLP_node, and
    its output is added to h_v and normalised again. Otherwise sums over many edges would grow with every round. Widths
    are ours.

    Attributes:
      width: width of all vectors and hidden layers, w.
      rounds: T, at least 0.
    """

    width: int
    rounds: int

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """Returns op embeddings, `[n, w]` float32; rows of padding ops are arbitrary."""
        graph = observation.graph
        nodes = MLP(self.width, self.width, name="node_in")(graph.nodes)
        nodes = nn.LayerNorm(name="norm_in")(nodes)
        if self.rounds > 0:
            nodes = self._pass_messages(graph, nodes)
        return nodes[:-1]

    def _pass_messages(self, graph: jraph.GraphsTuple, nodes: jax.Array) -> jax.Array:
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


class NeighbourMeans(nn.Module):
    """Embeds every op from its features, and the mean features of its predecessors and of its successors.

    Each layer is an affine map, a normalisation over channels, and ReLU. Work and memory are linear in ops and edges,
    while attention is quadratic in ops. Ours: simplified graph convolution (Wu et al. 2019) applies powers of one
    normalised adjacency before a linear map.

    Attributes:
      width: width of all vectors, w.
      layers: number of layers, at least 1.
    """

    width: int = 16
    layers: int = 2

    @nn.compact
    def __call__(self, observation: GraphObservation, actions: jax.Array | None = None) -> jax.Array:
        """Returns op embeddings, `[n, w]` float32; rows of padding ops are arbitrary.

        Args:
          observation: observation of one graph.
          actions: `[n, A]` float32, additional features of ops.
        """
        graph = observation.graph
        nodes = graph.nodes[:-1]
        nodes = nodes if actions is None else jnp.concatenate([nodes, actions], -1)
        nodes = jnp.where(observation.mask[:, None], nodes, 0.0)
        ends = (graph.senders, graph.receivers), (graph.receivers, graph.senders)
        nodes = jnp.concatenate([nodes, *(neighbour_mean(nodes, *way) for way in ends)], -1)
        for _ in range(self.layers):
            nodes = nn.relu(nn.LayerNorm(use_bias=False, use_scale=False)(nn.Dense(self.width)(nodes)))
        return nodes


def neighbour_mean(values: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
    """Returns for each op the mean over its senders' values `[n, w]`; 0 without senders. Edges to n are padding."""
    counted = jnp.concatenate([values, jnp.ones_like(values[:, :1])], -1).at[senders].get(mode="fill", fill_value=0)
    total = jnp.zeros((values.shape[0], counted.shape[1])).at[receivers].add(counted, mode="drop")
    return total[:, :-1] / jnp.maximum(total[:, -1:], 1.0)


_DEPTH = NODE_FEATURES.index("depth")


class Recurrent(nn.Module):
    """Embeds every op by two gated recurrent networks, one along a topological order and one against it.

    The order is by depth, which increases along every edge, then by the op's index. The papers specify neither the
    cell, nor the order, nor the directions: these are ours.

    Attributes:
      width: w, even: the width of the vectors; each direction computes half of them.
    """

    width: int

    @nn.compact
    def __call__(self, observation: GraphObservation) -> jax.Array:
        """Returns op embeddings, `[n, w]` float32; rows of padding ops are arbitrary."""
        features, mask = observation.graph.nodes[:-1], observation.mask
        order = jnp.argsort(jnp.where(mask, features[:, _DEPTH], jnp.inf), stable=True)
        sequence = MLP(self.width, self.width, name="node_in")(features[order])[None]
        half = self.width // 2
        both = nn.Bidirectional(nn.RNN(nn.GRUCell(half)), nn.RNN(nn.GRUCell(half)), name="both")
        read = both(sequence, seq_lengths=mask.sum(dtype=jnp.int32)[None])[0]
        return jnp.zeros_like(read).at[order].set(read, unique_indices=True)


class OpEncoder(nn.Module):
    """Embeds the ops of a graph by rounds of messages along the edges and against them, with a residual connection.

    Inputs are all arrays of the observation with a row for each op: features, legal actions, last choices. Waves of the
    place in the order distinguish ops with equal features.

    Attributes:
      width: width of all vectors, w.
      rounds: number of rounds.
      waves: number of waves.
    """

    width: int = 64
    rounds: int = 3
    waves: int = 16

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        """Returns op embeddings, `[n, w]` float32; rows of padding ops are arbitrary."""
        if not hasattr(observation, "mask") or not (hasattr(observation, "nodes") or hasattr(observation, "graph")):
            raise ProblemError(
                "this network is for observations with mask, and graph or nodes: name your own, module:function"
            )
        mask = observation.mask
        x = nn.Dense(self.width)(jnp.concatenate([*_op_rows(observation), self._places(observation)], 1))
        for _ in range(self.rounds):
            mean = jnp.broadcast_to(mean_of(x, mask), x.shape)
            x = x + MLP(self.width, self.width)(
                nn.LayerNorm()(jnp.concatenate([x, mean, *_neighbours(observation, x)], 1))
            )
        return nn.LayerNorm()(x)

    def _places(self, observation: Any) -> jax.Array:
        mask, order = observation.mask, getattr(observation, "order", None)
        place = jnp.arange(len(mask)) if order is None else jnp.argsort(order)
        share = place.astype(jnp.float32) / jnp.maximum(mask.sum(dtype=jnp.float32), 1)
        return jnp.cos(jnp.pi * share[:, None] * jnp.arange(1, self.waves + 1, dtype=jnp.float32)[None])


def _op_rows(observation: Any) -> list[jax.Array]:
    """Returns the arrays of an observation with a row for each op, `[n, k]` float32 each."""
    masks, n = observation.action_mask, len(observation.mask)
    rows = [observation.nodes if hasattr(observation, "nodes") else observation.graph.nodes[:-1]]
    rows += jax.tree.leaves((masks, getattr(observation, "plan_features", None)))
    rows += [observation.scheduled] if hasattr(observation, "scheduled") else []
    if hasattr(observation, "previous"):
        rows += [
            jax.nn.one_hot(choice, mask.shape[-1])
            for choice, mask in zip(jax.tree.leaves(observation.previous), jax.tree.leaves(masks), strict=True)
        ]
    return [row.reshape(n, -1).astype(jnp.float32) for row in rows]


def _neighbours(observation: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the mean over each op's predecessors and over its successors: `[n, w]` each."""
    if hasattr(observation, "graph"):
        ends = observation.graph.senders, observation.graph.receivers
        return neighbour_mean(x, *ends), neighbour_mean(x, *reversed(ends))
    if hasattr(observation, "reads"):
        reads = observation.reads  # [receiver, sender]
    else:
        reads = (observation.relation == FROM_REDUCTION) | (observation.relation == FROM_DEPENDENCY)
    reads = reads.astype(jnp.float32)
    before, after = (edges @ x / jnp.maximum(edges.sum(1, keepdims=True), 1) for edges in (reads, reads.T))
    return before, after
