"""BRKGA of one graph in numba, as solvers/chromosomes/brkga.py has it, and the yardstick of a case ready to be timed.

Children are costed while they are in the processor's cache. Threads take whole graphs. Genes are drawn by an integer
hash (lowbias32 of Wellons, "hash-prospector", 2018), as loops of it vectorise.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from graphrl.bench.cases import PARAMETERS, Work
from graphrl.bench.timing import Costs, Program, timed
from graphrl.bench.yardstick.decode import Graph, costs, evaluate, host_graph
from graphrl.compiled import entry, inlined, integer
from graphrl.compiled.structures import below, word
from graphrl.solvers.chromosomes.brkga import Parameters

_index: Any = np.uint64  # of genes: for signed ones numba looks whether they are negative, and loops do not vectorise
_8, _15, _16 = (np.uint32(bits) for bits in (8, 15, 16))
_FIRST, _SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_LOW, _UNIT = np.uint32(0xFFFF), np.float32(2**-24)


class Population(NamedTuple):
    """P members, elites first, and behind them the O offspring of a generation."""

    members: int  # P
    elites: int
    mutants: int
    coin: int  # of 2^16: the chance that a gene is the elite's
    genes: np.ndarray  # [(P + O) * k] float32, by row
    rows: np.ndarray  # [P + O] int64
    values: np.ndarray  # [P + O] float64: bytes or seconds
    rng: np.ndarray  # [1] uint64


def empty_population(genes: int, parameters: Parameters, seed: int) -> Population:
    """Room for members of so many genes."""
    rows = parameters.population + parameters.offspring
    return Population(
        parameters.population,
        parameters.elites,
        parameters.mutants,
        int(parameters.elite_bias * 2**16),
        np.zeros(rows * genes, np.float32),
        np.arange(rows),
        np.zeros(rows),
        np.array([seed], np.uint64),
    )


@entry
def search(g: Graph, p: Population, generations: int) -> None:
    """So many generations of O evaluations each, from the start; the best member is then the first."""
    rows, values, elites, first = p.rows, p.values, p.elites, p.members
    genes, members = _index(len(p.genes) // len(rows)), 0
    for generation in range(generations):
        for child in range(first, len(rows)):
            begin = _index(rows[child]) * genes
            if generation == 0 or child < first + p.mutants:
                _draw(p, begin, genes)
            else:
                elite, other = rows[below(p.rng, elites)], rows[elites + below(p.rng, members - elites)]
                _cross(p, begin, _index(elite) * genes, _index(other) * genes, genes)
            values[child] = evaluate(g, p.genes, integer(begin))
            if not g.timed:
                for device in range(g.devices):
                    values[child] = max(values[child], g.peak[device])
        kept = min(members, elites)
        members = kept + len(rows) - first
        for i in range(kept, members):
            _swap(p, i, first + i - kept)
        for i in range(elites):
            best = i
            for j in range(i + 1, members):
                if values[j] < values[best]:
                    best = j
            _swap(p, i, best)


@inlined
def _swap(p: Population, i: int, j: int) -> None:
    p.rows[i], p.rows[j] = p.rows[j], p.rows[i]
    p.values[i], p.values[j] = p.values[j], p.values[i]


@inlined
def _draw(p: Population, begin: int, genes: int) -> None:
    """Uniform genes."""
    seed = np.uint32(word(p.rng))
    for i in range(genes):
        p.genes[begin + i] = np.float32(np.int32(_mixed(np.uint32(seed + np.uint32(i))) >> _8)) * _UNIT


@inlined
def _cross(p: Population, child: int, elite: int, other: int, genes: int) -> None:
    """Uniform crossover with a coin of 16 bits a gene: each word decides one gene in either half."""
    seed, coin, x = np.uint32(word(p.rng)), np.uint32(p.coin), p.genes
    half = genes // _index(2)
    for i in range(genes - half):  # the middle one of an odd number is tossed for twice
        bits = _mixed(np.uint32(seed + np.uint32(i)))
        first, second = x[elite + i], x[other + i]
        x[child + i] = first if bits & _LOW < coin else second
        j = half + i
        first, second = x[elite + j], x[other + j]
        x[child + j] = first if bits >> _16 < coin else second


@inlined
def _mixed(x: np.uint32) -> np.uint32:
    x = np.uint32(np.uint32(x ^ (x >> _16)) * _FIRST)
    x = np.uint32(np.uint32(x ^ (x >> _15)) * _SECOND)
    return np.uint32(x ^ (x >> _16))


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
