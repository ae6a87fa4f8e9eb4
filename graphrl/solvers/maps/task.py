"""Search for memory maps: `MapTask`, the registration of methods, and costs of maps compiled for the host.

- `MapTask`: one search, with its budget, its evaluations and the best map so far.
- `map_solver` registers a method: a function `solve(task, *, width=...) -> MemoryMap`.
- `cost`, `evaluate_all`: the compiler and the latency of `costs/maps/exact.py`, compiled for the host. One map is a row
  of 2n memories, those of the weights and then those of the outputs. The space in use takes two numbers per memory, as
  in `costs/maps/device.py`.
"""

from collections.abc import Callable
from typing import Any, Concatenate, NamedTuple, ParamSpec

import numpy as np

from graphrl.compiled import announced, entry, integer, part
from graphrl.costs.maps.problem import MapProblem
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Budget, Search
from graphrl.solvers.solver import Method

STEP = np.dtype(
    [
        ("compute", np.float64),  # seconds of operations, without launch
        ("inputs", np.float64),  # seconds to read external inputs from memory 0
        ("weight_pages", np.int64),
        ("output_pages", np.int64),
        ("weight_bytes", np.int64),
        ("output_bytes", np.int64),
        ("reads", np.int64),  # row of `read_source`, to that of the next step
        ("dates", np.int64),  # row of `frees`, to that of the next step
    ],
    align=True,
)


class Maps(NamedTuple):
    """A map problem as flat arrays: n steps, M memories, e reads and t outputs; and work space for one evaluation."""

    steps: np.ndarray  # [n + 1] STEP
    weight_seconds: np.ndarray  # [n * M] float64
    output_seconds: np.ndarray  # [n * M] float64
    read_source: np.ndarray  # [e] int64, step
    read_seconds: np.ndarray  # [e * M] float64
    frees: np.ndarray  # [t] int64, the step before which an output's pages are freed
    tensor_pages: np.ndarray  # [t] int64
    capacity: np.ndarray  # [M] int64, pages
    launch: np.ndarray  # [1] float64, seconds
    room: np.ndarray  # [3 * M] int64: pages of weights, of live outputs, and their peak so far
    freed: np.ndarray  # [(n + 1) * M] int64, 0 between evaluations
    busy: np.ndarray  # [M] float64, seconds


def maps_of(problem: MapProblem) -> Maps:
    """Builds the arrays of a problem. An evaluation writes into them: each thread needs separate ones."""
    n, m = problem.steps, problem.memories
    steps = np.zeros(n + 1, STEP)
    steps["compute"][:n], steps["inputs"][:n] = problem.compute, problem.input_seconds
    steps["weight_pages"][:n], steps["weight_bytes"][:n] = problem.weight_pages, problem.weight_bytes
    np.add.at(steps["output_pages"], problem.writer, problem.tensor_pages)
    steps["output_bytes"][:n] = problem.output_bytes
    steps["reads"] = np.searchsorted(problem.read_step, np.arange(n + 1))
    steps["dates"] = np.searchsorted(problem.writer, np.arange(n + 1))
    return Maps(
        steps=steps,
        weight_seconds=problem.weight_seconds.ravel().copy(),
        output_seconds=problem.output_seconds.ravel().copy(),
        read_source=problem.read_source.astype(np.int64),
        read_seconds=problem.read_seconds.ravel().copy(),
        frees=problem.last + 1,
        tensor_pages=problem.tensor_pages.astype(np.int64),
        capacity=problem.capacity.copy(),
        launch=np.array([problem.chip.launch]),
        room=np.zeros(3 * m, np.int64),
        freed=np.zeros((n + 1) * m, np.int64),
        busy=np.zeros(m),
    )


@part
def cost(maps: Maps, requested: np.ndarray, assigned: np.ndarray, moved: np.ndarray) -> float:
    """Compiles a map into a valid one and returns its latency in seconds.

    Args:
      requested: `[2n]` int64.
      assigned: `[2n]` int64, set to the compiler's map.
      moved: `[1]` int64, set to the bytes that moved.
    """
    steps, capacity, room, freed, busy = maps.steps, maps.capacity, maps.room, maps.freed, maps.busy
    n, m = len(steps) - 1, len(capacity)
    seconds = 0.0
    moved[0] = 0
    room[:] = 0
    for i in range(n):
        step = steps[i]
        for k in range(m):
            room[m + k] -= freed[i * m + k]
            freed[i * m + k] = 0
            busy[k] = 0.0
        busy[0] = step.inputs
        memory = requested[i]
        while memory > 0 and room[memory] + room[2 * m + memory] + step.weight_pages > capacity[memory]:
            memory -= 1
        if memory != requested[i]:
            moved[0] += step.weight_bytes
        assigned[i] = memory
        room[memory] += step.weight_pages
        busy[memory] += maps.weight_seconds[i * m + memory]
        memory = requested[n + i]
        while memory > 0 and room[memory] + room[m + memory] + step.output_pages > capacity[memory]:
            memory -= 1
        if memory != requested[n + i]:
            moved[0] += step.output_bytes
        assigned[n + i] = memory
        room[m + memory] += step.output_pages
        room[2 * m + memory] = max(room[2 * m + memory], room[m + memory])
        for t in range(step.dates, steps[i + 1].dates):
            freed[maps.frees[t] * m + memory] += maps.tensor_pages[t]
        busy[memory] += maps.output_seconds[i * m + memory]
        for e in range(step.reads, steps[i + 1].reads):
            memory = assigned[n + maps.read_source[e]]
            busy[memory] += maps.read_seconds[e * m + memory]
        longest = step.compute
        for k in range(m):
            longest = max(longest, busy[k])
        seconds += maps.launch[0] + longest
    freed[n * m :] = 0
    return seconds


@entry
def evaluate_all(m: Maps, requested: np.ndarray, assigned: np.ndarray, seconds: np.ndarray, moved: np.ndarray) -> None:
    """Compiles and costs p maps.

    Args:
      requested: `[p, 2n]` int64.
      assigned: `[p, 2n]` int64, set to the compiler's maps.
      seconds: `[p]` float64, set to their latencies.
      moved: `[p]` int64, set to the bytes that moved.
    """
    for i in range(integer(len(requested))):
        seconds[i] = cost(m, requested[i], assigned[i], moved[i : i + 1])


P = ParamSpec("P")


class MapTask(Search[MemoryMap]):
    """One search for a map. An evaluation is one map that the compiler made valid and that was costed.

    Attributes:
      problem: graph, order and chip.
      evaluations: number of evaluations so far.
      row: `[2n]` int64, the best valid map so far, weights and then outputs; None before the first.
      latency: latency of the best map, seconds; infinite before the first.
      bound: lower bound of the latency of all maps, seconds; None if nothing is proved.
    """

    def __init__(
        self,
        problem: MapProblem,
        budget: Budget,
        seed: int = 0,
        progress: Callable[[int, float, Callable[[], MemoryMap], float], None] | None = None,
    ) -> None:
        self.problem, self.evaluations = problem, 0
        self.row: np.ndarray | None = None
        self.latency = np.inf
        self.bound: float | None = None
        super().__init__(budget, seed, progress)
        self._maps: Maps | None = None

    @property
    def fastest(self) -> np.ndarray:
        """The map that requests the fastest memory for everything; the compiler makes it valid: `[2n]` int64."""
        return np.full(2 * self.problem.steps, self.problem.memories - 1)

    def within_budget(self, count: int) -> int:
        """Returns the number of evaluations within the budget, at most `count`."""
        left = self.budget.evaluations
        return count if left is None else max(0, min(count, left - self.evaluations))

    def evaluate(self, requested: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Evaluates as many maps as the budget has left, and keeps the best.

        Args:
          requested: `[p, 2n]` int64.

        Returns:
          The compiler's maps `[q, 2n]`, their latencies `[q]` in seconds, and the bytes that moved `[q]`, of the first
          q maps within the budget.
        """
        if self._maps is None:
            with self.paused_clock(), announced(evaluate_all, "memory maps"):
                self._maps = maps_of(self.problem)
                evaluate_all(self._maps, requested[:0], requested[:0], np.zeros(0), np.zeros(0, np.int64))
        count = self.within_budget(len(requested))
        requested = np.ascontiguousarray(requested[:count])
        assigned, seconds, moved = np.empty_like(requested), np.empty(count), np.empty(count, np.int64)
        evaluate_all(self._maps, requested, assigned, seconds, moved)
        self.evaluations += count
        if count:
            best = int(seconds.argmin())
            self.keep(assigned[best], float(seconds[best]))
        self.report(self.evaluations, self.latency)
        return assigned, seconds, moved

    def keep(self, row: np.ndarray, seconds: float) -> None:
        """Keeps a valid map and its latency, if it is the best."""
        if seconds < self.latency:
            self.row, self.latency, self.best = row.copy(), seconds, self.best_map

    def spent(self) -> bool:
        """True if the budget is spent."""
        return self.is_spent(self.evaluations)

    def best_map(self) -> MemoryMap:
        """Returns the best map so far."""
        assert self.row is not None
        return MemoryMap.from_memories(
            self.problem,
            *np.split(self.row, 2),
            method=self.method,
            seconds=self.seconds,
            evaluations=self.evaluations,
            seed=self.seed,
            bound=self.bound,
        )


MAP_SOLVERS: dict[str, Method[MapTask, Any, MemoryMap]] = {}  # methods of all imported modules, by name


def map_solver(
    name: str, help: str, *, prepare: Callable[[], None] | None = None
) -> Callable[[Callable[Concatenate[MapTask, P], MemoryMap]], Method[MapTask, P, MemoryMap]]:
    """Returns a decorator that registers a function of a task and keyword-only options as a method for maps."""

    def register(search: Callable[Concatenate[MapTask, P], MemoryMap]) -> Method[MapTask, P, MemoryMap]:
        MAP_SOLVERS[name] = registered = Method(name, help, search, prepare=prepare)
        return registered

    return register
