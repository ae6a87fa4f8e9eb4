"""The optimum of tiny graphs by every placement and every order, the reference for solvers.

Uses neither bounds nor ideas of any solver. Pruning is lossless:
- devices are alike, so one placement is tried of those that differ by a renaming of devices;
- a prefix of an order is abandoned where it is no better than the best complete plan: makespan and peak only grow;
- and where the same ops and transfers have run before with the same clocks, ends and buffers, and no worse a makespan
  and peak: all continuations are the same;
- where memory does not matter, a transfer that delays nothing (`free`) runs immediately.
"""

import math
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from graphrl.costs.exact.memory import MemoryWalk
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import grouped

Rank = tuple[float, float]  # bytes above the limit, objective


def optimum(graph: ComputationGraph, problem: Problem) -> float:
    """The least objective of all plans, bytes or seconds; under a memory limit, among the plans of least excess."""
    return least_rank(graph, problem)[1]


def least_rank(graph: ComputationGraph, problem: Problem) -> Rank:
    """The least rank of all plans, as defined by `Plan.rank`."""
    best: Rank = (math.inf, math.inf)
    for placement in placements(len(graph.ops), problem.devices):
        best = _Orders(graph, problem, placement, best).best
    return best


def placements(num_ops: int, devices: int) -> Iterator[np.ndarray]:
    """Placements `[n]` up to a renaming of devices; everything on one device first."""
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


class _Clocks(NamedTuple):
    """Seconds at which devices and their outgoing links are free and slots end, and the latest end of an op."""

    free: tuple[float, ...]
    link: tuple[float, ...]
    end: dict[int, float]
    makespan: float


class _Orders:
    """All orders of a placement; `best` is the least rank so far, at first the given one."""

    def __init__(self, graph: ComputationGraph, problem: Problem, placement: np.ndarray, best: Rank) -> None:
        self._problem, self.best = problem, best
        self._limit = math.inf if problem.memory_limit is None else problem.memory_limit
        self._memory = problem.objective == "peak_memory" or problem.memory_limit is not None
        self._routes = routes = Routes(graph, problem, placement)
        self._walk = MemoryWalk(graph, problem, routes)
        self._seconds = routes.seconds(graph, problem).tolist()
        slots = len(routes.nodes)
        self._before, self._after = (
            grouped(*pair, slots) for pair in ((routes.after, routes.before), (routes.before, routes.after))
        )
        self._seen: dict[Hashable, list[Rank]] = {}
        none = (0.0,) * problem.devices
        self._extend((), 0, max(self._walk.live), _Clocks(none, none, {}, 0.0))

    def _extend(self, order: tuple[int, ...], ran: int, peak: int, clocks: _Clocks) -> None:
        """Tries all continuations; `ran` is the set of slots that have run, as bits."""
        objective = clocks.makespan if self._problem.objective == "makespan" else peak
        rank = (max(0.0, peak - self._limit), objective)
        if rank >= self.best or self._was_reached(order, ran, rank, clocks):
            return
        slots = range(len(self._before))
        if len(order) == len(slots):
            self.best = rank
            return
        ready = [x for x in slots if not ran >> x & 1 and all(ran >> before & 1 for before in self._before[x])]
        if self._problem.transfer == "free" and not self._memory and ready[-1] >= self._routes.num_ops:
            ready = ready[-1:]
        for slot in ready:
            compared = self._walk.step(slot)
            self._extend((*order, slot), ran | 1 << slot, max(peak, compared), self._run(clocks, slot))
            self._walk.back(slot)

    def _run(self, clocks: _Clocks, slot: int) -> _Clocks:
        here, there = int(self._routes.reads_on[slot]), int(self._routes.writes_on[slot])
        start = max((clocks.end[before] for before in self._before[slot]), default=0.0)
        free, link = list(clocks.free), list(clocks.link)
        is_op = slot < self._routes.num_ops
        if is_op or self._problem.transfer == "rendezvous":
            start = max(start, free[here], free[there])
            free[here] = free[there] = start + self._seconds[slot]
        elif self._problem.transfer == "link":
            start = max(start, link[here])
            link[here] = start + self._seconds[slot]
        end = start + self._seconds[slot]
        makespan = max(clocks.makespan, end) if is_op else clocks.makespan
        return _Clocks(tuple(free), tuple(link), {**clocks.end, slot: end}, makespan)

    def _was_reached(self, order: tuple[int, ...], ran: int, rank: Rank, clocks: _Clocks) -> bool:
        """True if the same state was reached before at no worse a rank."""
        state: tuple[Hashable, ...] = (ran, self._walk.sizes() if self._memory else None)
        if self._problem.objective == "makespan":
            # under rendezvous everything waits for the clock of a device: ends before all clocks do not matter
            first = min(clocks.free) if self._problem.transfer == "rendezvous" else -1.0
            waited = (slot for slot in sorted(order) if any(not ran >> after & 1 for after in self._after[slot]))
            ends = tuple((slot, clocks.end[slot]) for slot in waited if clocks.end[slot] > first)
            state += (clocks.free, clocks.link, ends)
        ranks = self._seen.setdefault(state, [])
        if any(excess <= rank[0] and objective <= rank[1] for excess, objective in ranks):
            return True
        ranks.append(rank)
        return False
