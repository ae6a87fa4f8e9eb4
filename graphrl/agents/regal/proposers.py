"""REGAL's two policy networks: functions that propose a distribution for every gene of BRKGA.

- `independent`: the papers' network. Its choices do not depend on each other given the graph.
- `sequential`: places the ops one after another (`placement.py`); after the last, it proposes the priorities, which
  see when each op would start.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import RegalInstance
from graphrl.agents.regal.placement import DEVICE_FEATURES, OP_FEATURES, place
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import Coding, coding, observe
from graphrl.learning import reinforce
from graphrl.networks.base import SMALL, GraphObservation, network
from graphrl.networks.encoders import MessagePassing, Recurrent
from graphrl.networks.heads import ChoiceLogits

# Levels of certainty that an op belongs on its device: the mean of that device's affinity and the mean of the others';
# None is the uniform distribution. On two devices samples keep the op there in 50, 75, 84 and 98% of cases.
LEVELS: tuple[tuple[float | None, float | None], ...] = ((None, None), (0.75, None), (0.5625, 0.5), (0.5625, 0.4375))
# Methods play a policy one level less certain than it learned to be: rewards come from few evaluations, where certainty
# pays; with 5,000 BRKGA can undo wrong choices if they are not too certain. On 8 graphs of each of six kinds this is
# 14.1, 19.5, 6.7, 7.4, 18.5 and 15.2% better than BRKGA (random, layered, blocks, programs, series-parallel,
# `regal-like`) instead of 14.6, 20.2, 4.0, 7.2, 17.6 and 18.0%: less where the learned levels are best, but better than
# BRKGA on each of these graphs.
_LESS_CERTAIN = 1
# Priorities of the sequential network, relative to the order in which it expects the ops to start: None is the uniform
# distribution, a number shifts the mean. With 16 means to choose from it learned no priorities for the peak memory.
SHIFTS: tuple[float | None, ...] = (None, -0.2, -0.07, 0.0, 0.07, 0.2)
_RANK = OP_FEATURES.index("rank")


class Proposal(NamedTuple):
    """An action of `Proposal-v0`, and the network's choices behind it, as `Proposer.log_prob` takes them."""

    action: jax.Array  # [n, d + 1, ...] int32
    choices: Any


class LogProb(NamedTuple):
    """Log-probabilities of a actions for one graph."""

    log_prob: jax.Array  # [a] float32, the sum over an action's real choices; differentiable
    entropy: jax.Array  # [] float32, nats: the sum over the real choices, mean over actions; differentiable
    choices: jax.Array  # [] float32, the number of real choices


class Proposer(NamedTuple):
    """A policy network as pure functions of one graph.

    init: (key, instance) -> params.
    sample: (params, key, instance) -> `Proposal`, as in training.
    best: (params, key, instance) -> `Proposal`, as a method plays it.
    log_prob: (params, instance, choices of a samples (leading axis a)) -> `LogProb`.
    """

    init: Callable[[jax.Array, RegalInstance], Any]
    sample: Callable[[Any, jax.Array, RegalInstance], Proposal]
    best: Callable[[Any, jax.Array, RegalInstance], Proposal]
    log_prob: Callable[[Any, RegalInstance, Any], LogProb]


def proposer(config: RegalConfig, problem: Problem | None = None) -> Proposer:
    """Creates the policy network of a configuration, without parameters. The sequential one plays for any `problem`,
    by default the configuration's.
    """
    if config.placement == "independent":
        return _independent(config)
    return _sequential(config, problem or config.problem)


def encoder(config: RegalConfig) -> nn.Module:
    """Creates the encoder of a configuration, which computes a vector of every op."""
    if config.encoder == "recurrent":
        return Recurrent(config.width)
    return MessagePassing(config.width, config.rounds)


def _independent(config: RegalConfig) -> Proposer:
    distributions, devices = coding(config.coding), config.problem.devices
    module = network(
        ChoiceLogits(
            encoder=encoder(config),
            width=config.width,
            choices=(*distributions.action_spec(1, devices).shape[1:], distributions.values),
            preferred=distributions.uniform,
            preference=config.preference,
            shared=config.coding == "moments",
            fixed=config.fixed_genes,
        )
    )

    def logits(params: Any, instance: RegalInstance) -> jax.Array:
        return module.apply(params, observe(instance.proposal))

    def sample(params: Any, key: jax.Array, instance: RegalInstance) -> Proposal:
        action = reinforce.sample(key, logits(params, instance))
        return Proposal(action, action)

    def log_prob(params: Any, instance: RegalInstance, actions: jax.Array) -> LogProb:
        learned, real = logits(params, instance)[:, config.fixed_genes :], _real(instance)
        each = jax.vmap(reinforce.log_prob, (None, 0, None))(learned, actions[:, :, config.fixed_genes :], real)
        choices = real.sum(dtype=jnp.float32) * float(np.prod(learned.shape[1:-1]))
        return LogProb(each, reinforce.entropy(learned, real), choices)

    # The best is a sample, as in the papers, so that ops with equal features get different proposals. The most likely
    # action was 1 to 3% worse on two of three policies.
    return Proposer(lambda key, instance: module.init(key, observe(instance.proposal)), sample, sample, log_prob)


class SequentialNetwork(nn.Module):
    """The sequential network's layers.

    Attributes:
      encoder: observation -> `[n, w]`.
      width: width of the hidden layers.
      levels: number of options for each device.
      shifts: number of options for a priority. The first is the uniform distribution, which the initial network
        prefers by `preference` nats.
    """

    encoder: nn.Module
    width: int
    levels: int
    shifts: int
    preference: float

    def setup(self) -> None:
        self.of_op = nn.Dense(self.width)
        self.of_device, self.of_mean, self.of_turn = (nn.Dense(self.width, use_bias=False) for _ in range(3))
        self.hidden_device, self.hidden_priority = nn.Dense(self.width), nn.Dense(self.width)
        self.device = nn.Dense(self.levels, kernel_init=SMALL)
        self.priority_of = nn.Dense(self.shifts, kernel_init=SMALL)

    def __call__(self, observation: GraphObservation, devices: int) -> jax.Array:
        """Calls all layers; only for `init`."""
        ops = self.embed(observation)
        logits = self.placement(ops, jnp.zeros((len(ops), devices, len(DEVICE_FEATURES))))
        return logits.sum() + self.priority(ops, jnp.zeros((len(ops), len(OP_FEATURES)))).sum()

    def embed(self, observation: GraphObservation) -> jax.Array:
        """Returns the ops' vectors: `[n, w]` float32."""
        return self.of_op(self.encoder(observation))

    def placement(self, op: jax.Array, features: jax.Array) -> jax.Array:
        """Returns the logits of ops' devices and levels, `[..., d * levels]`, from vectors `[..., w]` and features
        `[..., d, F]`. One perceptron for all devices: their numbering has no effect, and d may be any number.
        """
        each, mean = self.of_device(features), self.of_mean(features.mean(-2))[..., None, :]
        hidden = nn.relu(jnp.broadcast_to(op[..., None, :], each.shape) + each + mean)
        logits = self.device(nn.relu(self.hidden_device(hidden)))
        return logits.reshape(*logits.shape[:-2], -1)

    def priority(self, op: jax.Array, features: jax.Array) -> jax.Array:
        """Returns the logits of the ops' priorities, `[..., shifts]`, from vectors `[..., w]`, features `[..., P]`."""
        turn = self.of_turn(features)
        hidden = nn.relu(jnp.broadcast_to(op, turn.shape) + turn)
        logits = self.priority_of(nn.relu(self.hidden_priority(hidden)))
        return logits.at[..., 0].add(self.preference)


class _Choices(NamedTuple):
    """The choices of the sequential network for every op, and what they depend on."""

    features: jax.Array  # [n, d, F] float32
    place: jax.Array  # [n] int32
    ops: jax.Array  # [n, P] float32
    priority: jax.Array  # [n] int32


def _sequential(config: RegalConfig, problem: Problem) -> Proposer:
    distributions = coding(config.coding)
    module = SequentialNetwork(encoder(config), config.width, len(LEVELS), len(SHIFTS), config.preference)

    def call(params: Any, method: str, *arguments: Any) -> jax.Array:
        return module.apply({"params": params}, *arguments, method=method)  # type: ignore[return-value]

    def init(key: jax.Array, instance: RegalInstance) -> Any:
        return module.init(key, observe(instance.proposal), problem.devices)["params"]

    def propose(
        params: Any, key: jax.Array, instance: RegalInstance, choose: Callable[..., jax.Array], lower: int = 0
    ) -> Proposal:
        assert instance.visits is not None  # `make_instances` makes them for this network
        place_key, priority_key = jax.random.split(key)
        ops = call(params, "embed", observe(instance.proposal))
        placed = place(
            instance.visits,
            problem,
            len(LEVELS),
            place_key,
            lambda key, op, features: choose(key, call(params, "placement", ops[op], features)),
        )
        priority = choose(priority_key, call(params, "priority", ops, placed.ops))
        choices = _Choices(placed.features, placed.choice, placed.ops, priority)
        return Proposal(_action(distributions, problem.devices, choices, lower), choices)

    def sample(params: Any, key: jax.Array, instance: RegalInstance) -> Proposal:
        return propose(params, key, instance, reinforce.sample)

    def best(params: Any, key: jax.Array, instance: RegalInstance) -> Proposal:
        return propose(params, key, instance, lambda key, logits: logits.argmax(-1).astype(jnp.int32), _LESS_CERTAIN)

    def log_prob(params: Any, instance: RegalInstance, choices: _Choices) -> LogProb:
        ops, real = call(params, "embed", observe(instance.proposal)), _real(instance)
        placements = call(params, "placement", ops, choices.features)
        priorities = call(params, "priority", ops, choices.ops)
        each = jax.vmap(reinforce.log_prob, (0, 0, None))
        nats = jax.vmap(reinforce.entropy, (0, None))
        return LogProb(
            each(placements, choices.place, real) + each(priorities, choices.priority, real),
            (nats(placements, real) + nats(priorities, real)).mean(),
            2 * real.sum(dtype=jnp.float32),
        )

    return Proposer(init, sample, best, log_prob)


def _action(distributions: Coding, devices: int, choices: _Choices, lower: int) -> jax.Array:
    """Converts all ops' choices to an action of `Proposal-v0`, `[n, d + 1]` int32, `lower` levels less certain."""
    device, level = jnp.divmod(choices.place, len(LEVELS))
    level = jnp.maximum(level - lower, 0)
    own, others = (jnp.asarray(_indices(distributions, means))[level] for means in zip(*LEVELS, strict=True))
    is_own = jnp.arange(devices)[None] == device[:, None]
    affinity = jnp.where(is_own, own[:, None], others[:, None])
    mean = 1 - choices.ops[:, _RANK] + jnp.array([shift or 0.0 for shift in SHIFTS])[choices.priority]
    priority = jnp.where(choices.priority == 0, distributions.uniform[0], distributions.nearest(mean))
    return jnp.concatenate([affinity, priority[:, None]], 1)


def _indices(distributions: Coding, means: tuple[float | None, ...]) -> np.ndarray:
    """Returns the index of the distribution of each mean, of the uniform one for None: `[means]` int32."""
    with jax.ensure_compile_time_eval():
        near = [
            distributions.uniform[0] if mean is None else distributions.nearest(jnp.float32(mean)) for mean in means
        ]
        return np.array(near, np.int32)


def _real(instance: RegalInstance) -> jax.Array:
    graph = instance.proposal.graph
    return jnp.arange(graph.sizes.ops, dtype=jnp.int32) < graph.num_ops
