"""BRKGA as a `Solver`: one graph, a budget, a plan."""

import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.problem import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, pad_batch
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.beta import BetaTable
from graphrl.solvers.chromosomes.population_search import PopulationSearch
from graphrl.solvers.chromosomes.warm_start import chromosomes


def solve(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    parameters: brkga.Parameters = brkga.Parameters(),
    warm_starts: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    proposals: Callable[[Sizes], BetaTable] | None = None,
    method: str = "brkga",
    started: float | None = None,
    sizes: Sizes | None = None,
) -> Plan:
    """BRKGA: whole generations within the budget; one smaller one if it is less than a generation.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      parameters: of the algorithm.
      warm_starts: (placement, order) of known plans, part of the first population; the first `offspring` of them.
      proposals: makes, for the graph padded to some sizes, the distribution of each gene in the first population and
        in mutants (choices `[k, 1]`); None is uniform.
      method: what the plan is said to be found by.
      started: when that began, by `time.perf_counter`; None is now.
      sizes: to pad the graph to; None is its own bucket. They change no result.

    Raises:
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    started = time.perf_counter() if started is None else started
    if budget.evaluations is not None and budget.evaluations < parameters.offspring:
        parameters = parameters.shrunk(budget.evaluations)
    padded = jax.device_put(pad_batch([graph], sizes))
    starts = warm_starts[: parameters.offspring]
    initial = jnp.asarray(chromosomes(graph, problem, padded.sizes, starts)) if starts else None
    keys, on_device = jax.random.key(seed)[None], DeviceProblem.of(problem)
    table = None if proposals is None else proposals(padded.sizes)

    def best(state: brkga.State) -> tuple[jax.Array, jax.Array]:
        genes, value = brkga.best(state)
        return genes[:, 0], value[0]

    search: PopulationSearch[brkga.State] = PopulationSearch(
        graph,
        problem,
        method,
        seed,
        padded,
        advance=lambda state, steps: _advance(state, padded, on_device, parameters, steps, table),
        best=best,
        evaluations=parameters.offspring,
        started=started,
    )
    return search.run(_init(keys, padded, on_device, parameters, table, initial), budget, progress)


@functools.partial(jax.jit, static_argnames=("parameters",))
def _init(
    keys: jax.Array,
    graph: PaddedGraph,
    problem: DeviceProblem,
    parameters: brkga.Parameters,
    proposals: BetaTable | None,
    initial: jax.Array | None,
) -> brkga.State:
    return brkga.init(keys, graph, problem, parameters, proposals, initial)


@functools.partial(jax.jit, static_argnames=("parameters",), donate_argnames=("state",))
def _advance(
    state: brkga.State,
    graph: PaddedGraph,
    problem: DeviceProblem,
    parameters: brkga.Parameters,
    generations: int,
    proposals: BetaTable | None,
) -> brkga.State:
    return brkga.evolve(state, graph, problem, parameters, generations, proposals)
