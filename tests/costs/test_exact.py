"""The exact host twin: the worked example, each rule, shared buffers, keys and refusals."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from worked_example import MAKESPANS, TINY

from graphrl.costs import exact
from graphrl.costs.problem import Problem, Transfer
from graphrl.errors import PlanError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


def peaks(graph: ComputationGraph, placement: list[int], order: list[int], **problem: object) -> tuple[int, ...]:
    """Peak bytes of each device."""
    devices = max(placement) + 1
    return exact.evaluate(graph, Problem(devices=devices, **problem), placement, order).peak_memory  # type: ignore[arg-type]


# The worked example of graphrl/costs.


@pytest.mark.parametrize(("order", "peak"), [([0, 1, 2, 3], 14), ([0, 2, 1, 3], 12)])
def test_worked_example_on_one_device(order: list[int], peak: int) -> None:
    costs = exact.evaluate(TINY, Problem(), [0, 0, 0, 0], order)
    assert (costs.peak_memory, costs.makespan) == ((peak,), 7.0)
    assert costs.objective(Problem()) == peak


@pytest.mark.parametrize(("transfer", "latency", "bandwidth", "makespan"), MAKESPANS)
def test_worked_example_on_two_devices(transfer: str, latency: float, bandwidth: float, makespan: float) -> None:
    problem = Problem("makespan", 2, transfer, latency, bandwidth)  # type: ignore[arg-type]
    placement = [0, 0, 1, 0]
    order = exact.decode(TINY, problem, placement, np.full(4, 0.5), np.full((4, 2), 0.5))
    a0_to_1, c0_to_0 = 4 + 0 * 2 + 1, 4 + 2 * 2 + 0
    assert order.tolist() == [0, 1, a0_to_1, 2, c0_to_0, 3]
    costs = exact.evaluate(TINY, problem, placement, order)
    assert costs.peak_memory == (9, 11)
    assert costs.makespan == costs.objective(problem) == makespan


@pytest.mark.parametrize(("transfer", "makespan"), [("free", 9.5), ("link", 10.75), ("rendezvous", 15.75)])
def test_worked_example_with_two_transfers_from_one_device(transfer: Transfer, makespan: float) -> None:
    problem = Problem("makespan", 2, transfer, 3.5, 4.0)
    a0_to_1, b0_to_1 = 4 + 0 * 2 + 1, 4 + 1 * 2 + 1
    costs = exact.evaluate(TINY, problem, [0, 0, 1, 1], [0, 1, a0_to_1, 2, b0_to_1, 3])
    assert costs.makespan == makespan


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


# Hand instances; a chain a -> b -> c unless another graph is drawn.


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
    assert exact.Routes(graph, problem, [0, 1]).transfers.tolist() == []
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


def test_a_kept_tensor_is_never_freed_at_home_but_its_copies_are() -> None:
    graph = ComputationGraph("kept", (Op("a", outputs=(Tensor("t", 5),)), Op("b", inputs=("t",))), (), ("t",))
    costs = exact.evaluate(graph, Problem(devices=2), [0, 1], [0, 3, 1])
    assert costs.memory[0].tolist() == [[5, 5], [5, 5], [5, 5]]
    assert costs.memory[1].tolist() == [[0, 0], [5, 5], [5, 0]]


# Shared buffers: aliases and reuse.


def chain(*outputs: Tensor, kept: tuple[str, ...] = ()) -> ComputationGraph:
    """op0 writes the first tensor, op i reads tensor i - 1 and writes tensor i; a last op reads the last."""
    ops = [
        Op(f"op{i}", inputs=(outputs[i - 1].name,) if i else (), outputs=(tensor,)) for i, tensor in enumerate(outputs)
    ]
    return ComputationGraph("chain", (*ops, Op("end", inputs=(outputs[-1].name,))), (), kept)


T, VIEW = Tensor("t", 5), Tensor("view", 5, alias="t")
TO_1 = 3 + 0 * 2 + 1  # t to device 1, in a chain of two tensors


@pytest.mark.parametrize(
    ("graph", "placement", "order", "memory"),
    [
        # t: 5; the view adds nothing; u: 3, then the view's use frees t's buffer; end frees u
        (chain(T, VIEW, Tensor("u", 3)), [0] * 4, [0, 1, 2, 3], [[[5, 5], [5, 5], [8, 3], [3, 0]]]),
        # a kept alias keeps its buffer for ever
        (chain(T, VIEW, kept=("view",)), [0] * 3, [0, 1, 2], [[[5, 5]] * 3]),
        # an alias of a copy uses the copy's buffer, which outlives its own last use
        (
            *(chain(T, VIEW), [0, 1, 1], [0, TO_1, 1, 2]),
            [[[5, 5], [5, 0], [0, 0], [0, 0]], [[0, 0], [5, 5], [5, 5], [5, 0]]],
        ),
        # a transferred alias has a separate buffer
        (
            *(chain(T, Tensor("view", 4, alias="t")), [0, 0, 1], [0, 1, 3 + 1 * 2 + 1, 2]),
            [[[5, 5], [5, 5], [5, 0], [0, 0]], [[0, 0], [0, 0], [4, 4], [4, 0]]],
        ),
        # reuse takes over the input at its last use: one buffer of 5 bytes all along, although u and v need 3
        (
            *(chain(T, Tensor("u", 3, reuses="t"), Tensor("v", 3, reuses="u")), [0] * 4, [0, 1, 2, 3]),
            [[[5, 5]] * 3 + [[5, 0]]],
        ),
        # so it does of a copy
        (
            *(chain(T, Tensor("u", 5, reuses="t")), [0, 1, 1], [0, TO_1, 1, 2]),
            [[[5, 5], [5, 0], [0, 0], [0, 0]], [[0, 0], [5, 5], [5, 5], [5, 0]]],
        ),
    ],
)
def test_chains_that_share_buffers(graph: ComputationGraph, placement: list, order: list, memory: list) -> None:
    costs = exact.evaluate(graph, Problem(devices=max(placement) + 1), placement, order)
    assert [device.tolist() for device in costs.memory] == memory


def test_an_alias_of_an_external_input_is_free_at_home() -> None:
    ops = (Op("a", inputs=("x",), outputs=(Tensor("view", 7, alias="x"),)), Op("b", inputs=("view",)))
    graph = ComputationGraph("external", ops, (Tensor("x", 7),))
    assert peaks(graph, [0, 0], [0, 1]) == (0,)
    assert peaks(graph, [0, 1], [0, 3, 1]) == (0, 7)


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


def test_two_outputs_that_want_one_buffer_first_wins() -> None:
    ops = (
        Op("a", outputs=(T,)),
        Op("view", inputs=("t",), outputs=(VIEW,)),
        Op("b", inputs=("t", "view"), outputs=(Tensor("u", 2, reuses="view"), Tensor("v", 3, reuses="t"))),
        Op("c", inputs=("u", "v")),
    )
    assert peaks(ComputationGraph("pair", ops), [0] * 4, [0, 1, 2, 3]) == (8,)  # u in t's 5 bytes, v in 3 others


def test_reuse_waits_for_the_aliases_of_the_input() -> None:
    ops = (
        Op("a", outputs=(T,)),
        Op("view", inputs=("t",), outputs=(VIEW,)),
        Op("b", inputs=("t",), outputs=(Tensor("u", 5, reuses="t"),)),
        Op("c", inputs=("view",)),
        Op("d", inputs=("u",)),
    )
    graph = ComputationGraph("view", ops)
    assert peaks(graph, [0] * 5, [0, 1, 2, 3, 4]) == (10,)  # the view is read after b
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
        ([0, 1, 5, 5, 2, 8, 3], r"repeats the transfer of 'a0' to device 1"),
        ([0, 1, 4, 5, 2, 8, 3], r"has the transfer of 'a0' to device 0, which this placement does not need"),
        ([0, 1, 5, 2, 8, 99], r"has node 99"),
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


def test_bad_key_shapes() -> None:
    for op_keys, transfer_keys in itertools.product([np.zeros(4), np.zeros(3)], [np.zeros((4, 2)), np.zeros((4, 1))]):
        if (op_keys.shape, transfer_keys.shape) != ((4,), (4, 2)):
            with pytest.raises(PlanError, match=r"must be \(4,\) and \(4, 2\)"):
                exact.decode(TINY, Problem(devices=2), [0] * 4, op_keys, transfer_keys)
