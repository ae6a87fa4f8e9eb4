"""BRKGA under its names: with options ("brkga") and from the best plain plans ("brkga+"). "brkga-tuned" stands in
brkga_tuned.py.
"""

import time

from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.solvers.chromosomes.brkga import Parameters
from graphrl.solvers.chromosomes.brkga_solver import solve
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.rules.plain import given_order


def solve_options(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    population: int = 100,
    elites: int = 20,
    mutants: int = 20,
    bias: float = 0.7,
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "brkga", from random chromosomes. REGAL's "BRKGA XK" is it with X thousand evaluations.

    Args:
      graph, problem, budget, seed, progress: see `Solver`.
      population, elites, mutants, bias: of `brkga.Parameters`.
      sizes: see `brkga_solver.solve`.

    Raises:
      ProblemError: an option is out of range.
      Interrupted: on Ctrl-C, with the best plan so far.
    """
    parameters = Parameters(population, elites, mutants, bias)
    return solve(graph, problem, budget, seed, progress, parameters=parameters, sizes=sizes)


def solve_warm(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    population: int = 100,
    elites: int = 20,
    mutants: int = 20,
    bias: float = 0.7,
    sizes: Sizes | None = None,
) -> Plan:
    """The `Solver` "brkga+": list scheduling and the given order on one device are in the first population.

    Args and errors: as `solve_options`.
    """
    parameters = Parameters(population, elites, mutants, bias)
    started = time.perf_counter()
    starts = [schedule(graph, problem), given_order(graph, problem)]
    return solve(
        graph,
        problem,
        budget,
        seed,
        progress,
        parameters=parameters,
        warm_starts=starts,
        method="brkga+",
        started=started,
        sizes=sizes,
    )
