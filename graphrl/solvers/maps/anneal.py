"""Annealing of maps, and local search, as methods: chains of compiled moves (`chain.py`)."""

import functools
import time

import numpy as np

from graphrl.compiled import announced
from graphrl.costs.maps.chips import NNP_I
from graphrl.costs.maps.problem import map_problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Budget
from graphrl.solvers.maps.chain import Chain, anneal, start
from graphrl.solvers.maps.task import MapTask, map_solver

HOT, COLD = 1e-3, 3e-5  # temperatures, parts of the first latency; measured at 4,000 and 400,000 evaluations
CHUNK, CHUNK_SECONDS = 1_000, 0.05  # evaluations at a time, and how long they may take where time is limited


@functools.cache
def prepare() -> None:
    """Compiles chains, or loads them, once in a process."""
    with announced(anneal, "annealing of memory maps"):
        problem = map_problem(ComputationGraph("one", (Op("a"),)), NNP_I)
        anneal(start(problem, np.zeros(2, np.int64), np.random.SeedSequence(0)), 1, 0.0, 0.0)


@map_solver("anneal", "simulated annealing from the compiler's map, compiled for the host", prepare=prepare)
def solve_annealing(task: MapTask, *, hot: float = HOT, cold: float = COLD) -> MemoryMap:
    """One chain, which cools over the budget.

    Args:
      hot, cold: first and last temperature: a rise of the latency by that share of the first one is accepted with
        chance 1/e.

    Raises:
      ProblemError: an option is out of range.
    """
    if not 0 < cold <= hot:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be above 0, and cold at most hot")
    cool(task, task.budget, hot, cold)
    return task.answered()


def cool(task: MapTask, budget: Budget, hot: float = HOT, cold: float = COLD) -> None:
    """Anneals from the compiler's map until a budget, a part of the task's from its start on, is spent."""
    chain, first = _begin(task), task.latency
    rate = 0.0  # evaluations a second
    while not task.spent() and _share(task, budget) < 1:
        began, before = time.perf_counter(), _share(task, budget)
        count = task.fitting(CHUNK if budget.seconds is None else max(1, int(rate * CHUNK_SECONDS)))
        after = _share(task, budget, count, CHUNK_SECONDS)
        _run(task, chain, count, *(first * hot * (cold / hot) ** share for share in (before, after)))
        rate = count / (time.perf_counter() - began)


def _share(task: MapTask, budget: Budget, evaluations: int = 0, seconds: float = 0.0) -> float:
    """The share of a budget that is spent, and will be after so many more evaluations and seconds."""
    shares = [0.0]
    if budget.evaluations is not None:
        shares.append((task.evaluations + evaluations) / budget.evaluations)
    if budget.seconds is not None:
        shares.append((task.seconds + seconds) / budget.seconds)
    return min(1.0, max(shares))


@map_solver(
    "local-search", "moves that make no map slower, from the compiler's map and then from random ones", prepare=prepare
)
def solve_climbing(task: MapTask, *, patience: int = 1_000) -> MemoryMap:
    """Climbs anew from a random map once nothing better came in so many evaluations.

    Args:
      patience: evaluations.

    Raises:
      ProblemError: the patience is below 1.
    """
    if patience < 1:
        raise ProblemError(f"patience is {patience}: must be at least 1")
    rng, chain = np.random.default_rng(task.seed), _begin(task)
    while not task.spent():
        before, left = float(chain.seconds[0]), patience
        while left and not task.spent():
            count = task.fitting(min(left, CHUNK))
            _run(task, chain, count, 0.0, 0.0)
            left -= count
        if chain.seconds[0] >= before and not task.spent():
            chain.asked[:] = rng.integers(0, task.problem.memories, len(chain.asked))
            chain.seconds[0] = np.inf
    return task.answered()


def _begin(task: MapTask) -> Chain:
    """A chain that has evaluated the compiler's map."""
    chain = start(task.problem, task.fastest, np.random.SeedSequence(task.seed))
    _run(task, chain, 1, 0.0, 0.0)
    return chain


def _run(task: MapTask, chain: Chain, count: int, hot: float, cold: float) -> None:
    anneal(chain, count, hot, cold)
    task.evaluations += count
    task.keep(chain.best, float(chain.seconds[1]))
    task.report(task.evaluations, task.latency)
