"""Topoformer's network: the priorities of all ops of a graph."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.envs.ordering.instance import OrderingParams
from graphrl.networks.base import Network, network
from graphrl.networks.priorities import Priorities
from graphrl.networks.topological_attention import encoder


class Seen(NamedTuple):
    """What the network sees of one graph."""

    nodes: jax.Array  # [n, F] float32
    relation: jax.Array  # [n, n] uint8
    mask: jax.Array  # [n] bool, real ops


def policy_network(config: TopoformerConfig) -> Network:
    """The network of a configuration, without parameters: what is seen of a graph to priorities `[n]` float32."""
    stack = encoder(
        config.encoder,
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        head_width=config.head_width,
        dtype=config.precision,
    )
    return network(Priorities(encoder=stack, width=config.width, alpha=config.alpha))


def observe(params: OrderingParams) -> Seen:
    """What the network sees of an instance; `jax.vmap` over this function for batches."""
    mask = jnp.arange(params.graph.sizes.ops, dtype=jnp.int32) < params.graph.num_ops
    return Seen(jnp.asarray(params.nodes), jnp.asarray(params.relation), mask)


def priorities(config: TopoformerConfig, params: Any, batch: OrderingParams) -> jax.Array:
    """Priorities `[g, n]` float32 of a batch of instances.

    On a CPU one graph goes after the other: the attention weights of several would not fit into a core's caches, and
    updates on 100 ops take half as long.
    """
    seen = jax.vmap(observe)(batch)
    apply = functools.partial(policy_network(config).apply, params)
    if jax.default_backend() == "cpu":
        return jax.lax.map(apply, seen)
    return jax.vmap(apply)(seen)
