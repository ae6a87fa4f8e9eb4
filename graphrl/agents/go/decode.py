"""What choices of `Compile-v0` are as plans, and what these cost: on the host, exactly."""

import numpy as np

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.rules.plan_builder.build import placed as built
from graphrl.solvers.rules.plan_builder.state import builder
from graphrl.solvers.sending.ordering import in_order_of
from graphrl.solvers.sending.plans import placed
from graphrl.solvers.sending.rule import with_sends
from graphrl.solvers.sending.search import makespan
from graphrl.solvers.sending.solver import takes

Rank = tuple[int, float]  # bytes over the memory limit, seconds


class Decoder:
    """Of one graph and problem; orders are near a given one."""

    def __init__(self, graph: ComputationGraph, problem: Problem, order: np.ndarray, levels: int, reach: float) -> None:
        """
        Args:
          graph, problem: the objective is the makespan.
          order: `[n]` of ops, which equal priorities follow.
          levels, reach: of priorities, see `compile.instance`.
        """
        n = len(order)
        self._graph, self._problem, self._plan = graph, problem, placed(graph, problem)
        self._heap, self._waits = np.zeros((2, n), np.int64)
        self._builder = None if takes(problem) else builder(graph, problem)
        self._step = reach * n
        self._keys = np.empty(n)
        self._keys[order] = np.arange(n - 1.0, -1, -1)

    def rank(self, placement: np.ndarray, priority: np.ndarray) -> Rank:
        """Of the plan that choices `[n]` mean: the least is the best."""
        ops = self._ordered(placement, priority)
        if self._builder is None:
            return 0, makespan(self._plan)
        plan = built(self._builder, ops, placement)
        if self._problem.memory_limit is None:
            return 0, self._builder.makespan
        return exact.evaluate(self._graph, self._problem, *plan).rank(self._problem)

    def plan(self, placement: np.ndarray, priority: np.ndarray) -> PlacedOrder:
        """The plan that choices `[n]` mean."""
        ops = self._ordered(placement, priority)
        if self._builder is not None:
            return built(self._builder, ops, placement)
        return placement, with_sends(self._graph, self._problem, placement, ops)

    def _ordered(self, placement: np.ndarray, priority: np.ndarray) -> np.ndarray:
        """The ops in the order of the priorities, which `self._plan` then has."""
        self._plan.ops["device"][:-1] = placement
        in_order_of(self._plan, self._keys + self._step * priority, self._heap, self._waits)
        return self._plan.order.copy()
