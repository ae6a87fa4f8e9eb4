"""Plans: exact costs, the file and its faults, the timeline, the trace and the picture."""

import copy
import dataclasses
import gzip
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, plans, problems

from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, PlanError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import OpStep, Plan, TransferStep

TINY = ComputationGraph(
    "tiny",
    (
        Op("a", "input", 1.0, (), (Tensor("a0", 4),)),
        Op("b", "MatMul", 2.0, ("a0",), (Tensor("b0", 3),)),
        Op("c", "Conv", 3.0, ("a0",), (Tensor("c0", 5),), workspace_bytes=2),
        Op("d", "Add", 1.0, ("b0", "c0"), (Tensor("d0", 1),)),
    ),
)
A0_TO_1, C0_TO_0 = 4 + 0 * 2 + 1, 4 + 2 * 2 + 0
TWO = ([0, 0, 1, 0], [0, 1, A0_TO_1, 2, C0_TO_0, 3])  # DESIGN.md 3's example on two devices


def tiny_plan(**changes: Any) -> Plan:
    """The worked example on two devices."""
    problem = Problem(devices=2, **changes)
    return Plan.from_order(TINY, problem, *TWO, method="list", seconds=0.5, evaluations=1, seed=3)


def random_plan(data: st.DataObject) -> tuple[ComputationGraph, Plan]:
    graph, problem = data.draw(graphs()), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    return graph, Plan.from_order(graph, problem, placement, order, method="m", seconds=1, evaluations=2, seed=0)


# Costs and decisions


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


# The file


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
    """Sets `data[keys[0]]...[keys[-2]] = keys[-1]`."""

    def change(data: Any) -> None:
        for key in keys[:-2]:
            data = data[key]
        data[keys[-2]] = keys[-1]

    return change


def _drop(*keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_set("format", "graphrl-graph"), "format is 'graphrl-graph'"),
        (_drop("format"), "format is None"),
        (_set("version", 2), "version is 2"),
        (_set("version", True), "version is True"),
        (_drop("version"), "version is None"),
        (_set("extra", 1), "unknown key 'extra'"),
        (_drop("seed"), "no key 'seed'"),
        (_set("graph", 3), "graph is 3"),
        (_set("method", None), "method is None"),
        (_set("objective", "speed"), "objective is 'speed'"),
        (_set("objective", []), "objective is"),
        (_set("value", "11"), "value is '11'"),
        (_set("value", -1), "value is -1"),
        (_set("value", 10**400), "value is an integer of more than 40 digits"),
        (_set("makespan", True), "makespan is True"),
        (_set("peak_memory", [9]), "peak_memory has 1 entries for 2 devices"),
        (_set("peak_memory", 9), "peak_memory is 9"),
        (_set("peak_memory", 0, 9.5), "peak_memory of device 0 is 9.5"),
        (_set("seconds", -0.5), "seconds is -0.5"),
        (_set("evaluations", 1.5), "evaluations is 1.5"),
        (_set("seed", "x"), "seed is 'x'"),
        (_set("model", []), "model is a list"),
        (_drop("model", "transfer"), "model has no key 'transfer'"),
        (_set("model", "speed", 1), "model has the unknown key 'speed'"),
        (_set("model", "devices", 0), "devices is 0"),
        (_set("model", "devices", 1), "peak_memory has 2 entries for 1"),
        (_set("model", "devices", 10**6), "devices is 1000000"),
        (_set("model", "transfer", "magic"), "transfer is 'magic'"),
        (_set("model", "latency", -1), "model.latency is -1"),
        (_set("model", "bandwidth", 0), "bandwidth is 0"),
        (_set("model", "memory_limit", 0), "memory_limit is 0"),
        (_set("model", "resident_weights", 1), "resident_weights is 1"),
        (_set("placement", []), "placement is a list"),
        (_set("placement", "b", 2), "op 'b' is placed on device 2"),
        (_set("placement", "b", -1), "device of op 'b' is -1"),
        (_set("placement", "b", None), "device of op 'b' is None"),
        (_set("order", {}), "order is an object"),
        (_set("order", 1, "b"), "order[1] is 'b'"),
        (_set("order", 1, {"op": "b", "to": 1}), "order[1] is an object"),
        (_set("order", 2, {"transfer": "a0", "to": "1"}), "order[2].to is '1'"),
        (_set("order", 2, {"transfer": 0, "to": 1}), "order[2] is an object"),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path: Path, change: Callable[[Any], None], fault: str) -> None:
    data = tiny_plan().to_dict()
    change(data := copy.deepcopy(data))
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
        (b"", "is no JSON"),
        (b"{", "cut off"),
        (b"[]", "holds a list"),
        (b"\xff\xfe", "no UTF-8"),
        (b"null", "holds null"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"value": NaN}', "NaN"),
        (b'{"value": 1' + b"0" * 5000 + b"}", "number"),
        (b'{"format": 1, "format": 2}', "'format' appears twice"),
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


# The timeline


@given(st.data(), st.booleans())
def test_timeline_holds_the_counted_memory(data: st.DataObject, by_position: bool) -> None:
    graph, plan = random_plan(data)
    costs, timeline = plan.check(graph), plan.timeline(by_position=by_position)
    for device, curve in enumerate(timeline.memory):
        assert curve.peak == curve.bytes.max() == plan.peak_memory[device]
        assert np.all(np.diff(curve.time) >= 0)
        assert curve.time[0] == 0
        assert curve.time[-1] == timeline.length
        assert curve.peak in curve.bytes[curve.time == curve.peak_time]
        expected = [costs.memory_changes[device][0, 2], *costs.memory_changes[device][1:, 1:].reshape(-1)]
        assert curve.bytes[:-1].tolist() == expected
    for device in range(plan.problem.devices):  # ops of a device do not overlap
        mine = (timeline.op >= 0) & (timeline.device == device)
        assert np.all(timeline.start[mine][1:] >= timeline.end[mine][:-1])


def test_an_op_changes_memory_when_it_starts_and_ends() -> None:
    timeline = tiny_plan().timeline()
    first = timeline.memory[0]
    assert first.bytes[first.time < 3].tolist()[-1] == 7  # a0 and b0, while b runs
    assert (timeline.memory[1].peak_time, timeline.memory[1].peak_entry) == (3.0, 3)
    assert timeline.name(3) == "c"
    assert timeline.name(2) == "a0 → device 1"


def test_a_loaded_plan_needs_its_graph(tmp_path: Path) -> None:
    tiny_plan().save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="attach"):
        loaded.trace(tmp_path / "trace.json")
    attached = loaded.attach(TINY)
    assert attached.bound == lower_bound(TINY, loaded.problem) > 0
    attached.trace(tmp_path / "trace.json")
    with pytest.raises(PlanError, match="stated"):
        dataclasses.replace(loaded, makespan=1.0).attach(TINY)


# The trace


def trace_of(plan: Plan, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The events by phase."""
    plan.trace(folder / "trace.json")
    by_phase = defaultdict(list)
    for event in json.loads((folder / "trace.json").read_text())["traceEvents"]:
        by_phase[event["ph"]].append(event)
    return by_phase


def test_trace_of_the_worked_example(tmp_path: Path) -> None:
    events = trace_of(tiny_plan(latency=0.5, bandwidth=4.0), tmp_path)
    slices = {event["name"]: event for event in events["X"]}
    assert len(slices) == 6
    assert (slices["c"]["pid"], slices["c"]["ts"], slices["c"]["dur"]) == (2, 4.5e6, 3e6)
    assert slices["c"]["args"]["bytes"] == 5
    assert slices["c"]["args"]["type"] == "Conv"
    moved = slices["a0 → device 1"]
    assert (moved["pid"], moved["ts"], moved["dur"], moved["args"]["bytes"]) == (1, 3e6, 1.5e6, 4)
    assert moved["tid"] != slices["a"]["tid"]
    assert [event["args"]["name"] for event in events["M"] if event["name"] == "process_name"] == [
        "device 0",
        "device 1",
    ]
    assert {event["name"] for event in events["i"]} == {"peak 9 B", "peak 11 B"}
    assert max(event["args"]["bytes"] for event in events["C"] if event["pid"] == 2) == 11


@given(st.data())
@settings(max_examples=30)
def test_trace_events_fit_together(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    graph, plan = random_plan(data)
    events = trace_of(plan, tmp_path_factory.mktemp("trace"))
    assert len(events["X"]) == len(plan.order)
    tracks = defaultdict(list)
    for event in events["X"]:
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():  # nothing on a track overlaps
        spans.sort()
        assert all(later[0] >= earlier[1] - 1e-3 for earlier, later in itertools.pairwise(spans))
    starts = {(event["pid"], event["tid"], event["ts"]) for event in events["X"]}
    ends: dict[str, dict[int, float]] = {"s": {}, "f": {}}
    for phase, found in ends.items():
        for event in events[phase]:
            assert (event["pid"], event["tid"], event["ts"]) in starts
            found[event["id"]] = event["ts"]
    assert ends["s"].keys() == ends["f"].keys()
    assert all(ends["s"][arrow] <= ends["f"][arrow] for arrow in ends["s"])
    transfers = len(plan.order) - len(graph.ops)
    assert len(ends["s"]) >= 2 * transfers  # one in, at least one out


def test_without_run_times_the_trace_is_by_position(tmp_path: Path) -> None:
    graph = dataclasses.replace(TINY, ops=tuple(dataclasses.replace(op, runtime=0.0) for op in TINY.ops))
    plan = Plan.from_order(graph, Problem(devices=2), *TWO, method="list", seconds=0, evaluations=1, seed=0)
    assert [event["ts"] for event in trace_of(plan, tmp_path)["X"]] == [0, 1, 2, 3, 4, 5]


# The picture


def big_graph(ops: int) -> ComputationGraph:
    random = np.random.default_rng(0)
    kinds = [f"Type{i}" for i in range(12)]
    return ComputationGraph(
        f"chain of {ops}",
        tuple(
            Op(
                f"op{i}",
                kinds[i % 12],
                float(random.exponential(1e-5)),
                (f"t{i - 1}",) if i else (),
                (Tensor(f"t{i}", int(random.integers(10**6))),),
            )
            for i in range(ops)
        ),
    )


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_picture_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan.{suffix}"
    tiny_plan().plot(path)
    assert path.read_bytes()[:4] == {"png": b"\x89PNG", "svg": b"<?xm", "pdf": b"%PDF"}[suffix]
    assert list(tmp_path.iterdir()) == [path]


def texts(figure: Any) -> str:
    import matplotlib.text

    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_picture_says_what_matters() -> None:
    shown = texts(dataclasses.replace(tiny_plan(), bound=9).plot())
    for text in (
        "tiny",
        "list",
        "peak 11 B on device 1, at c",
        "bound 9 B",
        "gap 22.2%",
        "rendezvous",
        "MatMul",
        "57%",
    ):
        assert text in shown


@pytest.mark.parametrize("ops", [1, 5000])
@pytest.mark.parametrize("devices", [1, 20])
def test_small_and_large_pictures(tmp_path: Path, ops: int, devices: int) -> None:
    graph = big_graph(ops)
    placement = np.arange(ops) * devices // ops
    transfers = [ops + i * devices + placement[i + 1] for i in range(ops - 1) if placement[i] != placement[i + 1]]
    order: list[int] = []
    for i in range(ops):
        order += [node for node in transfers if (node - ops) // devices == i - 1]
        order.append(i)
    problem = Problem("makespan", devices, memory_limit=10**9)
    plan = Plan.from_order(graph, problem, placement, order, method="m", seconds=1, evaluations=1, seed=0)
    plan = dataclasses.replace(plan, bound=0.7 * plan.value)
    figure = plan.plot(tmp_path / "plan.png")
    width, height = figure.get_size_inches()
    assert width == 12
    assert height < 13
    assert len(figure.axes[0].texts) < 300  # names only where they fit


def test_odd_names_and_sizes_can_be_drawn(tmp_path: Path) -> None:
    names = ["$x_1", "日本", "a\nb", "<b>", "x" * 300, "\\alpha$"]
    ops = tuple(Op(name, name, 0.0, (), (Tensor(f"t{i}", 0),)) for i, name in enumerate(names))
    graph = ComputationGraph("$graph_{", ops)
    order = list(range(len(ops)))
    plan = Plan.from_order(graph, Problem(), [0] * len(ops), order, method="$", seconds=0, evaluations=1, seed=0)
    plan.plot(tmp_path / "plan.png")
    plan.plot(tmp_path / "plan.svg")
    plan.trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_notebooks_show_the_picture() -> None:
    assert tiny_plan().plot()._repr_png_()[:4] == b"\x89PNG"  # type: ignore[attr-defined]
