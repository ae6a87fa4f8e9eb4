"""Collaborative evolution and policy gradient (EGRL, algorithm 2; CERL, Khadka et al. 2019).

A population of networks and Boltzmann chromosomes acts, and all its transitions go into one replay buffer. SAC learners
train on the replay, act as well, and migrate into the population. A generation is one pure function of a `State`, for
any domain and networks: see `generation`.

- `Learners` is a portfolio of SAC learners with different discounts, which share the replay with the population.
- `draw_learners` chooses which learners act next by an upper confidence bound (CERL, section 3); `record_returns`
  updates their returns.
- Several devices share the individuals, the replay (`shardings`), and the transitions of every gradient step. XLA
  partitions the single-device program along these arrays, so that equal seeds give the same state on any number of
  devices, up to rounding.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flashbax
import jax
import jax.numpy as jnp
from flashbax.buffers.trajectory_buffer import TrajectoryBufferState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from graphrl.learning import evolution, sac
from graphrl.learning.evolution import EvolutionSettings, Population
from graphrl.learning.sac import (
    Domain,
    Episodes,
    Instance,
    SacSettings,
    Transition,
    explore,
    play,
    transitions,
)
from graphrl.mesh import AXIS
from graphrl.networks.heads import Acted

_MEMORY = 0.2  # weight of the newest return in a learner's moving mean (ours)
_EXPLORATION = 0.9  # weight of the exploration bonus (ours)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of one search; the defaults are those of EGRL's table 2 and of its code.

    Attributes:
      networks, chromosomes: numbers of each in the population; if both are 0, only learners act.
      greedy, noisy: numbers of learners' roll-outs of each kind per generation; if both are 0, only evolution runs.
      noise: standard deviation of the noise in noisy roll-outs, see `sac.explore`.
      endless: True bootstraps the value after an episode's only step, as in the published code, whose discount is 0.99;
        False treats the step as a bandit's.
      discounts: discount of each learner: CERL's portfolio; EGRL has one learner.
      replay: capacity of the replay, in transitions.
      batch: number of transitions per gradient step.
      gradient_steps: number of gradient steps per learner and environment step; at least one per generation.
      migrate_every: number of generations between migrations; 0 disables migration.
      evolution, sac: see `EvolutionSettings` and `SacSettings`.
    """

    networks: int = 16
    chromosomes: int = 4
    greedy: int = 1
    noisy: int = 1
    noise: float = 0.2
    endless: bool = False
    discounts: tuple[float, ...] = (0.99,)
    replay: int = 100_000
    batch: int = 24
    gradient_steps: float = 1.0
    migrate_every: int = 1
    evolution: EvolutionSettings = dataclasses.field(default_factory=EvolutionSettings)
    sac: SacSettings = dataclasses.field(default_factory=SacSettings)

    @property
    def population(self) -> int:
        """k, the number of individuals: networks plus chromosomes."""
        return self.networks + self.chromosomes

    @property
    def rollouts(self) -> int:
        """Number of roll-outs per generation and graph: the population's, then the learners' noisy and greedy ones."""
        return self.population + self.noisy + self.greedy

    @property
    def has_learners(self) -> bool:
        """True if learners act and train in addition to evolution."""
        return self.noisy + self.greedy > 0


class Returns(NamedTuple):
    """Statistics of the returns of l learners' roll-outs."""

    value: jax.Array  # [l] float32, moving mean of the returns
    plays: jax.Array  # [l] float32, number of roll-outs so far


class Learners(NamedTuple):
    """The portfolio of l SAC learners, and their training data."""

    states: sac.State  # [l, ...] each
    returns: Returns
    replay: Any  # flashbax buffer of `Transition`


class Best(NamedTuple):
    """The best action so far and its reward for each of g graphs; n ops, h choices per op."""

    reward: jax.Array  # [g] float32
    action: jax.Array  # [g, n, h] int32


class State(NamedTuple):
    """The complete state of a search: one pytree of arrays, so that training resumed from a checkpoint is
    bit-identical.
    """

    params: dict[str, Any]  # "policy": the network to deploy, the fittest of the last generation
    population: Population
    learners: Learners | None  # None without learners
    best: Best
    evaluations: jax.Array  # [] int32, number of environment steps so far
    step: jax.Array  # [] int32, number of generations so far


def init(
    settings: Settings,
    domain: Domain,
    networks: sac.ActorCritic,
    instances: Instance,
    key: jax.Array,
    policy: Any = None,
) -> State:
    """Initialises a new population and new learners.

    Args:
      settings, domain: settings and domain of the search.
      networks: an actor, for individuals and learners, and a critic.
      instances: `[g, ...]` each, the graphs; `generation` must receive the same.
      key: key of all random numbers.
      policy: initial parameters of the first network and the first learner; None for new ones.
    """
    network_key, chromosome_key, learner_key = jax.random.split(key, 3)
    initial_action = jax.vmap(domain.start)(instances)
    observation = domain.observe(*jax.tree.map(lambda leaf: leaf[0], (instances, initial_action)))
    individuals = chromosomes = learners = None
    if settings.networks:
        init_all = jax.vmap(networks.actor.init, (0, None))
        individuals = _with_first(init_all(jax.random.split(network_key, settings.networks), observation), policy)
    if settings.chromosomes:
        shape = (settings.chromosomes, *initial_action.shape, domain.options)
        chromosomes = evolution.init(chromosome_key, shape, settings.evolution.temperature)
    if settings.has_learners:
        acted = Acted(observation, jax.nn.one_hot(initial_action[0], domain.options))
        init_sac = functools.partial(sac.init, settings.sac, networks, acted=acted)
        states = jax.vmap(lambda key: init_sac(key=key))(jax.random.split(learner_key, len(settings.discounts)))
        states = states._replace(params=states.params | {"actor": _with_first(states.params["actor"], policy)})
        action, zero_reward = initial_action[0].astype(jnp.int8), jnp.float32(0)
        example = Transition(jnp.int32(0), action, action, zero_reward, zero_reward)
        learners = Learners(states, init_returns(len(settings.discounts)), make_buffer(settings).init(example))
    best = Best(jnp.full(initial_action.shape[:1], jnp.finfo(jnp.float32).min), initial_action)
    zero = jnp.int32(0)
    population = Population(individuals, chromosomes)
    return State({"policy": _first(population, learners)}, population, learners, best, zero, zero)


def generation(
    settings: Settings,
    domain: Domain,
    networks: sac.ActorCritic,
    state: State,
    key: jax.Array,
    instances: Instance,
    mesh: Mesh | None = None,
) -> tuple[State, dict[str, jax.Array], jax.Array]:
    """Runs one generation: roll-outs of all individuals and learners, evolution, gradient steps, migration.

    Args:
      settings, domain, networks, instances: as for `init`.
      state: the state; may be donated.
      key: key of this generation.
      mesh: the devices that share the batches of transitions; None for one.

    Returns:
      The state; metrics: rewards of "best" so far, "networks", "chromosomes" and "learners" (the fittest of each by the
      mean over graphs), "return" (the mean of all roll-outs), means of `sac.update` over the steps, and "env_steps",
      the number of roll-outs; and the actions `[rollouts, g, n, h]` int32 of all `settings.rollouts` roll-outs.
    """
    play_key, draw_key, evolve_key, learn_key = jax.random.split(key, 4)
    learners, population, players = state.learners, state.population, state.population.networks
    drawn = jnp.zeros(0, jnp.int32)
    if learners is not None:
        drawn = draw_learners(draw_key, learners.returns, settings.noisy + settings.greedy)
        actors = jax.tree.map(lambda leaf: leaf[drawn], learners.states.params["actor"])
        both = (actors,) if players is None else (players, actors)
        players = jax.tree.map(lambda *parts: jnp.concatenate(parts), *both)
    # roll-outs
    decide = functools.partial(_decide, settings, networks, players, population.chromosomes)
    episodes = play(domain, decide, play_key, instances, settings.rollouts)
    fitness = episodes.reward.mean(-1)  # [k + rollouts of learners]
    own_fitness, metrics = fitness[: settings.population], _rewards(settings, fitness)
    policy, chosen = _fittest(population, own_fitness), None
    if settings.population:  # evolution
        priors = None
        if settings.networks and settings.chromosomes:
            priors = jax.nn.softmax(episodes.logits[: settings.networks])
        population, chosen = evolution.next_generation(settings.evolution, evolve_key, population, own_fitness, priors)
    if learners is not None:  # gradient steps
        returns = record_returns(learners.returns, drawn, fitness[settings.population :])
        replay = make_buffer(settings).add(learners.replay, transitions(episodes, endless=settings.endless))
        learners = Learners(learners.states, returns, replay)
        learners, losses = train_learners(settings, domain, networks, learners, learn_key, instances, mesh)
        metrics |= losses
        newcomers = learners.states.params["actor"]
        if settings.networks and settings.migrate_every and chosen is not None:  # migration
            mixed = evolution.migrate(population, own_fitness, chosen, newcomers)
            due = (state.step + 1) % settings.migrate_every == 0
            population = jax.tree.map(lambda new, old: jnp.where(due, new, old), mixed, population)
        policy = jax.tree.map(lambda leaf: leaf[0], newcomers) if policy is None else policy
    best = _update_best(state.best, episodes)
    evaluations = state.evaluations + jnp.int32(episodes.reward.size)
    metrics |= {"best": best.reward.mean(), "return": fitness.mean(), "env_steps": jnp.float32(episodes.reward.size)}
    return State({"policy": policy}, population, learners, best, evaluations, state.step + 1), metrics, episodes.action


def shardings(settings: Settings, mesh: Mesh) -> State:
    """Returns the sharding of each part of a state; parts that the number of devices does not divide are replicated."""
    copies = NamedSharding(mesh, PartitionSpec())

    def shard(count: int, axis: int) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS)) if count % mesh.size == 0 else copies

    networks = shard(settings.networks, 0) if settings.networks else None
    chromosomes: Any = shard(settings.chromosomes, 0) if settings.chromosomes else None
    replay: Any = TrajectoryBufferState(experience=shard(settings.replay, 1), current_index=copies, is_full=copies)
    learners: Any = Learners(copies, copies, replay) if settings.has_learners else None  # type: ignore[arg-type]
    parts: Any = copies
    return State(parts, Population(networks, chromosomes), learners, parts, parts, parts)


def _with_first(stacked: Any, policy: Any) -> Any:
    """Replaces the first of stacked networks by the given parameters, if any."""
    return stacked if policy is None else jax.tree.map(lambda leaf, new: leaf.at[0].set(new), stacked, policy)


def init_returns(learners: int) -> Returns:
    """Creates return statistics before the first roll-out."""
    return Returns(jnp.zeros(learners), jnp.zeros(learners))


def make_buffer(settings: Settings) -> Any:
    """Returns flashbax's functions for the replay buffer."""
    return flashbax.make_item_buffer(settings.replay, 1, settings.batch, add_batches=True)


def _first(population: Population, learners: Learners | None) -> Any:
    """Returns the first network of the population, or else of the learners; None if there are neither."""
    networks = population.networks
    if networks is None and learners is not None:
        networks = learners.states.params["actor"]
    return jax.tree.map(lambda leaf: leaf[0], networks)


def draw_learners(key: jax.Array, returns: Returns, count: int) -> jax.Array:
    """Draws learners for the next roll-outs, `[count]` int32 indices, with probabilities proportional to

      v + c sqrt(log(plays of all) / plays),  v the mean return, scaled from 0 (lowest learner) to 1 (highest).

    A learner without roll-outs counts as one with a single roll-out.
    """
    plays = jnp.maximum(returns.plays, 1.0)
    spread = returns.value.max() - returns.value.min()
    value = (returns.value - returns.value.min()) / jnp.maximum(spread, 1e-6)
    bound = value + _EXPLORATION * jnp.sqrt(jnp.log(plays.sum() + 1) / plays)
    return jax.random.categorical(key, jnp.log(bound), shape=(count,)).astype(jnp.int32)


def _decide(
    settings: Settings,
    networks: sac.ActorCritic,
    players: Any,
    chromosomes: evolution.Chromosomes | None,
    key: jax.Array,
    observation: Any,
) -> tuple[jax.Array, jax.Array]:
    """Computes all roll-outs' actions, and the logits of `players`: the population's networks, then the learners.

    Networks and greedy learners take the most likely options, chromosomes sample, noisy learners explore.
    """
    chromosome_key, noise_key = jax.random.split(key)
    m, k = settings.networks, settings.population
    if chromosomes is not None:
        drawn = jax.random.categorical(chromosome_key, evolution.logits(chromosomes)).astype(jnp.int32)
        if players is None:
            return drawn, drawn
    network_observation = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:m], leaf[k:]]), observation)
    logits = jax.vmap(jax.vmap(networks.actor.apply, (None, 0)))(players, network_observation)
    likeliest, noisy = logits.argmax(-1).astype(jnp.int32), slice(m, m + settings.noisy)
    parts = [likeliest[:m]]
    if chromosomes is not None:
        parts.append(drawn)
    parts.append(explore(noise_key, logits[noisy], settings.noise))
    return jnp.concatenate([*parts, likeliest[m + settings.noisy :]]), logits


def _rewards(settings: Settings, fitness: jax.Array) -> dict[str, jax.Array]:
    """Returns the highest fitness among the networks, among the chromosomes and among the learners, by these names."""
    ends = {"networks": settings.networks, "chromosomes": settings.population, "learners": settings.rollouts}
    parts, begin = {}, 0
    for name, end in ends.items():
        if end > begin:
            parts[name] = fitness[begin:end].max()
        begin = end
    return parts


def _fittest(population: Population, fitness: jax.Array) -> Any:
    """Returns the fittest network; None if the population has no networks."""
    m, _ = population.sizes
    return jax.tree.map(lambda leaf: leaf[fitness[:m].argmax()], population.networks) if m else None


def record_returns(returns: Returns, learner: jax.Array, reward: jax.Array) -> Returns:
    """Updates return statistics with the rewards `[count]` of roll-outs by `learner` `[count]`."""
    count = jnp.zeros_like(returns.plays).at[learner].add(1.0)
    total = jnp.zeros_like(returns.value).at[learner].add(reward)
    mean = total / jnp.maximum(count, 1.0)
    moving_mean = jnp.where(returns.plays > 0, (1 - _MEMORY) * returns.value + _MEMORY * mean, mean)
    return Returns(jnp.where(count > 0, moving_mean, returns.value), returns.plays + count)


def train_learners(
    settings: Settings,
    domain: Domain,
    networks: sac.ActorCritic,
    learners: Learners,
    key: jax.Array,
    instances: Instance,
    mesh: Mesh | None,
) -> tuple[Learners, dict[str, jax.Array]]:
    """Runs the gradient steps of a generation; every learner samples its own transitions.

    Args:
      settings, domain, networks, instances, mesh: see `generation`.
      learners: the portfolio and its replay.
      key: key of all random numbers.

    Returns:
      The learners, and the means of the metrics of `sac.update`.
    """
    graphs = jax.tree.leaves(instances)[0].shape[0]
    count = max(1, round(settings.gradient_steps * settings.rollouts * graphs))
    buffer, discounts = make_buffer(settings), jnp.asarray(settings.discounts, jnp.float32)

    def one(discount: jax.Array, state: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
        sample_key, update_key = jax.random.split(key)
        with jax.numpy_rank_promotion("allow"):  # flashbax adds vectors to matrices
            items = buffer.sample(learners.replay, sample_key).experience
        batch = _shard_batch(mesh, _batch(settings, domain, instances, items))
        return sac.update(settings.sac, networks, discount, state, update_key, batch)

    def step(states: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
        return jax.vmap(one)(discounts, states, jax.random.split(key, len(discounts)))

    states, metrics = jax.lax.scan(step, learners.states, jax.random.split(key, count))
    return learners._replace(states=states), {name: values.mean() for name, values in metrics.items()}


def _update_best(best: Best, episodes: Episodes) -> Best:
    """Updates the best action of each graph with these episodes."""
    place = episodes.reward.argmax(0)
    top = jnp.take_along_axis(episodes.reward, place[None], 0)[0]
    action = episodes.action[place, jnp.arange(len(place))]
    is_better = top > best.reward
    return Best(jnp.where(is_better, top, best.reward), jnp.where(is_better[:, None, None], action, best.action))


def _shard_batch(mesh: Mesh | None, batch: sac.Batch) -> sac.Batch:
    """Shards a batch along its states, or along the actions if it has only one state."""
    states, actions = batch.reward.shape
    if mesh is None or (actions if states == 1 else states) % mesh.size:
        return batch
    sharding = NamedSharding(mesh, PartitionSpec(None, AXIS) if states == 1 else PartitionSpec(AXIS))

    def place(part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), part)

    observation = batch.observation if states == 1 else place(batch.observation)
    return sac.Batch(observation, *(place(part) for part in batch[1:]))


def _batch(settings: Settings, domain: Domain, instances: Instance, items: Transition) -> sac.Batch:
    """Converts sampled transitions to a SAC batch. For a bandit with one graph they all belong to one state."""
    is_bandit = not settings.endless
    graphs = jax.tree.leaves(instances)[0].shape[0]
    states = 1 if is_bandit and graphs == 1 else settings.batch
    action = items.action.astype(jnp.int32).reshape(states, -1, *items.action.shape[1:])
    chosen = jax.tree.map(lambda leaf: leaf[items.graph[:states]], instances)
    observation = jax.vmap(domain.observe)(chosen, items.before[:states].astype(jnp.int32))
    next_observation = None if is_bandit else jax.vmap(jax.vmap(domain.observe, (None, 0)))(chosen, action)
    one_hot = jax.nn.one_hot(action, domain.options)
    reward, continues = (each.reshape(states, -1) for each in (items.reward, items.continues))
    return sac.Batch(observation, one_hot, reward, next_observation, continues)
