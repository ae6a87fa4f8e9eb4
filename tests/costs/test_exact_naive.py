"""The exact host twin against a naive simulation by intervals, and properties of all graphs."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import decisions, graphs, plans, problems

from graphrl.costs import exact
from graphrl.costs.exact.memory import MemoryWalk
from graphrl.costs.exact.routes import Routes
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph, Tensor

# A second implementation: intervals of buffers for memory, pairwise waiting for time. Quadratic, and by names.


def naive_entries(graph: ComputationGraph, problem: Problem, placement: np.ndarray, order: np.ndarray) -> list[tuple]:
    """The order as ("op", Op, device) and ("transfer", tensor name, from, to)."""
    names = [tensor.name for op in graph.ops for tensor in op.outputs]
    home = {tensor.name: int(placement[i]) for i, op in enumerate(graph.ops) for tensor in op.outputs}
    entries: list[tuple] = []
    for node in order.tolist():
        if node < len(graph.ops):
            entries.append(("op", graph.ops[node], int(placement[node])))
        else:
            tensor, to = divmod(node - len(graph.ops), problem.devices)
            entries.append(("transfer", names[tensor], home[names[tensor]], to))
    return entries


def naive_times(graph: ComputationGraph, problem: Problem, entries: list[tuple]) -> list[tuple[float, float]]:
    """Every entry waits for each earlier one that it depends on or shares a resource with."""
    producer = {tensor.name: op for op in graph.ops for tensor in op.outputs}
    size = {tensor.name: tensor.bytes for op in graph.ops for tensor in op.outputs}

    def resources(entry: tuple) -> set:
        if entry[0] == "op":
            return {entry[2]}
        return {"rendezvous": set(entry[2:]), "free": set(), "link": {("link", entry[2])}}[problem.transfer]

    def depends(entry: tuple, earlier: tuple) -> bool:
        if entry[0] == "transfer":
            return earlier[0] == "op" and earlier[1] is producer[entry[1]]
        if earlier[0] == "transfer":
            return earlier[1] in entry[1].inputs and earlier[3] == entry[2]
        local = earlier[2] == entry[2] and any(tensor.name in entry[1].inputs for tensor in earlier[1].outputs)
        return local or earlier[1].name in entry[1].after

    times: list[tuple[float, float]] = []
    for i, entry in enumerate(entries):
        waits = [
            times[j][1] for j in range(i) if depends(entry, entries[j]) or resources(entry) & resources(entries[j])
        ]
        seconds = entry[1].runtime if entry[0] == "op" else problem.latency + size[entry[1]] / problem.bandwidth
        start = max(waits, default=0.0)
        times.append((start, start + seconds))
    return times


def naive_memory(graph: ComputationGraph, problem: Problem, entries: list[tuple], device: int) -> list[list[int]]:
    """Live bytes on one device, at the comparison and after the releases of each entry, from buffers' intervals."""
    tensors = {tensor.name: tensor for op in graph.ops for tensor in op.outputs}
    external = {tensor.name for tensor in graph.inputs}

    def produced(i: int) -> tuple[Tensor, ...]:
        return entries[i][1].outputs if entries[i][0] == "op" and entries[i][2] == device else ()

    def members(name: str) -> set[str]:
        """Tensors in the buffer of the instance `name` on this device: its aliases created there, and their aliases."""
        sharing = {name}
        for i in range(len(entries)):  # in order, so that an alias of an alias is found too
            sharing |= {tensor.name for tensor in produced(i) if tensor.alias in sharing}
        return sharing

    def uses(name: str) -> list[int]:
        """Order entries that use the buffer of `name` on this device."""
        group, users = members(name), []
        for i, entry in enumerate(entries):
            if entry[0] == "op":
                used = entry[2] == device and bool(group & set(entry[1].inputs))
            else:
                used = entry[2] == device and entry[1] in group
            users += [i] if used else []
        return users

    def base(name: str) -> str:
        """The instance that allocates the buffer of `name`, or an external input."""
        here = any(tensor.name == name for i in range(len(entries)) for tensor in produced(i))
        alias = tensors[name].alias if name in tensors and here else None
        return name if alias is None else base(alias)

    size: dict[str, int] = {}  # by base
    birth: dict[str, int] = {}
    death: dict[str, float] = {}  # the buffer is live at comparisons of entries birth <= i <= death
    for i, entry in enumerate(entries):
        if entry[0] == "transfer" and entry[3] == device:
            size[entry[1]], birth[entry[1]] = tensors[entry[1]].bytes, i
            local = members(entry[1]) - {entry[1]}
            death[entry[1]] = math.inf if local & set(graph.outputs) else max(uses(entry[1]))
        for tensor in produced(i):
            if tensor.alias is not None:
                continue
            size[tensor.name], birth[tensor.name] = tensor.bytes, i
            death[tensor.name] = math.inf if members(tensor.name) & set(graph.outputs) else max([i, *uses(tensor.name)])
            source = None if tensor.reuses is None else base(tensor.reuses)
            if source is not None and source not in external and death[source] == i:
                size[tensor.name] = size[source]
                death[source] = i - 0.5  # the buffer passes to the reuser just before the comparison
    weights = sum(e[1].weight_bytes for e in entries if e[0] == "op" and e[2] == device) * problem.resident_weights
    curve = []
    for i, entry in enumerate(entries):
        live = [name for name in size if birth[name] <= i <= death[name]]
        workspace = entry[1].workspace_bytes if entry[0] == "op" and entry[2] == device else 0
        after = sum(size[name] for name in live if death[name] > i)
        curve.append([weights + workspace + sum(size[name] for name in live), weights + after])
    return curve


@given(st.data())
def test_evaluate_agrees_with_the_naive_simulation(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs()), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    costs = exact.evaluate(graph, problem, placement, order)
    entries = naive_entries(graph, problem, placement, order)
    times = naive_times(graph, problem, entries)
    assert list(zip(costs.start.tolist(), costs.end.tolist(), strict=True)) == times
    assert costs.makespan == max(time[1] for time, entry in zip(times, entries, strict=True) if entry[0] == "op")
    for device in range(problem.devices):
        curve = naive_memory(graph, problem, entries, device)
        assert costs.memory[device].tolist() == curve
        weights = sum(op.weight_bytes for op, on in zip(graph.ops, placement, strict=True) if on == device)
        assert costs.peak_memory[device] == max([weights * problem.resident_weights, *(point[0] for point in curve)])


@given(st.data())
def test_decode_runs_the_ready_node_of_the_highest_key(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs()), data.draw(problems())
    placement, op_keys, transfer_keys = data.draw(decisions(graph, problem))
    order = exact.decode(graph, problem, placement, op_keys, transfer_keys)
    n, names = len(graph.ops), list(graph.tensor_names)
    home = {tensor.name: placement[i] for i, op in enumerate(graph.ops) for tensor in op.outputs}
    requires: dict[int, set[int]] = {}
    for i, op in enumerate(graph.ops):
        requires[i] = {j for j, other in enumerate(graph.ops) if other.name in op.after}
        for name in set(op.inputs) & set(names):
            producer = next(j for j, other in enumerate(graph.ops) if name in [o.name for o in other.outputs])
            transfer = n + names.index(name) * problem.devices + int(placement[i])
            requires[i].add(producer if home[name] == placement[i] else transfer)
            if home[name] != placement[i]:
                requires[transfer] = {producer}
    assert sorted(order.tolist()) == sorted(requires)
    assert exact.Routes(graph, problem, placement).transfers.tolist() == sorted(requires)[n:]
    keys = [*op_keys.tolist(), *transfer_keys.ravel().tolist()]
    for i, node in enumerate(order.tolist()):
        done = set(order[:i].tolist())
        ready = [other for other in requires if other not in done and requires[other] <= done]
        assert node == min(ready, key=lambda other: (-keys[other], other))


@given(st.data())
def test_the_walk_is_the_exact_memory_and_goes_back(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(max_ops=8)), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    routes = Routes(graph, problem, placement)
    walk = MemoryWalk(graph, problem, routes)
    start = list(walk.live)
    slots = np.searchsorted(routes.nodes, order).tolist()
    for _ in range(2):
        peak, live = max(start), []
        for slot in slots:
            peak = max(peak, walk.step(slot))
            live.append(list(walk.live))
        costs = exact.evaluate(graph, problem, placement, order)
        assert peak == max(costs.peak_memory)
        assert live == np.stack([device[:, 1] for device in costs.memory], axis=1).tolist()
        for slot in reversed(slots):
            walk.back(slot)
        assert walk.live == start
