"""Losses of networks over time and over graphs."""

from typing import Any

import jax
import jax.numpy as jnp
import jraph
from flax import linen as nn
from jax import lax

from reproduce.models.losses import Loss, Network, Program, Wrap, flax_program, normed, shaped

_TAPS = 4  # of a Mamba layer's convolution


def lstm(*, batch: int, steps: int, width: int) -> Program:
    """An LSTM (Hochreiter and Schmidhuber, 1997) of two layers in one `lax.scan`, whose body is the layer."""

    def cell(w: jax.Array, x: jax.Array, state: Any) -> Any:
        memory, hidden = state
        i, f, g, o = jnp.split(jnp.concatenate([x, hidden], -1) @ w, 4, -1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        return memory, jax.nn.sigmoid(o) * jnp.tanh(memory)

    def advance(weights: Any, states: Any, x: jax.Array) -> Any:
        first = cell(weights["first"], x, states[0])
        second = cell(weights["second"], first[1], states[1])
        return (first, second), second[1]

    def loss(wrap: Wrap) -> Loss:
        wrapped = wrap(advance)

        def of_weights(weights: Any, xs: jax.Array) -> jax.Array:
            start = ((jnp.zeros((batch, width)),) * 2,) * 2
            outputs = lax.scan(lambda states, x: wrapped(weights, states, x), start, xs)[1]
            return jnp.square(outputs[:-1] - xs[1:]).mean()

        return of_weights

    weights = shaped({"first": (2 * width, 4 * width), "second": (2 * width, 4 * width)})
    return Program(loss, weights, lambda key: (jax.random.normal(key, (steps, batch, width)),))


def mamba(*, batch: int, depth: int, width: int, states: int, tokens: int) -> Program:
    """Mamba's layers (Gu and Dao, 2023), whose recurrence is a `lax.associative_scan`."""
    inner, rank = 2 * width, max(1, width // 16)
    shapes: dict[str, tuple[int, ...]] = {"into": (width, 2 * inner), "taps": (_TAPS, inner), "out": (inner, width)}
    shapes |= {
        "choose": (inner, rank + 2 * states),
        "pace": (rank, inner),
        "decay": (states, inner),
        "skip": (1, inner),
    }

    def layer(w: Any, x: jax.Array) -> jax.Array:
        y, gate = jnp.split(normed(x) @ w["into"], 2, -1)
        past = jnp.pad(y, ((0, 0), (_TAPS - 1, 0), (0, 0)))
        y = jax.nn.silu(sum(past[:, k : k + tokens] * w["taps"][None, k : k + 1] for k in range(_TAPS)))
        pace, read, write = jnp.split(y @ w["choose"], (rank, rank + states), -1)
        pace = jax.nn.softplus(pace @ w["pace"])
        kept = jnp.exp(-pace[:, :, None] * jnp.exp(w["decay"])[None, None])  # [batch, tokens, states, inner]
        added = (pace * y)[:, :, None] * write[..., None]
        _, state = lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (kept, added), axis=1)
        y = (state * read[..., None]).sum(2) + y * w["skip"][None]
        return x + (y * jax.nn.silu(gate)) @ w["out"]

    def loss(wrap: Wrap) -> Loss:
        wrapped = wrap(layer)

        def of_weights(weights: Any, xs: jax.Array) -> jax.Array:
            x = xs
            for w in weights:
                x = wrapped(w, x)
            return jnp.square(normed(x)[:, :-1] - xs[:, 1:]).mean()

        return of_weights

    return Program(loss, shaped([shapes] * depth), lambda key: (jax.random.normal(key, (batch, tokens, width)),))


def graph_network(*, batch: int, nodes: int, degree: int, width: int, rounds: int) -> Program:
    """Encode, process and decode on meshes (Battaglia et al., 2018; Pfaff et al., 2021), with Jraph's networks."""

    class Perceptron(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return nn.LayerNorm()(nn.Dense(width)(nn.silu(nn.Dense(width)(x))))

    class Round(nn.Module):
        @nn.compact
        def __call__(self, graph: jraph.GraphsTuple) -> jraph.GraphsTuple:
            update = jraph.concatenated_args(lambda x: Perceptron()(x))
            new = jraph.InteractionNetwork(update, update)(graph)
            return graph._replace(nodes=graph.nodes + new.nodes, edges=graph.edges + new.edges)

    def forward(network: Network, graph: jraph.GraphsTuple, targets: jax.Array) -> jax.Array:
        encoded = [network.part(Perceptron(), features) for features in (graph.nodes, graph.edges)]
        graph = graph._replace(nodes=encoded[0], edges=encoded[1])
        for _ in range(rounds):
            graph = network.layer(Round(), graph)
        return jnp.square(network.part(nn.Dense(targets.shape[-1]), graph.nodes) - targets).mean()

    def inputs(key: jax.Array) -> Any:
        of_nodes, of_edges, of_ends, of_targets = jax.random.split(key, 4)
        count, edges = batch * nodes, batch * nodes * degree
        ends = (
            jax.random.randint(of_ends, (2, batch, nodes * degree), 0, nodes) + nodes * jnp.arange(batch)[None, :, None]
        )
        graph = jraph.GraphsTuple(
            nodes=jax.random.normal(of_nodes, (count, 16)),
            edges=jax.random.normal(of_edges, (edges, 4)),
            senders=ends[0].reshape(-1),
            receivers=ends[1].reshape(-1),
            globals=None,
            n_node=jnp.full(batch, nodes),
            n_edge=jnp.full(batch, nodes * degree),
        )
        return graph, jax.random.normal(of_targets, (count, 3))

    return flax_program(forward, inputs)
