"""The exact cost of memory maps: the worked example, each rule, and the compiler's guarantees."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from map_problems import WORKED_CHIP, WORKED_GRAPH, asked, naive_latency, naive_pages, problems

from graphrl.costs.maps import exact
from graphrl.costs.maps.chip import NNP_I, ChipMemory, MemoryChip
from graphrl.costs.maps.problem import map_problem
from graphrl.errors import PlanError, ProblemError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.graph import ComputationGraph, Op, Tensor


def test_the_worked_example() -> None:
    problem = map_problem(WORKED_GRAPH, WORKED_CHIP)
    costs = exact.compiler(problem)
    assert (costs.weights.tolist(), costs.outputs.tolist()) == ([1, 1], [1, 0])
    assert costs.step_seconds.tolist() == [2.0, 4.0]
    assert (costs.latency, costs.moved_bytes, costs.error) == (6.0, 4, 4 / 12)
    assert costs.held_bytes.tolist() == [[0, 4], [8, 8]]
    assert exact.all_in(problem, 0).latency == 16.0
    assert costs.reward(costs.latency) == -4 / 12
    again = exact.evaluate(problem, costs.weights, costs.outputs)
    assert again.reward(costs.latency) == 1.0
    assert exact.all_in(problem, 0).reward(costs.latency) == (6 / 16) ** 2
    assert exact.all_in(problem, 0).reward(costs.latency, squared=False) == 6 / 16


@given(st.data())
def test_costs_follow_the_rules(data: st.DataObject) -> None:
    problem = data.draw(problems())
    costs = exact.evaluate(problem, *data.draw(asked(problem)))
    assert costs.latency == pytest.approx(naive_latency(problem, costs.weights, costs.outputs), rel=1e-12)
    pages = naive_pages(problem, costs.weights, costs.outputs)
    assert (costs.held_bytes == pages * problem.chip.page).all()
    limited = [i for i, memory in enumerate(problem.chip.memories) if memory.capacity is not None]
    for i in limited:
        assert costs.held_bytes[i].max() <= (problem.chip.memories[i].capacity or 0)


@given(st.data())
def test_the_compiler_moves_nothing_of_a_valid_map_and_only_those(data: st.DataObject) -> None:
    problem = data.draw(problems())
    weights, outputs = data.draw(asked(problem))
    costs = exact.evaluate(problem, weights, outputs)
    again = exact.evaluate(problem, costs.weights, costs.outputs)
    assert again.valid
    assert again.latency == costs.latency
    assert (costs.weights <= weights).all()
    assert (costs.outputs <= outputs).all()
    held = naive_pages(problem, weights, outputs)
    room = [np.inf if m.capacity is None else m.capacity // problem.chip.page for m in problem.chip.memories]
    assert costs.valid == bool((held.max(1) <= room).all())
    assert costs.valid == ((costs.weights == weights).all() and (costs.outputs == outputs).all())


def test_an_alias_lies_where_its_tensor_lies_and_keeps_it() -> None:
    ops = (
        Op("a", outputs=(Tensor("a0", 4),)),
        Op("view", inputs=("a0",), outputs=(Tensor("v0", 4, alias="a0"),)),
        Op("b", outputs=(Tensor("b0", 2),)),
        Op("c", inputs=("v0",)),
    )
    problem = map_problem(ComputationGraph("aliased", ops), WORKED_CHIP)
    costs = exact.evaluate(problem, [0, 0, 0, 0], [1, 0, 1, 0])
    assert costs.held_bytes[1].tolist() == [4, 4, 6, 4]
    assert costs.step_seconds.tolist() == [1.0, 1.0, 0.5, 1.0]


def test_kept_outputs_stay_to_the_end() -> None:
    ops = (Op("a", outputs=(Tensor("a0", 5), Tensor("a1", 3))), Op("b", outputs=(Tensor("b0", 4),)))
    costs = exact.compiler(map_problem(ComputationGraph("kept", ops, outputs=("a0",)), WORKED_CHIP))
    assert costs.held_bytes[1].tolist() == [8, 5]
    assert costs.outputs.tolist() == [1, 0]


def test_an_order_changes_what_fits() -> None:
    ops = (
        Op("a", outputs=(Tensor("a0", 6),)),
        Op("b", outputs=(Tensor("b0", 6),)),
        Op("c", inputs=("a0",)),
        Op("d", inputs=("b0",)),
    )
    graph = ComputationGraph("pairs", ops)
    assert exact.compiler(map_problem(graph, WORKED_CHIP)).moved_bytes == 6
    assert exact.compiler(map_problem(graph, WORKED_CHIP, [0, 2, 1, 3])).moved_bytes == 0


@pytest.mark.parametrize(
    ("order", "fault"),
    [([1, 0], "op 'b' before op 'a', which it depends on"), ([0, 0], "repeats an op"), ([0], "must be the 2 ops")],
)
def test_a_wrong_order_is_refused(order: list[int], fault: str) -> None:
    with pytest.raises(PlanError, match=fault):
        map_problem(WORKED_GRAPH, WORKED_CHIP, order)


def test_wrong_memories_are_refused() -> None:
    problem = map_problem(WORKED_GRAPH, WORKED_CHIP)
    with pytest.raises(PlanError, match="weights requests memory 2: chip 'worked' has 0 to 1"):
        exact.evaluate(problem, [0, 2], [0, 0])
    with pytest.raises(PlanError, match="must be 2 integers"):
        exact.evaluate(problem, [0, 1], [0])


def test_a_chip_without_room_for_everything_is_refused() -> None:
    chip = MemoryChip("full", 1.0, (ChipMemory("only", 11, 1, 1),), page=1)
    with pytest.raises(ProblemError, match="memory 'only' has 11 B, and graph 'worked' needs 12 B at its peak"):
        map_problem(WORKED_GRAPH, chip)


@pytest.mark.parametrize(
    ("name", "ops", "weights", "outputs", "macs"),
    [
        ("resnet50", 57, 25.50, 11.32, 4.089),
        ("resnet101", 108, 44.44, 16.44, 7.80),
        ("bert", 376, 109.09, 212.63, 35.33),
    ],
)
def test_workloads_have_the_published_sizes(name: str, ops: int, weights: float, outputs: float, macs: float) -> None:
    graph = WORKLOADS[name]()
    a = graph.arrays
    source_bytes = a.tensor_bytes[a.producer == 0].sum()  # of the input, which the published sums leave out
    assert a.num_ops == ops
    assert a.weight_bytes.sum() / 1e6 == pytest.approx(weights, abs=0.006)
    assert (a.tensor_bytes.sum() - source_bytes) / 1e6 == pytest.approx(outputs, abs=0.006)
    assert a.flops.sum() / 2e9 == pytest.approx(macs, abs=0.006)


@pytest.mark.parametrize(("name", "slowest", "compiler"), [("resnet50", 987.4, 313.8), ("resnet101", 1642.4, 642.2)])
def test_workloads_on_the_default_chip(name: str, slowest: float, compiler: float) -> None:
    problem = map_problem(WORKLOADS[name](), NNP_I)
    assert exact.all_in(problem, 0).latency * 1e6 == pytest.approx(slowest, abs=0.06)
    assert exact.compiler(problem).latency * 1e6 == pytest.approx(compiler, abs=0.06)


def test_weights_that_stand_among_the_inputs_are_read_once() -> None:
    """Readers list weights among the inputs; a graph of layers has them in `weight_bytes` alone."""
    weighted = Op("a", flops=2, weight_bytes=12, inputs=("x", "w", "b"), outputs=(Tensor("a0", 4),))
    plain = dataclasses.replace(weighted, inputs=("x",))
    shared = Op("c", inputs=("a0", "w"), outputs=(Tensor("c0", 1),))
    inputs = (Tensor("x", 3), Tensor("w", 8), Tensor("b", 4))
    graphs = (ComputationGraph("listed", (op, shared), inputs) for op in (weighted, plain))
    raw, layers = (map_problem(graph, WORKED_CHIP) for graph in graphs)
    np.testing.assert_array_equal(raw.input_seconds, layers.input_seconds)
    assert raw.input_seconds.tolist() == [3.0, 8.0]
