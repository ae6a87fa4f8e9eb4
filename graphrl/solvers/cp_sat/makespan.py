"""Makespan as a model, under every transfer model and with a memory limit (DESIGN.md 3). All of it is exact.

- `free` at no cost is P|prec|Cmax: one cumulative of capacity d, and devices are handed out afterwards. An op without
  length finds a free device when it can start: the one that has just ended what it waited for.
- Otherwise an op is an optional interval on each device. Under `rendezvous` a transfer is one on both devices that it
  joins, under `link` on its sender's link, and under `free` a delay.

A memory limit goes by the order, not by the clock.
- Under `rendezvous` the order on a device is that of its clock, up to nodes of no length at one moment. Every length is
  stretched to L * m + 1, m above the number of nodes: then no two nodes of a device start together, and the floor of
  any path over m is what it was.
- Under `free` and `link` transfers stand in the order wherever they may, while their clocks do not wait for devices:
  the order has an axis of its own, on which two ops of a device (or transfers of a link) stand as on their clocks.
  Every pair of ops is a variable: for small graphs.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from graphrl.costs.exact_routes import grouped
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.cp_sat.clock import Clock, ancestors, windows
from graphrl.solvers.cp_sat.engine import Expression, Literal, Model
from graphrl.solvers.cp_sat.memory import add_memory
from graphrl.solvers.cp_sat.model import Built, built, most_nodes, unit_lengths
from graphrl.solvers.cp_sat.placement import Placement
from graphrl.solvers.cp_sat.reference import Decisions, Lengths, Reference, in_order


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
    known = max(starts[op] + length for op, length in enumerate(lengths.op))
    if limit is None and transfer == "free" and not any(lengths.tensor):
        return _pure(graph, problem, starts, lengths, low, known)
    stretch = 1
    if limit is not None and transfer == "rendezvous":
        stretch = most_nodes(graph, problem.devices) + 1
        lengths = Lengths(*([length * stretch + 1 for length in of] for of in lengths))
        starts = reference.starts(lengths, transfer)
    model = Model()
    where = Placement(model, graph, problem.devices, reference.placement)
    clock = Clock(model, graph, where, transfer, lengths, known * stretch + stretch - 1, starts)
    makespan = model.integer(low, known, known)
    _ends(clock, makespan * stretch + (stretch - 1))
    axis = clock
    if limit is not None and transfer != "rendezvous":
        units = unit_lengths(graph)
        places = reference.starts(units, "rendezvous")
        axis = Clock(model, graph, where, "rendezvous", units, most_nodes(graph, problem.devices), places)
        _couple(graph, clock, axis)
    if limit is not None:
        add_memory(axis, graph, problem, limit[1], limit[0])
    return built(model, makespan, axis, graph, problem)


def _ends(clock: Clock, makespan: Expression) -> None:
    """Everything has ended, and no device is busy for longer."""
    for op in range(clock.where.num_ops):
        clock.model.ordered(clock.end[op], makespan)
    for busy in clock.busy:
        clock.model.ordered(sum(busy), makespan)


def _couple(graph: ComputationGraph, clock: Clock, axis: Clock) -> None:
    """What shares a device's clock, or a link, stands along the axis as it does on the clock."""
    model, where = clock.model, clock.where

    def agree(first: int, second: int, *sharing: Literal) -> None:
        before = model.boolean(axis.known_start[first] < axis.known_start[second])
        for one in (axis, clock):
            model.ordered(one.end[first], one.start[second], before, *sharing)
            model.ordered(one.end[second], one.start[first], ~before, *sharing)

    above = ancestors(graph)
    for first, second in itertools.combinations(range(where.num_ops), 2):
        if not above[first, second] and not above[second, first]:
            agree(first, second, where.same(first, second))
    if clock.transfer == "link":
        for first_copy, second_copy in itertools.combinations(where.copies, 2):
            producers = (where.producer[tensor] for tensor, _ in (first_copy, second_copy))
            needed = where.copies[first_copy], where.copies[second_copy]
            agree(where.node(*first_copy), where.node(*second_copy), where.same(*producers), *needed)


def _pure(
    graph: ComputationGraph, problem: Problem, starts: dict[int, int], lengths: Lengths, low: int, known: int
) -> Built:
    """P|prec|Cmax: devices are identical, so that it is enough that no more than d ops run at a time."""
    model = Model()
    earliest, latest = windows(graph, lengths.op, problem.devices, known)
    start = [model.integer(*window, starts[op]) for op, window in enumerate(zip(earliest, latest, strict=True))]
    makespan = model.integer(low, known, known)
    for source, target in zip(*(ends.tolist() for ends in graph.arrays.dependencies()), strict=True):
        model.ordered(start[source] + lengths.op[source], start[target])
    busy = []
    for op, length in enumerate(lengths.op):
        model.ordered(start[op] + length, makespan)
        if length:
            busy.append(model.cp.new_fixed_size_interval_var(start[op], length, ""))
    model.cp.add_cumulative(busy, [1] * len(busy), problem.devices)

    def decode(values: Sequence[int]) -> Decisions:
        return _hand_out(graph, problem, list(values), lengths)

    return Built(model, makespan, start, decode)


def _hand_out(graph: ComputationGraph, problem: Problem, start: list[int], lengths: Lengths) -> Decisions:
    """Devices for ops of which no more than d run at a time: the one that is free and was busy last, as seldom idle.

    An op without length runs as soon as it can, on the device that has just ended what it waited for.
    """
    a = graph.arrays
    source, target = a.dependencies()
    before = grouped(target, source, a.num_ops)
    end = [begin + length for begin, length in zip(start, lengths.op, strict=True)]
    for op in a.topological.tolist():
        if not lengths.op[op]:
            start[op] = end[op] = max((end[other] for other in before[op]), default=0)
    starts = dict(enumerate(start))
    free = [0] * problem.devices
    placement = np.zeros(a.num_ops, np.int64)
    _, order = in_order(graph, problem, placement, starts, lengths)  # all on one device: of ops alone
    for op in order.tolist():
        idle = (device for device in range(problem.devices) if free[device] <= start[op])
        placement[op] = max(idle, key=lambda device: free[device])
        free[placement[op]] = end[op]
    return in_order(graph, problem, placement, starts, lengths)
