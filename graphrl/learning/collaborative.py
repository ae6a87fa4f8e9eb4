"""Evolution and policy gradient that help one another (EGRL, algorithm 2; CERL, Khadka et al. 2019).

A population of networks and of Boltzmann chromosomes plays; all that it does goes into one replay; learners are trained
on that by SAC, play too, and migrate into the population. A generation is one pure function of a state, for any domain
and networks.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flashbax
import jax
import jax.numpy as jnp

from graphrl.learning import allocation, boltzmann, evolution, sac
from graphrl.learning.evolution import EvolutionSettings, Population
from graphrl.learning.rollouts import Domain, Episodes, Exploration, Instance, Transition, explored, play, transitions
from graphrl.learning.sac import SacSettings
from graphrl.networks.sub_actions import Acted


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of one search; the numbers are those of EGRL's table 2 and of its code.

    Attributes:
      networks, chromosomes: of the population; with none of both, learners are alone.
      greedy, noisy: roll-outs of learners in a generation; with none of both, evolution is alone.
      exploration, noise: of noisy roll-outs, see `rollouts.explored`.
      steps: of an episode.
      endless: whether values go on after an episode's last step, as in the published code, which has episodes of one
        step and a discount of 0.99 all the same; else an episode of one step is a bandit's.
      discounts: of each learner: CERL's portfolio; EGRL has one learner.
      replay: transitions that are remembered.
      batch: transitions of a gradient step.
      gradient_steps: of every learner for each step in the environment.
      migrate_every: generations; 0 for never.
      evolution, sac: see there.
    """

    networks: int = 16
    chromosomes: int = 4
    greedy: int = 1
    noisy: int = 1
    exploration: Exploration = "gaussian"
    noise: float = 0.2
    steps: int = 1
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
        """k: networks, then chromosomes."""
        return self.networks + self.chromosomes

    @property
    def rollouts(self) -> int:
        """Of a generation on every graph: the population's, then those of learners, the noisy ones first."""
        return self.population + self.noisy + self.greedy

    @property
    def has_learners(self) -> bool:
        """Whether evolution is not alone."""
        return self.noisy + self.greedy > 0


class Learners(NamedTuple):
    """The portfolio and what it learns from."""

    states: sac.State  # [l, ...] each
    returns: allocation.Returns
    replay: Any  # flashbax's, of `Transition`


class Best(NamedTuple):
    """The best that anyone has done."""

    reward: jax.Array  # [g] float32
    action: jax.Array  # [g, n, h] int32


class State(NamedTuple):
    """All that a search changes: one pytree of arrays, so that a checkpoint goes on to the same bits."""

    params: dict[str, Any]  # "policy": the network to deploy, the fittest of the last generation
    population: Population
    learners: Learners | None  # None where evolution is alone
    best: Best
    evaluations: jax.Array  # [] int32, steps in the environment
    step: jax.Array  # [] int32, generations


def init(
    settings: Settings,
    domain: Domain,
    networks: sac.ActorCritic,
    instances: Instance,
    key: jax.Array,
    policy: Any = None,
) -> State:
    """A new population and new learners.

    Args:
      settings, domain: of the search.
      networks: an actor, for individuals and learners, and a critic.
      instances: `[g, ...]` each, the graphs; those of `generation` are the same.
      key: of all that is random.
      policy: parameters that the first network and the first learner begin with; None for new ones.
    """
    network_key, chromosome_key, learner_key = jax.random.split(key, 3)
    start = jax.vmap(domain.start)(instances)
    observation = domain.observe(*jax.tree.map(lambda leaf: leaf[0], (instances, start)))
    individuals = chromosomes = learners = None
    if settings.networks:
        init_all = jax.vmap(networks.actor.init, (0, None))
        individuals = _begun(init_all(jax.random.split(network_key, settings.networks), observation), policy)
    if settings.chromosomes:
        chromosomes = boltzmann.init(chromosome_key, (settings.chromosomes, *start.shape, domain.options))
    if settings.has_learners:
        acted = Acted(observation, jax.nn.one_hot(start[0], domain.options))
        init_sac = functools.partial(sac.init, settings.sac, networks, acted=acted)
        states = jax.vmap(lambda key: init_sac(key=key))(jax.random.split(learner_key, len(settings.discounts)))
        states = states._replace(params=states.params | {"actor": _begun(states.params["actor"], policy)})
        blank = jax.tree.map(lambda leaf: leaf[0], transitions(_nothing(start), endless=settings.endless))
        learners = Learners(states, allocation.init(len(settings.discounts)), _buffer(settings).init(blank))
    best = Best(jnp.full(start.shape[:1], -jnp.inf, jnp.float32), start)
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
) -> tuple[State, dict[str, jax.Array]]:
    """Everyone plays and is remembered; evolution; gradient steps; migration.

    Args:
      settings, domain, networks, instances: as for `init`.
      state: donate it.
      key: of this generation.

    Returns:
      The state, and what to record: rewards of "best" so far, "networks", "chromosomes" and "learners", the fittest of
      each on the mean of graphs; means of `sac.update` over the steps; "evaluations".
    """
    play_key, draw_key, evolve_key, learn_key, migrate_key = jax.random.split(key, 5)
    learners, players, drawn = state.learners, state.population.networks, None
    if learners is not None:
        drawn = allocation.draw(draw_key, learners.returns, settings.noisy + settings.greedy)
        actors = jax.tree.map(lambda leaf: leaf[drawn], learners.states.params["actor"])
        players = actors if players is None else jax.tree.map(_joined, players, actors)
    decide = functools.partial(_decide, settings, networks, players, state.population.chromosomes)
    episodes = play(domain, decide, play_key, instances, settings.rollouts, settings.steps)
    fitness = episodes.reward.max(0).mean(-1)  # [k + rollouts of learners]
    metrics = _rewards(settings, fitness)
    population, chosen, policy = state.population, None, state.params["policy"]
    if settings.population:
        priors = None
        if settings.networks and settings.chromosomes:
            priors = boltzmann.prior_of(episodes.logits[: settings.networks], settings.evolution.seeding)
        own = fitness[: settings.population]
        if settings.networks:
            fittest = own[: settings.networks].argmax()
            policy = jax.tree.map(lambda leaf: leaf[fittest], population.networks)
        population, chosen = evolution.next_generation(settings.evolution, evolve_key, population, own, priors)
    if learners is not None and drawn is not None:
        returns = allocation.record(learners.returns, drawn, fitness[settings.population :])
        steps = transitions(episodes, endless=settings.endless)
        replay = _buffer(settings).add(learners.replay, steps)
        learners, losses = _learned(
            settings, domain, networks, Learners(learners.states, returns, replay), learn_key, instances
        )
        metrics |= losses
        if settings.networks and settings.migrate_every and chosen is not None:
            newcomers = learners.states.params["actor"]
            mixed = evolution.migrated(settings.evolution, migrate_key, population, own, chosen, newcomers)
            due = (state.step + 1) % settings.migrate_every == 0
            population = jax.tree.map(lambda new, old: jnp.where(due, new, old), mixed, population)
        if not settings.networks:
            policy = _first(population, learners)
    best = _better(state.best, episodes)
    evaluations = state.evaluations + jnp.int32(episodes.reward.size)
    metrics |= {"best": best.reward.mean(), "evaluations": evaluations.astype(jnp.float32)}
    return State({"policy": policy}, population, learners, best, evaluations, state.step + 1), metrics


def _decide(
    settings: Settings,
    networks: sac.ActorCritic,
    players: Any,
    chromosomes: boltzmann.Chromosomes | None,
    key: jax.Array,
    observation: Any,
) -> tuple[jax.Array, jax.Array]:
    """Actions of all, and the logits of `players`: the population's networks, then the learners.

    Networks and greedy learners take the likeliest options, chromosomes sample, noisy learners explore.
    """
    chromosome_key, noise_key = jax.random.split(key)
    m, k = settings.networks, settings.population
    if chromosomes is not None:
        drawn = jax.random.categorical(chromosome_key, boltzmann.logits(chromosomes)).astype(jnp.int32)
        if players is None:
            return drawn, drawn
    seen = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:m], leaf[k:]]), observation)
    logits = jax.vmap(jax.vmap(networks.actor.apply, (None, 0)))(players, seen)
    likeliest, noisy = logits.argmax(-1).astype(jnp.int32), slice(m, m + settings.noisy)
    parts = [likeliest[:m]]
    if chromosomes is not None:
        parts.append(drawn)
    parts.append(explored(noise_key, logits[noisy], settings.exploration, settings.noise))
    return jnp.concatenate([*parts, likeliest[m + settings.noisy :]]), logits


def _learned(
    settings: Settings,
    domain: Domain,
    networks: sac.ActorCritic,
    learners: Learners,
    key: jax.Array,
    instances: Instance,
) -> tuple[Learners, dict[str, jax.Array]]:
    """The gradient steps of a generation; every learner draws its own transitions."""
    graphs = jax.tree.leaves(instances)[0].shape[0]
    count = round(settings.gradient_steps * settings.rollouts * settings.steps * graphs)
    buffer, discounts = _buffer(settings), jnp.asarray(settings.discounts, jnp.float32)

    def one(discount: jax.Array, state: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
        sample_key, update_key = jax.random.split(key)
        with jax.numpy_rank_promotion("allow"):  # flashbax adds vectors to matrices
            items = buffer.sample(learners.replay, sample_key).experience
        batch = _batch(settings, domain, instances, items)
        return sac.update(settings.sac, networks, discount, state, update_key, batch)

    def step(states: sac.State, key: jax.Array) -> tuple[sac.State, dict[str, jax.Array]]:
        return jax.vmap(one)(discounts, states, jax.random.split(key, len(discounts)))

    states, metrics = jax.lax.scan(step, learners.states, jax.random.split(key, count))
    return learners._replace(states=states), {name: values.mean() for name, values in metrics.items()}


def _batch(settings: Settings, domain: Domain, instances: Instance, items: Transition) -> sac.Batch:
    """Sampled transitions as SAC takes them. In a bandit's problem with one graph they are all of one state."""
    is_bandit = settings.steps == 1 and not settings.endless
    graphs = jax.tree.leaves(instances)[0].shape[0]
    states = 1 if is_bandit and graphs == 1 else settings.batch
    action = items.action.astype(jnp.int32).reshape(states, -1, *items.action.shape[1:])
    chosen = jax.tree.map(lambda leaf: leaf[items.graph[:states]], instances)
    observation = jax.vmap(domain.observe)(chosen, items.before[:states].astype(jnp.int32))
    following = None if is_bandit else jax.vmap(jax.vmap(domain.observe, (None, 0)))(chosen, action)
    one_hot = jax.nn.one_hot(action, domain.options)
    reward, continues = (each.reshape(states, -1) for each in (items.reward, items.continues))
    return sac.Batch(observation, one_hot, reward, following, continues)


def _rewards(settings: Settings, fitness: jax.Array) -> dict[str, jax.Array]:
    """The fittest of each kind."""
    ends = {"networks": settings.networks, "chromosomes": settings.population, "learners": settings.rollouts}
    parts, start = {}, 0
    for name, end in ends.items():
        if end > start:
            parts[name] = fitness[start:end].max()
        start = end
    return parts


def _better(best: Best, episodes: Episodes) -> Best:
    """The best until now and of these episodes, graph by graph."""
    t, k, g = episodes.reward.shape
    reward = episodes.reward.reshape(t * k, g)
    place = reward.argmax(0)
    top = jnp.take_along_axis(reward, place[None], 0)[0]
    action = episodes.action.reshape(t * k, g, *episodes.action.shape[3:])[place, jnp.arange(g)]
    is_better = top > best.reward
    return Best(jnp.where(is_better, top, best.reward), jnp.where(is_better[:, None, None], action, best.action))


def _buffer(settings: Settings) -> Any:
    return flashbax.make_item_buffer(settings.replay, 1, settings.batch, add_batches=True)


def _begun(stacked: Any, policy: Any) -> Any:
    """The first of some networks with given parameters."""
    return stacked if policy is None else jax.tree.map(lambda leaf, new: leaf.at[0].set(new), stacked, policy)


def _first(population: Population, learners: Learners | None) -> Any:
    """The first network, of the population or else of the learners; with neither there is no policy."""
    networks = population.networks
    if networks is None and learners is not None:
        networks = learners.states.params["actor"]
    return jax.tree.map(lambda leaf: leaf[0], networks)


def _nothing(start: jax.Array) -> Episodes:
    """Episodes of the shapes that play gives, of one step and one individual."""
    action = start[None, None]
    return Episodes(action, action, jnp.zeros(action.shape[:3]), None)


def _joined(first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.concatenate([first, second])
