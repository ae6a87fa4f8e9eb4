"""REGAL's two networks: the policy, and the baseline with a graph network of its own."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.agents.regal.config import RegalConfig
from graphrl.envs.proposal.coding import coding
from graphrl.networks.base import GraphObservation, Network, network
from graphrl.networks.heads import ChoiceLogits, GraphValue
from graphrl.networks.message_passing import MessagePassing
from graphrl.networks.recurrent import Recurrent


class Networks(NamedTuple):
    """What a learner trains; a solver needs the policy alone."""

    policy: Network  # observation -> logits [n, d + 1, ..., options] float32
    baseline: Network  # observation -> expected reward [] float32


def networks(config: RegalConfig) -> Networks:
    """The networks of a configuration, without parameters."""
    distributions, devices = coding(config.coding), config.problem.devices
    policy = ChoiceLogits(
        encoder=_encoder(config),
        width=config.width,
        choices=(*distributions.action_spec(1, devices).shape[1:], distributions.values),
        preferred=_preferred(config),
        preference=config.preference,
        shared=config.coding == "moments",
        fixed=config.fixed_genes,
    )
    # rewards are -o_a / o_s: -1 is standard BRKGA
    baseline = GraphValue(encoder=_encoder(config), width=config.width, typical=-1.0)
    return Networks(network(policy), network(baseline))


def _preferred(config: RegalConfig) -> Callable[[GraphObservation], jax.Array]:
    """Of every gene the distribution around the hint; the uniform where there is none, or nothing is learned."""
    distributions, genes = coding(config.coding), config.problem.devices + 1
    uniform = jnp.asarray(
        distributions.uniform if len(distributions.heads) > 1 else distributions.uniform[0], jnp.int32
    )

    def around(observation: GraphObservation) -> jax.Array:
        near = distributions.nearest(observation.graph.nodes[:-1, -genes:])
        is_fixed = jnp.arange(genes) < config.fixed_genes
        return jnp.where(jnp.broadcast_to(is_fixed.reshape(-1, *[1] * uniform.ndim), near.shape), uniform, near)

    return around if config.hint == "list" else lambda _: uniform


def _encoder(config: RegalConfig) -> nn.Module:
    if config.encoder == "recurrent":
        return Recurrent(config.width)
    return MessagePassing(config.width, config.rounds)
