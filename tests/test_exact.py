"""The exact host twin: the worked example, the rules one by one, and a naive simulation by intervals."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import decisions, graphs, plans, problems

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor

TINY = ComputationGraph(
    "tiny",
    (
        Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
        Op("b", runtime=2, inputs=("a0",), outputs=(Tensor("b0", 3),)),
        Op("c", runtime=3, inputs=("a0",), outputs=(Tensor("c0", 5),), workspace_bytes=2),
        Op("d", runtime=1, inputs=("b0", "c0"), outputs=(Tensor("d0", 1),)),
    ),
)


def peaks(graph: ComputationGraph, placement: list[int], order: list[int], **problem: object) -> tuple[int, ...]:
    devices = max(placement) + 1
    return exact.evaluate(graph, Problem(devices=devices, **problem), placement, order).peak_memory  # type: ignore[arg-type]


# The worked example of DESIGN.md 3.


@pytest.mark.parametrize(("order", "peak"), [([0, 1, 2, 3], 14), ([0, 2, 1, 3], 12)])
def test_worked_example_on_one_device(order: list[int], peak: int) -> None:
    costs = exact.evaluate(TINY, Problem(), [0, 0, 0, 0], order)
    assert (costs.peak_memory, costs.makespan) == ((peak,), 7.0)
    assert costs.objective(Problem()) == peak


@pytest.mark.parametrize(
    ("transfer", "latency", "bandwidth", "makespan"),
    [
        ("rendezvous", 0.0, math.inf, 7.0),
        ("rendezvous", 0.5, 4.0, 10.25),
        ("free", 0.0, math.inf, 5.0),
        ("free", 0.5, 4.0, 8.25),
        ("link", 0.0, math.inf, 5.0),
        ("link", 0.5, 4.0, 8.25),
    ],
)
def test_worked_example_on_two_devices(transfer: str, latency: float, bandwidth: float, makespan: float) -> None:
    problem = Problem("makespan", 2, transfer, latency, bandwidth)  # type: ignore[arg-type]
    placement = [0, 0, 1, 0]
    order = exact.decode(TINY, problem, placement, np.full(4, 0.5), np.full((4, 2), 0.5))
    a0_to_1, c0_to_0 = 4 + 0 * 2 + 1, 4 + 2 * 2 + 0
    assert order.tolist() == [0, 1, a0_to_1, 2, c0_to_0, 3]
    costs = exact.evaluate(TINY, problem, placement, order)
    assert costs.peak_memory == (9, 11)
    assert costs.makespan == costs.objective(problem) == makespan


def test_memory_curves_of_the_worked_example() -> None:
    memory = exact.evaluate(TINY, Problem(devices=2), [0, 0, 1, 0], [0, 1, 5, 2, 8, 3]).memory
    # order:                     a       b       a0->1   c        c0->0   d
    assert memory[0].tolist() == [[4, 4], [7, 7], [7, 3], [3, 3], [8, 8], [9, 0]]
    assert memory[1].tolist() == [[0, 0], [0, 0], [4, 4], [11, 5], [5, 0], [0, 0]]


def test_feasibility_and_ranking() -> None:
    good = exact.evaluate(TINY, Problem(), [0] * 4, [0, 2, 1, 3])  # 12 bytes
    bad = exact.evaluate(TINY, Problem(), [0] * 4, [0, 1, 2, 3])  # 14 bytes
    limited = Problem("makespan", memory_limit=12)
    assert (good.feasible(limited), bad.feasible(limited)) == (True, False)
    assert (good.excess(limited), bad.excess(limited)) == (0, 2)
    assert good.rank(limited) < bad.rank(limited)
    assert good.feasible(Problem())


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
        """The tensors in the buffer of the instance `name` on this device: its aliases made here, and theirs."""
        found = {name}
        for i in range(len(entries)):  # in order, so that an alias of an alias is found too
            found |= {tensor.name for tensor in produced(i) if tensor.alias in found}
        return found

    def uses(name: str) -> list[int]:
        """Order entries that use the buffer of `name` on this device."""
        group, found = members(name), []
        for i, entry in enumerate(entries):
            if entry[0] == "op":
                used = entry[2] == device and bool(group & set(entry[1].inputs))
            else:
                used = entry[2] == device and entry[1] in group
            found += [i] if used else []
        return found

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
                death[source] = i - 0.5  # handed over just before the comparison
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
    assert exact.needed_transfers(graph, problem, placement).tolist() == sorted(requires)[n:]
    keys = [*op_keys.tolist(), *transfer_keys.ravel().tolist()]
    for i, node in enumerate(order.tolist()):
        done = set(order[:i].tolist())
        ready = [other for other in requires if other not in done and requires[other] <= done]
        assert node == min(ready, key=lambda other: (-keys[other], other))


@given(st.data())
def test_renaming_devices_changes_only_their_order(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs()), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    renamed = np.array(data.draw(st.permutations(range(problem.devices))))
    n = len(graph.ops)
    tensor, to = np.divmod(order - n, problem.devices)
    renamed_order = np.where(order < n, order, n + tensor * problem.devices + renamed[to])
    first = exact.evaluate(graph, problem, placement, order)
    second = exact.evaluate(graph, problem, renamed[placement], renamed_order)
    assert second.makespan == first.makespan
    assert [second.peak_memory[device] for device in renamed] == list(first.peak_memory)


@given(st.data())
def test_memory_scales_with_the_unit_and_ends_with_what_is_kept(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(sharing=False)), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    ops = [
        dataclasses.replace(
            op,
            workspace_bytes=op.workspace_bytes * 2**40,
            weight_bytes=op.weight_bytes * 2**40,
            outputs=tuple(dataclasses.replace(tensor, bytes=tensor.bytes * 2**40) for tensor in op.outputs),
        )
        for op in graph.ops
    ]
    costs = exact.evaluate(graph, problem, placement, order)
    scaled = exact.evaluate(dataclasses.replace(graph, ops=tuple(ops)), problem, placement, order)
    assert scaled.peak_memory == tuple(peak * 2**40 for peak in costs.peak_memory)
    for device in range(problem.devices):
        here = [op for op, on in zip(graph.ops, placement, strict=True) if on == device]
        kept = sum(tensor.bytes for op in here for tensor in op.outputs if tensor.name in graph.outputs)
        weights = problem.resident_weights * sum(op.weight_bytes for op in here)
        assert costs.memory[device][-1, 1] == kept + weights


# Hand instances; a chain a -> b -> c unless drawn otherwise.


def test_resident_weights_count_from_the_start() -> None:
    graph = ComputationGraph(
        "w", (Op("a", outputs=(Tensor("t", 5),), weight_bytes=7), Op("b", inputs=("t",), weight_bytes=20))
    )
    assert peaks(graph, [0, 0], [0, 1]) == (5,)
    assert peaks(graph, [0, 0], [0, 1], resident_weights=True) == (32,)
    assert peaks(graph, [0, 1], [0, 3, 1], resident_weights=True) == (12, 25)


@pytest.mark.parametrize("transfer", ["rendezvous", "free", "link"])
def test_control_edges_across_devices_cost_no_transfer_but_are_waited_for(transfer: str) -> None:
    graph = ComputationGraph(
        "control", (Op("a", runtime=2, outputs=(Tensor("t", 5),)), Op("b", runtime=1, after=("a",)))
    )
    problem = Problem("makespan", 2, transfer, latency=9.0)  # type: ignore[arg-type]
    assert exact.needed_transfers(graph, problem, [0, 1]).tolist() == []
    costs = exact.evaluate(graph, problem, [0, 1], [0, 1])
    assert costs.start.tolist() == [0.0, 2.0]
    assert costs.peak_memory == (5, 0)


def test_rendezvous_at_zero_cost_still_holds_both_devices() -> None:
    ops = (
        Op("a", runtime=1, outputs=(Tensor("t", 1),)),
        Op("long", runtime=10),
        Op("b", runtime=1, inputs=("t",)),
        Op("c", runtime=1),
    )
    graph = ComputationGraph("wait", ops)
    # a and c on 0; long and b on 1. The transfer waits for `long`, and c on the sender waits for the transfer.
    placement, order = [0, 1, 1, 0], [0, 1, 5, 2, 3]
    ends = {
        name: exact.evaluate(graph, Problem("makespan", 2, name), placement, order).end.tolist()
        for name in ("rendezvous", "free", "link")
    }
    assert ends["rendezvous"] == [1, 10, 10, 11, 11]
    assert ends["free"] == ends["link"] == [1, 10, 1, 11, 2]


def test_link_sends_one_tensor_at_a_time_to_any_device() -> None:
    ops = (
        Op("a", runtime=1, outputs=(Tensor("t", 4),)),
        Op("b", runtime=1, inputs=("t",)),
        Op("c", runtime=1, inputs=("t",)),
    )
    problem = Problem("makespan", 3, "link", latency=1.0, bandwidth=2.0)  # 3 s each
    graph, placement, order = ComputationGraph("fan", ops), [0, 1, 2], [0, 4, 5, 1, 2]
    assert exact.evaluate(graph, problem, placement, order).start.tolist() == [0, 1, 4, 4, 7]
    free = exact.evaluate(graph, dataclasses.replace(problem, transfer="free"), placement, order)
    assert free.start.tolist() == [0, 1, 1, 4, 4]


def test_an_op_without_outputs_and_outputs_without_consumers() -> None:
    graph = ComputationGraph("sink", (Op("a", outputs=(Tensor("t", 5), Tensor("u", 6))), Op("b", inputs=("t",))))
    costs = exact.evaluate(graph, Problem(), [0, 0], [0, 1])
    assert costs.memory[0].tolist() == [[11, 5], [5, 0]]  # u is freed at once


def test_a_kept_tensor_is_never_freed_at_home_but_its_copies_are() -> None:
    graph = ComputationGraph("kept", (Op("a", outputs=(Tensor("t", 5),)), Op("b", inputs=("t",))), (), ("t",))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 1], [0, 3, 1])
    assert costs.memory[0].tolist() == [[5, 5], [5, 5], [5, 5]]
    assert costs.memory[1].tolist() == [[0, 0], [5, 5], [5, 0]]


def chain(*outputs: Tensor, kept: tuple[str, ...] = ()) -> ComputationGraph:
    """op0 writes the first tensor, op i reads tensor i - 1 and writes tensor i; a last op reads the last."""
    ops = [
        Op(f"op{i}", inputs=(outputs[i - 1].name,) if i else (), outputs=(tensor,)) for i, tensor in enumerate(outputs)
    ]
    return ComputationGraph("chain", (*ops, Op("end", inputs=(outputs[-1].name,))), (), kept)


def test_an_alias_has_no_bytes_and_keeps_its_buffer_alive() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 5, alias="t"), Tensor("u", 3))
    costs = exact.evaluate(graph, Problem(), [0] * 4, [0, 1, 2, 3])
    # t: 5; the view adds nothing; u: 3, then the view's use frees t's buffer; end frees u
    assert costs.memory[0].tolist() == [[5, 5], [5, 5], [8, 3], [3, 0]]


def test_a_kept_alias_keeps_its_buffer_for_ever() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 5, alias="t"), kept=("view",))
    assert exact.evaluate(graph, Problem(), [0] * 3, [0, 1, 2]).memory[0][-1].tolist() == [5, 5]


def test_an_alias_of_a_copy_lives_in_the_copy() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 5, alias="t"))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 1, 1], [0, 3 + 0 * 2 + 1, 1, 2])
    assert costs.memory[0].tolist() == [[5, 5], [5, 0], [0, 0], [0, 0]]
    assert costs.memory[1].tolist() == [[0, 0], [5, 5], [5, 5], [5, 0]]  # the copy outlives its own last use


def test_a_transfer_of_an_alias_is_a_buffer_of_its_own() -> None:
    graph = chain(Tensor("t", 5), Tensor("view", 4, alias="t"))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 0, 1], [0, 1, 3 + 1 * 2 + 1, 2])
    assert costs.memory[0].tolist() == [[5, 5], [5, 5], [5, 0], [0, 0]]
    assert costs.memory[1].tolist() == [[0, 0], [0, 0], [4, 4], [4, 0]]


def test_an_alias_of_an_external_input_is_free_at_home() -> None:
    ops = (Op("a", inputs=("x",), outputs=(Tensor("view", 7, alias="x"),)), Op("b", inputs=("view",)))
    graph = ComputationGraph("external", ops, (Tensor("x", 7),))
    assert peaks(graph, [0, 0], [0, 1]) == (0,)
    assert peaks(graph, [0, 1], [0, 3, 1]) == (0, 7)


def test_reuse_takes_over_the_input_at_its_last_use() -> None:
    graph = chain(Tensor("t", 5), Tensor("u", 3, reuses="t"), Tensor("v", 3, reuses="u"))
    # one buffer of 5 bytes all along, although u and v need 3
    assert exact.evaluate(graph, Problem(), [0] * 4, [0, 1, 2, 3]).memory[0].tolist() == [[5, 5]] * 3 + [[5, 0]]


def test_no_reuse_before_the_last_use_or_of_a_kept_or_external_buffer() -> None:
    ops = (
        Op("a", outputs=(Tensor("t", 5),)),
        Op("b", inputs=("t",), outputs=(Tensor("u", 3, reuses="t"),)),
        Op("c", inputs=("t",)),
        Op("d", inputs=("u",)),
    )
    graph = ComputationGraph("two readers", ops)
    assert peaks(graph, [0] * 4, [0, 1, 2, 3]) == (8,)  # c still needs t
    assert peaks(graph, [0] * 4, [0, 2, 1, 3]) == (5,)
    assert peaks(dataclasses.replace(graph, outputs=("t",)), [0] * 4, [0, 2, 1, 3]) == (8,)
    external = (Op("a", inputs=("x",), outputs=(Tensor("t", 3, reuses="x"),)),)
    assert peaks(ComputationGraph("external", external, (Tensor("x", 5),)), [0], [0]) == (3,)


def test_reuse_of_a_transferred_copy() -> None:
    graph = chain(Tensor("t", 5), Tensor("u", 5, reuses="t"))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 1, 1], [0, 3 + 0 * 2 + 1, 1, 2])
    assert costs.peak_memory == (5, 5)


def test_two_outputs_that_want_one_buffer_first_wins() -> None:
    ops = (
        Op("a", outputs=(Tensor("t", 5),)),
        Op("view", inputs=("t",), outputs=(Tensor("w", 5, alias="t"),)),
        Op("b", inputs=("t", "w"), outputs=(Tensor("u", 2, reuses="w"), Tensor("v", 3, reuses="t"))),
        Op("c", inputs=("u", "v")),
    )
    assert peaks(ComputationGraph("pair", ops), [0] * 4, [0, 1, 2, 3]) == (8,)  # u in t's 5 bytes, v in 3 of its own


def test_reuse_waits_for_the_aliases_of_the_input() -> None:
    ops = (
        Op("a", outputs=(Tensor("t", 5),)),
        Op("view", inputs=("t",), outputs=(Tensor("w", 5, alias="t"),)),
        Op("b", inputs=("t",), outputs=(Tensor("u", 5, reuses="t"),)),
        Op("c", inputs=("w",)),
        Op("d", inputs=("u",)),
    )
    graph = ComputationGraph("view", ops)
    assert peaks(graph, [0] * 5, [0, 1, 2, 3, 4]) == (10,)  # w is read after b
    assert peaks(graph, [0] * 5, [0, 1, 3, 2, 4]) == (5,)


# Keys.


def test_quantised_keys_are_truncated_and_ties_fall_to_ops_then_low_indices() -> None:
    assert exact.quantise(np.array([0.0, 0.5, 1 - 2**-24], np.float32), 3).tolist() == [0, 4, 7]
    assert exact.quantise([0.1249, 0.125, 0.9999999999], 3).tolist() == [0, 1, 7]  # float64 above float32's largest
    assert exact.key_bits(1, 0, 1) == 30
    assert exact.key_bits(512, 512, 1) == 22
    assert exact.key_bits(512, 512, 2) == 21
    assert exact.key_bits(512, 512, 3) == 20
    ops = tuple(Op(f"op{i}") for i in range(4))
    below = np.float32(0.5) - np.float32(2**-24)  # less than 0.5 by fewer bits than are compared
    keys = np.array([0.25, below, 0.5 - 2**-20, 0.5], np.float32)
    order = exact.decode(ComputationGraph("free", ops), Problem(), [0] * 4, keys, np.zeros((0, 1)))
    assert order.tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize("key", [math.nan, -0.1, 1.0, math.inf])
def test_keys_outside_zero_to_one_are_refused(key: float) -> None:
    with pytest.raises(PlanError, match=r"must be in \[0, 1\)"):
        exact.decode(TINY, Problem(), [0] * 4, [0.5, key, 0.5, 0.5], np.zeros((4, 1)))


# Refusals.


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ([0, 0, 0], r"'tiny' has 4 ops"),
        ([0, 0, 2, 0], r"op 'c' is placed on device 2: must be from 0 to 1"),
        ([0, -1, 0, 0], r"op 'b' is placed on device -1"),
        ([0.0, 0.0, 1.0, 0.0], r"must be integers"),
    ],
)
def test_bad_placements(placement: list, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        exact.evaluate(TINY, Problem(devices=2), placement, [0, 1, 5, 2, 8, 3])


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 5, 2, 8], r"misses op 'd'"),
        ([0, 1, 5, 2, 3], r"misses the transfer of 'c0' to device 0"),
        ([0, 1, 5, 2, 8, 3, 3], r"repeats op 'd'"),
        ([0, 1, 1, 2, 8, 3, 5], r"repeats op 'b'"),
        ([0, 1, 5, 5, 2, 8, 3], r"repeats the transfer of 'a0' to device 1"),
        ([0, 1, 4, 5, 2, 8, 3], r"has the transfer of 'a0' to device 0, which this placement does not need"),
        ([0, 1, 5, 2, 8, 99], r"has node 99"),
        ([-1, 1, 5, 2, 8, 3], r"has node -1"),
        ([1, 0, 5, 2, 8, 3], r"has op 'b' before op 'a'"),
        ([0, 1, 2, 5, 8, 3], r"has op 'c' before the transfer of 'a0' to device 1"),
        ([0, 1, 5, 8, 2, 3], r"has the transfer of 'c0' to device 0 before op 'c'"),
        ([[0, 1, 5, 2, 8, 3]], r"must be a list of integer node ids"),
        ([0.0, 1.0], r"must be a list of integer node ids"),
    ],
)
def test_bad_orders(order: list, message: str) -> None:
    with pytest.raises(PlanError, match=message) as error:
        exact.evaluate(TINY, Problem(devices=2), [0, 0, 1, 0], order)
    assert "\n" not in str(error.value)


def test_broken_control_edge_is_named() -> None:
    graph = ComputationGraph("control", (Op("a"), Op("b", after=("a",))))
    with pytest.raises(PlanError, match=r"has op 'b' before op 'a'"):
        exact.evaluate(graph, Problem(), [0, 0], [1, 0])


def test_bad_key_shapes() -> None:
    for op_keys, transfer_keys in itertools.product([np.zeros(4), np.zeros(3)], [np.zeros((4, 2)), np.zeros((4, 1))]):
        if (op_keys.shape, transfer_keys.shape) != ((4,), (4, 2)):
            with pytest.raises(PlanError, match=r"must be \(4,\) and \(4, 2\)"):
                exact.decode(TINY, Problem(devices=2), [0] * 4, op_keys, transfer_keys)
