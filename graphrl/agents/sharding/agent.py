"""The sharding agent: PPO on labels of reduced problems, each an episode of one step (`graphrl train sharding`).

The reward of labels is their energy, negated: cost in units of the best plan by messages, and penalties for bytes above
the room (`instances.energies`). So -1 is as good as messages.
"""

from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from graphrl.agents.sharding.instances import (
    ReducedInstance,
    common_sizes,
    energies,
    load,
    make_instances,
    problem_set,
)
from graphrl.agents.sharding.network import Policy, ShardingConfig, example, networks
from graphrl.errors import ProblemError
from graphrl.learning import learner as learning
from graphrl.learning import ppo
from graphrl.learning.learner import Learner, LearnerState, Metrics
from graphrl.learning.ppo.settings import likeliest, sample
from graphrl.training.agent import Agent
from graphrl.training.config import Schedule
from graphrl.training.data import DataConfig


def learner(config: ShardingConfig, example: ReducedInstance) -> Learner:
    """Creates the learner of a configuration; `example` is any instance."""
    functions = partial(update, config), partial(evaluate, config)
    return Learner(partial(init, config, example), *functions, score="improvement", unit="%")


def init(config: ShardingConfig, example: ReducedInstance, key: jax.Array, policy: Any = None) -> LearnerState:
    """Creates the state before training; see `Learner`."""
    return ppo.init(config.ppo, networks(config), key, jax.tree.map(jnp.asarray, example), policy)


def update(
    config: ShardingConfig, state: LearnerState, key: jax.Array, batch: ReducedInstance
) -> tuple[LearnerState, Metrics]:
    """Samples labels of each problem, and takes the gradient steps of PPO; see `Learner` and `ppo.learn`."""
    sample_key, learn_key = jax.random.split(key)
    count = batch.num_ops.shape[0]
    samples = jax.vmap(partial(_sampled, config, state.params))(learning.keys(sample_key, count), batch)
    return ppo.learn(config.ppo, networks(config), state, learning.keys(learn_key, count), samples)


def _sampled(config: ShardingConfig, params: Any, key: jax.Array, instance: Any) -> ppo.Samples:
    def reward_of(label: jax.Array) -> jax.Array:
        return -energies(instance, label)[0]

    samples = ppo.sample_rewards(config.ppo, networks(config), params, key, instance, reward_of)
    if config.credit == "action":
        return samples
    logits = networks(config).policy.apply(params["policy"], instance)
    advantage = jax.vmap(partial(advantages, instance, logits))(samples.action)
    square = jnp.square(advantage).mean(0).sum() / jnp.maximum(instance.num_ops.astype(jnp.float32), 1)
    scaled = advantage / jnp.maximum(jnp.sqrt(square), 1e-9)
    return samples._replace(advantage=jnp.clip(scaled, -config.clip, config.clip))


def advantages(instance: ReducedInstance, logits: jax.Array, label: jax.Array) -> jax.Array:
    """Computes the counterfactual advantage of each choice: `[G]` float32, cost units; see `ShardingConfig.credit`.

    Args:
      instance: the problem.
      logits: `[G, O]` of the policy.
      label: `[G]` its labels.
    """
    groups, strategies = logits.shape[0], instance.cost.shape[0]
    chance = jax.nn.softmax(logits)[jnp.minimum(instance.group, groups - 1), instance.place]
    _, energy = energies(instance, label)
    mean = jax.ops.segment_sum(chance * energy, instance.group, groups)
    own = energy.at[jnp.where(instance.mask, instance.first + label, strategies)].get(mode="fill", fill_value=0)
    return jnp.where(instance.mask, mean - own, 0)


def evaluate(config: ShardingConfig, params: Any, key: jax.Array, batch: ReducedInstance) -> Metrics:
    """Computes percents by which energies are below the cost of the best plan by messages; see `Learner`.

    Returns:
      Means over problems: "improvement" of the best of `config.samples` labellings, "mean" of all, and "greedy" of the
      likeliest labels.
    """

    def of(key: jax.Array, instance: Any) -> jax.Array:
        logits = networks(config).policy.apply(params["policy"], instance)
        labels = jax.vmap(sample, (0, None))(jax.random.split(key, config.samples), logits)
        labels = labels.at[0].set(likeliest(logits))
        return jax.vmap(lambda label: energies(instance, label)[0])(labels)

    energy = jax.vmap(of)(learning.keys(key, batch.num_ops.shape[0]), batch)
    percent = 100 * (1 - energy)
    return {
        "improvement": learning.mean(percent.max(1)),
        "mean": learning.mean(percent),
        "greedy": learning.mean(percent[:, 0]),
    }


def problem(config: ShardingConfig) -> NoReturn:
    """Raises ProblemError: `graphrl evaluate` compares no plans of sharding problems."""
    raise ProblemError("plans of sharding problems: give the checkpoint to graphrl shard --guide, not to evaluate")


AGENT = Agent(
    policy=Policy,
    learner=lambda config, mesh, data: learner(config, example()),
    batch=lambda config, prepared, sizes: make_instances(prepared, sizes),  # type: ignore[arg-type]
    methods=lambda config: (),
    opponents=(),
    load=lambda config, names: load(names),  # type: ignore[arg-type, return-value]
    sizes=lambda config, prepared: common_sizes(prepared),  # type: ignore[arg-type]
    generated=problem_set,
    problem=problem,
    data=DataConfig(
        train=("sharding-layers:100x64@100000",),
        validation=("sharding-layers:100x32@5000",),
        test=("sharding-layers:200x32",),
        graphs=8,
        fresh=True,
    ),
    schedule=Schedule(steps=50, validate_every=25, checkpoint_every=25),
)
