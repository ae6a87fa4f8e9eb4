"""REGAL's two networks: the policy, and the baseline with a graph network of its own."""

from typing import NamedTuple

import flax.linen as nn

from graphrl.agents.regal.config import RegalConfig
from graphrl.envs.proposal.coding import coding
from graphrl.networks.base import Network, network
from graphrl.networks.heads import ChoiceLogits, GraphValue
from graphrl.networks.message_passing import MessagePassing
from graphrl.networks.recurrent import Recurrent


class Networks(NamedTuple):
    """What a learner trains; a solver needs the policy alone."""

    policy: Network  # observation -> logits [n, d + 1, ..., options] float32
    baseline: Network  # observation -> expected reward [] float32


def networks(config: RegalConfig) -> Networks:
    """The networks of a configuration, without parameters."""
    known, devices = coding(config.coding), config.problem.devices
    policy = ChoiceLogits(
        encoder=_encoder(config),
        width=config.width,
        choices=(*known.action_spec(1, devices).shape[1:], known.values),
        preferred=known.uniform,
        preference=config.preference,
        shared=config.coding == "moments",
        fixed=devices if config.genes == "priorities" else 0,
    )
    # rewards are -o_a / o_s: -1 is standard BRKGA
    baseline = GraphValue(encoder=_encoder(config), width=config.width, typical=-1.0)
    return Networks(network(policy), network(baseline))


def _encoder(config: RegalConfig) -> nn.Module:
    if config.encoder == "recurrent":
        return Recurrent(config.width)
    return MessagePassing(config.width, config.rounds)
