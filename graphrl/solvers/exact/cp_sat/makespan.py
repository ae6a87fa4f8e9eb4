"""Models of makespan, under every transfer model and with a memory limit, and of peak memory. All are exact.

Makespan:
- `free` at no cost is P|prec|Cmax: one cumulative of capacity d, and devices are assigned afterwards. An op without
  length finds a free device when it can start: the one that has just ended what the op waited for.
- Otherwise an op is an optional interval on each device. A transfer is one on both devices that it joins under
  `rendezvous`, one on its sender's link under `link`, and a delay under `free`.

A memory limit depends on the order, not on the clock: under `free` and `link` a transfer may take any place in the
order, while its clock does not wait for devices. So the order has an axis of its own, on which nodes that share a
device (or a link) have the same order as on the clock. Every such pair of nodes is a variable: for small graphs.
(Under `rendezvous` one axis could be both, with lengths stretched so that none is 0; but then CP-SAT's bounds creep
along the clock. There pairs help without a limit too: in 10 s on two cores, half the gap at 50 ops.)

Memory of every device follows an order of nodes by the rules of `costs/exact/memory.py`, as a limit or as the
objective. A tensor occupies memory where it is made, from the start of its producer to the end of its last local use:
an op that reads it, a transfer that sends it, or the last use of an alias made there. A copy occupies memory from the
start of its transfer. Kept tensors stay. Ends are only bounded from below, and minimal in the best solution: a
solution's peak is never below its plan's, and some solution has each plan's own peak. An output that `reuses` an input
does so exactly if its op is the last user of the buffer: a literal on one device, refused on several.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.costs.problem import Problem, Transfer
from graphrl.errors import ProblemError
from graphrl.graphs.graph import NONE, ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.exact.cp_sat.engine import Expression, Literal, Model, byte_unit
from graphrl.solvers.exact.cp_sat.model import (
    Built,
    Clock,
    Lengths,
    Placement,
    Reference,
    built,
    in_order,
    order_axis,
    windows,
)
from graphrl.solvers.flow import Flow

Term = tuple[Expression, int, tuple[Literal, ...]]  # an end, the same in the reference, and when it counts


def check_memory(graph: ComputationGraph, problem: Problem) -> int:
    """The unit of memory, bytes.

    Raises:
      ProblemError: a graph whose memory cannot be modelled on so many devices, or that has too many bytes.
    """
    a = graph.arrays
    if problem.devices > 1 and (a.reuses >= 0).any():
        raise ProblemError(
            "method 'cp-sat' plans outputs that reuse an input's buffer on one device: "
            f"devices must be 1, and is {problem.devices}"
        )
    weights = a.weight_bytes if problem.resident_weights else a.weight_bytes[:0]
    every = np.concatenate([*[a.tensor_bytes] * problem.devices, a.workspace_bytes, weights])
    return byte_unit(every.tolist())


def peak_model(
    graph: ComputationGraph, problem: Problem, reference: Reference, unit: int, low: int, high: int
) -> Built:
    """Minimises the largest device peak.

    Args:
      reference: a plan.
      unit: bytes, of `check_memory`.
      low: units at which a peak is as good as any lower one.
      high: units of the reference's peak, at least `low`.
    """
    model = Model()
    where = Placement(model, graph, problem.devices, reference.placement)
    axis = order_axis(model, graph, where, reference)
    peak = model.integer(low, high, high)
    Memory(axis, graph, problem, unit).limit(peak)
    return built(model, peak, axis, graph, problem)


class Memory:
    """Every device's memory along an axis, in units of bytes.

    Args:
      axis: where nodes start, of at least length 1 each, alone on the devices that they concern.
      unit: bytes, of `check_memory`.
    """

    def __init__(self, axis: Clock, graph: ComputationGraph, problem: Problem, unit: int) -> None:
        self.axis, self.model, self.where = axis, axis.model, axis.where
        self.graph, self.problem = graph, problem
        a = graph.arrays
        self.size = (a.tensor_bytes // unit).tolist()
        self.workspace, self.weights = (a.workspace_bytes // unit).tolist(), (a.weight_bytes // unit).tolist()
        self.held: list[list[tuple[Expression, int]]] = [[] for _ in range(self.where.devices)]  # intervals, sizes
        self.end: dict[int, tuple[Expression, int]] = {}  # of each tensor where it is made
        self.copies: list[list[tuple[int, int]]] = [[] for _ in self.size]  # by tensor
        for copy in self.where.copies:
            self.copies[copy[0]].append(copy)
        self.flow = Flow(graph)
        self.takes = self._takeovers()
        sharers = np.flatnonzero(a.alias >= 0).tolist()
        self.aliases = {
            tensor: [x for x in sharers if a.alias[x] == tensor] for tensor in set(a.alias[sharers].tolist())
        }
        for tensor in np.argsort(-a.rank[a.producer], kind="stable").tolist():  # those that share it come before
            self._add_home(tensor)
            for copy in self.copies[tensor]:
                self._add_copy(*copy)

    def limit(self, peak: Expression) -> None:
        """Holds it at or below `peak`, a variable or a number."""
        cp, where = self.model.cp, self.where
        for device, held in enumerate(self.held):
            for op, bytes_held in enumerate(self.workspace):
                if bytes_held:
                    here = where.on[op][device], ""
                    run = cp.new_optional_fixed_size_interval_var(self.axis.start[op], self.axis.lengths.op[op], *here)
                    held.append((run, bytes_held))
            if self.problem.resident_weights and any(self.weights):
                held.append((cp.new_fixed_size_interval_var(0, self.axis.horizon, ""), self._weights_on(device)))
            cp.add_cumulative([run for run, _ in held], [size for _, size in held], peak)

    def _weights_on(self, device: int) -> Expression:
        on = [(weight, here[device]) for weight, here in zip(self.weights, self.where.on, strict=True) if weight]
        hint = sum(weight for weight, here in on if self.model.holds(here))
        weights = self.model.integer(0, sum(self.weights), hint)
        self.model.cp.add(weights == sum(weight * here for weight, here in on))
        return weights

    def _add_home(self, tensor: int) -> None:
        axis, where, a = self.axis, self.where, self.graph.arrays
        producer = where.producer[tensor]
        last = [self._end(producer)]
        last += [self._end(user, where.same(producer, user)) for user in where.users[tensor]]
        last += [self._end(where.node(*copy), where.copies[copy]) for copy in self.copies[tensor]]
        last += [(*self.end[x], (where.same(producer, where.producer[x]),)) for x in self.aliases.get(tensor, ())]
        last += [(*self.end[x], (takes,)) for x, (source, takes) in self.takes.items() if source == tensor]
        if a.kept[tensor]:
            last.append((axis.horizon, axis.horizon, ()))
        self.end[tensor] = self._latest(last)
        if a.alias[tensor] == NONE and self.size[tensor]:
            allocates = ~self.takes[tensor][1] if tensor in self.takes else self.model.true
            present = [self.model.both(on, allocates) for on in where.on[producer]]
            self._hold(tensor, producer, self.end[tensor], present)

    def _add_copy(self, tensor: int, device: int) -> None:
        where = self.where
        if not self.size[tensor]:
            return
        node, copied = where.node(tensor, device), where.copies[tensor, device]
        last = [(0, 0, ()), self._end(node, copied)]
        last += [self._end(user, where.on[user][device]) for user in where.users[tensor]]
        last += [(*self.end[x], (where.on[where.producer[x]][device],)) for x in self.aliases.get(tensor, ())]
        present = [copied if other == device else None for other in range(where.devices)]
        self._hold(tensor, node, self._latest(last), present)

    def _end(self, node: int, *when: Literal) -> Term:
        return self.axis.end[node], self.axis.hint_end[node], when

    def _latest(self, ends: Sequence[Term]) -> tuple[Expression, int]:
        """The end of a buffer, and the same in the reference."""
        hint = max(value for _, value, when in ends if all(map(self.model.holds, when)))
        variable = self.model.integer(0, self.axis.horizon, hint)
        for end, _, when in ends:
            self.model.ordered(end, variable, *when)
        return variable, hint

    def _hold(self, tensor: int, node: int, end: tuple[Expression, int], present: Sequence[Literal | None]) -> None:
        start, hint = self.axis.start[node], self.axis.hint_start[node]
        size = self.model.integer(0, self.axis.horizon, max(0, end[1] - hint))
        for held, here in zip(self.held, present, strict=True):
            if here is not None:
                run = self.model.cp.new_optional_interval_var(start, size, end[0], here, "")
                held.append((run, self.size[tensor]))

    def _takeovers(self) -> dict[int, tuple[int, Literal]]:
        """By tensor that reuses: the buffer that it may take over, and whether it does."""
        takes: dict[int, tuple[int, Literal]] = {}
        if self.where.devices > 1:
            return takes
        wanted = set()
        for tensor, source in sorted(self.flow.reuses.items()):
            op = self.where.producer[tensor]
            if not self.flow.pinned[source] and (op, source) not in wanted:  # the first output that wants it has it
                wanted.add((op, source))
                takes[tensor] = source, self._is_last(op, self.flow.users[source])
        return takes

    def _is_last(self, op: int, users: Sequence[int]) -> Literal:
        axis, hint = self.axis, max(self.axis.hint_end[user] for user in users)
        last = self.model.integer(0, axis.horizon, hint)
        self.model.cp.add_max_equality(last, [axis.end[user] for user in users])
        is_last = self.model.boolean(hint == axis.hint_end[op])
        self.model.ordered(last, axis.end[op], is_last)
        self.model.ordered(axis.end[op] + 1, last, ~is_last)
        return is_last


MAX_PAIRS = 40_000  # of nodes that are variables under a memory limit: to make as many takes seconds
MAX_HELPFUL_PAIRS = 10_000  # where they only help
# Quick restarts before a linear relaxation, which of a cumulative says hardly more than its area does: from list
# schedules of eight DAGs of 100 ops on 4 and 8 devices they are better on all after 5 s, CP-SAT's own mix after 8 s.
PURE_SEARCHES = (
    "quick_restart", "quick_restart_no_lp", "core", "default_lp", "no_lp", "max_lp", "objective_lb_search", "probing",
)  # fmt: skip


def makespan_model(
    graph: ComputationGraph,
    problem: Problem,
    reference: Reference,
    lengths: Lengths,
    low: int,
    limit: tuple[int, int] | None,
) -> Built:
    """Minimises the makespan in quanta.

    Args:
      reference: a plan, within the limit.
      lengths: quanta of ops and transfers.
      low: quanta that no plan is below.
      limit: units that a device may hold and the bytes of a unit, or None.
    """
    transfer: Transfer = problem.transfer
    if problem.devices == 1 or (transfer == "link" and not any(lengths.tensor)):
        transfer = "free"  # the same clocks
    starts = reference.starts(lengths, transfer)
    high = max(starts[op] + length for op, length in enumerate(lengths.op))
    if limit is None and transfer == "free" and not any(lengths.tensor):
        return _pure(graph, problem, starts, lengths, low, high)
    model = Model()
    where = Placement(model, graph, problem.devices, reference.placement)
    clock = Clock(model, graph, where, transfer, lengths, high, starts)
    makespan = model.integer(low, high, high)
    _ends(clock, makespan)
    axis = clock
    if limit is None and transfer == "rendezvous" and num_pairs(graph, problem) <= MAX_HELPFUL_PAIRS:
        _couple(graph, clock, clock)
    if limit is not None:
        axis = order_axis(model, graph, where, reference)
        _couple(graph, clock, axis)
        Memory(axis, graph, problem, limit[1]).limit(limit[0])
    return built(model, makespan, axis, graph, problem)


def num_pairs(graph: ComputationGraph, problem: Problem) -> int:
    """How many pairs of nodes are variables at most, where pairs are."""
    ops, copies = graph.arrays.num_ops, len(np.unique(graph.arrays.use_tensor)) * problem.devices
    nodes = {"free": (ops, 0), "link": (ops, copies), "rendezvous": (ops + copies, 0)}[problem.transfer]
    return sum(count * (count - 1) // 2 for count in nodes)


def _ends(clock: Clock, makespan: Expression) -> None:
    """Everything has ended, and no device is busy for longer."""
    for op in range(clock.where.num_ops):
        clock.model.ordered(clock.end[op], makespan)
    for busy in clock.busy:
        clock.model.ordered(sum(busy), makespan)


def _couple(graph: ComputationGraph, clock: Clock, axis: Clock) -> None:
    """What shares a device's clock, or a link, stands along the axis as it does on the clock."""
    model, axes = clock.model, [clock] if axis is clock else [axis, clock]
    for first, second in _pairs(graph, clock):
        before = model.boolean(axis.hint_start[first] < axis.hint_start[second])
        for sharing in _sharing(clock, first, second):
            for one in axes:
                model.ordered(one.end[first], one.start[second], before, *sharing)
                model.ordered(one.end[second], one.start[first], ~before, *sharing)


def _pairs(graph: ComputationGraph, clock: Clock) -> Iterator[tuple[int, int]]:
    """Pairs of nodes that may have to wait for each other, in either order."""
    above, n = graph.arrays.ancestors(), clock.where.num_ops
    copies = [clock.where.node(*copy) for copy in clock.where.copies] if clock.transfer != "free" else []
    for first, second in itertools.combinations(range(n), 2):
        if not above[first, second] and not above[second, first]:
            yield first, second
    if clock.transfer == "rendezvous":
        yield from itertools.product(range(n), copies)
    yield from itertools.combinations(copies, 2)


def _sharing(clock: Clock, first: int, second: int) -> list[list[Literal]]:
    """When two nodes share something: any of these lists of literals."""
    where, n = clock.where, clock.where.num_ops
    if second < n:
        return [[where.same(first, second)]]
    tensor, to = divmod(second - n, where.devices)
    producer, needed = where.producer[tensor], where.copies[tensor, to]
    if first < n:
        on_either = [[needed, where.on[first][to]], [needed, where.same(first, producer)]]
        return [[needed]] if where.devices == 2 else on_either
    other_tensor, other_to = divmod(first - n, where.devices)
    other_producer, both = where.producer[other_tensor], [needed, where.copies[other_tensor, other_to]]
    from_one = where.same(producer, other_producer)
    if clock.transfer == "link":
        return [[*both, from_one]]
    if where.devices == 2 or to == other_to:
        return [both]
    return [[*both, shared] for shared in (from_one, where.on[producer][other_to], where.on[other_producer][to])]


def _pure(
    graph: ComputationGraph, problem: Problem, starts: dict[int, int], lengths: Lengths, low: int, high: int
) -> Built:
    """P|prec|Cmax: devices are identical, so that it is enough that no more than d ops run at a time."""
    model = Model()
    model.searches = PURE_SEARCHES
    earliest, latest = windows(graph, lengths.op, problem.devices, high)
    start = [model.integer(*window, starts[op]) for op, window in enumerate(zip(earliest, latest, strict=True))]
    makespan = model.integer(low, high, high)
    for source, target in zip(*(ends.tolist() for ends in graph.arrays.dependencies()), strict=True):
        model.ordered(start[source] + lengths.op[source], start[target])
    busy = []
    for op, length in enumerate(lengths.op):
        model.ordered(start[op] + length, makespan)
        if length:
            busy.append(model.cp.new_fixed_size_interval_var(start[op], length, ""))
    model.cp.add_cumulative(busy, [1] * len(busy), problem.devices)

    def decode(values: Sequence[int]) -> PlacedOrder:
        return _hand_out(graph, problem, list(values), lengths)

    return Built(model, makespan, start, decode)


def _hand_out(graph: ComputationGraph, problem: Problem, start: list[int], lengths: Lengths) -> PlacedOrder:
    """Devices for ops of which no more than d run at a time: the one that is free and was busy last, as seldom idle.

    An op without length runs as soon as it can, on the device that has just ended what it waited for.
    """
    a = graph.arrays
    end = [begin + length for begin, length in zip(start, lengths.op, strict=True)]
    for op in a.topological.tolist():
        if not lengths.op[op]:
            start[op] = end[op] = max((end[other] for other in a.predecessors[op]), default=0)
    starts = dict(enumerate(start))
    free = [0] * problem.devices
    placement = np.zeros(a.num_ops, np.int64)
    _, order = in_order(graph, problem, placement, starts, lengths)  # all on one device: of ops alone
    for op in order.tolist():
        idle = (device for device in range(problem.devices) if free[device] <= start[op])
        placement[op] = max(idle, key=lambda device: free[device])
        free[placement[op]] = end[op]
    return in_order(graph, problem, placement, starts, lengths)
