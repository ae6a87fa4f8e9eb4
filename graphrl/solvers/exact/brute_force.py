"""Brute force: every placement and every order of ops and transfers, for tiny graphs. What other solvers are held to.

What is left out loses nothing:
- devices are alike, so of placements that differ by their names alone one is tried;
- a beginning of an order is given up where it is no better than the best complete plan: makespan and peak only grow;
- and where the same ops and transfers have run before with the same clocks, arrivals and buffers, and no worse a
  makespan and peak: all that follows is the same;
- where memory does not matter, a transfer that holds nobody up (`free`) runs at once.

Neither bounds nor any other solver's ideas are used.
"""

import math
from collections.abc import Hashable, Iterator

import numpy as np

from graphrl.costs.exact.evaluate import Clocks
from graphrl.costs.exact.memory import MemoryWalk
from graphrl.costs.exact.routes import Routes
from graphrl.errors import ProblemError
from graphrl.graphs.topology import grouped
from graphrl.plan import Plan
from graphrl.solvers.base import PlacedOrder, Task
from graphrl.solvers.solver import solver

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
        seconds = routes.seconds(self._graph, self._problem)
        self._clocks = Clocks(routes, seconds, self._problem.transfer, self._problem.devices)
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
            compared, (_, end) = self._walk.step(slot), self._clocks.step(slot)
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
        sizes = self._walk.sizes() if self._memory else None
        state = (ran, sizes, self._times(unfinished) if self._problem.objective == "makespan" else None)
        ranks = self._seen.setdefault(state, [])
        if any(excess <= rank[0] and objective <= rank[1] for excess, objective in ranks):
            return True
        ranks.append(rank)
        return False

    def _times(self, unfinished: list[int]) -> Hashable:
        """What the clocks say of the future; `unfinished` are the slots that others still wait for."""
        # Under rendezvous everything waits for the clock of a device: ends before them all do not matter.
        clocks = self._clocks
        first = min(clocks.free) if self._problem.transfer == "rendezvous" else -1.0
        ends = ((slot, clocks.end[slot]) for slot in sorted(unfinished) if clocks.end[slot] > first)
        return tuple(clocks.free), tuple(clocks.link), tuple(ends)

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
