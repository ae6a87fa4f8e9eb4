"""Topoformer's policy as a file, and the orders that it makes."""

import functools
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax

from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.agents.topoformer.network import initial, orders
from graphrl.decoding.orders import Rollout
from graphrl.envs.ordering.instance import OrderingParams, instance
from graphrl.training import policy

Decoding = Literal["greedy", "sample", "beam"]


class Policy(policy.Policy[TopoformerConfig]):
    """See `training.policy.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("topoformer",)
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "encoder and sizes"
    settings = staticmethod(TopoformerConfig)

    @staticmethod
    def initial(config: TopoformerConfig, key: jax.Array) -> Any:
        """See `training.policy.Policy`."""
        return initial(config, key, instance(policy.smallest()))

    def rollout(self, batch: OrderingParams, decoding: Decoding, count: int = 16, seed: int = 0) -> Rollout:
        """Orders of a batch of instances.

        Args:
          batch: leading axis g.
          decoding: of section 4.2.
          count: orders that "sample" draws of each graph, the width of "beam".
          seed: of what is drawn.

        Returns:
          Arrays of leading shape `[g, k]`, where k is `count` for "sample", else 1.
        """
        keys = jax.random.split(jax.random.key(seed), batch.nodes.shape[0])
        return _rollout(self.params, batch, keys, self.config, decoding, 1 if decoding == "greedy" else count)


@functools.partial(jax.jit, static_argnames=("config", "decoding", "count"))
def _rollout(
    params: Any, batch: OrderingParams, keys: jax.Array, config: TopoformerConfig, decoding: Decoding, count: int
) -> Rollout:
    policy = orders(config, params, batch)
    if decoding == "sample":
        return policy.sample(keys, count)
    drawn = policy.greedy() if decoding == "greedy" else policy.beam(count)
    return jax.tree.map(lambda x: x[:, None], drawn)
