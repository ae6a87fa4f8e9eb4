"""Plans over time: the timeline, and the trace for Perfetto."""

import dataclasses
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_plans import TINY, TWO, random_plan, tiny_plan

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError
from graphrl.plan import Plan

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
    for phase, times in ends.items():
        for event in events[phase]:
            assert (event["pid"], event["tid"], event["ts"]) in starts
            times[event["id"]] = event["ts"]
    assert ends["s"].keys() == ends["f"].keys()
    assert all(ends["s"][arrow] <= ends["f"][arrow] for arrow in ends["s"])
    transfers = len(plan.order) - len(graph.ops)
    assert len(ends["s"]) >= 2 * transfers  # one in, at least one out


def test_without_run_times_the_trace_is_by_position(tmp_path: Path) -> None:
    graph = dataclasses.replace(TINY, ops=tuple(dataclasses.replace(op, runtime=0.0) for op in TINY.ops))
    plan = Plan.from_order(graph, Problem(devices=2), *TWO, method="list", seconds=0, evaluations=1, seed=0)
    assert [event["ts"] for event in trace_of(plan, tmp_path)["X"]] == [0, 1, 2, 3, 4, 5]
