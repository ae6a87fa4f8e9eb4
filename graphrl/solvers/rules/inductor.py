"""PyTorch Inductor's reorderings for peak memory: lpmf, bfs and dfs, and the best of the three and the given order.

Source: torch/_inductor/memory.py (`topological_sort_lpmf`, `topological_sort_bfs`, `topological_sort_dfs`,
`reorder_for_peak_memory`) as of torch 2.13, whose `size_threshold_for_succ_based_strategy` is off by default.

How a graph is read as Inductor's: ops are its nodes, buffers those of one device (an alias has none of its own), kept
tensors its graph outputs; there are no freeable inputs. A control edge is a dependency that reads no buffer. Workspace
is an output buffer that nothing reads: alive during its own step, as here. Reuse is not seen.

All are O((n + e) log n); Inductor's lpmf looks at every ready node in every step, here a tree finds the same one.
"""

import bisect
import heapq

from graphrl.graphs.topology import post_order
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.simple import order_rule

NOTHING = 2**200  # above any bytes * ops


class _PrefixMin:
    """The least of the values at the first places of a line: O(log places) to change one and to ask."""

    def __init__(self, places: int) -> None:
        self._leaves = 1 << (places - 1).bit_length()
        self._least = [NOTHING] * (2 * self._leaves)

    def put(self, place: int, value: int) -> None:
        """Sets the value at a place; NOTHING takes it away."""
        least, node = self._least, self._leaves + place
        least[node] = value
        while node > 1:
            node //= 2
            least[node] = min(least[2 * node], least[2 * node + 1])

    def least(self, places: int) -> int:
        """The least value at the first `places`."""
        lowest, low, high = NOTHING, self._leaves, self._leaves + places
        while low < high:
            if low % 2:  # only at the root
                lowest, low = min(lowest, self._least[low]), low + 1
            if high % 2:
                high -= 1
                lowest = min(lowest, self._least[high])
            low, high = low // 2, high // 2
        return lowest

    def first(self) -> int:
        """The first place that has a value."""
        node = 1
        while node < self._leaves:
            node = 2 * node if self._least[2 * node] < NOTHING else 2 * node + 1
        return node - self._leaves


def lpmf(flow: Flow) -> list[int]:
    """Least peak memory first: of the ready ops that stay within the peak so far the one that leaves least behind; if
    there is none, the one that allocates least, then leaves least behind. Ties by index.

    The peak so far starts at the bytes of all graph outputs.
    """
    n, buffer_size, pinned = flow.num_ops, flow.size, flow.pinned
    workspace = flow.graph.arrays.workspace_bytes.tolist()
    size = [sum(buffer_size[b] for b in flow.writes[op]) + workspace[op] for op in range(n)]
    users_left = [len(users) for users in flow.users]
    last_user = [sum(users) for users in flow.users]  # sum of the users that are left: the user, once it is one
    behind = [flow.held(op) for op in range(n)]  # bytes that an op adds, after those that it frees
    for buffer, users in enumerate(flow.users):
        if len(users) == 1 and not pinned[buffer]:
            behind[users[0]] -= buffer_size[buffer]
    by_size = sorted(range(n), key=size.__getitem__)
    sizes = [size[op] for op in by_size]
    place = dict(zip(by_size, range(n), strict=True))
    ready = _PrefixMin(n)
    waiting = flow.waiting()
    for op in waiting.ready():
        ready.put(place[op], behind[op] * n + op)
    live, peak = 0, sum(buffer_size[b] for b in range(len(pinned)) if pinned[b])
    order: list[int] = []
    while len(order) < n:
        key = ready.least(bisect.bisect_right(sizes, peak - live))
        if key == NOTHING:
            key = ready.least(bisect.bisect_right(sizes, sizes[ready.first()]))
        op = key % n
        ready.put(place[op], NOTHING)
        order.append(op)
        peak = max(peak, live + size[op])
        live += behind[op]
        for after in waiting.ran(op):
            ready.put(place[after], behind[after] * n + after)
        for buffer in flow.reads[op]:
            users_left[buffer] -= 1
            last_user[buffer] -= op
            if users_left[buffer] == 1 and not pinned[buffer]:
                user = last_user[buffer]
                behind[user] -= buffer_size[buffer]
                if waiting.left[user] == 0:
                    ready.put(place[user], behind[user] * n + user)
    return order


def bfs(flow: Flow) -> list[int]:
    """The ready op whose predecessors ran earliest: by the sorted list of their places, then by index."""
    waiting, position = flow.waiting(), [0] * flow.num_ops
    queue: list[tuple[list[int], int]] = [([], op) for op in waiting.ready()]
    order: list[int] = []
    while queue:
        _, op = heapq.heappop(queue)
        position[op] = len(order)
        order.append(op)
        for after in waiting.ran(op):
            heapq.heappush(queue, (sorted(position[before] for before in flow.predecessors[after]), after))
    return order


def dfs(flow: Flow) -> list[int]:
    """Post-order, from all ops and among predecessors by the bytes that an op writes and reads, then by index."""
    workspace = flow.graph.arrays.workspace_bytes.tolist()
    touched = [
        sum(flow.size[b] for b in (*flow.writes[op], *flow.reads[op])) + workspace[op] for op in range(flow.num_ops)
    ]

    def fewest_bytes_first(ops: list[int]) -> list[int]:
        return sorted(ops, key=lambda op: (touched[op], op))

    roots = fewest_bytes_first(list(range(flow.num_ops)))
    return post_order(flow.num_ops, roots, lambda op: fewest_bytes_first(flow.predecessors[op]))


def best(flow: Flow) -> list[int]:
    """The one of least peak of the given order, lpmf, bfs and dfs."""
    return flow.least_peak([flow.topological, lpmf(flow), bfs(flow), dfs(flow)])


order_rule("inductor", "PyTorch Inductor's: the best of the given order and the next three", best)
order_rule("inductor-lpmf", "PyTorch Inductor's least peak memory first", lpmf)
order_rule("inductor-bfs", "PyTorch Inductor's breadth-first order", bfs)
order_rule("inductor-dfs", "PyTorch Inductor's depth-first order", dfs)
