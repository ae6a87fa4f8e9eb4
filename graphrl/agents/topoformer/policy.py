"""Topoformer's policy as a file, and the orders that it makes."""

import functools
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax

from graphrl.agents import policy
from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.network import observe, policy_network, priorities
from graphrl.envs.ordering.beam import beam
from graphrl.envs.ordering.instance import OrderingParams, instance
from graphrl.envs.ordering.orders import Rollout
from graphrl.envs.ordering.rollout import greedy, sample

Decoder = Literal["greedy", "sample", "beam"]


class Policy(policy.Policy[TopoformerConfig]):
    """See `agents.policy.Policy`."""

    agent: ClassVar[str] = "topoformer"
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    settings = staticmethod(TopoformerConfig)

    @staticmethod
    def initial(config: TopoformerConfig, key: jax.Array) -> Any:
        """See `agents.policy.Policy`."""
        return policy_network(config).init(key, observe(instance(policy.smallest())))

    def rollout(self, batch: OrderingParams, decoder: Decoder, count: int = 16, seed: int = 0) -> Rollout:
        """Orders of a batch of instances.

        Args:
          batch: leading axis g.
          decoder: of section 4.2.
          count: orders that "sample" draws of each graph, the width of "beam".
          seed: of what is drawn.

        Returns:
          Arrays of leading shape `[g, k]`, where k is `count` for "sample", else 1.
        """
        keys = jax.random.split(jax.random.key(seed), batch.nodes.shape[0])
        return _rollout(self.params, batch, keys, self.config, decoder, 1 if decoder == "greedy" else count)


@functools.partial(jax.jit, static_argnames=("config", "decoder", "count"))
def _rollout(
    params: Any, batch: OrderingParams, keys: jax.Array, config: TopoformerConfig, decoder: Decoder, count: int
) -> Rollout:
    chosen = priorities(config, params, batch)
    if decoder == "sample":
        return sample(batch.graph, chosen, keys, count)
    found = greedy(batch.graph, chosen) if decoder == "greedy" else beam(batch.graph, chosen, count)
    return jax.tree.map(lambda x: x[:, None], found)
