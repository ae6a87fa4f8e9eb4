"""Model of the largest load: a literal for each group and device, and for each net and accelerator that moves it."""

from collections.abc import Sequence

import numpy as np

from graphrl.costs.problem import ACCELERATOR, Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.solvers.base import PlacedOrder
from graphrl.solvers.exact.engine import Literal, Model, Quanta, byte_unit
from graphrl.solvers.exact.model import Built
from graphrl.solvers.loads.groups import Groups, placed_order


def load_quanta(groups: Groups) -> Quanta:
    """Converts the groups' run times on both kinds of devices (0 where they cannot run), then the nets', to quanta."""
    runtime = np.where(np.isfinite(groups.runtime), groups.runtime, 0.0)
    return Quanta.of([*runtime.ravel().tolist(), *groups.seconds.tolist()])


def load_model(
    graph: ComputationGraph, problem: Problem, groups: Groups, device: np.ndarray, quanta: Quanta, low: int
) -> Built:
    """Builds the model of the largest load, of at least `low` quanta, from a known device of each group, `[b]`.

    An accelerator keeps within its limit, or within the most bytes of one in the known placement if that is more.
    """
    model = Model()
    on, device = _places(model, groups, device)
    total = _max_bytes(groups, device)
    _limit(model, groups, on, max(groups.limit, float(total)))
    loads, known = _loads(model, groups, on, device, quanta)
    largest = model.integer(low, max(known), max(known))
    for load in loads:
        model.cp.add(load <= largest)
    return _built(model, largest, on, graph, problem, groups)


def memory_model(graph: ComputationGraph, problem: Problem, groups: Groups, device: np.ndarray) -> Built:
    """Builds the model of the fullest accelerator's bytes, down to the limit, from the groups' known devices `[b]`."""
    model = Model()
    on, device = _places(model, groups, device)
    unit = byte_unit(groups.weight.tolist())
    high = _max_bytes(groups, device) // unit
    fullest = model.integer(min(high, int(groups.limit) // unit), high, high)
    for number in range(groups.accelerators):
        model.cp.add(sum(int(w) // unit * on[g][number] for g, w in enumerate(groups.weight) if w) <= fullest)
    return _built(model, fullest, on, graph, problem, groups)


def _max_bytes(groups: Groups, device: np.ndarray) -> int:
    return int(np.bincount(device, groups.weight, minlength=len(groups.kinds))[: groups.accelerators].max(initial=0))


def _places(model: Model, groups: Groups, device: np.ndarray) -> tuple[list[list[Literal]], np.ndarray]:
    """Adds literals for the device of each group, `[b][d]`; returns them and the known devices. Devices of a kind are
    identical, so they are numbered by their first group, in the order of falling run time. This numbering is enforced
    on the first few groups.
    """
    order = np.argsort(-np.where(np.isfinite(groups.runtime), groups.runtime, 0.0).max(axis=1), kind="stable")
    numbers: dict[int, int] = {}
    free = {kind: iter(np.flatnonzero(groups.kinds == kind).tolist()) for kind in set(groups.kinds.tolist())}
    for known in device[order].tolist():
        if known not in numbers:
            numbers[known] = next(free[int(groups.kinds[known])])
    device = np.array([numbers[known] for known in device.tolist()])
    first = np.where(groups.kinds == ACCELERATOR, 0, groups.accelerators)
    on: list[list[Literal]] = [[] for _ in device]
    for place, group in enumerate(order.tolist()):
        for number in range(len(groups.kinds)):
            allowed = groups.can_run(group, number) and number - first[number] <= place
            on[group].append(model.boolean(bool(device[group] == number)) if allowed else ~model.true)
        model.cp.add_exactly_one(on[group])
    return on, device


def _limit(model: Model, groups: Groups, on: list[list[Literal]], limit: float) -> None:
    if np.isinf(limit) or limit >= groups.weight.sum():
        return
    unit = byte_unit(groups.weight.tolist())
    for number in range(groups.accelerators):
        total = sum(int(weight) // unit * on[group][number] for group, weight in enumerate(groups.weight) if weight)
        model.cp.add(total <= int(limit) // unit)


def _loads(
    model: Model, groups: Groups, on: list[list[Literal]], device: np.ndarray, quanta: Quanta
) -> tuple[list[object], list[int]]:
    """Returns the load of every device, and its value in the known placement, in quanta: `[d]` each."""
    count = len(groups.weight)
    runtime = np.array(quanta.lengths[: 2 * count], np.int64).reshape(count, 2)
    loads: list[object] = []
    known = []
    for number, kind in enumerate(groups.kinds.tolist()):
        load = sum(int(runtime[group, kind]) * on[group][number] for group in range(count) if runtime[group, kind])
        value = int(runtime[device == number, kind].sum())
        for net, ends in enumerate(groups.ends) if kind == ACCELERATOR else ():
            if seconds := quanta.lengths[2 * count + net]:
                literals = [on[group][number] for group in ends]
                here = sum(map(model.holds, literals))
                charged = model.boolean(0 < here < len(ends))
                for literal in literals[1:]:
                    model.cp.add_bool_or([charged, ~literals[0], literal])
                    model.cp.add_bool_or([charged, literals[0], ~literal])
                load += seconds * charged
                value += seconds * (0 < here < len(ends))
        loads.append(load)
        known.append(value)
    return loads, known


def _built(
    model: Model, objective: object, on: list[list[Literal]], graph: ComputationGraph, problem: Problem, groups: Groups
) -> Built:
    devices = [sum(number * here for number, here in enumerate(places)) for places in on]

    def decode(values: Sequence[int]) -> PlacedOrder:
        return placed_order(graph, problem, np.array(values, np.int64)[groups.of])

    return Built(model, objective, devices, decode)
