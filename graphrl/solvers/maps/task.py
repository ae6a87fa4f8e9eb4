"""One search for a memory map: what `solve(task, *, width=...) -> MemoryMap` gets, and how methods are registered."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import numpy as np

from graphrl.compiled import announced
from graphrl.costs.maps.problem import MapProblem
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Budget, Search
from graphrl.solvers.maps.evaluation import Maps, evaluate_all, maps_of
from graphrl.solvers.solver import Method

P = ParamSpec("P")


class MapTask(Search[MemoryMap]):
    """One search for a map. Every evaluation is one map that the compiler made valid and that was costed.

    Attributes:
      problem: what the map is for.
      evaluations: so far.
      row: `[2n]` int64, the best valid map so far, weights and then outputs; None before any.
      latency: of it, seconds; infinite before any.
      bound: no map is faster, seconds; as far as one is proved.
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
        """The map that asks the fastest memory for everything, of which the compiler makes its own: `[2n]` int64."""
        return np.full(2 * self.problem.steps, self.problem.memories - 1)

    def fitting(self, count: int) -> int:
        """How many of so many evaluations the budget has left."""
        left = self.budget.evaluations
        return count if left is None else max(0, min(count, left - self.evaluations))

    def evaluate(self, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Evaluates maps, as many as the budget has left, and keeps the best.

        Args:
          asked: `[p, 2n]` int64.

        Returns:
          The compiler's maps `[q, 2n]`, their latencies `[q]` in seconds, and the bytes that moved `[q]`, of the first
          q that the budget was enough for.
        """
        if self._maps is None:
            with self.uncounted(), announced(evaluate_all, "memory maps"):
                self._maps = maps_of(self.problem)
                evaluate_all(self._maps, asked[:0], asked[:0], np.zeros(0), np.zeros(0, np.int64))
        asked = np.ascontiguousarray(asked[: self.fitting(len(asked))])
        given, seconds, moved = np.empty_like(asked), np.empty(len(asked)), np.empty(len(asked), np.int64)
        evaluate_all(self._maps, asked, given, seconds, moved)
        self.evaluations += len(asked)
        if len(asked):
            best = int(seconds.argmin())
            self.keep(given[best], float(seconds[best]))
        self.report(self.evaluations, self.latency)
        return given, seconds, moved

    def keep(self, row: np.ndarray, seconds: float) -> None:
        """Keeps a valid map and its latency, if it is the best."""
        if seconds < self.latency:
            self.row, self.latency, self.best = row.copy(), seconds, self.answered

    def spent(self) -> bool:
        """Whether the budget is."""
        return self.over(self.evaluations)

    def answered(self) -> MemoryMap:
        """The best map so far."""
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


MAP_SOLVERS: dict[str, Method[MapTask, Any, MemoryMap]] = {}  # by name: those of the modules that were imported


def map_solver(
    name: str, help: str, *, prepare: Callable[[], None] | None = None
) -> Callable[[Callable[Concatenate[MapTask, P], MemoryMap]], Method[MapTask, P, MemoryMap]]:
    """Makes a function of a task and keyword-only options a method for maps, and registers it."""

    def register(search: Callable[Concatenate[MapTask, P], MemoryMap]) -> Method[MapTask, P, MemoryMap]:
        MAP_SOLVERS[name] = registered = Method(name, help, search, prepare=prepare)
        return registered

    return register
