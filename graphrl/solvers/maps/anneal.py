"""Methods "anneal" and "local-search" on memory maps: compiled chains of moves.

A move requests other memories for a few places of a map's row, and the compiler makes the map valid. Annealing is one
chain that cools over the budget. Local search keeps moves that make no map slower, and restarts from random maps.
"""

import functools
from typing import NamedTuple

import numpy as np

from graphrl.compiled import announced, entry, inlined, integer, part
from graphrl.compiled.structures import below, uniform
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.anneal.driver import Annealing, Pace, temperature_at
from graphrl.solvers.base import Budget
from graphrl.solvers.maps.task import Maps, MapTask, cost, map_solver, maps_of

# Shares of moves, and the most places of a stretch; measured at 4,000 and 400,000 evaluations.
STRETCH, SWAP, ANOTHER, MAX_STRETCH = 0.6, 0.1, 0.3, 8


class Chain(NamedTuple):
    """A chain's current map, its best map, and work space for a trial. Rows are weights and then outputs."""

    maps: Maps
    places: np.ndarray  # [k] int64, places of a row with something to place
    requested: np.ndarray  # [2n] int64, the current request
    trial: np.ndarray  # [2n] int64, the next request
    assigned: np.ndarray  # [2n] int64, the compiler's map of `trial`
    best: np.ndarray  # [2n] int64, valid
    seconds: np.ndarray  # [2] float64, latencies of `requested` and of `best`
    rng: np.ndarray  # [1] uint64
    moved: np.ndarray  # [1] int64


def start(problem: MapProblem, requested: np.ndarray, seed: np.random.SeedSequence) -> Chain:
    """Returns a chain that starts from a map `[2n]`, without evaluating it."""
    row = np.ascontiguousarray(requested, np.int64)
    return Chain(
        maps=maps_of(problem),
        places=np.flatnonzero(np.concatenate([problem.has_weights, problem.has_outputs])),
        requested=row.copy(),
        trial=row.copy(),
        assigned=row.copy(),
        best=row.copy(),
        seconds=np.full(2, np.inf),
        rng=seed.generate_state(1, np.uint64),
        moved=np.zeros(1, np.int64),
    )


@inlined
def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copies an array: numba's own way may allocate."""
    for i in range(len(source)):
        target[i] = source[i]


@entry
def anneal(chain: Chain, count: int, hot: float, cold: float) -> None:
    """Evaluates maps, at a temperature that falls geometrically. A new chain first evaluates its starting map.

    The state of the chain is its request, not the compiler's map: a tensor without room now may get it later. (In 4,000
    evaluations from the compiler's map this gains three times as much.)

    Args:
      count: number of evaluations.
      hot, cold: first and last temperature, seconds; 0 accepts nothing that is slower.
    """
    cooling = (cold / hot) ** (1.0 / max(1, count)) if hot > 0 else 1.0
    for _ in range(integer(count)):
        copy(chain.requested, chain.trial)
        if chain.seconds[0] < np.inf and len(chain.places):
            _change(chain)
        seconds = cost(chain.maps, chain.trial, chain.assigned, chain.moved)
        hot *= cooling
        if seconds <= chain.seconds[0] - hot * np.log(uniform(chain.rng)):
            chain.seconds[0] = seconds
            copy(chain.trial, chain.requested)
            if seconds < chain.seconds[1]:
                chain.seconds[1] = seconds
                copy(chain.assigned, chain.best)


@part
def _change(chain: Chain) -> None:
    """Changes the trial: the same memory for a stretch of steps, two places swapped, or other memories in a few."""
    rng, trial, places = chain.rng, chain.trial, chain.places
    m, n = len(chain.maps.capacity), len(trial) // 2
    u, place = uniform(rng), places[below(rng, len(places))]
    if u < STRETCH:
        memory, end = below(rng, m), place + 1 + below(rng, MAX_STRETCH)
        for i in range(place, min(end, n if place < n else 2 * n)):
            trial[i] = memory
    elif u < STRETCH + SWAP:
        other = places[below(rng, len(places))]
        trial[place], trial[other] = trial[other], trial[place]
    else:
        trial[place] = below(rng, m)
        while uniform(rng) < ANOTHER:
            trial[places[below(rng, len(places))]] = below(rng, m)


HOT, COLD = 1e-3, 3e-5  # temperatures, relative to the first latency; measured at 4,000 and 400,000 evaluations
CHUNK = 1_000  # number of evaluations in one call
PACE = Pace(CHUNK)


@functools.cache
def prepare() -> None:
    """Compiles chains, or loads them, once per process."""
    with announced(anneal, "annealing of memory maps"):
        problem = map_problem(ComputationGraph("one", (Op("a"),)), NNP_I)
        anneal(start(problem, np.zeros(2, np.int64), np.random.SeedSequence(0)), 1, 0.0, 0.0)


@map_solver("anneal", "simulated annealing from the compiler's map, compiled for the host", prepare=prepare)
def solve_annealing(task: MapTask, *, hot: float = HOT, cold: float = COLD) -> MemoryMap:
    """Anneals one chain, which cools over the budget.

    Args:
      hot, cold: first and last temperature: a rise of the latency by that share of the first one is accepted with
        probability 1/e.

    Raises:
      ProblemError: an option is out of range.
    """
    if not 0 < cold <= hot:
        raise ProblemError(f"hot is {hot} and cold is {cold}: must be above 0, and cold at most hot")
    cool(task, task.budget, hot, cold)
    return task.best_map()


def cool(task: MapTask, budget: Budget, hot: float = HOT, cold: float = COLD) -> None:
    """Anneals from the compiler's map until a budget is spent: part of the task's budget, counted from its start."""
    _Maps(task, budget, hot, cold).run()


class _Maps(Annealing[Chain]):
    """A chain that has evaluated the compiler's map."""

    def __init__(self, task: MapTask, budget: Budget, hot: float, cold: float) -> None:
        self._task = task
        super().__init__(task, [_begin(task)], PACE, task.evaluations)
        self.budget, self._first, self._hot, self._cold = budget, task.latency, hot, cold

    def walk(self, chain: Chain, steps: int, begin: float, end: float) -> int:
        """Evaluates maps, at the temperatures between two shares of the budget."""
        hot, cold = (self._first * temperature_at(self._hot, self._cold, share) for share in (begin, end))
        _run(self._task, chain, steps, hot, cold)
        return steps

    def value(self) -> float:
        """Returns the latency of the best map, in seconds."""
        return self._task.latency


@map_solver(
    "local-search", "moves that do not raise the latency, from the compiler's map, then random ones", prepare=prepare
)
def solve_climbing(task: MapTask, *, patience: int = 1_000) -> MemoryMap:
    """Local search: restarts from a random map if `patience` evaluations in a row bring no improvement.

    Args:
      patience: number of evaluations without an improvement before a restart.

    Raises:
      ProblemError: the patience is below 1.
    """
    if patience < 1:
        raise ProblemError(f"patience is {patience}: must be at least 1")
    rng, chain = np.random.default_rng(task.seed), _begin(task)
    while not task.spent():
        before, left = float(chain.seconds[0]), patience
        while left and not task.spent():
            count = task.within_budget(min(left, CHUNK))
            _run(task, chain, count, 0.0, 0.0)
            left -= count
        if chain.seconds[0] >= before and not task.spent():
            chain.requested[:] = rng.integers(0, task.problem.memories, len(chain.requested))
            chain.seconds[0] = np.inf
    return task.best_map()


def _begin(task: MapTask) -> Chain:
    """Returns a chain that has evaluated the compiler's map."""
    chain = start(task.problem, task.fastest, np.random.SeedSequence(task.seed))
    _run(task, chain, 1, 0.0, 0.0)
    return chain


def _run(task: MapTask, chain: Chain, count: int, hot: float, cold: float) -> None:
    anneal(chain, count, hot, cold)
    task.evaluations += count
    task.keep(chain.best, float(chain.seconds[1]))
    task.report(task.evaluations, task.latency)
