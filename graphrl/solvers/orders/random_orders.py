"""The best of many random topological orders, under two readings of "random".

Topoformer (section 5): "We generate 100 random topological orders, and pick the one with smallest cost." How they are
drawn is not said:
- "random-priorities": independent uniform priorities, then always the ready op of highest priority. The paper's
  published ratios agree with this one, and it is the better of the two: 3.5% at 500 ops, 2.0% at 2,000;
- "random-ready": always a uniform choice among the ready ops.

Neither is uniform over all topological orders.
"""

import math
import time
from collections.abc import Callable

import numpy as np

from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Progress
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.usage import Usage
from graphrl.solvers.rules.one_pass import one_device_value, require_one_device
from graphrl.solvers.watch import Watch

SAMPLES = 100
LANES = 256  # orders drawn at once: the time of a step hardly depends on it
CELLS = 4_000_000  # at most, lanes times ops: bounds the memory
FIRST_CELLS = 100_000  # of the first batch, which is finished whatever the budget
STEPS = 256  # between two looks at the clock


def solve_ready(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    samples: int = SAMPLES,
) -> Plan:
    """The `Solver` "random-ready": the best of `samples` orders by uniform choice among the ready ops.

    It stops before that where the budget ends, but not before one order.

    Args:
      samples: orders to draw; 0 means as many as the budget allows.

    Raises:
      ProblemError: there are several devices, or samples is negative.
      Interrupted: on Ctrl-C, with the best order so far.
    """
    return _Search("random-ready", graph, problem, seed, samples, by_priority=False).run(budget, progress)


def solve_priorities(
    graph: ComputationGraph,
    problem: Problem,
    budget: Budget,
    seed: int,
    progress: Progress | None = None,
    *,
    samples: int = SAMPLES,
) -> Plan:
    """The `Solver` "random-priorities": as `solve_ready`, by the highest of independent uniform priorities."""
    return _Search("random-priorities", graph, problem, seed, samples, by_priority=True).run(budget, progress)


class Drawing:
    """Draws batches of random topological orders of one graph, a lane each."""

    def __init__(self, flow: Flow) -> None:
        self._n = flow.num_ops
        self._in_degree = np.array([len(before) for before in flow.predecessors], np.int64)
        self._out_degree = np.array([len(after) for after in flow.successors], np.int64)
        self._successors = np.array([op for after in flow.successors for op in after], np.int64)
        self._first = np.cumsum(self._out_degree) - self._out_degree
        self._sources = np.flatnonzero(self._in_degree == 0)

    def draw(
        self, rng: np.random.Generator, lanes: int, by_priority: bool, until: float = math.inf
    ) -> np.ndarray | None:
        """Orders `[lanes, n] int64` of ops; None if `time.perf_counter()` reaches `until` before they are done."""
        n, rows = self._n, np.arange(lanes)
        orders = np.empty((lanes, n), np.int64)
        left = np.repeat(self._in_degree[None], lanes, axis=0)
        priorities = rng.random((lanes, n)) if by_priority else np.zeros((1, n))
        # The ready ops of each lane stand in its first places; -1 is the priority of an empty place.
        ready, keys = np.zeros((lanes, n), np.int64), np.full((lanes, n) if by_priority else (1, 1), -1.0)
        count = np.full(lanes, len(self._sources))
        ready[:, : count[0]] = self._sources
        if by_priority:
            keys[:, : count[0]] = priorities[:, self._sources]
        for step in range(n):
            if step % STEPS == 0 and time.perf_counter() >= until:
                return None
            if by_priority:
                place = keys[:, : count.max()].argmax(axis=1)
            else:
                place = (rng.random(lanes) * count).astype(np.int64)
            ops = orders[:, step] = ready[rows, place]
            count -= 1
            ready[rows, place] = ready[rows, count]  # the last one fills the gap
            if by_priority:
                keys[rows, place] = keys[rows, count]
                keys[rows, count] = -1.0
            row, op = self._made_ready(ops, left)
            if len(op):
                more = np.bincount(row, minlength=lanes)
                at = count[row] + _places(more)
                ready[row, at] = op
                if by_priority:
                    keys[row, at] = priorities[row, op]
                count += more
        return orders

    def _made_ready(self, ops: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts one dependency of the successors of each lane's op as met: (lane, op) of those with none left."""
        degree = self._out_degree[ops]
        row = np.repeat(np.arange(len(ops)), degree)
        op = self._successors[np.repeat(self._first[ops], degree) + _places(degree)]
        left[row, op] -= 1  # an op's successors are distinct
        free = left[row, op] == 0
        return row[free], op[free]


def _places(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... within each group, groups of `counts` one after the other: `[sum of counts]`."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


class _Search:
    def __init__(
        self, method: str, graph: ComputationGraph, problem: Problem, seed: int, samples: int, by_priority: bool
    ) -> None:
        require_one_device(method, problem)
        if samples < 0:
            raise ProblemError(f"samples is {samples}: must be at least 1 order, or 0 for all that the budget allows")
        self._method, self._graph, self._problem, self._seed = method, graph, problem, seed
        self._samples, self._by_priority = samples, by_priority
        self._best: np.ndarray | None = None
        self._peak, self._done = 0, 0

    def run(self, budget: Budget, progress: Progress | None) -> Plan:
        watch = Watch(budget, progress)

        def plan() -> Plan:
            assert self._best is not None
            placement = np.zeros(len(self._best), np.int64)
            return Plan.from_order(
                self._graph,
                self._problem,
                placement,
                self._best,
                method=self._method,
                seconds=watch.seconds,
                evaluations=self._done,
                seed=self._seed,
            )

        try:
            self._draw(min(self._samples or math.inf, budget.evaluations or math.inf), watch, plan)
        except KeyboardInterrupt as stop:
            if self._best is None or isinstance(stop, Interrupted):
                raise
            raise Interrupted(plan()) from None
        return plan()

    def _draw(self, total: float, watch: Watch, plan: Callable[[], Plan]) -> None:
        flow = Flow(self._graph)
        drawing, usage, rng = Drawing(flow), Usage(flow), np.random.default_rng(self._seed)
        while self._best is None or (self._done < total and not watch.over(self._done)):
            cells = FIRST_CELLS if self._best is None else CELLS
            count = int(min(max(1, cells // flow.num_ops), LANES, total - self._done))
            orders = drawing.draw(rng, count, self._by_priority, math.inf if self._best is None else watch.end)
            if orders is None:
                break
            values = usage.peaks(orders)
            best = int(values.argmin())
            if self._best is None or values[best] < self._peak:
                self._best, self._peak = orders[best].copy(), int(values[best])
            self._done += count
            watch.report(self._done, plan, one_device_value(self._graph, self._problem, self._peak))
