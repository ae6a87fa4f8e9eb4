"""GO's two networks: the policy, and the value of where it stands, with a graph network of its own."""

from graphrl.agents.go.config import GoConfig
from graphrl.learning.ppo import PolicyValue
from graphrl.networks.base import network
from graphrl.networks.decisions import DecisionLogits, DecisionVectors, OpEmbedding
from graphrl.networks.graph_sage import GraphSage
from graphrl.networks.heads import GraphValue
from graphrl.networks.segment_attention import SegmentAttention, SegmentLayer
from graphrl.networks.superposition import Modulation
from graphrl.networks.task_heads import TaskHeads


def networks(config: GoConfig) -> PolicyValue:
    """The networks of a configuration, without parameters: of observations of `Compile-v0` with the same tasks."""
    policy = DecisionLogits(
        embedding=_embedding(config),
        layers=tuple(_layer(config) for _ in range(config.layers)),
        heads=TaskHeads(config.tasks, _attention(config), config.coupling, config.spread),
        modulation=None if config.superposition == "none" else Modulation(_layer(config), config.superposition),
        iterations=config.iterations,
        preference=config.preference,
    )
    # rewards are -sqrt(run time / best baseline's): -1 is a plan as good as the baseline's
    value = GraphValue(encoder=DecisionVectors(_embedding(config)), width=config.width, typical=-1.0)
    return PolicyValue(network(policy), network(value))


def _embedding(config: GoConfig) -> OpEmbedding:
    return OpEmbedding(config.tasks, config.width, GraphSage(config.width, config.rounds, config.neighbours))


def _layer(config: GoConfig) -> SegmentLayer:
    return SegmentLayer(_attention(config))


def _attention(config: GoConfig) -> SegmentAttention:
    return SegmentAttention(config.width, config.heads, config.segment, config.cached)
