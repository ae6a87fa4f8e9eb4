"""Evolution: selection, children and mutants, seeding and migration; it improves networks of any kind."""

import operator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import RegalInstance, make_instances
from graphrl.agents.regal.proposers import proposer
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import ProposalEnv
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.learning import evolution
from graphrl.learning.evolution import (
    Chromosomes,
    EvolutionSettings,
    Params,
    Population,
    Source,
    next_generation,
    select,
)
from graphrl.solvers.chromosomes.brkga import Parameters

SOURCES: tuple[Source, ...] = ("paper", "code")
FITNESS = jnp.asarray([0.1, 0.9, 0.3, 0.9, 0.5, 0.2, 0.8, 0.0])


def weights(count: int, seed: int = 0) -> dict[str, jax.Array]:
    """Networks with distinct entries."""
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (count, 40, 5), "bias": (count, 30)}
    return {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def chromosomes(count: int) -> Chromosomes:
    return evolution.init(jax.random.key(7), (count, 1, 6, 2, 3), 10.0)


def one(tree: Any, index: int | np.integer) -> np.ndarray:
    """An individual as a vector."""
    return np.concatenate([np.asarray(leaf[index]).ravel() for leaf in jax.tree.leaves(tree)])


def test_elites_are_the_fittest_and_parents_are_elites_and_winners() -> None:
    chosen = jax.vmap(lambda key: select(key, FITNESS, 2, 3))(jax.random.split(jax.random.key(0), 200))
    elite, kept, first, second = (np.asarray(part) for part in chosen)
    assert (elite == [False, True, False, True, False, False, False, False]).all()
    assert set(np.unique(first)) == {1, 3}
    assert kept[:, [1, 3]].all()
    winners = np.array([keeps[place] | elite[0][place] for keeps, place in zip(kept, second, strict=True)])
    assert winners.all()
    rates = kept.mean(0)
    assert (np.diff(rates[[7, 0, 5, 2, 4, 6]]) > 0).all(), "the fitter, the likelier"
    assert rates[7] < 0.05


def test_children_have_their_parents_weights() -> None:
    first, second = weights(50, 0), weights(50, 1)
    child = evolution.crossover(jax.random.key(0), first, second)
    shares = []
    for index in range(50):
        c, a, b = (one(tree, index) for tree in (child, first, second))
        from_second = c == b
        assert (from_second | (c == a)).all()
        shares.append(from_second.mean())
        assert (np.diff(from_second.astype(int)) >= 0).all(), "one cut: the first's, then the second's"
    assert 0.0 <= min(shares) < 0.1
    assert max(shares) > 0.8
    assert np.mean(shares) == pytest.approx(0.5, abs=0.12)


def test_mutants_of_the_paper_are_noisy_everywhere_and_those_of_the_code_in_few_places() -> None:
    parents = weights(200)
    noisy = evolution.mutate(jax.random.key(1), parents, 0.03, "paper")
    noise = np.asarray(noisy["kernel"] - parents["kernel"])
    assert noise.std() == pytest.approx(0.03, rel=0.05)
    few = evolution.mutate(jax.random.key(1), parents, 0.03, "code")
    changed = np.asarray(few["kernel"] != parents["kernel"]).mean((1, 2))
    assert 0 < changed.mean() < 0.05
    assert changed.max() < 0.15
    assert np.asarray(few["bias"] != parents["bias"]).mean() < 0.005


def generation(fitness: Any, settings: EvolutionSettings, seed: int) -> tuple[Population, Population, jax.Array, Any]:
    """A population of 5 networks and 3 chromosomes, the next one, the priors that networks seed, and the selection."""
    before = Population(weights(5), chromosomes(3))
    priors = jax.random.uniform(jax.random.key(5), (5, 1, 6, 2, 3))
    after, chosen = next_generation(settings, jax.random.key(seed), before, jnp.asarray(fitness), priors)
    return before, after, priors, jax.tree.map(np.asarray, chosen)


def test_elites_stay_and_without_mutation_winners_do() -> None:
    settings = EvolutionSettings(elites=0.25, mutation=1.0)
    before, after, _, chosen = generation(FITNESS, settings, 0)
    for index, elite in enumerate(chosen.elite[:5]):
        assert np.array_equal(one(after.networks, index), one(before.networks, index)) == elite
    for index, elite in enumerate(chosen.elite[5:]):
        assert np.array_equal(one(after.chromosomes, index), one(before.chromosomes, index)) == elite
    before, after, _, chosen = generation(FITNESS, EvolutionSettings(mutation=0.0), 1)
    assert 1 < chosen.kept.sum() < 8
    for place in np.flatnonzero(chosen.kept[:5]):
        assert np.array_equal(one(after.networks, place), one(before.networks, place))


@pytest.mark.parametrize("seed", range(3))
def test_a_network_seeds_the_prior_of_a_chromosomes_child(seed: int) -> None:
    """The elite is network 0; a free place of a chromosome has its prior, unless both parents are chromosomes."""
    fitness = [0.9, 0.1, 0.1, 0.1, 0.1, 0.2, 0.8, 0.1]
    before, after, priors, chosen = generation(fitness, EvolutionSettings(mutation=0.0), seed)
    assert before.chromosomes is not None
    assert after.chromosomes is not None
    assert chosen.elite.tolist() == [True] + [False] * 7
    for place in np.flatnonzero(~chosen.kept[5:]):
        np.testing.assert_array_equal(after.chromosomes.prior[place], priors[0])
        other = int(chosen.second[5 + place])
        parent = other - 5 if other >= 5 else place
        np.testing.assert_array_equal(after.chromosomes.temperature[place], before.chromosomes.temperature[parent])
    for place in np.flatnonzero(~chosen.kept[:5]):
        other = int(chosen.second[place])
        if other >= 5:  # a chromosome gives nothing to a network: the place has the elite's copy
            np.testing.assert_array_equal(one(after.networks, place), one(before.networks, 0))


def test_chromosomes_sample_by_their_temperature() -> None:
    prior = jnp.asarray([0.2, 0.5, 0.3]).reshape(1, 1, 1, 1, 3)
    cold, hot = (Chromosomes(prior, jnp.full((1, 1, 1, 1), t)) for t in (0.01, 1000.0))
    np.testing.assert_allclose(jax.nn.softmax(evolution.logits(cold)).ravel(), [0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(jax.nn.softmax(evolution.logits(hot)).ravel(), [1 / 3] * 3, atol=1e-3)


@pytest.mark.parametrize("source", SOURCES)
def test_chromosomes_cross_and_mutate(source: Source) -> None:
    first, second = chromosomes(40), jax.tree.map(lambda leaf: leaf + 1, chromosomes(40))
    child = evolution.crossover_chromosomes(jax.random.key(0), first, second)
    from_second = np.asarray(child.prior == second.prior).all((1, 3, 4))
    assert (from_second | np.asarray(child.prior == first.prior).all((1, 3, 4))).all()
    assert (np.diff(from_second.astype(int), axis=1) >= 0).all()
    np.testing.assert_array_equal(np.asarray(child.temperature == second.temperature).all((1, 3)), from_second)
    mutant = evolution.mutate_chromosomes(jax.random.key(0), first, 0.1, source)
    factor = np.asarray(mutant.temperature / first.temperature)
    assert np.asarray(mutant.temperature).min() > 0
    assert np.log(factor).mean() == pytest.approx(0.0 if source == "paper" else np.log(0.95), abs=0.02)


def test_migrants_take_the_weakest_places_and_leave_elites_alone() -> None:
    before = Population(weights(8), None)
    _, chosen = next_generation(EvolutionSettings(elites=0.25), jax.random.key(0), before, FITNESS)
    newcomers = jax.tree.map(lambda leaf: leaf + 100, weights(3, 1))

    def places_of(count: int, networks: Any) -> list[bool]:
        """Flags of the networks that `count` newcomers have changed."""
        few = Population(networks, None)
        after = evolution.migrate(few, FITNESS, chosen, jax.tree.map(lambda leaf: leaf[:count], newcomers)).networks
        places = range(len(networks["bias"]))
        return [not np.array_equal(one(after, place), one(networks, place)) for place in places]

    assert places_of(1, before.networks) == [False] * 7 + [True]
    # of these three only the second is an elite
    assert places_of(3, jax.tree.map(lambda leaf: leaf[:3], before.networks)) == [True, False, True]


def test_regals_policy_evolves() -> None:
    """Evolves REGAL's network, with BRKGA's gain by its proposals as the fitness.

    Generations share one program; on other random numbers the fittest is better than the initial policy.
    """
    settings = EvolutionSettings(strength=0.3)
    step = jax.jit(chex.assert_max_traces(next_generation, n=1), static_argnums=0)
    copies = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], 12, 0), START)
    population = evolution.mutate(jax.random.key(0), copies, 0.3, "paper")
    population = jax.tree.map(lambda many, start: many.at[0].set(start), population, START)
    best = []
    for number in range(8):
        fitness = regal_fitness(population)
        best.append(float(fitness.max()))
        fittest = jax.tree.map(operator.itemgetter(int(fitness.argmax())), population)
        population = step(settings, jax.random.key(number), Population(population, None), fitness)[0].networks
    assert best == sorted(best), "elites are never lost"
    assert best[-1] > best[0] + 0.01
    assert held_out(fittest) > held_out(START) + 0.005


_CONFIG = RegalConfig(
    problem=Problem("makespan", 2),
    evaluations=16,
    parameters=Parameters(population=10, elites=2, mutants=4),
    rounds=1,
    width=8,
)
_ENV = ProposalEnv(_CONFIG.problem, _CONFIG.evaluations, _CONFIG.parameters, _CONFIG.coding, _CONFIG.transfer_keys)
_POLICY = proposer(_CONFIG)
_GRAPHS = make_instances(_CONFIG, [regal_like(seed, num_ops=12) for seed in range(3)])


def _reward(params: Params, key: jax.Array, graph: RegalInstance) -> jax.Array:
    """Reward of one graph by one sample of the policy's proposals."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    state, _ = _ENV.reset(reset_key, graph.proposal)
    action = _POLICY.best(params, action_key, graph).action
    return _ENV.step(step_key, state, action, graph.proposal)[1].reward


def _worth(params: Params, key: jax.Array) -> jax.Array:
    """The mean reward over graphs and sixteen samples: `[]` float32."""
    keys = jax.random.split(key, (16, 3))
    return jax.vmap(jax.vmap(_reward, (None, 0, 0)), (None, 0, None))(params, keys, _GRAPHS).mean()


@jax.jit
def regal_fitness(population: Params) -> jax.Array:
    """Fitness `[m]` float32, always with the same random numbers."""
    return jax.vmap(_worth, (0, None))(population, jax.random.key(1))


@jax.jit
def held_out(params: Params) -> jax.Array:
    """Mean reward `[]` float32, with other random numbers and two keys."""
    return jnp.stack([_worth(params, jax.random.key(seed)) for seed in (2, 3)]).mean()


START: Params = _POLICY.init(jax.random.key(0), jax.tree.map(lambda leaf: leaf[0], _GRAPHS))
