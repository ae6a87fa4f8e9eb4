"""BRKGA as a search of a task, and as the methods "brkga" and "brkga+". "brkga-tuned" stands in brkga_tuned.py."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from graphrl.costs.device.problem import DeviceProblem
from graphrl.graphs.padding import Sizes, pad_batch
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.chromosomes import brkga
from graphrl.solvers.chromosomes.beta import BetaTable
from graphrl.solvers.chromosomes.population_search import search_population
from graphrl.solvers.chromosomes.warm_start import chromosomes
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.rules.plan_builder.build import prepare
from graphrl.solvers.rules.simple import given_order
from graphrl.solvers.solver import solver

_init = jax.jit(brkga.init, static_argnames=("parameters",))
_evolve = jax.jit(brkga.evolve, static_argnames=("parameters",), donate_argnames=("state",))


@solver("brkga", "biased random-key genetic algorithm, from random chromosomes (REGAL's baseline)")
def solve(task: Task, *, population: int = 100, elites: int = 20, mutants: int = 20, bias: float = 0.7) -> Plan:
    """REGAL's "BRKGA XK" is it with X thousand evaluations.

    Args:
      population, elites, mutants, bias: of `brkga.Parameters`.

    Raises:
      ProblemError: an option is out of range.
    """
    return evolve(task, brkga.Parameters(population, elites, mutants, bias))


@solver("brkga+", "brkga with list scheduling and the given order in its first population", prepare=prepare)
def solve_warm(task: Task, *, population: int = 100, elites: int = 20, mutants: int = 20, bias: float = 0.7) -> Plan:
    """Args and errors: as `solve`."""
    parameters = brkga.Parameters(population, elites, mutants, bias)
    return evolve(task, parameters, [schedule(task.graph, task.problem), given_order(task.graph, task.problem)])


def evolve(
    task: Task,
    parameters: brkga.Parameters = brkga.Parameters(),
    warm_starts: Sequence[PlacedOrder] = (),
    proposals: Callable[[Sizes], BetaTable] | None = None,
) -> Plan:
    """BRKGA: whole generations within the budget; one smaller one if it is less than a generation.

    Args:
      parameters: of the algorithm.
      warm_starts: plans that are part of the first population; the first `offspring` of them.
      proposals: makes, for the graph padded to some sizes, the distribution of each gene in the first population and
        in mutants (choices `[k, 1]`); None is uniform.
    """
    graph, problem, evaluations = task.graph, task.problem, task.budget.evaluations
    if evaluations is not None and evaluations < parameters.offspring:
        parameters = parameters.shrunk(evaluations)
    padded = jax.device_put(pad_batch([graph], task.sizes))
    starts = warm_starts[: parameters.offspring]
    initial = jnp.asarray(chromosomes(graph, problem, padded.sizes, starts)) if starts else None
    keys, on_device = jax.random.key(task.seed)[None], DeviceProblem.of(problem)
    table = None if proposals is None else proposals(padded.sizes)

    def best(state: brkga.State) -> tuple[jax.Array, jax.Array]:
        genes, value = brkga.best(state)
        return genes[:, 0], value[0]

    return search_population(
        task,
        padded,
        _init(keys, padded, on_device, parameters, table, initial),
        advance=lambda state, steps, _: _evolve(state, padded, on_device, parameters, steps, table),
        best=best,
        evaluations=parameters.offspring,
    )
