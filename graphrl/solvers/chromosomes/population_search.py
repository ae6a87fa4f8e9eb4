"""What the population searches share: work in chunks that show progress, stop in time, and survive Ctrl-C."""

import math
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import jax
import numpy as np

from graphrl.costs.device.fitness import objective
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress
from graphrl.solvers.chromosomes.warm_start import decisions

_CHUNK_SECONDS = 0.3  # of device work between two looks at the clock

State = TypeVar("State")


class PopulationSearch(Generic[State]):
    """A search whose state lives on the device and advances a number of equal steps at a call.

    Args:
      graph, problem, method, seed: of the plan.
      padded: the graph as a batch of one.
      advance: (state, steps) -> state; may donate its argument.
      best: state -> (genes `[k]`, fitness `[]`), on the device.
      evaluations: of one step.
      started: when the search began, by `time.perf_counter`; None is now.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        problem: Problem,
        method: str,
        seed: int,
        padded: PaddedGraph,
        advance: Callable[[State, int], State],
        best: Callable[[State], tuple[jax.Array, jax.Array]],
        evaluations: int,
        started: float | None = None,
    ):
        self._graph, self._problem, self._method, self._seed = graph, problem, method, seed
        self._sizes: Sizes = padded.sizes
        unit = padded.byte_unit if problem.objective == "peak_memory" else padded.second_unit
        self._unit = float(np.asarray(unit)[0])
        self._advance, self._best, self._evaluations = advance, best, evaluations
        self._started = time.perf_counter() if started is None else started

    def run(self, state: State, budget: Budget, progress: Progress | None) -> Plan:
        """Steps until the budget is spent; at least one.

        Raises:
          Interrupted: on Ctrl-C, once a step was made.
        """
        total = None if budget.evaluations is None else max(1, budget.evaluations // self._evaluations)
        done, steps = 0, 1
        known: tuple[np.ndarray, float] | None = None
        try:
            while True:
                began = time.perf_counter()
                state = self._advance(state, steps)
                genes, value = self._best(state)
                known = np.asarray(genes), objective(float(value), self._problem) * self._unit
                done += steps
                if progress is not None:
                    self._report(progress, known, done)
                now = time.perf_counter()
                if done == total or (budget.seconds is not None and now - self._started >= budget.seconds):
                    return self._plan(known[0], done)
                # the first call compiles: its time says nothing about a step's
                left = math.inf if budget.seconds is None else self._started + budget.seconds - now
                fitting = 1 if done == 1 else max(1, int(min(_CHUNK_SECONDS, left) * steps / (now - began)))
                steps = fitting if total is None else min(fitting, total - done)
        except KeyboardInterrupt as stop:
            if known is None or isinstance(stop, Interrupted):
                raise
            raise Interrupted(self._plan(known[0], done)) from None

    def _report(self, progress: Progress, known: tuple[np.ndarray, float], done: int) -> None:
        seconds = time.perf_counter() - self._started
        progress(done * self._evaluations, seconds, lambda: self._plan(known[0], done), known[1])

    def _plan(self, genes: np.ndarray, done: int) -> Plan:
        placement, order = decisions(self._graph, self._problem, self._sizes, genes)
        return Plan.from_order(
            self._graph,
            self._problem,
            placement,
            order,
            method=self._method,
            seconds=time.perf_counter() - self._started,
            evaluations=done * self._evaluations,
            seed=self._seed,
        )
