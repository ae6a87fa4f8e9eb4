"""Plans: costs, decisions, ranks and faults found by `check`; and their files, refused in one line if broken."""

import copy
import dataclasses
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs, plans, problems
from tiny_plans import TINY, random_plan, tiny_plan

from graphrl.costs.exact import evaluate
from graphrl.errors import GraphrlError, PlanError
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
    assert (repr(tiny_plan()), tiny_plan().gap) == (shown, None)
    assert dataclasses.replace(tiny_plan(), bound=10).gap == pytest.approx(0.1)
    assert dataclasses.replace(tiny_plan(), bound=0).gap is None


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


# Files: round trips, broken ones in one line, nothing half-written


@given(st.data())
def test_file_round_trip(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    graph, plan = random_plan(data)
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.save(path)
    loaded = Plan.load(path)
    assert loaded == plan == Plan.from_dict(plan.to_dict())
    loaded.check(graph)
    assert json.loads(path.read_text()) == plan.to_dict()


def test_file_is_as_designed(tmp_path: Path) -> None:
    tiny_plan().save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text()) == {
        "format": "graphrl-plan",
        "version": 1,
        "graph": "tiny",
        "method": "list",
        "objective": "peak_memory",
        "value": 11,
        "makespan": 7.0,
        "peak_memory": [9, 11],
        "seconds": 0.5,
        "evaluations": 1,
        "seed": 3,
        "model": {"devices": 2, "transfer": "rendezvous", "latency": 0.0, "bandwidth": None, "resident_weights": False},
        "placement": {"a": 0, "b": 0, "c": 1, "d": 0},
        "order": [
            {"op": "a"},
            {"op": "b"},
            {"transfer": "a0", "to": 1},
            {"op": "c"},
            {"transfer": "c0", "to": 0},
            {"op": "d"},
        ],
    }


def test_memory_limit_is_in_the_file_where_there_is_one() -> None:
    plan = tiny_plan(objective="makespan", memory_limit=10)
    assert plan.to_dict()["model"]["memory_limit"] == 10
    assert Plan.from_dict(plan.to_dict()).problem == plan.problem


def test_gzip_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    text = json.dumps(tiny_plan().to_dict()).encode()
    (tmp_path / "a").write_bytes(gzip.compress(text))
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbf" + text)
    assert Plan.load(tmp_path / "a") == Plan.load(tmp_path / "b") == tiny_plan()


def _set(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """Sets `data[keys[0]]...[keys[-2]] = keys[-1]`, or deletes it where that is `...`."""

    def change(data: Any) -> None:
        for key in keys[:-2]:
            data = data[key]
        data[keys[-2]] = keys[-1]
        if keys[-1] is ...:
            del data[keys[-2]]

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_set("format", "graphrl-graph"), "format is 'graphrl-graph'"),
        (_set("version", 3), "version is 3"),
        (_set("version", True), "version is True"),
        (_set("extra", 1), "unknown key 'extra'"),
        (_set("seed", ...), "no key 'seed'"),
        (_set("graph", 3), "graph is 3"),
        (_set("method", None), "method is None"),
        (_set("objective", "speed"), "objective is 'speed'"),
        (_set("value", "11"), "value is '11'"),
        (_set("value", math.nan), "value is nan: must be a finite number"),
        (_set("value", 10**400), "value is an integer of more than 40 digits"),
        (_set("peak_memory", [9]), "peak_memory has 1 entries for 2 devices"),
        (_set("peak_memory", 0, 9.5), "peak_memory of device 0 is 9.5"),
        (_set("seconds", -0.5), "seconds is -0.5"),
        (_set("evaluations", 1.5), "evaluations is 1.5"),
        (_set("model", []), "model is a list"),
        (_set("model", "transfer", ...), "model has no key 'transfer'"),
        (_set("model", "speed", 1), "model has the unknown key 'speed'"),
        (_set("model", "devices", 0), "devices is 0"),
        (_set("model", "devices", 1), "peak_memory has 2 entries for 1"),
        (_set("model", "transfer", "magic"), "transfer is 'magic'"),
        (_set("model", "latency", -1), "model.latency is -1"),
        (_set("model", "memory_limit", 0), "memory_limit is 0"),
        (_set("model", "resident_weights", 1), "resident_weights is 1"),
        (_set("placement", []), "placement is a list"),
        (_set("placement", "b", 2), "op 'b' is placed on device 2"),
        (_set("placement", "b", None), "device of op 'b' is None"),
        (_set("order", {}), "order is an object"),
        (_set("order", 1, "b"), "order[1] is 'b'"),
        (_set("order", 1, {"op": "b", "to": 1}), "order[1] is an object"),
        (_set("order", 2, {"transfer": "a0", "to": "1"}), "order[2].to is '1'"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, change: Callable[[Any], None], fault: str) -> None:
    change(data := copy.deepcopy(tiny_plan().to_dict()))
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError) as caught:
        Plan.load(path).check(TINY)
    message = str(caught.value)
    assert fault in message
    assert message.startswith(str(path))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "broken or truncated JSON"),
        (b"[]", "holds a list"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"value": 1' + b"0" * 5000 + b"}", "thousands of digits"),
        (b'{"format": 1, "format": 2}', 'key "format" appears twice'),
    ],
)
def test_files_that_are_no_json_are_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(PlanError, match=fault) as caught:
        Plan.load(tmp_path / "broken.json")
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    tiny_plan().save(tmp_path / "plan.json")
    whole = (tmp_path / "plan.json").read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.json").write_bytes(whole[:length])
        with pytest.raises(PlanError):
            Plan.load(tmp_path / "cut.json")


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    endless = dataclasses.replace(tiny_plan(), makespan=math.inf)
    with pytest.raises(PlanError, match="inf"):
        endless.save(path)
    with pytest.raises(GraphrlError, match="directory"):
        tiny_plan().save(tmp_path)
    with pytest.raises(GraphrlError, match="one of"):
        tiny_plan().plot(tmp_path / "plan.txt")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
