"""Random search: independent uniform chromosomes, the best kept. What any search must beat at equal evaluations."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from graphrl.costs.device.decisions import from_genes, num_genes
from graphrl.costs.device.fitness import fitness
from graphrl.costs.device.problem import DeviceProblem
from graphrl.graphs.padding import PaddedGraph, pad_batch
from graphrl.plan import Plan
from graphrl.random_bits import random_words, unit_interval
from graphrl.solvers.base import Task
from graphrl.solvers.chromosomes.population_search import search_population
from graphrl.solvers.solver import solver

_SAMPLES = 80  # a step; 80 to 256 lanes are fastest on a CPU: 1,000 are 0.65 times as fast


class _State(NamedTuple):
    genes: jax.Array  # [k] float32, the best so far
    value: jax.Array  # [] float32, its fitness
    samples: jax.Array  # [k, 1, samples] float32, the next to evaluate
    step: jax.Array  # [] int32
    key: jax.Array


@solver("random", "independent uniform placements and keys, the best of them")
def solve(task: Task) -> Plan:
    """Whole steps of 80 samples within the budget (fewer only if the budget is smaller)."""
    padded = jax.tree.map(jnp.asarray, pad_batch([task.graph]))
    samples = min(_SAMPLES, task.budget.evaluations or _SAMPLES)
    k, on_device = num_genes(padded.sizes, task.problem.devices), DeviceProblem.of(task.problem)
    key, step = jax.random.key(task.seed), jnp.int32(0)
    return search_population(
        task,
        padded,
        _State(jnp.zeros(k, jnp.float32), jnp.float32(jnp.inf), _sample(key, step, k, samples), step, key),
        advance=lambda state, steps, _: _advance(state, padded, on_device, steps),
        best=lambda state: (state.genes, state.value),
        evaluations=samples,
    )


def _sample(key: jax.Array, step: jax.Array, k: int, samples: int) -> jax.Array:
    seeds = jax.random.bits(jax.random.fold_in(key, step), (1, 2))
    return unit_interval(random_words(seeds, k, samples))


@functools.partial(jax.jit, donate_argnames=("state",))
def _advance(state: _State, graph: PaddedGraph, problem: DeviceProblem, steps: int) -> _State:
    def step(_: jax.Array, state: _State) -> _State:
        values = fitness(graph, from_genes(state.samples, graph.sizes, problem.devices), problem)[0]
        best = jnp.argmin(values)
        better = values[best] < state.value
        following = state.step + jnp.int32(1)
        return _State(
            jnp.where(better, state.samples[:, 0, best], state.genes),
            jnp.minimum(values[best], state.value),
            _sample(state.key, following, *state.samples.shape[::2]),
            following,
            state.key,
        )

    return lax.fori_loop(0, steps, step, state)
