"""Brute force: every placement and every order of ops and transfers, for tiny graphs. What other solvers are held to.

What is left out loses nothing:
- devices are alike, so of placements that differ by their names alone one is tried;
- a beginning of an order is given up where it is no better than the best complete plan: makespan and peak only grow;
- and where the same ops and transfers have run before with the same clocks, arrivals and buffers, and no worse a
  makespan and peak: all that follows is the same;
- where memory does not matter, a transfer that holds nobody up (`free`) runs at once.

Neither bounds nor any other solver's ideas are used. The clocks are advanced as in `costs/exact`, memory by
`memory_walk.py`; the plan itself is costed by `costs/exact`.
"""

import math
from collections.abc import Hashable, Iterator

import numpy as np

from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import grouped
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task, solver
from graphrl.solvers.orders.memory_walk import MemoryWalk

STEPS = 3_000_000  # some 20 s
OPS = 64  # more are refused at once
LOOK = 256  # steps between two looks at the clock

Rank = tuple[float, float]  # bytes above the limit, objective


@solver("brute-force", "exact, for tiny graphs: every placement and every order")
def solve(task: Task, *, steps: int = STEPS) -> Plan:
    """The optimum, with itself as its bound; of equals the first that is met, whatever the seed.

    A complete plan counts as an evaluation, and so does a placement that is given up without one. If the budget ends
    first, the best plan so far without a bound.

    Args:
      steps: ops and transfers to run in all before the graph counts as too large.

    Raises:
      ProblemError: the search needs more steps, or the graph has more than 64 ops.
    """
    graph = task.graph
    if len(graph.ops) > OPS:
        raise ProblemError(
            f"method 'brute-force' is for tiny graphs, up to {OPS} ops: {graph.name!r} has {len(graph.ops)}"
        )
    search = _Search(task, steps)
    search.run()
    return search.plan()


class _Ended(Exception):
    """Thrown out of the search when the budget is spent."""


class _Search:
    """The search.

    Attributes:
      best, rank: the best placement and order so far, and its rank.
      evaluations: complete plans that were reached, and placements without any.
      finished: whether nothing is left to try.
    """

    def __init__(self, task: Task, steps: int) -> None:
        self._task, self._graph, self._problem, self._steps = task, task.graph, task.problem, steps
        self._limit = math.inf if task.problem.memory_limit is None else task.problem.memory_limit
        self._memory = task.problem.objective == "peak_memory" or task.problem.memory_limit is not None
        self.best: PlacedOrder | None = None
        self.rank: Rank = (math.inf, math.inf)
        self.evaluations = self._done = 0
        self.finished = False

    def run(self) -> None:
        """Tries everything; ends early, once there is a plan, when the budget is spent."""
        try:
            for placement in placements(len(self._graph.ops), self._problem.devices):
                self._look()
                complete = self.evaluations
                self._place(placement)
                if self.evaluations == complete:
                    self.evaluations += 1
            self.finished = True
        except _Ended:
            pass

    def plan(self) -> Plan:
        """The best so far."""
        assert self.best is not None
        return self._task.plan(*self.best, evaluations=self.evaluations, optimal=self.finished)

    def _place(self, placement: np.ndarray) -> None:
        self._routes = routes = Routes(self._graph, self._problem, placement)
        self._walk = MemoryWalk(self._graph, self._problem, routes)
        self._clocks = _Clocks(self._graph, self._problem, routes)
        slots = len(routes.nodes)
        self._successors = grouped(routes.before, routes.after, slots)
        self._left = np.bincount(routes.after, minlength=slots).tolist()
        self._order: list[int] = []
        self._seen: dict[Hashable, list[Rank]] = {}
        self._extend(0, max(self._walk.live), 0.0)

    def _extend(self, ran: int, peak: int, makespan: float) -> None:
        """Tries all that can follow; `ran` is the set of slots that have run, as bits."""
        objective = makespan if self._problem.objective == "makespan" else peak
        rank = (max(0.0, peak - self._limit), objective)
        if rank >= self.rank or self._was_reached(ran, rank):
            return
        if len(self._order) == len(self._left):
            self.evaluations += 1
            self.rank, self.best = rank, (self._routes.placement, self._routes.nodes[self._order])
            self._task.best = self.plan
            self._look()
            return
        ready = [slot for slot, left in enumerate(self._left) if left == 0 and not ran >> slot & 1]
        if self._problem.transfer == "free" and not self._memory and ready[-1] >= self._routes.num_ops:
            ready = ready[-1:]
        for slot in ready:
            self._count_step()
            compared, end = self._walk.step(slot), self._clocks.step(slot)
            self._order.append(slot)
            for after in self._successors[slot]:
                self._left[after] -= 1
            ends = makespan if slot >= self._routes.num_ops else max(makespan, end)
            self._extend(ran | 1 << slot, max(peak, compared), ends)
            for after in self._successors[slot]:
                self._left[after] += 1
            self._order.pop()
            self._clocks.back(slot)
            self._walk.back(slot)

    def _was_reached(self, ran: int, rank: Rank) -> bool:
        """Whether the same state was reached at no worse a rank."""
        unfinished = [slot for slot in self._order if any(not ran >> after & 1 for after in self._successors[slot])]
        state = (
            ran,
            self._walk.sizes() if self._memory else None,
            self._clocks.state(unfinished) if self._problem.objective == "makespan" else None,
        )
        ranks = self._seen.setdefault(state, [])
        if any(excess <= rank[0] and objective <= rank[1] for excess, objective in ranks):
            return True
        ranks.append(rank)
        return False

    def _count_step(self) -> None:
        self._done += 1
        if self._done > self._steps:
            n, devices = len(self._graph.ops), self._problem.devices
            raise ProblemError(
                f"method 'brute-force' is for tiny graphs: {self._graph.name!r} ({n} ops, {devices} devices) needs "
                f"more than steps={self._steps}"
            )
        if self._done % LOOK == 0:
            self._look()

    def _look(self) -> None:
        """Reports, and ends the search if there is a plan and the budget is spent."""
        self._task.report(self.evaluations, self.rank[1])
        if self.best is not None and self._task.over(self.evaluations):
            raise _Ended


class _Clocks:
    """Clocks and ends of the slots that have run, as `costs/exact` advances them."""

    def __init__(self, graph: ComputationGraph, problem: Problem, routes: Routes) -> None:
        a, n = graph.arrays, routes.num_ops
        self._transfer = problem.transfer
        self._num_ops = n
        self._sources = grouped(routes.after, routes.before, len(routes.nodes))
        copies = a.tensor_bytes[routes.transfer_tensor].tolist()
        self._seconds = a.runtime.tolist() + [problem.transfer_seconds(num_bytes) for num_bytes in copies]
        self._device = routes.placement.tolist() + routes.home[routes.transfer_tensor].tolist()
        self._to = routes.placement.tolist() + routes.transfer_to.tolist()
        self._end = [0.0] * len(routes.nodes)
        self._free = [0.0] * problem.devices
        self._link = [0.0] * problem.devices
        self._undo: list[tuple[float, float, float]] = []

    def step(self, slot: int) -> float:
        """Runs a slot: its end, seconds."""
        here, there = self._device[slot], self._to[slot]
        self._undo.append((self._free[here], self._free[there], self._link[here]))
        begin = max((self._end[source] for source in self._sources[slot]), default=0.0)
        if slot < self._num_ops or self._transfer == "rendezvous":
            begin = max(begin, self._free[here], self._free[there])
            self._free[here] = self._free[there] = begin + self._seconds[slot]
        elif self._transfer == "link":
            begin = max(begin, self._link[here])
            self._link[here] = begin + self._seconds[slot]
        self._end[slot] = begin + self._seconds[slot]
        return self._end[slot]

    def back(self, slot: int) -> None:
        """Takes back the last step, which ran `slot`."""
        here, there = self._device[slot], self._to[slot]
        self._free[here], self._free[there], self._link[here] = self._undo.pop()

    def state(self, unfinished: list[int]) -> Hashable:
        """What the future depends on; `unfinished` are the slots that others still wait for."""
        first = min(self._free)
        # Under rendezvous everything waits for the clock of a device: ends before them all do not matter.
        ends = [
            (slot, self._end[slot])
            for slot in sorted(unfinished)
            if self._transfer != "rendezvous" or self._end[slot] > first
        ]
        return tuple(self._free), tuple(self._link), tuple(ends)


def placements(num_ops: int, devices: int) -> Iterator[np.ndarray]:
    """Placements `[n]` of which every other is a renaming of devices; everything on one device first."""
    placement = np.zeros(num_ops, np.int64)
    while True:
        yield placement.copy()
        highest = np.maximum.accumulate(placement)
        for op in reversed(range(1, num_ops)):
            if placement[op] < min(devices - 1, highest[op - 1] + 1):
                placement[op] += 1
                placement[op + 1 :] = 0
                break
        else:
            return
