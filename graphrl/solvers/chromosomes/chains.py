"""Chains of solutions, each a walk that tries several moves a step: the core of annealing.

In a step of a chain, `tries` neighbours are made and costed, one of them is picked with Boltzmann weights, and it
replaces the chain's solution by Metropolis' rule. Where few moves are accepted, several tries a step go nearly as far
as as many steps of one, at a fraction of the time.

What walks is *energy*, whose differences are relative: the logarithm of the objective and, under a memory limit, a
penalty for the excess. What is kept is the best by `costs.device.evaluate`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphrl.costs import exact
from graphrl.costs.device.decisions import DeviceProblem, num_genes, to_genes
from graphrl.costs.device.evaluate import DeviceCosts, measured, ranked
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph
from graphrl.random_bits import random_words, unit_interval
from graphrl.solvers.chromosomes.brkga_solver import chromosome
from graphrl.solvers.chromosomes.neighbourhood import WORDS, Mix, Solution, from_order, mutate, to_decisions

PENALTY = 5.0  # an excess of a hundredth of the memory limit weighs as much as a makespan that is 5% longer
_LEAST = 1e-30  # stands in for an objective of 0
_COLDEST = 1e-9  # temperature, below which float32 knows no differences


class Chains(NamedTuple):
    """C chains on one graph, and the best solution that any of them met."""

    solution: Solution  # of C lanes
    energy: jax.Array  # [C] float32; inf where the solution is not costed yet
    genes: jax.Array  # [k] float32, the best
    value: jax.Array  # [] float32, its fitness
    key: jax.Array  # typed
    step: jax.Array  # [] int32


def start(
    graph: PaddedGraph,
    solution: Solution,
    devices: int,
    key: jax.Array,
    genes: jax.Array | None = None,
    value: float = jnp.inf,
) -> Chains:
    """Chains at `solution`, which the first step costs; `genes` `[k]` of fitness `value` is the best until beaten."""
    if genes is None:
        genes = jnp.zeros(num_genes(graph.sizes, devices), jnp.float32)
    energy = jnp.full(solution.placement.shape[-1], jnp.inf, jnp.float32)
    return Chains(solution, energy, genes, jnp.float32(value), key, jnp.int32(0))


def advance(
    chains: Chains, graph: PaddedGraph, problem: DeviceProblem, mix: Mix, tries: int, temperature: jax.Array
) -> Chains:
    """One step of every chain.

    Args:
      chains: C of them.
      graph: a batch of one graph.
      problem: what solutions are for.
      mix: static.
      tries: neighbours of each chain; C * tries solutions are costed. Static.
      temperature: `[]` float32, of relative differences.
    """
    count = chains.energy.shape[0]
    seeds = jax.random.bits(jax.random.fold_in(chains.key, chains.step), (1, 2))
    words = random_words(seeds, WORDS + 2, count * tries)
    now = jax.tree.map(lambda x: jnp.repeat(x, tries, -1, total_repeat_length=count * tries), chains.solution)
    moved = mutate(graph, now, words[:WORDS], mix, problem.devices)
    uncosted = jnp.repeat(chains.energy, tries, total_repeat_length=count * tries) == jnp.inf
    near = jax.tree.map(lambda a, b: jnp.where(uncosted, a, b), now, moved)
    decisions = to_decisions(graph, near, problem.devices)
    costs = measured(graph, decisions, problem)
    energy, value = _energy(graph, costs, problem), ranked(graph, costs, problem)[0]

    best = jnp.argmin(value)
    genes = lax.cond(
        value[best] < chains.value,
        lambda: to_genes(jax.tree.map(lambda x: x[..., best][..., None], decisions), problem.devices)[:, 0, 0],
        lambda: chains.genes,
    )

    heat = jnp.maximum(temperature, _COLDEST)
    spread = -jnp.log(-jnp.log(_open_interval(words[WORDS, 0])))  # Gumbel: its largest sum is a Boltzmann sample
    picked = jnp.argmax((spread - energy / heat).reshape(count, tries), -1)
    picked = picked + jnp.arange(count, dtype=picked.dtype) * tries
    rise = energy[picked] - chains.energy
    accepted = rise <= -heat * jnp.log(_open_interval(words[WORDS + 1, 0, :count]))
    solution = jax.tree.map(lambda a, b: jnp.where(accepted, a[..., picked], b), near, chains.solution)
    return Chains(
        solution,
        jnp.where(accepted, energy[picked], chains.energy),
        genes,
        jnp.minimum(value[best], chains.value),
        chains.key,
        chains.step + jnp.int32(1),
    )


def _energy(graph: PaddedGraph, costs: DeviceCosts, problem: DeviceProblem) -> jax.Array:
    """What the chains walk on: `[p]` float32."""
    if problem.objective == "peak_memory":
        return jnp.log(jnp.maximum(costs.peak_memory.max(0)[0], _LEAST))
    energy = jnp.log(jnp.maximum(costs.makespan[0], _LEAST))
    if problem.memory_limit is None:
        return energy
    limit = problem.memory_limit / graph.byte_unit[0]
    return energy + PENALTY * jnp.maximum(costs.peak_memory.max(0)[0] / limit - 1, 0.0)


def _open_interval(words: jax.Array) -> jax.Array:
    """Uniform in (0, 1), float32."""
    return unit_interval(words) + jnp.float32(2.0**-25)


def start_at(
    graph: ComputationGraph,
    problem: Problem,
    padded: PaddedGraph,
    plan: tuple[np.ndarray, np.ndarray],
    count: int,
    key: jax.Array,
) -> Chains:
    """`count` chains that start at one plan (placement, order), which stays the best until a chain beats it."""
    solution = from_order(graph, problem, padded.sizes, *plan)
    copies = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), count, -1), solution)
    genes = jnp.asarray(chromosome(graph, problem, padded.sizes, *plan))
    return start(padded, copies, problem.devices, key, genes, _fitness(graph, problem, padded, plan))


def _fitness(
    graph: ComputationGraph, problem: Problem, padded: PaddedGraph, plan: tuple[np.ndarray, np.ndarray]
) -> float:
    """What `costs.device.evaluate` says of a plan, from its exact costs."""
    costs = exact.evaluate(graph, problem, *plan)
    bytes_, seconds = float(padded.byte_unit[0]), float(padded.second_unit[0])
    if problem.memory_limit is None:
        return costs.objective(problem) / (bytes_ if problem.objective == "peak_memory" else seconds)
    excess = costs.excess(problem)
    return excess / bytes_ if excess else -seconds / max(costs.makespan, 1e-30)
