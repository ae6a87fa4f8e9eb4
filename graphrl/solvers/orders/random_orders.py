"""The best of many random topological orders, under two readings of "random", and random orders near a given one.

Topoformer (section 5): "We generate 100 random topological orders, and pick the one with smallest cost." The paper does
not define how they are drawn:
- "random-priorities": independent uniform priorities, then always the ready op of highest priority. The paper's
  published ratios agree with this one, and it is the better of the two: 3.5% at 500 ops, 2.0% at 2,000;
- "random-ready": always a uniform choice among the ready ops.

Neither is uniform over all topological orders. `nearby` perturbs an order.
"""

import math
import time

import numpy as np

from graphrl.errors import ProblemError
from graphrl.graphs.topology import least_first
from graphrl.plan import Plan
from graphrl.solvers.base import Task
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.solver import solver

SAMPLES = 100  # number of random orders in Topoformer
LANES = 256  # orders drawn in parallel: the time of a step hardly depends on it
CELLS = 4_000_000  # limit of lanes times ops: bounds the memory
FIRST_CELLS = 100_000  # the same for the first batch, which is finished whatever the budget
STEPS = 256  # number of steps between two checks of the clock


@solver("random-ready", "the best of random orders: always a uniform choice among the ready ops", one_device=True)
def solve_ready(task: Task, *, samples: int = SAMPLES) -> Plan:
    """Returns the best of `samples` orders. Stops earlier if the budget is spent, but not before the first order.

    Args:
      samples: number of orders to draw; 0 draws until the budget is spent.

    Raises:
      ProblemError: samples is negative.
    """
    return _best_order(task, samples, by_priority=False)


@solver("random-priorities", "the best of random orders: the ready op of highest random priority", one_device=True)
def solve_priorities(task: Task, *, samples: int = SAMPLES) -> Plan:
    """Returns the best of `samples` orders; arguments and errors as in `solve_ready`."""
    return _best_order(task, samples, by_priority=True)


class Drawing:
    """Draws batches of random topological orders of one graph, one per lane."""

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
        """Draws orders `[lanes, n] int64` of ops; None if `time.perf_counter()` reaches `until` before the end."""
        n, rows = self._n, np.arange(lanes)
        orders = np.empty((lanes, n), np.int64)
        left = np.repeat(self._in_degree[None], lanes, axis=0)
        priorities = rng.random((lanes, n)) if by_priority else np.zeros((1, n))
        # The ready ops of each lane are in its first places; -1 is the priority of an empty place.
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
            row, op = self._newly_ready(ops, left)
            if len(op):
                added = np.bincount(row, minlength=lanes)
                at = count[row] + _places(added)
                ready[row, at] = op
                if by_priority:
                    keys[row, at] = priorities[row, op]
                count += added
        return orders

    def _newly_ready(self, ops: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Marks the op of each lane as run; returns (lane, op) of its successors that are now ready."""
        degree = self._out_degree[ops]
        row = np.repeat(np.arange(len(ops)), degree)
        op = self._successors[np.repeat(self._first[ops], degree) + _places(degree)]
        left[row, op] -= 1  # an op's successors are distinct
        free = left[row, op] == 0
        return row[free], op[free]


def _places(counts: np.ndarray) -> np.ndarray:
    """Returns 0, 1, ... within each group, groups of `counts` one after the other: `[sum of counts]`."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)


def _best_order(task: Task, samples: int, by_priority: bool) -> Plan:
    if samples < 0:
        raise ProblemError(f"samples is {samples}: must be at least 1 order, or 0 for all that the budget allows")
    total = min(samples or math.inf, task.budget.evaluations or math.inf)
    flow = Flow(task.graph)
    drawing, usage, rng = Drawing(flow), Usage(flow), np.random.default_rng(task.seed)
    best, least, done = np.zeros(0, np.int64), math.inf, 0

    def plan() -> Plan:
        return task.plan(None, best, evaluations=done)

    while not done or (done < total and not task.is_spent(done)):
        count = int(min(max(1, (CELLS if done else FIRST_CELLS) // flow.num_ops), LANES, total - done))
        orders = drawing.draw(rng, count, by_priority, task.end if done else math.inf)
        if orders is None:
            break
        peaks = usage.peaks(orders)
        if peaks.min() < least:
            best, least = orders[peaks.argmin()].copy(), float(peaks.min())
        done += count
        task.best = plan
        task.report(done, task.order_value(least))
    return plan()


REACHES = (1.0, 4.0, 16.0, 64.0)  # standard deviations of the noise that is added to an op's place in the order
STRETCHES = (0.1, 0.3, 1.0)  # parts of the order that get noise


def nearby(flow: Flow, order: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws an order `[n]` near another: adds normal noise to the places of the ops in a random stretch of it; then the
    ready op of least place runs next.
    """
    n = len(order)
    places = np.empty(n)
    places[order] = np.arange(n)
    length = max(1, int(n * rng.choice(STRETCHES)))
    begin = int(rng.integers(n - length + 1))
    places[order[begin : begin + length]] += rng.choice(REACHES) * rng.standard_normal(length)
    return np.array(least_first(places, flow.waiting()), np.int64)
