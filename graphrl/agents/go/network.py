"""GO's two networks: the policy, and the value of where it stands, with a graph network of its own."""

from typing import Any

import jax
import jax.numpy as jnp

from graphrl.agents.go.config import GoConfig
from graphrl.learning.ppo import PolicyValue
from graphrl.learning.ppo.choices import NEVER
from graphrl.networks.base import Network, network
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
        votes=config.votes,
    )
    # rewards are -sqrt(run time / best baseline's): -1 is a plan as good as the baseline's
    value = GraphValue(encoder=DecisionVectors(_embedding(config)), width=config.width, typical=-1.0)
    decides = network(policy)
    return PolicyValue(changing(decides, config.changes) if config.changes else decides, network(value))


def changing(policy: Network, share: float) -> Network:
    """A policy that is expected to change a share of what was chosen last, of each task.

    The logits of what was chosen last are shifted, all ops' by one number, through which no gradient flows. A policy
    that begins at a good plan, and may change as little as it likes, soon changes nothing: most changes are for the
    worse. So it can only learn which are not.
    """

    def apply(params: Any, seen: Any) -> dict[str, jax.Array]:
        logits = policy.apply(params, seen)
        return {task: _shifted(logits[task], seen.previous[task], seen.action_mask[task], share) for task in logits}

    return Network(policy.init, apply)  # type: ignore[arg-type]  # gives a dict of arrays


def _shifted(logits: jax.Array, previous: jax.Array, mask: jax.Array, share: float) -> jax.Array:
    """Logits `[n, o]` whose expected changes are a share of the ops that may choose; by bisection."""
    last = jax.nn.one_hot(previous, logits.shape[-1], dtype=bool)
    stays = jnp.where(last, logits, 0.0).sum(-1)
    ahead = stays - jax.nn.logsumexp(jnp.where(last, NEVER, logits), axis=-1)
    movable = (mask.sum(-1) > 1) & last.any(-1)

    def halved(_: int, between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = (between[0] + between[1]) / 2
        changes = jnp.where(movable, jax.nn.sigmoid(-ahead - middle), 0.0).sum()
        too_many = changes > share * movable.sum(dtype=jnp.float32)
        return jnp.where(too_many, middle, between[0]), jnp.where(too_many, between[1], middle)

    low, high = jax.lax.fori_loop(0, 24, halved, (jnp.float32(-40), jnp.float32(40)))
    return logits + jnp.where(last & movable[:, None], jax.lax.stop_gradient((low + high) / 2), 0.0)


def _embedding(config: GoConfig) -> OpEmbedding:
    sage = GraphSage(config.width, config.rounds, config.neighbours)
    return OpEmbedding(config.tasks, config.width, sage, config.played)


def _layer(config: GoConfig) -> SegmentLayer:
    return SegmentLayer(_attention(config))


def _attention(config: GoConfig) -> SegmentAttention:
    return SegmentAttention(config.width, config.heads, config.segment, config.cached)
