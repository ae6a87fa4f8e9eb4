"""The orders that compilers choose, rule for rule: XLA's memory schedulers, and PyTorch Inductor's for peak memory.

**XLA**: list, depth first and post-order, and the best of the three. Source: openxla/xla,
xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc at 1c7545f (ListMemoryScheduler, DFSMemoryScheduler,
PostOrderScheduler, DefaultMemoryScheduler), and the traversals in hlo_computation.cc and hlo_instruction.cc that they
call.

Depth first and post-order agree op by op with jaxlib 0.10.2 (tests/solvers/test_orders.py), whose CPU compiler's
CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED is depth first alone; no program at hand runs XLA's list alone.

Mapping of a graph to HLO:
- An op is an instruction, its operands are the producers of its inputs in the op's own order, its values are the
  buffers that it allocates; an alias forwards its source's value; a reuse is a separate value, as in XLA's dataflow.
- If there are kept tensors, the root is a tuple of them: it uses each at the end and is not part of the order. Ops that
  nothing reads and nothing keeps are XLA's unreachable roots.
- A graph does not store which tensors have one element: an op whose only output has at most `SCALAR_BYTES` is a scalar.
- Workspace is ignored: the list considers an op "right before it runs, and after it finishes".

Deviation: where several tensors share a buffer, XLA's list notices late that an op has become the last user of a value
if it got there through another instruction; here it notices immediately.

All three are O((n + e) log n). The best-of compares our exact peak, XLA's its heap simulator's without fragmentation;
ties prefer list, then depth first.

**Inductor**: lpmf, bfs and dfs, and the best of the three and the given order. Source: torch/_inductor/memory.py
(`topological_sort_lpmf`, `topological_sort_bfs`, `topological_sort_dfs`, `reorder_for_peak_memory`) as of torch 2.13,
whose `size_threshold_for_succ_based_strategy` is off by default.

Mapping of a graph to Inductor's: ops are its nodes, buffers those of one device (an alias has no own buffer), kept
tensors its graph outputs; there are no freeable inputs. A control edge is a dependency that reads no buffer. Workspace
is an output buffer that nothing reads: alive during its own step, as here. Reuse is ignored.

Inductor's are O((n + e) log n) too; its lpmf scans every ready node in every step, here a tree finds the same one.
"""

import bisect
import heapq

from graphrl.graphs.topology import Waiting, post_order
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.simple import order_rule

SCALAR_BYTES = 8
EMPTY = 2**200  # above any bytes * ops
FIRST = 2**63 - 1  # int64's largest: the priority of scalars


class Instructions:
    """A graph as HLO: neighbours in the order in which the program names them, not by index.

    Attributes:
      operands, control: for each op, the producers of its inputs, and its control predecessors.
      users, control_users: for each op, the ops that have it as operand or control predecessor, by index.
      results: operands of the root.
    """

    def __init__(self, flow: Flow) -> None:
        graph, producer = flow.graph, flow.graph.arrays.producer.tolist()
        writer = {name: producer[t] for t, name in enumerate(graph.tensor_names)}  # external inputs have none
        number = {op.name: i for i, op in enumerate(graph.ops)}
        self.operands = [list(dict.fromkeys(writer[t] for t in op.inputs if t in writer)) for op in graph.ops]
        self.control = [list(dict.fromkeys(number[name] for name in op.after)) for op in graph.ops]
        self.users, self.control_users = _inverse(self.operands), _inverse(self.control)
        self.results = list(dict.fromkeys(writer[name] for name in graph.outputs if name in writer))


def _inverse(neighbours: list[list[int]]) -> list[list[int]]:
    inverse: list[list[int]] = [[] for _ in neighbours]
    for op, others in enumerate(neighbours):
        for other in others:
            inverse[other].append(op)
    return inverse


class _ReadyQueue:
    """Priority queue of the ready ops for XLA's list; `finish` updates the uses left of each buffer."""

    def __init__(self, flow: Flow, hlo: Instructions) -> None:
        self._flow, self._hlo = flow, hlo
        # A kept buffer has a use at the end.
        self._uses_left = [len(users) + pinned for users, pinned in zip(flow.users, flow.pinned, strict=True)]
        self._last_user = [sum(users) for users in flow.users]  # sum of the users left: the last user, once it is one
        self._defined = [sum(flow.size[buffer] for buffer in flow.writes[op]) for op in range(flow.num_ops)]
        self._users = [len(users) for users in hlo.users]
        for op in hlo.results:
            self._users[op] += 1  # the root
        outputs = [op.outputs for op in flow.graph.ops]
        self._scalar = [len(tensors) == 1 and 0 < tensors[0].bytes <= SCALAR_BYTES for tensors in outputs]
        self._priority: dict[int, tuple[int, int]] = {}  # priorities of the ready ops
        self._heap: list[tuple[int, int, int, int]] = []  # (-bytes, -users, -time of entry, op)
        self._time = 0

    def enter(self, op: int) -> None:
        """Adds an op, or moves it to its current priority if that has changed."""
        uses_left, size = self._uses_left, self._flow.size
        freed = sum(size[buffer] for buffer in self._flow.reads[op] if uses_left[buffer] == 1)
        priority = (FIRST, FIRST) if self._scalar[op] else (freed - self._defined[op], self._users[op])
        if self._priority.get(op) != priority:
            self._priority[op] = priority
            self._time += 1
            heapq.heappush(self._heap, (-priority[0], -priority[1], -self._time, op))

    def pop(self) -> int | None:
        """Removes and returns the op of highest priority; None if the queue is empty."""
        while self._heap:
            first, second, _, op = heapq.heappop(self._heap)
            if self._priority.get(op) == (-first, -second):  # else it has run, or an entry of higher priority was taken
                del self._priority[op]
                return op
        return None

    def finish(self, op: int) -> list[int]:
        """Counts the op's uses as done. Returns the ready ops that are now last users, in XLA's order of visits."""
        promoted = set()
        for buffer in self._flow.reads[op]:
            self._uses_left[buffer] -= 1
            self._last_user[buffer] -= op
            if self._uses_left[buffer] == 1 and not self._flow.pinned[buffer]:
                promoted.add(self._last_user[buffer])
        place = {operand: i for i, operand in enumerate(self._hlo.operands[op])}
        placed = [(min(place.get(o, len(place)) for o in self._hlo.operands[user]), user) for user in promoted]
        return [user for _, user in sorted(placed) if user in self._priority]


def xla_list(flow: Flow) -> list[int]:
    """Greedy order: next is the ready op of highest (bytes freed - bytes defined, users); of equals, the last to enter
    the queue (a `std::multimap` keeps equal keys in order of insertion, and its last entry is taken). Scalars go first.

    An op whose priority rises re-enters the queue.
    """
    hlo = Instructions(flow)
    queue = _ReadyQueue(flow, hlo)
    counts = [len(operands) + len(control) for operands, control in zip(hlo.operands, hlo.control, strict=True)]
    waiting = Waiting(counts, [[*users, *others] for users, others in zip(hlo.users, hlo.control_users, strict=True)])
    for op in waiting.ready():
        queue.enter(op)
    order: list[int] = []
    while (best := queue.pop()) is not None:
        order.append(best)
        promoted = queue.finish(best)
        for op in (*waiting.finish(best), *promoted):
            queue.enter(op)
    return order


def xla_post_order(flow: Flow) -> list[int]:
    """Orders ops depth first from those without users, by index, and then from the root, backwards: control
    predecessors first, the last named first, then operands as named.
    """
    return _post_order(Instructions(flow))


def _post_order(hlo: Instructions) -> list[int]:
    results = set(hlo.results)
    roots = [op for op in range(len(hlo.users)) if not hlo.users[op] and op not in results] + hlo.results
    return post_order(len(hlo.users), roots, lambda op: [*reversed(hlo.control[op]), *hlo.operands[op]])


def xla_depth_first(flow: Flow) -> list[int]:
    """Orders ops depth first from the unreachable roots, by index, and then from the root, backwards. It visits first
    the predecessor with the most extra users (users - 1, of it and all above it: once for every path), then the most
    bytes (summed likewise), then the least name.
    """
    hlo = Instructions(flow)
    n, results = flow.num_ops, set(hlo.results)
    instructions = n + bool(results)  # with the root
    extra_users, total, so_far = [0] * n, [0] * n, 0
    for op in _post_order(hlo):
        defined = sum(flow.size[buffer] for buffer in flow.writes[op])
        so_far += defined
        extra = max(0, len(hlo.users[op]) + (op in results) - 1) + sum(extra_users[o] for o in hlo.operands[op])
        extra_users[op] = min(extra, instructions)  # both caps are XLA's, against overflow
        total[op] = min(defined + sum(total[o] for o in hlo.operands[op]), so_far)
    names = [op.name for op in flow.graph.ops]

    def sorted_for_visit(ops: list[int]) -> list[int]:
        return sorted(ops, key=lambda op: (-extra_users[op], -total[op], names[op]))

    dead = [op for op in range(n) if not hlo.users[op] and not hlo.control_users[op] and op not in results]
    roots = [*dead, *sorted_for_visit(hlo.results)]
    return post_order(n, roots, lambda op: sorted_for_visit(hlo.operands[op] + hlo.control[op]))


def xla_best(flow: Flow) -> list[int]:
    """Returns the order of least peak among those of XLA's list, depth first and post-order."""
    return flow.least_peak([xla_list(flow), xla_depth_first(flow), xla_post_order(flow)])


order_rule("xla", "XLA's memory scheduler: the best of list, depth first and post-order", xla_best)
order_rule("xla-list", "XLA's list scheduler: the op that frees most bytes first", xla_list)
order_rule("xla-dfs", "XLA's depth-first scheduler", xla_depth_first)
order_rule("xla-postorder", "XLA's post-order scheduler", xla_post_order)


class _PrefixMin:
    """Prefix minima of integers at numbered places; an update or a query takes O(log places)."""

    def __init__(self, places: int) -> None:
        self._leaves = 1 << (places - 1).bit_length()
        self._least = [EMPTY] * (2 * self._leaves)

    def put(self, place: int, value: int) -> None:
        """Sets the value at a place; EMPTY removes it."""
        least, node = self._least, self._leaves + place
        least[node] = value
        while node > 1:
            node //= 2
            least[node] = min(least[2 * node], least[2 * node + 1])

    def least(self, places: int) -> int:
        """Returns the least of the values at the first `places` places."""
        lowest, low, high = EMPTY, self._leaves, self._leaves + places
        while low < high:
            if low % 2:  # only at the root
                lowest, low = min(lowest, self._least[low]), low + 1
            if high % 2:
                high -= 1
                lowest = min(lowest, self._least[high])
            low, high = low // 2, high // 2
        return lowest

    def first(self) -> int:
        """Returns the first place with a value."""
        node = 1
        while node < self._leaves:
            node = 2 * node if self._least[2 * node] < EMPTY else 2 * node + 1
        return node - self._leaves


def inductor_lpmf(flow: Flow) -> list[int]:
    """Orders ops by least peak memory first: of the ready ops that stay within the peak so far the one that leaves
    least behind; if no op does, the one that allocates least, then leaves least behind. Ties by index.

    The peak so far starts at the bytes of all graph outputs.
    """
    n, buffer_size, pinned = flow.num_ops, flow.size, flow.pinned
    workspace = flow.graph.arrays.workspace_bytes.tolist()
    size = [sum(buffer_size[b] for b in flow.writes[op]) + workspace[op] for op in range(n)]
    users_left = [len(users) for users in flow.users]
    last_user = [sum(users) for users in flow.users]  # sum of the users left: the last user, once it is one
    net_bytes = [flow.kept_bytes(op) for op in range(n)]  # bytes that an op adds, less those that it frees
    for buffer, users in enumerate(flow.users):
        if len(users) == 1 and not pinned[buffer]:
            net_bytes[users[0]] -= buffer_size[buffer]
    by_size = sorted(range(n), key=size.__getitem__)
    sizes = [size[op] for op in by_size]
    place = dict(zip(by_size, range(n), strict=True))
    ready = _PrefixMin(n)
    waiting = flow.waiting()
    for op in waiting.ready():
        ready.put(place[op], net_bytes[op] * n + op)
    live, peak = 0, sum(buffer_size[b] for b in range(len(pinned)) if pinned[b])
    order: list[int] = []
    while len(order) < n:
        key = ready.least(bisect.bisect_right(sizes, peak - live))
        if key == EMPTY:
            key = ready.least(bisect.bisect_right(sizes, sizes[ready.first()]))
        op = key % n
        ready.put(place[op], EMPTY)
        order.append(op)
        peak = max(peak, live + size[op])
        live += net_bytes[op]
        for after in waiting.finish(op):
            ready.put(place[after], net_bytes[after] * n + after)
        for buffer in flow.reads[op]:
            users_left[buffer] -= 1
            last_user[buffer] -= op
            if users_left[buffer] == 1 and not pinned[buffer]:
                user = last_user[buffer]
                net_bytes[user] -= buffer_size[buffer]
                if waiting.left[user] == 0:
                    ready.put(place[user], net_bytes[user] * n + user)
    return order


def inductor_bfs(flow: Flow) -> list[int]:
    """Orders ops breadth first: next is the ready op whose predecessors ran earliest (sorted places), then by index."""
    waiting, position = flow.waiting(), [0] * flow.num_ops
    queue: list[tuple[list[int], int]] = [([], op) for op in waiting.ready()]
    order: list[int] = []
    while queue:
        _, op = heapq.heappop(queue)
        position[op] = len(order)
        order.append(op)
        for after in waiting.finish(op):
            heapq.heappush(queue, (sorted(position[before] for before in flow.predecessors[after]), after))
    return order


def inductor_dfs(flow: Flow) -> list[int]:
    """Returns a post-order: visits all ops, and predecessors, by the bytes that they write and read, then by index."""
    workspace = flow.graph.arrays.workspace_bytes.tolist()
    used_bytes = [
        sum(flow.size[b] for b in (*flow.writes[op], *flow.reads[op])) + workspace[op] for op in range(flow.num_ops)
    ]

    def fewest_bytes_first(ops: list[int]) -> list[int]:
        return sorted(ops, key=lambda op: (used_bytes[op], op))

    roots = fewest_bytes_first(list(range(flow.num_ops)))
    return post_order(flow.num_ops, roots, lambda op: fewest_bytes_first(flow.predecessors[op]))


def inductor_best(flow: Flow) -> list[int]:
    """Returns the order of least peak among the given order, lpmf, bfs and dfs."""
    return flow.least_peak([flow.topological, inductor_lpmf(flow), inductor_bfs(flow), inductor_dfs(flow)])


order_rule("inductor", "PyTorch Inductor's reordering: the best of the given order, lpmf, bfs and dfs", inductor_best)
order_rule("inductor-lpmf", "PyTorch Inductor's least peak memory first", inductor_lpmf)
order_rule("inductor-bfs", "PyTorch Inductor's breadth-first order", inductor_bfs)
order_rule("inductor-dfs", "PyTorch Inductor's depth-first order", inductor_dfs)
