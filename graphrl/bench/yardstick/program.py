"""The compiled yardstick of a case, made ready to be timed. Threads take whole graphs."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from graphrl.bench.cases import PARAMETERS, Work
from graphrl.bench.timing import Costs, Program, timed
from graphrl.bench.yardstick.brkga import empty_population, search
from graphrl.bench.yardstick.decode import costs
from graphrl.bench.yardstick.graph import Graph, host_graph
from graphrl.solvers.chromosomes.brkga import Parameters


def program(work: Work) -> Program:
    """The program to be timed on a case. It is compiled before, or loaded."""
    case, settings, p = work.case, work.settings, PARAMETERS
    graphs = [host_graph(g, work.problem, timed=case.makespan, memory=case.memory) for g in work.graphs]
    generations = p.generations(settings.evaluations)

    def searches(runs: int) -> int:
        for _ in range(runs):
            search_all(graphs, p, generations, settings.seed, settings.threads)
        return runs * len(graphs) * generations * p.offspring

    def evaluations(runs: int) -> int:
        cost_all(graphs, work.chromosomes, runs, settings.threads)
        return runs * len(graphs) * p.population

    if case.search:
        search_all(graphs, p, 1, settings.seed)
        return Program(timed(searches), on_host=True)
    first = cost_all(graphs, work.chromosomes)
    return Program(timed(evaluations), costs=first, on_host=True)


def cost_all(graphs: Sequence[Graph], genes: Sequence[np.ndarray], runs: int = 1, threads: int = 1) -> Costs:
    """Costs of chromosomes `[p, genes]` of each graph, computed `runs` times over."""
    population, devices = len(genes[0]), graphs[0].devices
    makespan = np.zeros((len(graphs), population), np.float32)
    peak = np.zeros((len(graphs), population, devices), np.int64)

    def cost(i: int) -> None:
        costs(graphs[i], genes[i].ravel(), runs, makespan[i], peak[i].ravel())

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(cost, range(len(graphs))))
    return Costs(makespan, peak)


def search_all(
    graphs: Sequence[Graph], parameters: Parameters, generations: int, seed: int, threads: int = 1
) -> list[tuple[float, np.ndarray]]:
    """A BRKGA run on each graph: the best objective, bytes or seconds, and its chromosome `[genes]`."""

    def run(i: int) -> tuple[float, np.ndarray]:
        population = empty_population(graphs[i].genes, parameters, seed + i)
        search(graphs[i], population, generations)
        members = population.genes.reshape(len(population.rows), -1)
        return float(population.values[0]), members[population.rows[0]]

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(len(graphs))))
