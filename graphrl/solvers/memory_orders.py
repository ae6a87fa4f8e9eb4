"""Orders of the ops of one device that keep its peak memory low, by quick rules: O((n + e) log n) each.

The rules:
- topological: the graph's own order, lowest ready index first;
- newest: the ready op that became ready last (depth first);
- greedy: the ready op that frees most and allocates least, ties to the newest (XLA's list scheduler is like it);
- postorder: depth first from the sinks backwards, the operand with most bytes above it first (XLA's DFS is like it);
- reverse greedy: greedy from the end of the order to its start;
- late: improves any order: an op that holds at least what it frees moves to just before its first successor.

Shared buffers (alias) count once; that an output may reuse an input's buffer is left to the exact costs, which judge.
"""

import heapq

import numpy as np

from graphrl.costs.exact_memory import Buffers, memory_changes
from graphrl.costs.exact_routes import Routes, grouped
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph

MAX_BYTES_ABOVE = 2**62  # sums over paths grow exponentially


def memory_orders(flow: "Flow") -> list[np.ndarray]:
    """Different topological orders of the ops `[n] int64`, the one of least peak on one device first."""
    rules = [_greedy(flow), _reverse_greedy(flow), _postorder(flow), _newest(flow), flow.topological]
    return [order for _, order in sorted((flow.improved(order) for order in rules), key=lambda found: found[0])]


class Flow:
    """A graph as lists, for passes over its ops. Buffers are those of one device, named by the tensor that allocates
    them.

    Attributes:
      topological: ops.
      predecessors, successors, after: by op, ops: all dependencies, and those by control alone.
      inputs: by op, tensors.
      reads, writes: by op, buffers.
      of: by tensor, its buffer.
      users: by buffer, ops.
      size: by buffer, bytes.
      pinned: by buffer, whether it is never freed.
      reuses: by buffer (if any), the buffer that it may take over.
      evaluations: orders whose peak was computed.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        a = graph.arrays
        n = a.num_ops
        self.graph, self.num_ops = graph, n
        self.routes = Routes(graph, Problem(), np.zeros(n, np.int64))
        buffers = Buffers(graph, Problem(), self.routes)
        self.topological = a.topological.tolist()
        source, target = a.dependencies()
        self.predecessors, self.successors = grouped(target, source, n), grouped(source, target, n)
        self.after = grouped(a.control_target, a.control_source, n)
        self.inputs = grouped(a.use_op, a.use_tensor, n)
        users = np.unique(np.stack([buffers.of[a.use_tensor], a.use_op.astype(np.int64)], 1), axis=0)
        self.users = grouped(users[:, 0], users[:, 1], a.num_tensors)
        self.reads = grouped(users[:, 1], users[:, 0], n)
        own = np.flatnonzero(buffers.of == np.arange(a.num_tensors))
        self.writes = grouped(a.producer[own], own, n)
        self.of, self.size, self.pinned = buffers.of.tolist(), buffers.bytes.tolist(), buffers.pinned.tolist()
        self.reuses = {t: self.of[a.reuses[t]] for t in np.flatnonzero(a.reuses >= 0).tolist()}
        self.evaluations = 0

    def held(self, op: int) -> int:
        """Bytes that an op allocates and leaves behind."""
        return sum(self.size[b] for b in self.writes[op] if self.users[b] or self.pinned[b])

    def peak(self, order: list[int]) -> int:
        """Exact peak of one device, bytes, without resident weights."""
        self.evaluations += 1
        return int(memory_changes(self.graph, Problem(), self.routes, np.array(order, np.int64))[0][:, 1].max())

    def improved(self, order: list[int], passes: int = 2) -> tuple[int, np.ndarray]:
        """Peak and order, after moving ops later as long as it helps."""
        best = self.peak(order)
        for _ in range(passes):
            later = _late(self, order)
            peak = self.peak(later)
            if peak >= best:
                break
            best, order = peak, later
        return best, np.array(order, np.int64)


def _newest(flow: Flow) -> list[int]:
    left = [len(before) for before in flow.predecessors]
    ready = [op for op in reversed(range(flow.num_ops)) if left[op] == 0]
    order = []
    while ready:
        op = ready.pop()
        order.append(op)
        for after in flow.successors[op]:
            left[after] -= 1
            if left[after] == 0:
                ready.append(after)
    return order


def _greedy(flow: Flow) -> list[int]:
    left = [len(before) for before in flow.predecessors]
    users_left = [len(users) for users in flow.users]
    last_user = [sum(users) for users in flow.users]  # sum of the users that are left: the user, once it is one
    change = [flow.held(op) for op in range(flow.num_ops)]  # of live bytes, if run next
    queue: list[tuple[int, int, int]] = []
    age = 0

    def frees_alone(buffer: int) -> None:
        if users_left[buffer] == 1 and not flow.pinned[buffer]:
            change[last_user[buffer]] -= flow.size[buffer]

    for buffer in range(len(users_left)):
        frees_alone(buffer)
    for op in range(flow.num_ops):
        if left[op] == 0:
            heapq.heappush(queue, (change[op], 0, op))
    order, done = [], [False] * flow.num_ops
    while queue:
        value, _, op = heapq.heappop(queue)
        if done[op] or value != change[op]:
            continue  # an entry from before its change fell
        done[op] = True
        order.append(op)
        age -= 1
        for buffer in flow.reads[op]:
            users_left[buffer] -= 1
            last_user[buffer] -= op
            frees_alone(buffer)
            if users_left[buffer] == 1 and left[last_user[buffer]] == 0:
                heapq.heappush(queue, (change[last_user[buffer]], age, last_user[buffer]))
        for after in flow.successors[op]:
            left[after] -= 1
            if left[after] == 0:
                heapq.heappush(queue, (change[after], age, after))
    return order


def _reverse_greedy(flow: Flow) -> list[int]:
    left = [len(after) for after in flow.successors]
    live = list(flow.pinned)
    # Going backwards over an op, its own buffers vanish and those that it is the first to read appear.
    change = [sum(flow.size[b] for b in flow.reads[op] if not live[b]) - flow.held(op) for op in range(flow.num_ops)]
    queue = [(change[op], 0, op) for op in range(flow.num_ops) if left[op] == 0]
    heapq.heapify(queue)
    order, done = [], [False] * flow.num_ops
    age = 0
    while queue:
        value, _, op = heapq.heappop(queue)
        if done[op] or value != change[op]:
            continue
        done[op] = True
        order.append(op)
        age -= 1
        for buffer in flow.reads[op]:
            if live[buffer]:
                continue
            live[buffer] = True
            for user in flow.users[buffer]:
                change[user] -= flow.size[buffer]
                if left[user] == 0 and not done[user]:
                    heapq.heappush(queue, (change[user], age, user))
        for before in flow.predecessors[op]:
            left[before] -= 1
            if left[before] == 0:
                heapq.heappush(queue, (change[before], age, before))
    return order[::-1]


def _postorder(flow: Flow) -> list[int]:
    above = [0] * flow.num_ops
    for op in flow.graph.arrays.topological.tolist():
        above[op] = min(MAX_BYTES_ABOVE, flow.held(op) + sum(above[before] for before in flow.predecessors[op]))

    def by_weight(ops: list[int]) -> list[int]:
        return sorted(ops, key=lambda op: above[op])  # the heaviest is popped first

    order: list[int] = []
    entered = [False] * flow.num_ops
    stack = by_weight([op for op in range(flow.num_ops) if not flow.successors[op]])
    while stack:
        op = stack.pop()
        if op < 0:
            order.append(-1 - op)
        elif not entered[op]:
            entered[op] = True
            stack.append(-1 - op)  # to be written once all that it waits for is
            stack += [before for before in by_weight(flow.predecessors[op]) if not entered[before]]
    return order


def _late(flow: Flow, order: list[int]) -> list[int]:
    place = np.empty(flow.num_ops, np.int64)
    place[order] = np.arange(flow.num_ops)
    position = place.tolist()
    last = [max((position[user] for user in users), default=-1) for users in flow.users]
    # An op moves to the front of those that wait at its anchor, so that sorting by (anchor, old position) is an order.
    anchor = place.tolist()
    for op in reversed(order):
        freed = sum(flow.size[b] for b in flow.reads[op] if last[b] == position[op] and not flow.pinned[b])
        if flow.successors[op] and flow.held(op) >= freed:
            anchor[op] = min(anchor[after] for after in flow.successors[op])
    return np.lexsort((place, np.array(anchor))).tolist()
