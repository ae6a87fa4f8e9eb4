"""A toy problem in the form of memory maps, and networks for it.

At every op of a graph some choices of one of three options, best where they equal a target. The networks treat every op
separately, so that they compile in a second.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph
import numpy as np

from graphrl.learning.sac import ActorCritic
from graphrl.networks.base import MLP, network
from graphrl.networks.heads import Acted

CHOICES, OPTIONS, FEATURES = 2, 3, 5


class Seen(NamedTuple):
    """A network's observation."""

    graph: jraph.GraphsTuple  # nodes [n + 1, F + CHOICES * OPTIONS]
    mask: jax.Array  # [n] bool


class Instance(NamedTuple):
    """One graph and its best map."""

    graph: jraph.GraphsTuple  # nodes [n + 1, F]
    mask: jax.Array  # [n] bool
    target: jax.Array  # [n, CHOICES] int32, by the signs of features


def instance(seed: int, ops: int, padded: int | None = None) -> Instance:
    """A chain with shortcuts over two ops, with random features."""
    rng, padded = np.random.default_rng(seed), ops if padded is None else padded
    edges = [(i, i + 1) for i in range(ops - 1)] + [(i, i + 3) for i in range(0, ops - 3, 2)]
    nodes = np.zeros((padded + 1, FEATURES), np.float32)
    nodes[:ops] = rng.normal(size=(ops, FEATURES))
    ends = np.full((2 * padded, 2), padded, np.int32)
    ends[: len(edges)] = edges
    target = (nodes[:padded, :CHOICES] > -0.4).astype(np.int32) + (nodes[:padded, :CHOICES] > 0.4)
    counts = np.array([[ops, padded + 1 - ops], [len(edges), 2 * padded - len(edges)]], np.int32)
    graph = jraph.GraphsTuple(nodes, None, ends[:, 1], ends[:, 0], None, *counts)
    return jax.tree.map(jnp.asarray, Instance(graph, np.arange(padded) < ops, target.astype(np.int32)))  # type: ignore[arg-type]


def stacked(*instances: Instance) -> Instance:
    """A batch of graphs of one padded size."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *instances)


def start(graph: Instance) -> jax.Array:
    """State at the start of an episode: choice 0 everywhere."""
    return jnp.zeros(graph.target.shape, jnp.int32)


def observe(graph: Instance, before: jax.Array) -> Any:
    """The graph with the last map appended to the features."""
    last = jax.nn.one_hot(before, OPTIONS).reshape(len(before), -1)
    nodes = jnp.concatenate([graph.graph.nodes, jnp.pad(last, ((0, 1), (0, 0)))], -1)
    return Seen(graph.graph._replace(nodes=nodes), graph.mask)


def evaluate(graph: Instance, action: jax.Array) -> jax.Array:
    """The share of choices that equal the target."""
    right = (action == graph.target) & graph.mask[:, None]
    return right.sum(dtype=jnp.float32) / (graph.mask.sum(dtype=jnp.float32) * CHOICES)


def renumbered(seen: Seen, order: np.ndarray) -> Seen:
    """The same graph with op `order[i]` at place i."""
    place = jnp.asarray(np.append(np.argsort(order), len(order)))
    graph = seen.graph
    moved = graph._replace(
        nodes=graph.nodes[np.append(order, len(order))], senders=place[graph.senders], receivers=place[graph.receivers]
    )
    return Seen(moved, seen.mask[order])


class Actor(nn.Module):
    """A perceptron on each op's features."""

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        logits = MLP(16, CHOICES * OPTIONS)(observation.graph.nodes[:-1])
        return logits.reshape(-1, CHOICES, OPTIONS)


class Critic(nn.Module):
    """Twice the mean over ops of a perceptron on features and action."""

    @nn.compact
    def __call__(self, acted: Acted) -> jax.Array:
        nodes, mask = acted.observation.graph.nodes[:-1], acted.observation.mask.astype(jnp.float32)
        both = MLP(64, 2)(jnp.concatenate([nodes, acted.action.reshape(len(nodes), -1)], -1))
        return (both * mask[:, None]).sum(0) / mask.sum()


NETWORKS = ActorCritic(network(Actor()), network(Critic()))
