"""Plans: costs, decisions, ranks, and what `check` finds wrong."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs, plans, problems
from tiny_plans import TINY, tiny_plan

from graphrl.costs.exact import evaluate
from graphrl.errors import PlanError
from graphrl.plan import OpStep, Plan, TransferStep


def test_worked_example() -> None:
    plan = tiny_plan()
    assert (plan.peak_memory, plan.makespan, plan.value) == ((9, 11), 7.0, 11)
    assert plan.order[2:4] == (TransferStep("a0", 1), OpStep("c"))
    assert plan.placement == {"a": 0, "b": 0, "c": 1, "d": 0}
    assert tiny_plan(transfer="free", objective="makespan").value == 5.0
    assert tiny_plan(latency=0.5, bandwidth=4.0).makespan == 10.25
    assert tiny_plan(latency=0.5, bandwidth=4.0, transfer="free").makespan == 8.25


def test_a_plan_is_shown_in_a_line() -> None:
    shown = "Plan('tiny', 4 ops, peak_memory 11 B, bound none, method 'list', seed 3)"
    assert repr(tiny_plan()) == shown


@given(st.data())
def test_decisions_come_back(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs()), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    plan = Plan.from_order(graph, problem, placement, order, method="m", seconds=1, evaluations=2, seed=0)
    found_placement, found_order = plan.decisions(graph)
    assert (found_placement.tolist(), found_order.tolist()) == (placement.tolist(), order.tolist())
    assert plan.value == evaluate(graph, problem, placement, order).objective(problem)
    assert plan.check(graph).makespan == plan.makespan


def test_names_are_the_same_whether_they_were_made_or_read() -> None:
    plan = tiny_plan()
    loaded = Plan.from_dict(plan.to_dict())
    assert loaded == plan == dataclasses.replace(loaded.attach(TINY), bound=None)
    assert loaded.order == tuple(plan.order) == plan.order
    assert (dict(plan.placement), repr(plan.placement)) == (loaded.placement, repr(loaded.placement))
    assert plan.order != tuple(reversed(plan.order))
    assert [len(each) for each in (plan.placement, plan.order)] == [4, 6]


def test_a_plan_of_an_equal_graph_has_the_same_decisions() -> None:
    plan, again = tiny_plan(), dataclasses.replace(TINY)
    other = dataclasses.replace(TINY, ops=(*TINY.ops[2:], *TINY.ops[:2]))
    for wanted, loaded in zip(plan.decisions(TINY), plan.decisions(again), strict=True):
        assert wanted.tolist() == loaded.tolist()
    assert plan.decisions(other)[0].tolist() == [1, 0, 0, 0]
    assert plan.decisions(other)[1].tolist()[:2] == [2, 3]


def test_decisions_are_copies() -> None:
    plan = tiny_plan()
    for array in plan.decisions(TINY):
        array[:] = 0
    assert plan.check(TINY).peak_memory == plan.peak_memory


def test_rank_puts_feasible_plans_first() -> None:
    kept, over = (tiny_plan(objective="makespan", memory_limit=limit) for limit in (11, 10))
    assert (kept.excess, over.excess) == (0, 1)
    assert kept.rank < dataclasses.replace(over, value=0.0).rank


def test_gap() -> None:
    assert tiny_plan().gap is None
    assert dataclasses.replace(tiny_plan(), bound=10).gap == pytest.approx(0.1)
    assert dataclasses.replace(tiny_plan(), bound=0).gap is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"graph": "other"}, "plan is of graph 'other'"),
        ({"peak_memory": (9, 12)}, "peak_memory of device 1 is stated as 12 bytes: it is 11"),
        ({"makespan": 6.0}, "makespan is stated as 6.0: it is 7.0"),
        ({"value": 12}, "value is stated as 12: it is 11"),
        ({"placement": {"a": 0, "b": 0, "c": 1}}, "placement misses op 'd'"),
        ({"placement": {"a": 0, "b": 0, "c": 1, "d": 0, "e": 0}}, "placement names op 'e'"),
        ({"placement": {"a": 0, "b": 0, "c": 2, "d": 0}}, "op 'c' is placed on device 2"),
        ({"order": (OpStep("a"), OpStep("x"))}, "order names op 'x'"),
        ({"order": (OpStep("a"), TransferStep("x0", 1))}, "order moves tensor 'x0'"),
        ({"order": (OpStep("a"), TransferStep("a0", 2))}, "order moves 'a0' to device 2: must be from 0 to 1"),
        ({"order": (OpStep("a"), OpStep("b"))}, "order misses op 'c'"),
        ({"order": tuple(reversed(tiny_plan().order))}, "before"),
    ],
)
def test_check_names_the_first_difference(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(PlanError) as caught:
        dataclasses.replace(tiny_plan(), **changes).check(TINY)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_check_takes_nothing_but_a_graph() -> None:
    for wrong in (None, 3, "tiny.json"):
        with pytest.raises(PlanError, match=f"graph is of type {type(wrong).__name__}: must be a ComputationGraph"):
            tiny_plan().check(wrong)  # type: ignore[arg-type]


def test_seconds_may_be_rounded_but_not_wrong() -> None:
    plan = tiny_plan(latency=1 / 3)
    dataclasses.replace(plan, makespan=float(f"{plan.makespan:.12g}")).check(TINY)
    with pytest.raises(PlanError, match="makespan"):
        dataclasses.replace(plan, makespan=plan.makespan * (1 + 1e-8)).check(TINY)
