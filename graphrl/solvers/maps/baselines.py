"""Baselines for memory maps: fixed rules, random maps, greedy-DP and BRKGA.

- "all-slowest", "compiler", "benefit": everything in the slowest memory, the compiler's own map, benefit per byte.
- "random": uniformly random maps.
- "greedy-dp": EGRL's baseline (section 4): node by node, the pair of memories with the highest reward, in passes.
- "brkga" (Goncalves & Resende 2011): a gene in [0, 1) for each tensor is its memory, in M equal parts.
"""

import itertools

import numpy as np

from graphrl.costs.maps.problem import MapProblem
from graphrl.errors import ProblemError
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.task import MapTask, map_solver


@map_solver("brkga", "biased random-key genetic algorithm, one gene per tensor")
def solve_brkga(
    task: MapTask, *, population: int = 100, elites: int = 20, mutants: int = 20, elite_bias: float = 0.7
) -> MemoryMap:
    """BRKGA with REGAL's parameters. The compiler's map is in the first population; elites are not evaluated again.

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
    return task.best_map()


def _latencies(task: MapTask, genes: np.ndarray) -> np.ndarray:
    """Evaluates chromosomes; returns their latencies in seconds, `[p]`, infinite for those beyond the budget."""
    seconds = np.full(len(genes), np.inf)
    _, evaluated, _ = task.evaluate((genes * task.problem.memories).astype(np.int64))
    seconds[: len(evaluated)] = evaluated
    return seconds


@map_solver("greedy-dp", "EGRL's Greedy-DP: for one node after another the best pair of memories")
def solve_greedy(task: MapTask) -> MemoryMap:
    """Greedy-DP from everything in the slowest memory. As in the paper, a map that the compiler changes earns a
    negative reward and is never chosen. Passes over all steps end with the budget, or after one without a change.
    """
    n, m = task.problem.steps, task.problem.memories
    pairs = np.array(list(itertools.product(range(m), repeat=2)))
    row = np.zeros(2 * n, np.int64)
    task.evaluate(row[None])
    changed = True
    while changed and not task.spent():
        changed = False
        for step in range(n):
            maps = np.repeat(row[None], len(pairs), axis=0)
            maps[:, [step, n + step]] = pairs
            _, seconds, moved = task.evaluate(maps)
            if not len(seconds) or task.spent():
                break
            latency = np.where(moved == 0, seconds, np.inf)
            best = int(latency.argmin())
            kept = (pairs == row[[step, n + step]]).all(1).argmax()
            if latency[best] < latency[kept]:
                row, changed = maps[best], True
    return task.best_map()


_BATCH = 256


@map_solver("random", "uniformly random maps, made valid by the compiler")
def solve_random(task: MapTask) -> MemoryMap:
    """Evaluates random maps until the budget is spent; returns the best one."""
    rng = np.random.default_rng(task.seed)
    while not task.spent():
        task.evaluate(rng.integers(0, task.problem.memories, (_BATCH, 2 * task.problem.steps)))
    return task.best_map()


@map_solver("all-slowest", "everything in the largest, slowest memory")
def solve_slowest(task: MapTask) -> MemoryMap:
    """Returns the map with everything in the slowest memory: one evaluation, whatever the budget."""
    task.evaluate(np.zeros_like(task.fastest)[None])
    return task.answer(task.best_map())


@map_solver("compiler", "first come, first served: the fastest memory that has room, in program order")
def solve_compiler(task: MapTask) -> MemoryMap:
    """Returns the compiler's own map: one evaluation, whatever the budget."""
    task.evaluate(task.fastest[None])
    return task.answer(task.best_map())


@map_solver("benefit", "the tensor that saves most seconds per byte first, if it fits")
def solve_benefit(task: MapTask) -> MemoryMap:
    """Starts from everything in the slowest memory and moves tensors to faster ones. That takes an evaluation for each
    tensor and faster memory, unless the tensor is in one at least as fast.

    The saving is the reduction in the seconds of its reads and writes, as if nothing overlapped.
    """
    row = np.zeros_like(task.fastest)
    task.evaluate(row[None])
    for place, memory in _by_benefit(task.problem):
        if task.spent():
            break
        if memory > row[place]:
            row[place], slower = memory, row[place]
            _, _, moved = task.evaluate(row[None])
            if moved[0]:
                row[place] = slower
    return task.answer(task.best_map())


def _by_benefit(problem: MapProblem) -> list[tuple[int, int]]:
    """Ranks pairs of a map's place and a memory by the seconds saved for each byte, the most first; without those that
    save nothing.
    """
    seconds = problem.output_seconds.copy()
    np.add.at(seconds, problem.read_source, problem.read_seconds)
    seconds = np.concatenate([problem.weight_seconds, seconds])
    size = np.maximum(1, np.concatenate([problem.weight_bytes, problem.output_bytes]))
    density = (seconds[:, :1] - seconds) / size[:, None]
    ranked = np.argsort(-density, axis=None, kind="stable")
    places, memories = np.divmod(ranked[density.ravel()[ranked] > 0], problem.memories)
    return list(zip(places.tolist(), memories.tolist(), strict=True))
