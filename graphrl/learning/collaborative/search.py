"""The search: its state, and a generation of it."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.learning import allocation, boltzmann, evolution, sac
from graphrl.learning.collaborative.learners import Learners, Spread, buffer_of, learned
from graphrl.learning.collaborative.settings import Settings
from graphrl.learning.evolution import Population
from graphrl.learning.rollouts import Domain, Episodes, Instance, explored, play, transitions
from graphrl.networks.sub_actions import Acted


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
        shape = (settings.chromosomes, *start.shape, domain.options)
        chromosomes = boltzmann.init(chromosome_key, shape, settings.evolution.temperature)
    if settings.has_learners:
        acted = Acted(observation, jax.nn.one_hot(start[0], domain.options))
        init_sac = functools.partial(sac.init, settings.sac, networks, acted=acted)
        states = jax.vmap(lambda key: init_sac(key=key))(jax.random.split(learner_key, len(settings.discounts)))
        states = states._replace(params=states.params | {"actor": _begun(states.params["actor"], policy)})
        blank = jax.tree.map(lambda leaf: leaf[0], transitions(_nothing(start), endless=settings.endless))
        learners = Learners(states, allocation.init(len(settings.discounts)), buffer_of(settings).init(blank))
    best = Best(jnp.full(start.shape[:1], jnp.finfo(jnp.float32).min), start)
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
    spread: Spread = lambda batch: batch,
) -> tuple[State, dict[str, jax.Array], jax.Array]:
    """Everyone plays and is remembered; evolution; gradient steps; migration.

    Args:
      settings, domain, networks, instances: as for `init`.
      state: donate it.
      key: of this generation.
      spread: what spreads a batch of transitions over devices.

    Returns:
      The state; what to record: rewards of "best" so far, "networks", "chromosomes" and "learners", the fittest of each
      on the mean of graphs; means of `sac.update` over the steps; "evaluations"; and all actions that were tried,
      `[t, k, g, n, h]` int32.
    """
    play_key, draw_key, evolve_key, learn_key, migrate_key = jax.random.split(key, 5)
    learners, population, players = state.learners, state.population, state.population.networks
    drawn = jnp.zeros(0, jnp.int32)
    if learners is not None:
        drawn = allocation.draw(draw_key, learners.returns, settings.noisy + settings.greedy)
        actors = jax.tree.map(lambda leaf: leaf[drawn], learners.states.params["actor"])
        players = actors if players is None else jax.tree.map(_joined, players, actors)
    decide = functools.partial(_decide, settings, networks, players, population.chromosomes)
    episodes = play(domain, decide, play_key, instances, settings.rollouts, settings.steps)
    fitness = episodes.reward.max(0).mean(-1)  # [k + rollouts of learners]
    own, metrics = fitness[: settings.population], _rewards(settings, fitness)
    policy, chosen = _fittest(population, own), None
    if settings.population:
        priors = None
        if settings.networks and settings.chromosomes:
            priors = boltzmann.prior_of(episodes.logits[: settings.networks], settings.evolution.seeding)
        population, chosen = evolution.next_generation(settings.evolution, evolve_key, population, own, priors)
    if learners is not None:
        returns = allocation.record(learners.returns, drawn, fitness[settings.population :])
        replay = buffer_of(settings).add(learners.replay, transitions(episodes, endless=settings.endless))
        learners = Learners(learners.states, returns, replay)
        learners, losses = learned(settings, domain, networks, learners, learn_key, instances, spread)
        metrics |= losses
        newcomers = learners.states.params["actor"]
        if settings.networks and settings.migrate_every and chosen is not None:
            mixed = evolution.migrated(settings.evolution, migrate_key, population, own, chosen, newcomers)
            due = (state.step + 1) % settings.migrate_every == 0
            population = jax.tree.map(lambda new, old: jnp.where(due, new, old), mixed, population)
        policy = jax.tree.map(lambda leaf: leaf[0], newcomers) if policy is None else policy
    best = _better(state.best, episodes)
    evaluations = state.evaluations + jnp.int32(episodes.reward.size)
    metrics |= {"best": best.reward.mean(), "evaluations": evaluations.astype(jnp.float32)}
    return State({"policy": policy}, population, learners, best, evaluations, state.step + 1), metrics, episodes.action


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


def _fittest(population: Population, fitness: jax.Array) -> Any:
    """The fittest network; None if there are none."""
    m, _ = population.sizes
    return jax.tree.map(lambda leaf: leaf[fitness[:m].argmax()], population.networks) if m else None


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
