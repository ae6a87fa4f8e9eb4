"""Lower bounds of peak memory by minimum cuts (the least memory in which each op can run) and by probing of orders.

**Cuts.** When op v has run, the ops that have run are a set S. S contains v and all predecessors of its ops, but no
successor of v. A buffer is then live if its producer is in S and it is pinned or one of its users is not in S. While v
ran, its inputs, outputs and workspace were also live. So v needs at least the minimum, over all such S, of the bytes of
live buffers.

This is a cut in a network. Each buffer is a hyperedge from its producer to its users, and costs its bytes if S
separates them: producer -> buffer with the buffer's bytes as capacity, buffer -> user and op -> predecessor without
limit (Lawler 1973 on cuts of hypergraphs; Picard 1976 on closed sets). The maximum over v bounds every order from
below. A good order passes through the set S of a minimum when it runs v (solvers/orders/min_cut.py).

`Needs` has the figures of each op that do not depend on the order. Shared buffers are counted once, with the least size
they can have:

- An alias and its source are one buffer. On several devices it may also be a copy, with the declared bytes of any of
  them.
- An output that may take over an input's buffer is not counted in addition to that buffer at its own op. Afterwards it
  counts as the smaller of the two. The two are never the same memory while both are live, since a buffer changes hands
  only after its last use.

**Probing** is tighter: it assumes an order below a peak and derives constraints until they contradict. Suppose that
some order stays below T. Then no op v runs in a state that needs T or more, so for two ops v and u,
- if v needs T or more in all states in which u has run (a minimum cut with u done), v runs before u;
- if v needs T or more in all states in which u has not run, u runs before v.
Each such constraint leaves later cuts fewer states, so both ops are probed again. A cycle, or an op that needs T in all
remaining states, proves that no such order exists. (Probing of mixed integer programs, Savelsbergh 1994; the "shaving"
of job-shop scheduling, Martin & Shmoys 1996.) Single cuts miss some cases. An example: two large tensors must be live
together, and either of two ops, each with its own output, can run first. One of the ops runs while both tensors are
live, although each alone could wait.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphrl.costs.exact.memory import SharedBuffers
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import EXTERNAL, NONE, ComputationGraph

# Limit of bits of the sum of all sizes, as the flow is in int64. Larger sums lose their lowest bits: then the need of a
# cut may be below the real one, and the cut may not be minimum.
MAX_BITS = 60
LARGE = 200_000  # arcs above which each one takes more than a microsecond
DONE, OPEN, LATER = 0, 1, 2  # phases of ops: has run, may have run, runs later
WORK = 200_000  # limit of the estimated time of all cuts, microseconds: successful proofs took a quarter of it or less
MAX_OPS = 8_000  # larger graphs are not probed: bounds the memory of all pairs
FIRST = 12  # number of ops that are probed first
PRECISE = 2e-4  # precision of the largest provable T, relative to the peak


class Needs:
    """Buffers of a graph of n ops and t tensors, with their least sizes and their users; named by their first tensor.

    Attributes:
      least: `[t]` int64, the least bytes that the buffer of each tensor can have; 0 for aliases.
      pinned: `[t]` bool, True if the buffer is never freed.
      users: `[u, 2]` int64, distinct (buffer, op that uses it), sorted.
      own: `[n]` int64, bytes that an op needs in addition to live buffers: workspace, and outputs that take over no
        buffer.
    """

    def __init__(self, graph: ComputationGraph, devices: int = 1) -> None:
        a = graph.arrays
        buffers = SharedBuffers(graph, Problem(), Routes(graph, Problem(), np.zeros(a.num_ops, int)))
        self.least = _least_bytes(graph, buffers, devices)
        self.pinned = buffers.pinned
        self.users = np.unique(np.stack([buffers.of[a.use_tensor], a.use_op.astype(np.int64)], 1), axis=0)
        self.own = a.workspace_bytes.copy()
        np.add.at(self.own, a.producer, np.where((a.alias == NONE) & (a.reuses < 0), a.tensor_bytes, 0))


def _least_bytes(graph: ComputationGraph, buffers: SharedBuffers, devices: int) -> np.ndarray:
    a = graph.arrays
    least = np.where(a.alias == EXTERNAL, 0, a.tensor_bytes)
    sharing = np.flatnonzero((a.alias >= 0) | (a.reuses >= 0))
    for tensor in sharing[np.argsort(a.rank[a.producer[sharing]], kind="stable")].tolist():
        if a.alias[tensor] >= 0 and devices == 1:  # no copies
            least[tensor] = least[a.alias[tensor]]
        else:
            least[tensor] = min(least[tensor], least[max(a.alias[tensor], a.reuses[tensor])])
    smallest = least.copy()
    np.minimum.at(smallest, buffers.of, least)
    return np.where(buffers.of == np.arange(a.num_tensors), smallest, 0)


class Cut(NamedTuple):
    """A state of least memory in which an op can run."""

    need: int  # bytes in use while the op runs, or fewer (see `MAX_BITS`)
    done: np.ndarray  # [n] bool, the ops that have run by then, itself included


def work(graph: ComputationGraph, needs: Needs) -> int:
    """Estimates the time of a minimum cut of the whole graph from above, in microseconds.

    It is about one for each arc of the network, and more in large networks.
    """
    arcs = len(needs.least) + len(needs.users) + len(graph.arrays.dependencies()[0])
    return arcs * max(LARGE, arcs) // LARGE


class Cuts:
    """Finds minimum cuts of one graph of n ops on one device."""

    def __init__(self, graph: ComputationGraph, needs: Needs) -> None:
        a = graph.arrays
        self._n, self._own = a.num_ops, needs.own
        buffers = np.flatnonzero(needs.least > 0)
        index = np.full(len(needs.least), -1)
        index[buffers] = np.arange(len(buffers))
        self._least, self._writer = needs.least[buffers], a.producer[buffers].astype(np.int64)
        users = needs.users[index[needs.users[:, 0]] >= 0]
        of, user = index[users[:, 0]], users[:, 1]
        self._reads = _groups(user, of, self._n)
        self._writes = _groups(self._writer, np.arange(len(buffers)), self._n)
        # a pinned buffer has a user that never runs
        pinned = np.flatnonzero(needs.pinned[buffers])
        self._of, self._user = np.concatenate([of, pinned]), np.concatenate([user, np.full(len(pinned), self._n)])
        self._before, self._after = (side.astype(np.int64) for side in a.dependencies())
        self._successors = _groups(self._before, self._after, self._n)

    def least(
        self, op: int, phase: np.ndarray | None = None, *, late: bool = False, weight: np.ndarray | None = None
    ) -> Cut:
        """Returns the least memory in which an op can run.

        Args:
          op: an op whose phase is OPEN.
          phase: `[n]` int, DONE, OPEN or LATER for each op, DONE with all predecessors and LATER with all successors;
            by default all are open.
          late: True selects the minimum cut with most ops if there are several; False the one with fewest.
          weight: `[t]` int64, sizes to cut by in place of the least bytes; `need` is then meaningless.
        """
        phases = np.full(self._n + 1, OPEN) if phase is None else np.append(phase, LATER)
        phases[self._n] = LATER
        node = np.cumsum(phases == OPEN) - 1  # network node of each op
        source, sink = int(node[-1]) + 1, int(node[-1]) + 2
        node[phases == DONE], node[phases == LATER] = source, sink
        own = np.unique(np.concatenate([self._reads[op], self._writes[op]]))
        need = int(self._own[op]) + int(self._least[self._reads[op]].sum())
        counted = phases[self._writer] != LATER
        counted[own] = False
        use = counted[self._of] & (phases[self._user] != DONE)
        order = (phases[self._before] == OPEN) & (phases[self._after] == OPEN)
        at = sink + 1  # buffers come after the ops
        live = np.flatnonzero(counted)
        after = self._successors[op]
        tails = [node[self._writer[live]], at + self._of[use], node[self._after[order]], [source]]
        tails += [node[after[phases[after] == OPEN]], [source]]
        heads = [at + live, node[self._user[use]], node[self._before[order]], [node[op]]]
        heads += [np.full(len(tails[-2]), sink), [sink]]  # the last arc only adds the sink; its capacity is 0
        limited = (self._least if weight is None else weight)[live]
        coarse = max(0, int(limited.sum(dtype=float)).bit_length() - MAX_BITS)
        limited = limited >> coarse
        tail, head = np.concatenate(tails), np.concatenate(heads)
        capacity = np.concatenate([limited, np.full(len(tail) - len(live) - 1, int(limited.sum()) + 1), [0]])
        from ortools.graph.python import max_flow  # slow to import: only needed for cuts

        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(tail.astype(np.int32), head.astype(np.int32), capacity)
        flow.solve(source, sink)
        done = np.full(sink + 1, late)
        side = flow.get_sink_side_min_cut() if late else flow.get_source_side_min_cut()
        done[[place for place in side if place <= sink]] = not late
        done[source], done[sink] = True, False
        return Cut(need + (int(flow.optimal_flow()) << coarse), done[node[:-1]])


def _groups(key: np.ndarray, value: np.ndarray, count: int) -> list[np.ndarray]:
    """Returns the values of each key, for keys 0 to count - 1."""
    order = np.argsort(key, kind="stable")
    return np.split(value[order], np.cumsum(np.bincount(key, minlength=count))[:-1])


def probed_bound(graph: ComputationGraph, cuts: Cuts, cost: int, ops: Sequence[int], low: int, high: int) -> int:
    """Returns a lower bound of the peak of all orders, in bytes: at least `low`, raised by probing.

    Args:
      graph: a graph of n ops.
      cuts: minimum cuts of the graph.
      cost: estimated time of a cut of the whole graph, microseconds (`work`).
      ops: the ops to probe, in descending order of their need.
      low: a lower bound, bytes.
      high: bytes that the peak of some order does not exceed.
    """
    if graph.arrays.num_ops > MAX_OPS:
        return low
    orders, target = _Orders(graph.arrays.ancestors()), high  # includes every order below `high`
    probes = _Probes(cuts, cost)
    while high - low > PRECISE * high and probes.work < WORK:
        narrowed = orders.copy()
        if probes.contradiction(narrowed, target, ops[:FIRST]):
            if target == high:
                return high
            low = target
        else:
            orders, high = narrowed, target
        target = (low + high) // 2
    return low


class _Orders:
    """A set of orders of n ops, represented by the pairs on which they all agree.

    Attributes:
      before: `[n, n]` bool, `before[v, u]`: u runs before v; transitive.
    """

    def __init__(self, before: np.ndarray) -> None:
        self.before = before

    def copy(self) -> "_Orders":
        return _Orders(self.before.copy())

    def add(self, first: int, second: int) -> bool:
        """Adds the constraint that `first` runs before `second`. Returns False if that is impossible."""
        if first == second or self.before[first, second]:
            return False
        earlier, later = self.before[first].copy(), self.before[:, second].copy()
        earlier[first] = later[second] = True
        self.before[later] |= earlier
        return True


class _Probes:
    """Probes the ops of one graph.

    Attributes:
      work: estimated time of all cuts so far, microseconds.
    """

    def __init__(self, cuts: Cuts, cost: int) -> None:
        self._cuts, self._cost = cuts, cost
        self.work = 0

    def contradiction(self, orders: _Orders, target: int, ops: Sequence[int]) -> bool:
        """True if it is proved that no order stays below the target, in bytes; `orders` is narrowed to those that may.

        False also if the budget of work is spent first.

        Args:
          ops: ops to probe first.
        """
        queue: list[tuple[int, int]] = []  # (-need, op): the op that needs most has the least slack
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
        """Returns the ops whose order relative to an op becomes known; None if the op cannot run below the target."""
        cut, late = self._cut(orders, op), self._cut(orders, op, late=True)
        if cut.need >= target:
            return None
        possible = [~cut.done | ~late.done, cut.done | late.done]  # ops that run later, earlier in a state below
        changed = set()
        for early in (True, False):
            while self.work < end:
                unknown = ~(orders.before[op] | orders.before[:, op] | possible[early])
                unknown[op] = False
                if not unknown.any():
                    break
                other = int(unknown.argmax())
                cut = self._cut(orders, op, other, early=early, late=early)
                if cut.need < target:
                    possible[True] |= cut.done
                    possible[False] |= ~cut.done
                    possible[early][other] = True
                elif orders.add(*((op, other) if early else (other, op))):
                    changed.add(other)
                else:
                    return None
        return changed

    def _cut(
        self, orders: _Orders, op: int, other: int | None = None, *, early: bool = False, late: bool = False
    ) -> Cut:
        """Computes the minimum cut of an op; if `other` is given, with that op before it (`early`) or after it."""
        phase = np.full(len(orders.before), OPEN)
        phase[orders.before[op]], phase[orders.before[:, op]] = DONE, LATER
        if other is not None:
            phase[orders.before[other] if early else orders.before[:, other]] = DONE if early else LATER
            phase[other] = DONE if early else LATER
        self.work += 60 + self._cost // 100 + int((phase == OPEN).sum()) // 8
        return self._cuts.least(op, phase, late=late)
