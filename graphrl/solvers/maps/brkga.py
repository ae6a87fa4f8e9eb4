"""BRKGA on maps (Goncalves & Resende 2011): a gene in [0, 1) for each tensor is its memory, in M equal parts."""

import numpy as np

from graphrl.errors import ProblemError
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.task import MapTask, map_solver


@map_solver("brkga", "biased random-key genetic algorithm, a gene for each tensor")
def solve(
    task: MapTask, *, population: int = 100, elites: int = 20, mutants: int = 20, elite_bias: float = 0.7
) -> MemoryMap:
    """REGAL's parameters. The compiler's map is in the first population; elites are not evaluated again.

    Raises:
      ProblemError: an option is out of range.
    """
    if not (1 <= elites < population and 0 <= mutants <= population - elites and 0.5 <= elite_bias <= 1):
        raise ProblemError(
            f"population is {population}, elites is {elites}, mutants is {mutants} and elite_bias is {elite_bias}: "
            "elites must be from 1 to population - 1, mutants from 0 to population - elites, elite_bias from 0.5 to 1"
        )
    rng, m = np.random.default_rng(task.seed), task.problem.memories
    genes = rng.random((population, 2 * task.problem.steps))
    genes[0] = (task.fastest + 0.5) / m
    seconds = _latencies(task, genes)
    while not task.spent():
        ranked = np.argsort(seconds, kind="stable")
        best, others = genes[ranked[:elites]], genes[ranked[elites:]]
        children = population - elites - mutants
        first, second = (group[rng.integers(0, len(group), children)] for group in (best, others))
        children_genes = np.where(rng.random(first.shape) < elite_bias, first, second)
        fresh = np.concatenate([children_genes, rng.random((mutants, genes.shape[1]))])
        genes = np.concatenate([best, fresh])
        seconds = np.concatenate([seconds[ranked[:elites]], _latencies(task, fresh)])
    return task.answered()


def _latencies(task: MapTask, genes: np.ndarray) -> np.ndarray:
    """Of chromosomes, seconds: `[p]`, infinite for those that the budget was not enough for."""
    seconds = np.full(len(genes), np.inf)
    _, evaluated, _ = task.evaluate((genes * task.problem.memories).astype(np.int64))
    seconds[: len(evaluated)] = evaluated
    return seconds
