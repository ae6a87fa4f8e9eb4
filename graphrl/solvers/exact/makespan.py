"""Models of makespan, under every transfer model and with a memory limit. All are exact.

- `free` at no cost is P|prec|Cmax: one cumulative of capacity d, and devices are assigned afterwards. An op without
  length finds a free device when it can start: the one that has just ended the op's predecessor.
- Otherwise an op is an optional interval on each device. A transfer is one on both devices that it joins under
  `rendezvous`, one on its sender's link under `link`, and a delay under `free`.

A memory limit depends on the order, not on the clock: under `free` and `link` a transfer may take any place in the
order, while its clock does not wait for devices. So the order has a separate axis, on which nodes that share a device
(or a link) have the same order as on the clock. Every such pair of nodes is a variable: for small graphs.
(Under `rendezvous` one axis could be both, with lengths stretched so that none is 0; but then CP-SAT's bounds rise
slowly along the clock. There pairs help without a limit too: in 10 s on two cores, half the gap at 50 ops.)
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.exact.engine import Expression, Literal, Model
from graphrl.solvers.exact.memory import Memory
from graphrl.solvers.exact.model import (
    Built,
    Clock,
    Lengths,
    Placement,
    Reference,
    build_model,
    in_order,
    order_axis,
    windows,
)

MAX_PAIRS = 40_000  # largest number of pairs of nodes under a memory limit: building that many takes seconds
MAX_HELPFUL_PAIRS = 10_000  # the same where pairs are not necessary and only help
# Quick restarts before a linear relaxation, whose bound of a cumulative is hardly better than its area: from list
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
    """Builds the model that minimises the makespan in quanta.

    Args:
      reference: a known plan, within the limit.
      lengths: quanta of ops and transfers.
      low: lower bound of the makespan of all plans, in quanta.
      limit: units of memory of a device and the bytes of a unit, or None.
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
    return build_model(model, makespan, axis, graph, problem)


def num_pairs(graph: ComputationGraph, problem: Problem) -> int:
    """Returns an upper bound of the number of pairs of nodes that are variables, in models with pairs."""
    ops, copies = graph.arrays.num_ops, len(np.unique(graph.arrays.use_tensor)) * problem.devices
    nodes = {"free": (ops, 0), "link": (ops, copies), "rendezvous": (ops + copies, 0)}[problem.transfer]
    return sum(count * (count - 1) // 2 for count in nodes)


def _ends(clock: Clock, makespan: Expression) -> None:
    """Bounds the makespan from below by the end of every op and the busy time of every device."""
    for op in range(clock.where.num_ops):
        clock.model.ordered(clock.end[op], makespan)
    for busy in clock.busy:
        clock.model.ordered(sum(busy), makespan)


def _couple(graph: ComputationGraph, clock: Clock, axis: Clock) -> None:
    """Gives nodes that share a device's clock, or a link, the same order along the axis as on the clock."""
    model, axes = clock.model, [clock] if axis is clock else [axis, clock]
    for first, second in _pairs(graph, clock):
        before = model.boolean(axis.hint_start[first] < axis.hint_start[second])
        for sharing in _sharing(clock, first, second):
            for one in axes:
                model.ordered(one.end[first], one.start[second], before, *sharing)
                model.ordered(one.end[second], one.start[first], ~before, *sharing)


def _pairs(graph: ComputationGraph, clock: Clock) -> Iterator[tuple[int, int]]:
    """Yields the pairs of nodes that may have to wait for each other, in either order."""
    above, n = graph.arrays.ancestors(), clock.where.num_ops
    copies = [clock.where.node(*copy) for copy in clock.where.copies] if clock.transfer != "free" else []
    for first, second in itertools.combinations(range(n), 2):
        if not above[first, second] and not above[second, first]:
            yield first, second
    if clock.transfer == "rendezvous":
        yield from itertools.product(range(n), copies)
    yield from itertools.combinations(copies, 2)


def _sharing(clock: Clock, first: int, second: int) -> list[list[Literal]]:
    """Returns the conditions under which two nodes share a device or link: all literals of any one list are true."""
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
    """Builds the model of P|prec|Cmax: as devices are identical, it only ensures that at most d ops run at a time."""
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
        return _assign_devices(graph, problem, list(values), lengths)

    return Built(model, makespan, start, decode)


def _assign_devices(graph: ComputationGraph, problem: Problem, start: list[int], lengths: Lengths) -> PlacedOrder:
    """Assigns devices to ops of which at most d run at a time: the free one that was busy last, to minimise idle time.

    An op without length runs as soon as it can, on the device that has just ended its predecessor.
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
