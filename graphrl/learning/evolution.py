"""Evolution of network weights and of Boltzmann chromosomes (EGRL, algorithm 2, lines 8 to 25, 37).

It works for any `Network` and any fitness. Individuals are the output of `jax.vmap` over `init`, with a leading axis on
every array. A generation is one pure function of the individuals and their fitness, without a loop over individuals.

- `select` selects elites and the winners of tournaments (lines 9 to 12).
- `Chromosomes` have a prior and a temperature for every choice of one graph's ops (section 3.2, appendix E).
- `next_generation` fills the k places (indices) of the population: first the m networks, then the b chromosomes. A
  place keeps its encoding, network or chromosome, as in the published code. The paper leaves this open.

Letters: k individuals, m networks, b chromosomes, g graphs, n ops, h choices of an op, o options of each.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Source = Literal["paper", "code"]
_COLDEST = 1e-3
_SPAN = 0.01  # ratio of the lowest to the highest initial temperature: the code's 0.1 / 10
_DRIFT = 0.95  # mean factor by which the code's mutation changes temperatures
Params = Any
# Mutation of weights in the published code.
_ENTRIES, _RELATIVE = 0.05, 0.1  # at most this share of a tensor's entries; deviation, relative to an entry
_SUPER, _SUPER_RELATIVE = 0.05, 10.0  # probability of a large mutation, and its deviation
_RESET, _RESET_DEVIATION = 0.02, 0.1  # probability that an entry is resampled, and its deviation
_TENSOR, _VECTOR = 0.75, 0.02  # probability that a matrix, or a vector, is mutated


class Chromosomes(NamedTuple):
    """Policies without observations: an option is drawn with probability softmax(prior / temperature)."""

    prior: jax.Array  # [b, g, n, h, o] float32
    temperature: jax.Array  # [b, g, n, h] float32, above 0


def init(key: jax.Array, shape: tuple[int, ...], hottest: float) -> Chromosomes:
    """Draws chromosomes of shape [b, g, n, h, o]: priors that sum to 1, temperatures uniform up to `hottest`."""
    prior_key, temperature_key = jax.random.split(key)
    raw = jax.random.uniform(prior_key, shape)
    temperature = jax.random.uniform(temperature_key, shape[:-1], minval=_SPAN * hottest, maxval=hottest)
    return Chromosomes(raw / raw.sum(-1, keepdims=True), temperature)


def logits(chromosomes: Chromosomes) -> jax.Array:
    """Computes the chromosomes' logits of the options: `[b, g, n, h, o]` float32."""
    return chromosomes.prior / chromosomes.temperature[..., None]


@dataclasses.dataclass(frozen=True)
class EvolutionSettings:
    """Settings of evolution; "the code's" marks defaults of EGRL's published code.

    Attributes:
      elites: share of the population that survives unchanged, at least one individual (the code's).
      tournament: number of individuals per tournament (the code's).
      mutation: probability of mutation for every individual except elites (the code's).
      strength: standard deviation of the noise on weights ("paper"; the number is ours).
      chromosome_strength: standard deviation of the noise on chromosomes (the code's).
      temperature: highest initial temperature of chromosomes (the code's); the lowest is a hundredth of it.
      noise: "paper", on all of the weights; "code" (the published code's), on few of them: see `mutate` and
        `mutate_chromosomes`.
    """

    elites: float = 0.1
    tournament: int = 3
    mutation: float = 0.85
    strength: float = 0.02
    chromosome_strength: float = 0.1
    temperature: float = 10.0
    noise: Source = "paper"


class Population(NamedTuple):
    """Individuals of one or both encodings; None for an encoding without individuals."""

    networks: Params  # [m, ...] each
    chromosomes: Chromosomes | None  # [b, ...] each

    @property
    def sizes(self) -> tuple[int, int]:
        """m and b, the numbers of networks and of chromosomes."""
        counts = [leaves[0].shape[0] if (leaves := jax.tree.leaves(part)) else 0 for part in self]
        return counts[0], counts[1]


class Selection(NamedTuple):
    """Results of selection for k individuals, by place."""

    elite: jax.Array  # [k] bool, True for the fittest, which stay unchanged
    kept: jax.Array  # [k] bool, True for elites and winners of tournaments, which keep their places
    first: jax.Array  # [k] int32, first parent of a child for this place: an elite
    second: jax.Array  # [k] int32, second parent: a winner, which may be an elite


def next_generation(
    settings: EvolutionSettings,
    key: jax.Array,
    population: Population,
    fitness: jax.Array,
    priors: jax.Array | None = None,
) -> tuple[Population, Selection]:
    """Creates the next generation by selection, crossover and mutation.

    A free place receives a child of an elite and a winner (see `select`). If both have the place's encoding, the child
    is their crossover. If only one has, the child is that one; in a chromosome's place, its prior comes from the other
    parent, a network. If neither has, a chromosome's place keeps its temperatures and takes the first network's prior.
    A network's place then keeps its weights, since a chromosome cannot be converted to a network.

    Args:
      settings: settings of evolution.
      key: key of this generation.
      population: k individuals.
      fitness: `[k]` float32, larger is better.
      priors: `[m, g, n, h, o]` float32, the networks' option probabilities, if there are both encodings.

    Returns:
      The next population, and the result of selection.
    """
    (m, b), k = population.sizes, fitness.shape[0]
    choose_key, mutate_key, network_key, chromosome_key = jax.random.split(key, 4)
    chosen = select(choose_key, fitness, max(1, round(settings.elites * k)), settings.tournament)
    change = jax.random.bernoulli(mutate_key, settings.mutation, (k,)) & ~chosen.elite
    networks, chromosomes = population
    if m:
        networks = _next_networks(settings, network_key, networks, _part(chosen, slice(m)), change[:m])
    if chromosomes is not None and b:
        part = _part(chosen, slice(m, None))
        chromosomes = _next_chromosomes(settings, chromosome_key, chromosomes, part, change[m:], m, priors)
    return Population(networks, chromosomes), chosen


def migrate(population: Population, fitness: jax.Array, chosen: Selection, newcomers: Params) -> Population:
    """Replaces the weakest networks of the population, except elites, by newcomers `[l, ...]`."""
    m, _ = population.sizes
    count = jax.tree.leaves(newcomers)[0].shape[0]
    places = jnp.argsort(jnp.where(chosen.elite[:m], jnp.inf, fitness[:m]))[:count]
    is_elite = chosen.elite[places]  # if there are more newcomers than networks that are not elites
    replacements = jax.tree.map(lambda old, new: _where(is_elite, old[places], new), population.networks, newcomers)
    networks = jax.tree.map(lambda old, new: old.at[places].set(new), population.networks, replacements)
    return population._replace(networks=networks)


def select(key: jax.Array, fitness: jax.Array, elites: int, tournament: int) -> Selection:
    """Selects the `elites` fittest, the winners of one tournament per other place, and parents for each place.

    A winner occupies only its own place, however often it wins. The places left free in the paper's set of winners
    receive children of an elite and a winner. An elite that wins has a copy among these children if it is both parents.

    Args:
      key: key of this generation.
      fitness: `[k]` float32, larger is better; ties to the lower place.
      elites: number of elites, at least 1.
      tournament: number of individuals per tournament, drawn with replacement.
    """
    draw_key, first_key, second_key = jax.random.split(key, 3)
    k = fitness.shape[0]
    order = jnp.argsort(-fitness, stable=True).astype(jnp.int32)
    samples = jax.random.randint(draw_key, (k - elites, tournament), 0, k).min(1)  # ranks
    winners = order[samples]
    elite = jnp.zeros(k, bool).at[order[:elites]].set(True)
    is_winner = jnp.zeros(k, bool).at[winners].set(True)
    first = order[jax.random.randint(first_key, (k,), 0, elites)]
    second = jax.random.categorical(second_key, jnp.where(is_winner, 0.0, -jnp.inf), shape=(k,)).astype(jnp.int32)
    return Selection(elite, elite | is_winner, first, second)


def _next_networks(
    settings: EvolutionSettings, key: jax.Array, networks: Params, chosen: Selection, change: jax.Array
) -> Params:
    """Creates the next m networks. `chosen` and `change` are `[m]`; parents are indices of all k individuals."""
    cross_key, mutate_key = jax.random.split(key)
    m = change.shape[0]
    own = jnp.arange(m, dtype=jnp.int32)
    first, second = _matching_parents(chosen.first, chosen.second, chosen.first < m, chosen.second < m, own)
    child = crossover(cross_key, _gather(networks, first), _gather(networks, second))
    child = _where(chosen.kept, networks, child)
    return _where(change, mutate(mutate_key, child, settings.strength, settings.noise), child)


def _part(chosen: Selection, places: slice) -> Selection:
    return Selection(*(of_all[places] for of_all in chosen))


def _next_chromosomes(
    settings: EvolutionSettings,
    key: jax.Array,
    chromosomes: Chromosomes,
    chosen: Selection,
    change: jax.Array,
    m: int,
    priors: jax.Array | None,
) -> Chromosomes:
    """Creates the next b chromosomes. `chosen` and `change` are `[b]`; parents are indices of all k individuals."""
    cross_key, mutate_key = jax.random.split(key)
    own = jnp.arange(change.shape[0], dtype=jnp.int32)
    alike = chosen.first >= m, chosen.second >= m
    first, second = _matching_parents(chosen.first - m, chosen.second - m, *alike, own)
    child = crossover_chromosomes(cross_key, _gather(chromosomes, first), _gather(chromosomes, second))
    if priors is not None:
        parent = jnp.where(alike[0], jnp.minimum(chosen.second, m - 1), chosen.first)
        child = child._replace(prior=_where(alike[0] & alike[1], child.prior, priors[parent]))
    child = _where(chosen.kept, chromosomes, child)
    noisy = mutate_chromosomes(mutate_key, child, settings.chromosome_strength, settings.noise)
    result: Chromosomes = _where(change, noisy, child)
    return result


def _where(condition: jax.Array, yes: Any, no: Any) -> Any:
    """Selects each individual from `yes` or `no`, two stacks of individuals."""
    return jax.tree.map(lambda a, b: jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no)


def _matching_parents(
    first: jax.Array, second: jax.Array, first_fits: jax.Array, second_fits: jax.Array, own: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns parents with the place's encoding: both, the one that has it twice, or the place's individual twice."""
    left = jnp.where(first_fits, first, jnp.where(second_fits, second, own))
    return left, jnp.where(second_fits, second, left)


def crossover(key: jax.Array, first: Params, second: Params) -> Params:
    """Creates children `[m]` of parents `[m]` by single-point crossover on the vector of all weights."""
    leaves, tree = jax.tree.flatten(first)
    others, m = jax.tree.leaves(second), leaves[0].shape[0]
    sizes = [leaf[0].size for leaf in leaves]
    cut = jax.random.randint(key, (m,), 0, sum(sizes) + 1)
    children, start = [], 0
    for leaf, other, size in zip(leaves, others, sizes, strict=True):
        early = (start + jnp.arange(size))[None] < cut[:, None]
        children.append(jnp.where(early.reshape(leaf.shape), leaf, other))
        start += size
    return jax.tree.unflatten(tree, children)


def _gather(stacked: Any, places: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[places], stacked)


def mutate(key: jax.Array, networks: Params, strength: float, source: Source) -> Params:
    """Adds noise to all networks: "paper" adds N(0, strength^2) to every weight, "code" relative noise to a few."""
    leaves, tree = jax.tree.flatten(networks)
    if source == "code":
        keys = jax.random.split(key, len(leaves))
        return jax.tree.unflatten(tree, [_mutate_sparsely(*pair) for pair in zip(keys, leaves, strict=True)])
    sizes = np.cumsum([leaf[0].size for leaf in leaves])
    # one draw for all: separate draws for every array take many times as long to compile
    noise = jnp.split(strength * jax.random.normal(key, (len(leaves[0]), int(sizes[-1]))), sizes[:-1], 1)
    noisy = [leaf + part.reshape(leaf.shape) for leaf, part in zip(leaves, noise, strict=True)]
    return jax.tree.unflatten(tree, noisy)


def crossover_chromosomes(key: jax.Array, first: Chromosomes, second: Chromosomes) -> Chromosomes:
    """Creates children `[b]`: the ops before a random one from parents `first` `[b]`, the others from `second`."""
    b, n = first.prior.shape[0], first.prior.shape[2]
    cut = jax.random.randint(key, (b, 1), 0, n + 1)
    early = jnp.arange(n)[None] < cut

    def mix(a: jax.Array, c: jax.Array) -> jax.Array:
        return jnp.where(early.reshape(b, 1, n, *[1] * (a.ndim - 3)), a, c)

    return jax.tree.map(mix, first, second)


def mutate_chromosomes(key: jax.Array, chromosomes: Chromosomes, strength: float, source: Source) -> Chromosomes:
    """Adds noise to all chromosomes.

    "paper" adds N(0, strength^2) to priors; temperatures, which must stay above 0, are multiplied by the exponential of
    such noise (ours). "code" multiplies priors by N(1, strength^2) and temperatures by N(0.95, strength^2):
    temperatures decrease over time.
    """
    prior_key, temperature_key = jax.random.split(key)
    noise = strength * jax.random.normal(prior_key, chromosomes.prior.shape)
    temperature_noise = strength * jax.random.normal(temperature_key, chromosomes.temperature.shape)
    if source == "code":
        prior, factor = chromosomes.prior * (1 + noise), _DRIFT + temperature_noise
    else:
        prior, factor = chromosomes.prior + noise, jnp.exp(temperature_noise)
    return Chromosomes(prior, jnp.maximum(chromosomes.temperature * factor, _COLDEST))


def _mutate_sparsely(key: jax.Array, leaf: jax.Array) -> jax.Array:
    tensor_key, share_key, entry_key, kind_key, noise_key = jax.random.split(key, 5)
    ones = (leaf.shape[0], *[1] * (leaf.ndim - 1))
    is_mutated = jax.random.bernoulli(tensor_key, _TENSOR if leaf.ndim > 2 else _VECTOR, ones)
    share = jax.random.uniform(share_key, ones, maxval=_ENTRIES)
    entries = is_mutated & (jax.random.uniform(entry_key, leaf.shape) < share)
    kind, noise = jax.random.uniform(kind_key, leaf.shape), jax.random.normal(noise_key, leaf.shape)
    strength = jnp.where(kind < _SUPER, _SUPER_RELATIVE, _RELATIVE)
    changed = jnp.where(kind > 1 - _RESET, _RESET_DEVIATION * noise, leaf * (1 + strength * noise))
    return jnp.where(entries, changed, leaf)
