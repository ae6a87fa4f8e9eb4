"""The sharding agent's settings and networks, and the trained policy, which guides a search.

The policy labels all groups of a reduced problem in one step, each independently of the others given the scores of its
strategies.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.sharding.instances import (
    BELIEF,
    IS_BEST,
    Prepared,
    ReducedInstance,
    ReducedSizes,
    common_sizes,
    padded,
    prepare,
)
from graphrl.errors import ProblemError
from graphrl.learning.learner import check_ranges
from graphrl.learning.ppo import PolicyValue, PpoSettings
from graphrl.networks.base import MLP, NEVER, SMALL, network
from graphrl.networks.decisions import SegmentAttention, SegmentLayer
from graphrl.networks.encoders import max_of_senders
from graphrl.networks.heads import GraphValue
from graphrl.sharding.guide import Guide
from graphrl.sharding.layers import layers
from graphrl.sharding.problem import ShardingProblem
from graphrl.sharding.reduce import reduce_problem
from graphrl.sharding.rules import Reduced
from graphrl.training import agent

SHARPNESS = 0.5  # initial nats for each unit of the belief feature
PREFERENCE = 3.0  # initial nats for the labels of the best plan: the untrained policy samples around it
CLIP = 12.0  # largest absolute value of the terms of a soft minimum
UNIFORM = 0.5  # share of the roots that are drawn from all groups alike
ROOTS = 4096

Credit = Literal["choice", "action"]

_PPO = PpoSettings(
    steps=1,
    environments=16,
    epochs=3,
    minibatches=1,
    ratio="choice",
    entropy_coefficient=0.01,
    learning_rate=2e-3,
    max_grad_norm=1.0,
    discount=1.0,
)


@dataclasses.dataclass(frozen=True)
class ShardingNetwork:
    """Settings of the network.

    Attributes:
      width: width of all vectors, a multiple of `heads`.
      messages: number of scalars that an edge sends to each strategy.
      rounds: number of rounds of messages, each with its own weights.
      heads: number of heads of the attention between groups, after the rounds.
      segment: number of groups in a segment of the attention; a group attends to its own segment and the one before.

    Raises:
      ProblemError: a value is out of range.
    """

    width: int = 32
    messages: int = 8
    rounds: int = 2
    heads: int = 2
    segment: int = 128

    def __post_init__(self) -> None:
        integers = {"width": (1, 1024), "messages": (1, 256), "rounds": (0, 64), "heads": (1, 64)}
        check_ranges(self, integers=integers | {"segment": (1, 2**20)}, above_zero=(), options={})
        if self.width % self.heads:
            raise ProblemError(f"width is {self.width}: must be a multiple of heads ({self.heads})")


@dataclasses.dataclass(frozen=True)
class ShardingConfig:
    """Settings of `graphrl train sharding`.

    Attributes:
      network: see `ShardingNetwork`.
      ppo: see `PpoSettings`. An episode has one step, which labels all groups.
      credit: "choice" gives each choice its own advantage: by how much its energy is below the policy's mean for this
        group if all other groups keep their labels (the counterfactual baseline of Foerster et al. 2018, here exact);
        "action" gives all choices of a plan that of the plan, with a learned baseline.
      clip: largest absolute value of advantages, which are divided by their root mean square over an instance.
      samples: number of plans of each held-out problem in validations, the likeliest among them.
      init_checkpoint: a file of `Policy.save` or a checkpoint of the same network, from whose policy training starts;
        "" starts from new parameters.

    Raises:
      ProblemError: a value is out of range.
    """

    network: ShardingNetwork = ShardingNetwork()
    ppo: PpoSettings = _PPO
    credit: Credit = "choice"
    clip: float = 3.0
    samples: int = 16
    init_checkpoint: str = ""

    def __post_init__(self) -> None:
        check_ranges(self, integers={"samples": (1, 4096)}, above_zero=("clip",), options={"credit": Credit})
        if (self.ppo.steps, self.ppo.ratio) != (1, "choice"):
            raise ProblemError(
                f"ppo.steps is {self.ppo.steps} and ppo.ratio {self.ppo.ratio!r}: must be 1 and 'choice'"
            )


class StrategyLogits(nn.Module):
    """Logits of the strategies of every group, from messages on edges and between groups. In each round, with separate
    weights, for a strategy s with vector h_s:

    - Edges send to each strategy soft minima over the other end's strategies of learned scores plus a learned map of
      the pair's costs: min-sum messages (as the dual's) with weights.
    - The vectors of a group are pooled as in GraphSAGE (Hamilton et al. 2017; `networks.encoders.GraphSage`): h_g = max
      over s of sigmoid(W h_s + b), and h_N(g) = max over neighbours of h_g.
    - h_s = LN(h_s + MLP([h_s, messages, h_g, h_N(g)])).

    Then groups, in the problem's order, attend to their segments (`SegmentLayer`, as in GO). The score of a strategy is
    an MLP of both vectors, with learned multiples of the belief and of the label of the best plan by messages.

    Attributes:
      config: sizes.
    """

    config: ShardingNetwork

    @nn.compact
    def __call__(self, instance: ReducedInstance) -> jax.Array:
        """Returns logits, `[G, O]` float32; those of strategies that are not there are `NEVER`."""
        width = self.config.width
        of_groups = _take(instance.group_features, instance.group)
        x = jnp.concatenate([instance.strategy_features, of_groups], 1)
        h = nn.LayerNorm(name="norm_in")(nn.Dense(width, name="in")(x))
        for number in range(self.config.rounds):
            sent = self._messages(instance, h, number)
            group = _pooled(nn.sigmoid(nn.Dense(width, name=f"pool_{number}")(h)), instance)
            near = _neighbours(group, instance)
            rows = [h, sent, _take(group, instance.group), _take(near, instance.group)]
            h = nn.LayerNorm(name=f"norm_{number}")(
                h + MLP(width, width, name=f"update_{number}")(jnp.concatenate(rows, 1))
            )
        group = _pooled(nn.sigmoid(nn.Dense(width, name="pool")(h)), instance)
        attention = SegmentAttention(width, self.config.heads, self.config.segment)
        group = SegmentLayer(attention, name="attention")(group, instance.mask)
        score = MLP(width, 1, SMALL, name="score")(jnp.concatenate([h, _take(group, instance.group)], 1))[:, 0]
        for name, feature, initial in (("sharpness", BELIEF, -SHARPNESS), ("preference", IS_BEST, PREFERENCE)):
            score += self.param(name, nn.initializers.constant(initial), ()) * instance.strategy_features[:, feature]
        logits = jnp.full(instance.action_mask.shape, NEVER).at[instance.group, instance.place]
        return logits.set(score, mode="drop").at[:, 0].max(jnp.where(instance.mask, NEVER, 0.0))

    def _messages(self, instance: ReducedInstance, h: jax.Array, number: int) -> jax.Array:
        """Returns the sums over edges of the messages to each strategy, standardised: `[S, messages]`."""
        count, slots = self.config.messages, instance.slot_strategy.shape[0]
        score = _take(nn.Dense(count, name=f"send_{number}")(h), instance.slot_strategy)
        of_pairs = nn.Dense(count, use_bias=False, name=f"pair_{number}")(instance.pair_features)
        ends = instance.pair_first, instance.pair_last
        terms = [jnp.clip(_take(score, end) - of_pairs, -CLIP, CLIP) for end in ends]
        total = sum(
            jax.ops.segment_sum(jnp.exp(term), end, slots) for term, end in zip(terms, reversed(ends), strict=True)
        )
        least = jnp.log(jnp.maximum(total, jnp.exp(-CLIP) / 2))  # of slots without a pair, those of padding
        sent = jax.ops.segment_sum(least, instance.slot_strategy, h.shape[0])
        return nn.LayerNorm(name=f"norm_sent_{number}")(sent)


def _take(rows: jax.Array, index: jax.Array) -> jax.Array:
    return rows.at[index].get(mode="fill", fill_value=0)


def _pooled(h: jax.Array, instance: ReducedInstance) -> jax.Array:
    """Returns the largest values of each group's strategies, `[G, w]`; all are above 0."""
    groups = instance.sizes.shape[0]
    return jnp.zeros((groups, h.shape[1])).at[instance.group].max(h, mode="drop")


def _neighbours(group: jax.Array, instance: ReducedInstance) -> jax.Array:
    """Returns the largest values of each group's neighbours, `[G, w]`; 0 without neighbours."""
    groups = group.shape[0]
    is_first = _take(instance.place, instance.slot_strategy) == 0  # a slot for each incidence
    receiver = instance.group.at[instance.slot_strategy].get(mode="fill", fill_value=groups)
    return max_of_senders(group, instance.slot_other, jnp.where(is_first, receiver, groups))


class GroupVectors(nn.Module):
    """Vectors of groups for the value network: the mean of their strategies' features, and their own, `[G, F]`."""

    @nn.compact
    def __call__(self, instance: ReducedInstance) -> jax.Array:
        """Returns `[G, F]` float32."""
        groups = instance.sizes.shape[0]
        total = jax.ops.segment_sum(instance.strategy_features, instance.group, groups)
        mean = total / instance.sizes[:, None].astype(jnp.float32)
        return jnp.concatenate([mean, instance.group_features], 1)


def networks(config: ShardingConfig) -> PolicyValue:
    """Creates the networks of a configuration; they observe a `ReducedInstance`."""
    width = config.network.width
    # -1 is the reward of the best plan by messages
    return PolicyValue(network(StrategyLogits(config.network)), network(GraphValue(GroupVectors(), width, -1.0)))


class Policy(agent.Policy[ShardingConfig]):
    """See `training.agent.Policy`. It guides a search: `search(problem, seconds, guide=policy.guide)`."""

    agents: ClassVar[tuple[str, ...]] = ("sharding",)
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "agent.network"
    settings = staticmethod(ShardingConfig)

    @staticmethod
    def initial(config: ShardingConfig, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        return networks(config).policy.init(key, jax.tree.map(jnp.asarray, example()))

    def logits(self, prepared: Prepared) -> np.ndarray:
        """Computes the logits of a prepared problem, `[g, o]` float32."""
        sizes = dataclasses.astuple(prepared.sizes)
        # powers of two, so that few programs are compiled
        instance = padded(prepared, ReducedSizes(*(max(8, 1 << (size - 1).bit_length()) for size in sizes)))
        logits = np.asarray(_logits(self.config, self.params, instance))
        return logits[: prepared.sizes.ops, : prepared.sizes.options]

    def guide(self, problem: ShardingProblem, reduced: Reduced, *, samples: int = 32, seed: int = 0) -> Guide:
        """Proposes labels, the likeliest first, and the groups of which the policy is least certain.

        Args:
          problem, reduced: the problem, and its reduction to at least one group.
          samples: number of labellings.
          seed: seed of the random numbers.
        """
        prepared = prepare(problem, reduced)
        logits = self.logits(prepared)
        random, shape = np.random.default_rng(seed), (samples, len(logits))
        labels = np.empty(shape, np.int64)
        labels[0] = logits.argmax(1)
        for sample in range(1, samples):
            labels[sample] = (logits + random.gumbel(size=logits.shape)).argmax(1)
        groups, node = np.unique(reduced.root, return_index=True)
        first = node[groups >= 0]  # a node of each group
        return Guide(labels, first[uncertain(logits, prepared.arrays["best"], random)])


def uncertain(logits: np.ndarray, plan: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws groups to move, `[ROOTS] int64`: a share `UNIFORM` from all alike, the others in proportion to the
    probability by which the policy chooses another strategy than the plan.

    Args:
      logits: `[g, o]` float32.
      plan: `[g]` labels.
      random: generator.
    """
    chance = np.exp(logits - logits.max(1, keepdims=True), dtype=np.float64)
    other = 1 - np.take_along_axis(chance, plan[:, None], 1)[:, 0] / chance.sum(1) + 1e-9
    share = UNIFORM / len(plan) + (1 - UNIFORM) * other / other.sum()
    return random.choice(len(plan), ROOTS, p=share / share.sum())


@functools.cache
def example() -> ReducedInstance:
    """Returns a small instance: shapes of parameters do not depend on it."""
    problem = layers(20, 2)  # its reduction leaves choices
    prepared = prepare(problem, reduce_problem(problem))
    return padded(prepared, common_sizes([prepared]))


@functools.partial(jax.jit, static_argnums=0)
def _logits(config: ShardingConfig, params: Any, instance: Any) -> jax.Array:
    logits: jax.Array = networks(config).policy.apply(params, instance)
    return logits
