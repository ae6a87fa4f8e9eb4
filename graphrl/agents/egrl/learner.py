"""EGRL's learner: an update is a generation of the search on all training graphs, or a PPO update on them.

PPO trains one policy on maps of many graphs. Each map is an episode of one step.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, domain, observe, speedup, start
from graphrl.agents.egrl.domain import evaluate as evaluate_maps
from graphrl.agents.egrl.network import likeliest, networks, place_all, turn_network
from graphrl.learning import collaborative, evolution, ppo
from graphrl.learning import learner as learning
from graphrl.learning.evolution import Population
from graphrl.learning.learner import Learner, LearnerState, Metrics
from graphrl.learning.ppo import PolicyValue, PpoSettings
from graphrl.learning.ppo.settings import choice_count, log_probs
from graphrl.learning.sac import ActorCritic, Domain
from graphrl.networks.base import Network

_LEAST_DEVIATION = 1e-3  # of rewards: smaller differences are worth less than a whole step
# Advantages are relative to the other maps of a graph, so that the value network is a constant without parameters.
_NO_VALUE = Network(lambda key, observation: {}, lambda params, observation: jnp.float32(0))


def learner(config: EgrlConfig, mesh: Mesh, instances: Layers) -> Learner:
    """Creates the learner of a configuration: a search, whose population and replay the devices share, or PPO, whose
    graphs they share.

    Args:
      config: its `learning` selects one of the two.
      mesh: the devices.
      instances: the training graphs, the batch of every step: the replay refers to them by index.
    """
    if config.learning == "ppo":
        init = partial(init_ppo, config, instances)
        return Learner(init, partial(update_ppo, config), partial(evaluate, config), "speedup")
    shardings = collaborative.shardings(config.settings, mesh)
    search, update = partial(init_search, config, instances), partial(update_search, config, mesh)
    return Learner(search, update, partial(evaluate, config), "speedup", shardings=shardings)


def init_search(config: EgrlConfig, instances: Layers, key: jax.Array, policy: Any = None) -> collaborative.State:
    """Creates the state before the search; see `Learner` and `collaborative.init`."""
    return collaborative.init(*search_of(config, instances), instances, key, policy)


def update_search(
    config: EgrlConfig, mesh: Mesh, state: collaborative.State, key: jax.Array, batch: Layers
) -> tuple[collaborative.State, Metrics]:
    """Runs a generation: roll-outs, evolution, gradient steps, migration; see `collaborative.generation`."""
    state, metrics, _ = collaborative.generation(*search_of(config, batch), state, key, batch, mesh)
    return state, metrics


def search_of(config: EgrlConfig, instances: Layers) -> tuple[collaborative.Settings, Domain, ActorCritic]:
    """Returns the first arguments of `collaborative`'s functions: the settings, the domain, and the networks."""
    memories = instances.problem.memories
    return config.settings, domain(memories, config.reward), networks(config, memories)


def init_ppo(config: EgrlConfig, instances: Layers, key: jax.Array, policy: Any = None) -> LearnerState:
    """Creates the state before training with PPO; see `Learner`."""
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), instances)
    return ppo.init(ppo_settings(config), _networks(config, instances), key, observe(first, start(first)), policy)


def update_ppo(config: EgrlConfig, state: LearnerState, key: jax.Array, batch: Layers) -> tuple[LearnerState, Metrics]:
    """Runs a PPO update on `config.samples` maps of every graph.

    The metrics are those of `ppo.learn` without "value_error" and "explained_variance", as there is no value network.
    """
    if config.placement == "sequential":
        return _update_turns(config, state, key, batch)
    try_key, learn_key = jax.random.split(key)
    settings, both, graphs = ppo_settings(config), _networks(config, batch), batch.placed.shape[0]

    def one(key: jax.Array, problem: Layers) -> ppo.Samples:
        reward_of = partial(evaluate_maps, problem, reward=config.reward)
        return ppo.sample_rewards(settings, both, state.params, key, observe(problem, start(problem)), reward_of)

    maps = jax.vmap(one)(learning.keys(try_key, graphs), batch)
    maps = maps._replace(choices=batch.placed.sum((1, 2), dtype=jnp.float32))  # absent tensors have no choice
    state, metrics = ppo.learn(settings, both, state, learning.keys(learn_key, graphs), maps)
    del metrics["value_error"], metrics["explained_variance"]
    return state, metrics


def _update_turns(
    config: EgrlConfig, state: LearnerState, key: jax.Array, batch: Layers
) -> tuple[LearnerState, Metrics]:
    """Runs a PPO update of the sequential policy on maps that it samples."""
    try_key, learn_key = jax.random.split(key)
    return _learn_turns(config, state, learn_key, _sample_maps(config, state.params["policy"], try_key, batch))


class _Maps(NamedTuple):
    """Maps of the sequential policy, a for each of g graphs, with V turns each."""

    turns: Any  # [g, a, V, ...], inputs of the network
    choice: jax.Array  # [g, a, V] int32
    map: jax.Array  # [g, a, N, 2] int32
    reward: jax.Array  # [g, a] float32


def _sample_maps(config: EgrlConfig, params: Any, key: jax.Array, batch: Layers) -> _Maps:
    """Samples `config.samples` maps of every graph."""

    def one(key: jax.Array, problem: Layers) -> _Maps:
        return jax.vmap(partial(_make_map, config, params, problem))(jax.random.split(key, config.samples))

    return jax.vmap(one)(learning.keys(key, batch.placed.shape[0]), batch)


def _make_map(config: EgrlConfig, params: Any, problem: Layers, key: jax.Array | None = None) -> _Maps:
    """Makes one map, without the axes g and a; see `place_all`."""
    placed = place_all(config, params, problem.visits, key)  # type: ignore[arg-type]
    reward = evaluate_maps(problem, placed.map, config.reward)
    return _Maps((placed.features, placed.bias), placed.choice, placed.map, reward)


def _learn_turns(config: EgrlConfig, state: LearnerState, key: jax.Array, maps: _Maps) -> tuple[LearnerState, Metrics]:
    """Takes PPO's gradient steps on maps: each is an observation with the features of all its turns.

    All choices of a map have its advantage. Advantages of single choices, by the gain of a choice and of later ones
    relative to the same turn of the other maps, learned less: later passes correct earlier choices, so that these gains
    vary more than the final map.
    """
    graphs, count = maps.reward.shape
    settings = dataclasses.replace(ppo_settings(config), environments=1, normalize_advantage=False)
    turns = PolicyValue(turn_network(config), _NO_VALUE)

    centred = maps.reward - maps.reward.mean(1, keepdims=True)
    advantage = centred / (jnp.sqrt(jnp.square(centred).mean(1, keepdims=True)) + _LEAST_DEVIATION)

    def rows(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.reshape(graphs * count, *leaf.shape[2:]), tree)

    observation, choice = rows((maps.turns, maps.choice))
    logits = jax.vmap(turns.policy.apply, (None, 0))(state.params["policy"], observation)
    samples = ppo.Samples(
        observation=observation,
        choices=jax.vmap(choice_count)(logits),
        action=choice[:, None],
        log_prob=log_probs(logits, choice)[:, None],
        value=jnp.zeros(graphs * count),
        reward=advantage.reshape(-1, 1),
    )
    state, metrics = ppo.learn(settings, turns, state, learning.keys(key, graphs * count), samples)
    del metrics["value_error"], metrics["explained_variance"]
    return state, metrics | {"return": learning.mean(maps.reward)}


class TunedState(NamedTuple):
    """State of a search that starts from a sequential policy."""

    population: Population  # of networks; None for variant "pg"
    learner: LearnerState | None  # None for variant "ea"
    step: jax.Array  # [] int32, number of generations so far


def init_tuning(config: EgrlConfig, instances: Layers, key: jax.Array, policy: Any) -> TunedState:
    """Creates the state of `tune`: the population has the policy and mutated copies of it, and the learner starts from
    the policy.
    """
    mutate_key, learn_key = jax.random.split(key)
    networks = learner = None
    if count := config.settings.networks:
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), policy)
        mutated = evolution.mutate(mutate_key, copies, config.strength, config.operators)
        networks = jax.tree.map(lambda leaf, own: leaf.at[0].set(own), mutated, policy)
    if config.variant != "ea":
        learner = init_ppo(config, instances, learn_key, jax.tree.map(jnp.asarray, policy))
    return TunedState(Population(networks, None), learner, jnp.int32(0))


def tune(config: EgrlConfig, state: TunedState, key: jax.Array, instances: Layers) -> tuple[TunedState, jax.Array]:
    """Runs a generation from a sequential policy on one graph: evolution, a PPO update in place of SAC's steps, and
    migration of the learner's network.

    SAC's noise on the logits would change many choices of a sequence together; PPO samples each choice given those
    before it. PPO also learns from the population's maps, as if the learner had sampled them: their log-probabilities
    are the learner's own, so that the ratio starts at 1, without correction for the networks that made them.

    Returns:
      The state, and the maps of all roll-outs, `[p, 1, N, 2]` int32: the population's, then `config.samples` of the
      learner.
    """
    evolve_key, try_key, learn_key = jax.random.split(key, 3)
    (networks, _), learner, step = state
    population, rollouts = state.population, []
    if networks is not None:
        problem = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), instances)
        own = jax.vmap(lambda params: _make_map(config, params, problem))(networks)
        population, chosen = evolution.next_generation(config.settings.evolution, evolve_key, population, own.reward)
        rollouts.append(jax.tree.map(lambda leaf: leaf[None], own))
    if learner is not None:
        rollouts.append(_sample_maps(config, learner.params["policy"], try_key, instances))
    maps = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), *rollouts)
    if learner is not None:
        learner, _ = _learn_turns(config, learner, learn_key, maps)
        if networks is not None:
            newcomer = jax.tree.map(lambda leaf: leaf[None], learner.params["policy"])
            population = evolution.migrate(population, own.reward, chosen, newcomer)
    return TunedState(population, learner, step + 1), maps.map[0][:, None]


def ppo_settings(config: EgrlConfig) -> PpoSettings:
    """Returns the settings of PPO. The ratio is per choice: with hundreds of choices the joint ratio leaves the
    clipping range immediately.
    """
    settings = PpoSettings(
        steps=1,
        environments=config.samples,
        minibatches=1,
        ratio="choice",
        entropy_coefficient=config.entropy_coefficient,
        value_coefficient=0.0,
        learning_rate=config.rate,
        max_grad_norm=1.0,
    )
    return dataclasses.replace(settings, decay_steps=config.decay_steps * settings.epochs)


def _networks(config: EgrlConfig, batch: Layers) -> PolicyValue:
    return PolicyValue(networks(config, batch.problem.memories).actor, _NO_VALUE)


def evaluate(config: EgrlConfig, params: Any, key: jax.Array, batch: Layers) -> Metrics:
    """Evaluates `egrl-policy` on held-out graphs: the faster one of the policy's map and its hint.

    See `Learner`; `key` is not used.

    Returns:
      "speedup" over the compiler's own map (the mean, and "speedup_min", "speedup_max"), and the means of the "policy"
      and of the "hint", each alone.
    """
    del key
    policy = jax.vmap(lambda one: speedup(one, likeliest(config, params["policy"], one)))(batch)
    hint = jax.vmap(lambda one: speedup(one, jnp.asarray(one.preferred)))(batch)
    means = {"policy": learning.mean(policy), "hint": learning.mean(hint)}
    return learning.mean_min_max("speedup", jnp.maximum(policy, hint)) | means
