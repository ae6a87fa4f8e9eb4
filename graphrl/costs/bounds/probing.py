"""A sharper bound of peak memory: what an order below a peak could not do, followed until it contradicts itself.

Suppose that some order stays below T. Then no op v runs in a state that needs T or more, so that, for two ops v and u,
- where v needs T or more in all states in which u has run (a minimum cut with u done: bounds/cuts.py), v runs before u;
- where v needs as much in all states in which u has not, u runs before v.
What is found leaves later cuts fewer states: both ops are probed again. A cycle, or an op that needs T in all states
that are left, proves that there is no such order. (Probing of mixed integer programs, Savelsbergh 1994; the "shaving"
of job-shop scheduling, Martin & Shmoys 1996.) Single cuts miss what this sees: where two large tensors must be live
together and either of two ops, each with an output of its own, can run first, one of them runs while both tensors are
there, and each of them alone could wait.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from graphrl.costs.bounds.cuts import DONE, LATER, OPEN, Cut, Cuts
from graphrl.graphs.graph import ComputationGraph

WORK = 200_000  # of all cuts together, in microseconds or so: the proofs that were found took a quarter of it or less
MAX_OPS = 8_000  # of a graph: bounds the memory of all pairs
FIRST = 12  # ops that are probed first
PRECISE = 2e-4  # of the peak: the largest provable T is known so well


def probed_bound(graph: ComputationGraph, cuts: Cuts, cost: int, ops: Sequence[int], low: int, high: int) -> int:
    """Bytes that no order's peak is below, at least `low`.

    Args:
      graph: of n ops.
      cuts: of the graph.
      cost: of a cut of the whole graph, in microseconds or so (`cuts.work`).
      ops: those that need most first.
      low: a bound.
      high: bytes that some order stays within.
    """
    if graph.arrays.num_ops > MAX_OPS:
        return low
    orders, target = _Orders(graph.arrays.ancestors()), high  # every order below `high` is among them
    probes = _Probes(cuts, cost)
    while high - low > PRECISE * high and probes.work < WORK:
        tried = orders.copy()
        if probes.contradiction(tried, target, ops[:FIRST]):
            if target == high:
                return high
            low = target
        else:
            orders, high = tried, target
        target = (low + high) // 2
    return low


class _Orders:
    """Orders of n ops, by pairs that they all agree on.

    Attributes:
      before: `[n, n]` bool, `before[v, u]`: u runs before v; transitive.
    """

    def __init__(self, before: np.ndarray) -> None:
        self.before = before

    def copy(self) -> "_Orders":
        return _Orders(self.before.copy())

    def add(self, first: int, second: int) -> bool:
        """Has one op run before another; whether that can be."""
        if first == second or self.before[first, second]:
            return False
        upto, since = self.before[first].copy(), self.before[:, second].copy()
        upto[first] = since[second] = True
        self.before[since] |= upto
        return True


class _Probes:
    """Attributes:
    work: that all cuts so far have taken, in microseconds or so.
    """

    def __init__(self, cuts: Cuts, cost: int) -> None:
        self._cuts, self._cost = cuts, cost
        self.work = 0

    def contradiction(self, orders: _Orders, target: int, ops: Sequence[int]) -> bool:
        """Whether none of the orders stays below the target; `orders` is narrowed to those that may.

        Args:
          ops: to be probed first.
        """
        queue: list[tuple[int, int]] = []  # (-need, op): who needs most has least room
        changed, end = set(ops), self.work + WORK // 4
        while self.work < end:
            for op in sorted(changed):
                need = self._cut(orders, op).need
                if need >= target:
                    return True
                heapq.heappush(queue, (-need, op))
            if not queue:
                break
            op = heapq.heappop(queue)[1]
            queue = [one for one in queue if one[1] != op]
            heapq.heapify(queue)
            placed = self._probe(orders, target, op, end)
            if placed is None:
                return True
            changed = placed
        return False

    def _probe(self, orders: _Orders, target: int, op: int, end: int) -> set[int] | None:
        """The ops whose place beside an op becomes known; None if the op cannot run below the target."""
        cut, late = self._cut(orders, op), self._cut(orders, op, late=True)
        if cut.need >= target:
            return None
        seen = [~cut.done | ~late.done, cut.done | late.done]  # who runs later, earlier, in a state below the target
        changed = set()
        for early in (True, False):
            while self.work < end:
                left = ~(orders.before[op] | orders.before[:, op] | seen[early])
                left[op] = False
                if not left.any():
                    break
                other = int(left.argmax())
                cut = self._cut(orders, op, other, early=early, late=early)
                if cut.need < target:
                    seen[True] |= cut.done
                    seen[False] |= ~cut.done
                    seen[early][other] = True
                elif orders.add(*((op, other) if early else (other, op))):
                    changed.add(other)
                else:
                    return None
        return changed

    def _cut(
        self, orders: _Orders, op: int, other: int | None = None, *, early: bool = False, late: bool = False
    ) -> Cut:
        """The least that an op can run in; if given, with another op early, before it, or not."""
        phase = np.full(len(orders.before), OPEN)
        phase[orders.before[op]], phase[orders.before[:, op]] = DONE, LATER
        if other is not None:
            phase[orders.before[other] if early else orders.before[:, other]] = DONE if early else LATER
            phase[other] = DONE if early else LATER
        self.work += 60 + self._cost // 100 + int((phase == OPEN).sum()) // 8
        return self._cuts.least(op, phase, late=late)
