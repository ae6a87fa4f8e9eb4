"""Topoformer's networks, their distributions over orders of a batch of graphs, and the trained policy."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.topoformer.config import TopoformerConfig
from graphrl.decoding import sequential
from graphrl.decoding.beam import beam, beam_with
from graphrl.decoding.likelihood import log_prob
from graphrl.decoding.op_features import FEATURES, Head
from graphrl.decoding.rollout import Context, Logits, Rollout, greedy, log_prob_with, rollout_with, sample
from graphrl.envs.ordering import OrderingInstance, make_instance
from graphrl.graphs.padding import PaddedGraph
from graphrl.networks.base import Network, network
from graphrl.networks.heads import AutoregressiveDecoder, Prepared, Priorities, ReadyOps, Stepwise, stepwise
from graphrl.networks.topological_attention import TopologicalEncoder, encoder
from graphrl.training import agent


class Observation(NamedTuple):
    """Observation of one graph."""

    nodes: jax.Array  # [n, F] float32
    relation: jax.Array  # [n, n] uint8
    mask: jax.Array  # [n] bool, True for real ops


@dataclasses.dataclass(frozen=True)
class Orders:
    """A policy's distribution over the orders of g graphs, defined by priorities `[g, n]` (section 4.2).

    No gradient flows through sampled orders.
    """

    graph: PaddedGraph
    priorities: jax.Array

    def greedy(self) -> Rollout:
        """Decodes one order per graph, with the most likely op at every step: leading shape `[g]`."""
        return greedy(self.graph, jax.lax.stop_gradient(self.priorities))

    def sample(self, keys: jax.Array, count: int) -> Rollout:
        """Samples independent orders, from one key per graph `[g]`: leading shape `[g, count]`."""
        return sample(self.graph, jax.lax.stop_gradient(self.priorities), keys, count)

    def beam(self, width: int) -> Rollout:
        """Decodes each graph's best order by beam search (`decoding.beam`): leading shape `[g]`."""
        return beam(self.graph, jax.lax.stop_gradient(self.priorities), width)

    def log_prob(self, order: jax.Array) -> jax.Array:
        """Computes log-probabilities `[g, s]` float32 of orders `[g, s, n]`, differentiable in the parameters."""
        return log_prob(self.graph, self.priorities, order)


@dataclasses.dataclass(frozen=True)
class SequentialOrders:
    """As `Orders`, for choices that depend on the memory of the plan so far (`decoding.sequential`)."""

    graph: PaddedGraph
    head: Head

    def greedy(self) -> Rollout:
        return jax.tree.map(lambda x: x[:, 0], sequential.rollout(self.graph, self.head))

    def sample(self, keys: jax.Array, count: int) -> Rollout:
        return sequential.rollout(self.graph, self.head, keys, count)

    def beam(self, width: int) -> Rollout:
        return sequential.beam(self.graph, self.head, width)

    def log_prob(self, order: jax.Array) -> jax.Array:
        return sequential.log_prob(self.graph, self.head, order)


@dataclasses.dataclass(frozen=True)
class AutoregressiveOrders:
    """As `Orders`, for a network that is called at every step (appendix B)."""

    graph: PaddedGraph
    decoder: Stepwise
    params: Any
    prepared: Prepared  # of each graph

    def greedy(self) -> Rollout:
        return jax.tree.map(lambda x: x[:, 0], rollout_with(self.graph, self._frozen_logits()))

    def sample(self, keys: jax.Array, count: int) -> Rollout:
        return rollout_with(self.graph, self._frozen_logits(), keys, count)

    def beam(self, width: int) -> Rollout:
        return beam_with(self.graph, self._frozen_logits(), width)

    def log_prob(self, order: jax.Array) -> jax.Array:
        return log_prob_with(self.graph, self._logits(self.params, self.prepared), order)

    def _frozen_logits(self) -> Logits:
        return self._logits(*jax.lax.stop_gradient((self.params, self.prepared)))

    def _logits(self, params: Any, prepared: Prepared) -> Logits:
        each = jax.vmap(jax.vmap(self.decoder.step, (None, None, 0, 0)), (None, 0, 0, 0))

        def logits(context: Context) -> jax.Array:
            return each(params, prepared, jnp.stack([context.first, context.last], -1), context.ready)

        return logits


def orders(
    config: TopoformerConfig, params: Any, batch: OrderingInstance
) -> Orders | SequentialOrders | AutoregressiveOrders:
    """Returns the distribution over orders of a batch of instances under a policy with these parameters."""
    if config.decoder == "sequential":
        priority, hidden, kernel, out = call_once(config, params, batch)
        return SequentialOrders(batch.graph, Head(priority, hidden, kernel[0], out[0]))
    if config.decoder == "autoregressive":
        network = _stepwise(config)
        prepared = _map_graphs(functools.partial(network.prepare, params), batch)
        return AutoregressiveOrders(batch.graph, network, params, prepared)
    return Orders(batch.graph, call_once(config, params, batch))


def call_once(config: TopoformerConfig, params: Any, batch: OrderingInstance) -> Any:
    """Computes priorities `[g, n]` float32 for a batch of instances or, for the decoder "sequential", the outputs of
    `ReadyOps`, each with a leading axis g. The decoder "autoregressive" has no such network.
    """
    return _map_graphs(functools.partial(_once(config).apply, params), batch)


def initial(config: TopoformerConfig, key: jax.Array, instance: OrderingInstance) -> Any:
    """Initialises the parameters, whose shapes are the same for every instance."""
    network = _stepwise(config) if config.decoder == "autoregressive" else _once(config)
    return network.init(key, _observe(instance))


def _map_graphs(apply: Any, batch: OrderingInstance) -> Any:
    """Applies a network to every graph of a batch.

    On a CPU the graphs are processed one after the other, since the attention weights of several would not fit into a
    core's caches. At 500 ops vmap takes a quarter longer, up to 200 no less.
    """
    inputs = jax.vmap(_observe)(batch)
    return jax.lax.platform_dependent(inputs, cpu=lambda inputs: jax.lax.map(apply, inputs), default=jax.vmap(apply))


def _observe(instance: OrderingInstance) -> Observation:
    mask = jnp.arange(instance.graph.sizes.ops, dtype=jnp.int32) < instance.graph.num_ops
    return Observation(jnp.asarray(instance.nodes), jnp.asarray(instance.relation), mask)


def _once(config: TopoformerConfig) -> Network:
    """Creates the network that is called once per graph."""
    if config.decoder == "sequential":
        return network(
            ReadyOps(_encoder(config), config.width, config.alpha, config.hidden, len(FEATURES), config.freeze)
        )
    return network(Priorities(encoder=_encoder(config), width=config.width, alpha=config.alpha))


def _stepwise(config: TopoformerConfig) -> Stepwise:
    return stepwise(AutoregressiveDecoder(encoder=_encoder(config), width=config.width))


def _encoder(config: TopoformerConfig) -> TopologicalEncoder:
    return encoder(
        config.encoder,
        layers=config.layers,
        width=config.width,
        heads=config.heads,
        head_width=config.head_width,
        tied=config.tied,
        dtype=config.precision,
    )


Decoding = Literal["greedy", "sample", "beam"]


class Policy(agent.Policy[TopoformerConfig]):
    """See `training.agent.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("topoformer",)
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "encoder and sizes"
    settings = staticmethod(TopoformerConfig)

    @staticmethod
    def initial(config: TopoformerConfig, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        return initial(config, key, make_instance(agent.tiny_graph()))

    @classmethod
    def load_params(cls, path: str, config: TopoformerConfig) -> Any:
        """See `training.agent.Policy`. A policy of decoder "priorities" also starts one of "sequential".

        Its new layers are the same in every run, whatever its seed: a start is a function of path and configuration.
        """
        if (config.decoder, cls.load(path).config.decoder) != ("sequential", "priorities"):
            return super().load_params(path, config)
        params = super().load_params(path, dataclasses.replace(config, decoder="priorities", freeze=False))
        # `scale` multiplies the priorities: 1 keeps them
        return cls.initial(config, jax.random.key(0)) | params | {"scale": np.float32(1)}

    def rollout(self, batch: OrderingInstance, decoding: Decoding, count: int = 16, seed: int = 0) -> Rollout:
        """Decodes orders for a batch of instances.

        Args:
          batch: g instances, with a leading axis g.
          decoding: decoding method of the paper's section 4.2.
          count: number of orders that "sample" draws per graph, or the width of "beam".
          seed: seed of the samples.

        Returns:
          Arrays of leading shape `[g, k]`, where k is `count` for "sample", else 1.
        """
        keys = jax.random.split(jax.random.key(seed), batch.nodes.shape[0])
        return _rollout(self.params, batch, keys, self.config, decoding, 1 if decoding == "greedy" else count)


@functools.partial(jax.jit, static_argnames=("config", "decoding", "count"))
def _rollout(
    params: Any, batch: OrderingInstance, keys: jax.Array, config: TopoformerConfig, decoding: Decoding, count: int
) -> Rollout:
    policy = orders(config, params, batch)
    if decoding == "sample":
        return policy.sample(keys, count)
    rollout = policy.greedy() if decoding == "greedy" else policy.beam(count)
    return jax.tree.map(lambda x: x[:, None], rollout)
