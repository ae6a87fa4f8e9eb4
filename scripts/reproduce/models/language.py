"""Losses of language models, of recurrent networks and of networks on graphs, in plain JAX.

Weights are nested dicts, layers are functions `weights, x, ... -> x`. A batch of texts is `[batch, tokens]`, word ids.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jraph
from flax import linen as nn
from jax import lax

from reproduce.models.losses import Loss, Network, Program, Wrap, attention, flax_program, normed, shaped

_TAPS = 4  # of a Mamba layer's convolution


def lstm(*, batch: int, steps: int, width: int) -> Program:
    """LSTM (Hochreiter and Schmidhuber, 1997) of two layers in one `lax.scan`, whose body is the layer."""

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
        decay = jnp.exp(-pace[:, :, None] * jnp.exp(w["decay"])[None, None])  # [batch, tokens, states, inner]
        added = (pace * y)[:, :, None] * write[..., None]
        _, state = lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, added), axis=1)
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


Shapes = dict[str, tuple[int, ...]]

_ROOM = 1.25  # room of an expert, over the mean number of its tokens


def transformer(
    *, batch: int, depth: int, width: int, heads: int, tokens: int, words: int, scanned: bool, dropped: float = 0.1
) -> Program:
    """Decoder with dropout (Radford et al., 2019), its layers in sequence or in a `lax.scan`.

    `dropped` is the dropout rate of the outputs of attention and network.
    """
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}

    def layer(w: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        of_attention, of_network = jax.random.split(key)
        x = x + _dropout(attention(normed(x) @ w["qkv"], heads) @ w["out"], of_attention, dropped)
        return x + _dropout(jax.nn.gelu(normed(x) @ w["up"]) @ w["down"], of_network, dropped)

    def loss(wrap: Wrap) -> Loss:
        wrapped = wrap(layer)

        def of_weights(weights: Any, texts: jax.Array, key: jax.Array) -> jax.Array:
            x, keys = weights["embed"][texts], jax.random.split(key, depth)
            if scanned:
                x, _ = lax.scan(lambda x, part: (wrapped(part[0], x, part[1]), None), x, (weights["layers"], keys))
            else:
                for w, own in zip(weights["layers"], keys, strict=True):
                    x = wrapped(w, x, own)
            return _surprise(normed(x) @ weights["embed"].T, texts)

        return of_weights

    layers = {name: (depth, *shape) for name, shape in shapes.items()} if scanned else [shapes] * depth
    weights = shaped({"embed": (words, width), "layers": layers})
    return Program(loss, weights, lambda key: (_texts(key, batch, tokens, words), key))


def mixture_of_experts(
    *, batch: int, depth: int, width: int, heads: int, tokens: int, words: int, experts: int
) -> Program:
    """Decoder whose networks are experts, two for each token, with limited room (Lepikhin et al., 2021)."""
    shapes: Shapes = {"qkv": (width, 3 * width), "out": (width, width), "route": (width, experts)}
    shapes |= {"up": (experts, width, 2 * width), "down": (experts, 2 * width, width)}
    room = int(_ROOM * 2 * tokens / experts)

    def layer(w: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x + attention(normed(x) @ w["qkv"], heads) @ w["out"]
        y = normed(x)
        shares = jax.nn.softmax(y @ w["route"])
        sent = _sent(shares, room)  # [batch, tokens, experts, room]
        inside = jnp.einsum("btec,btd->becd", (sent > 0).astype(y.dtype), y)
        outside = jnp.einsum("becf,efd->becd", jax.nn.gelu(jnp.einsum("becd,edf->becf", inside, w["up"])), w["down"])
        assignment = jax.nn.one_hot(shares.argmax(-1), experts)
        return x + jnp.einsum("btec,becd->btd", sent, outside), (shares.mean((0, 1)) * assignment.mean((0, 1))).sum()

    def loss(wrap: Wrap) -> Loss:
        wrapped = wrap(layer)

        def of_weights(weights: Any, texts: jax.Array) -> jax.Array:
            x, uneven = weights["embed"][texts], jnp.zeros(())
            for w in weights["layers"]:
                x, more = wrapped(w, x)
                uneven += more
            return _surprise(normed(x) @ weights["embed"].T, texts) + 0.01 * experts * uneven

        return of_weights

    weights = shaped({"embed": (words, width), "layers": [shapes] * depth})
    return Program(loss, weights, lambda key: (_texts(key, batch, tokens, words),))


def llama(
    *,
    batch: int,
    depth: int,
    width: int,
    heads: int,
    groups: int,
    hidden: int,
    tokens: int,
    words: int,
    scanned: bool = False,
) -> Program:
    """Llama's layers (Touvron et al., 2023) with attention in groups of heads (Ainslie et al., 2023), in sequence or in
    a `lax.scan`.
    """
    head = width // heads
    shapes: Shapes = {"q": (width, width), "o": (width, width), "norms": (2, width)}
    shapes |= {"k": (width, groups * head), "v": (width, groups * head)}
    shapes |= {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}

    def attend(w: Any, x: jax.Array) -> jax.Array:
        texts = len(x)
        q = _turned((x @ w["q"]).reshape(texts, tokens, heads, head)).reshape(texts, tokens, groups, -1, head)
        k = _turned((x @ w["k"]).reshape(texts, tokens, groups, head))
        v = (x @ w["v"]).reshape(texts, tokens, groups, head)
        scores = jnp.einsum("btghd,bsgd->bghts", q, k) / head**0.5
        shares = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((1, 1, 1, tokens, tokens), bool)), scores, -1e9))
        return jnp.einsum("bghts,bsgd->btghd", shares, v).reshape(texts, tokens, width) @ w["o"]

    def layer(w: Any, x: jax.Array) -> jax.Array:
        x = x + attend(w, _scaled(x, w["norms"][0]))
        y = _scaled(x, w["norms"][1])
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]

    def loss(wrap: Wrap) -> Loss:
        wrapped = wrap(layer)

        def of_weights(weights: Any, texts: jax.Array) -> jax.Array:
            x = weights["embed"][texts]
            if scanned:
                x, _ = lax.scan(lambda x, w: (wrapped(w, x), None), x, weights["layers"])
            else:
                for w in weights["layers"]:
                    x = wrapped(w, x)
            return _surprise(_scaled(x, weights["norm"]) @ weights["head"], texts)

        return of_weights

    layers: Any = {name: (depth, *shape) for name, shape in shapes.items()} if scanned else [shapes] * depth
    weights = {"embed": (words, width), "norm": (width,), "head": (width, words), "layers": layers}
    return Program(loss, shaped(weights), lambda key: (_texts(key, batch, tokens, words),))


def _texts(key: jax.Array, batch: int, tokens: int, words: int) -> jax.Array:
    return jax.random.randint(key, (batch, tokens), 0, words)


def _dropout(x: jax.Array, key: jax.Array, dropped: float) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 1 - dropped, x.shape), x / (1 - dropped), 0) if dropped else x


def _surprise(logits: jax.Array, texts: jax.Array) -> jax.Array:
    """Computes the mean cross-entropy of the next word."""
    logits = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logits[:, :-1], texts[:, 1:, None], -1).mean()


def _sent(shares: jax.Array, room: int) -> jax.Array:
    """Routes tokens to experts: the weight of each token at each place of an expert, `[batch, tokens, experts, room]`.

    A token goes to its two best experts while they have places left. All first choices are placed before all second
    choices, each in the order of tokens.
    """
    experts = shares.shape[-1]
    weights, best = lax.top_k(shares, 2)
    assignment = jax.nn.one_hot(best, experts)  # [batch, tokens, 2, experts]
    in_turn = jnp.swapaxes(assignment, 1, 2).reshape(shares.shape[0], -1, experts)  # all first choices, then all second
    places = jnp.cumsum(in_turn, 1) - in_turn
    places = jnp.swapaxes(places.reshape(shares.shape[0], 2, -1, experts), 1, 2)
    own = (places * assignment).sum(-1).astype(jnp.int32)
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.einsum("btk,btke,btkc->btec", weights, assignment, jax.nn.one_hot(own, room))


def _scaled(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * gain[None, None]


def _turned(x: jax.Array) -> jax.Array:
    """Applies rotary position embeddings (Su et al., 2021) to `[batch, tokens, heads, head]`."""
    tokens, head = x.shape[1], x.shape[3]
    angles = jnp.arange(tokens, dtype=x.dtype)[:, None] * 1e4 ** (-jnp.arange(0, head, 2, x.dtype)[None] / head)
    cosine, sine = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.concatenate([even * cosine - odd * sine, even * sine + odd * cosine], -1)
