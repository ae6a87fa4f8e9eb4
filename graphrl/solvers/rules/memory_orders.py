"""Orders of the ops of one device that keep its peak memory low, by quick rules: O((n + e) log n) each.

The rules:
- topological: the graph's own order, lowest ready index first;
- newest: the ready op that became ready last (depth first, of equals the one of highest index);
- greedy: the ready op that frees most and allocates least, ties to the newest (XLA's list scheduler is like it);
- postorder: depth first from the sinks backwards, the operand with most bytes above it first (XLA's DFS is like it);
- reverse greedy: greedy from the end of the order to its start;
- late: improves any order: an op that adds at least as many bytes as it frees moves to just before its first successor.

Shared buffers (alias) count once. The rules ignore that an output may reuse an input's buffer; the exact costs decide.
"""

import heapq
import weakref
from collections.abc import Sequence

import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.topology import Waiting, post_order
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.rules.simple import depth_first

MAX_BYTES_ABOVE = 2**62  # sums over paths grow exponentially

# By graph, its orders and the number of evaluated ones: most methods start from them, and a portfolio has several
# methods.
_cache: weakref.WeakKeyDictionary[ComputationGraph, tuple[tuple[np.ndarray, ...], int]] = weakref.WeakKeyDictionary()


def memory_orders(flow: Flow) -> list[np.ndarray]:
    """Returns topological orders of the ops `[n] int64`, one per rule, the one of least peak on one device first. They
    are cached as long as the graph exists, and are read-only.
    """
    if flow.graph not in _cache:
        _cache[flow.graph] = _ranked(flow)
    orders, evaluations = _cache[flow.graph]
    flow.evaluations += evaluations
    return list(orders)


def _ranked(flow: Flow) -> tuple[tuple[np.ndarray, ...], int]:
    """Returns the orders, the one of least peak first, and the number of orders evaluated for that."""
    rules = [
        greedy(flow),
        _reverse_greedy(flow),
        _postorder(flow),
        depth_first(flow.waiting(), lowest_first=False),
        flow.topological,
    ]
    usage = Usage(flow)
    ranked = sorted((_improved(flow, usage, order) for order in rules), key=lambda ranked: ranked[0])
    for _, order, _ in ranked:
        order.flags.writeable = False
    return tuple(order for _, order, _ in ranked), sum(evaluations for *_, evaluations in ranked)


def greedy(flow: Flow, first: Sequence[int] = ()) -> list[int]:
    """Returns an order that starts with the ops `first` and continues by the rule "greedy"."""
    waiting = flow.waiting()
    users_left = [len(users) for users in flow.users]
    last_user = [sum(users) for users in flow.users]  # sum of the users left: the last user, once it is one
    change = [flow.kept_bytes(op) for op in range(flow.num_ops)]  # change of live bytes if the op runs next
    queue: list[tuple[int, int, int]] = []
    order, done = [], [False] * flow.num_ops

    def count_last_use(buffer: int) -> None:
        if users_left[buffer] == 1 and not flow.pinned[buffer]:
            change[last_user[buffer]] -= flow.size[buffer]

    def run(op: int) -> None:
        done[op] = True
        order.append(op)
        age = -len(order)
        for buffer in flow.reads[op]:
            users_left[buffer] -= 1
            last_user[buffer] -= op
            count_last_use(buffer)
            if users_left[buffer] == 1 and waiting.left[last_user[buffer]] == 0:
                heapq.heappush(queue, (change[last_user[buffer]], age, last_user[buffer]))
        for after in waiting.finish(op):
            heapq.heappush(queue, (change[after], age, after))

    for buffer in range(len(users_left)):
        count_last_use(buffer)
    for op in waiting.ready():
        heapq.heappush(queue, (change[op], 0, op))
    for op in first:
        run(op)
    while queue:
        value, _, op = heapq.heappop(queue)
        if not done[op] and value == change[op]:  # else an outdated entry: it has run, or its change fell
            run(op)
    return order


def _reverse_greedy(flow: Flow) -> list[int]:
    waiting = Waiting(map(len, flow.successors), flow.predecessors)
    live = list(flow.pinned)
    # Going backwards over an op, its own buffers vanish and those that it is the first to read appear.
    n = flow.num_ops
    change = [sum(flow.size[b] for b in flow.reads[op] if not live[b]) - flow.kept_bytes(op) for op in range(n)]
    queue = [(change[op], 0, op) for op in waiting.ready()]
    heapq.heapify(queue)
    order, done, age = [], [False] * n, 0
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
                if waiting.left[user] == 0 and not done[user]:
                    heapq.heappush(queue, (change[user], age, user))
        for before in waiting.finish(op):
            heapq.heappush(queue, (change[before], age, before))
    return order[::-1]


def _postorder(flow: Flow) -> list[int]:
    above = [0] * flow.num_ops
    for op in flow.topological:
        above[op] = min(MAX_BYTES_ABOVE, flow.kept_bytes(op) + sum(above[before] for before in flow.predecessors[op]))

    def heaviest_first(ops: list[int]) -> list[int]:
        return sorted(ops, key=lambda op: -above[op])

    sinks = [op for op in range(flow.num_ops) if not flow.successors[op]]
    return post_order(flow.num_ops, heaviest_first(sinks), lambda op: heaviest_first(flow.predecessors[op]))


def _improved(flow: Flow, usage: Usage, order: list[int], passes: int = 2) -> tuple[int, np.ndarray, int]:
    """Moves ops later as long as it helps; returns the peak, the order, and the number of evaluated orders."""
    best, evaluations = int(usage(np.array(order)).max()), 1
    for _ in range(passes):
        later = _delayed(flow, order)
        peak = int(usage(np.array(later)).max())
        evaluations += 1
        if peak >= best:
            break
        best, order = peak, later
    return best, np.array(order, np.int64), evaluations


def _delayed(flow: Flow, order: list[int]) -> list[int]:
    place = np.empty(flow.num_ops, np.int64)
    place[order] = np.arange(flow.num_ops)
    position = place.tolist()
    last = [max((position[user] for user in users), default=-1) for users in flow.users]
    # An op moves before those with its anchor, so that sorting by (anchor, old position) is a topological order.
    anchor = place.tolist()
    for op in reversed(order):
        freed = sum(flow.size[b] for b in flow.reads[op] if last[b] == position[op] and not flow.pinned[b])
        if flow.successors[op] and flow.kept_bytes(op) >= freed:
            anchor[op] = min(anchor[after] for after in flow.successors[op])
    return np.lexsort((place, np.array(anchor))).tolist()
