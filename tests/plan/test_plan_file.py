"""Plans as files: round trips, broken ones in one line, nothing half-written."""

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
from tiny_plans import TINY, random_plan, tiny_plan

from graphrl.errors import GraphrlError, PlanError
from graphrl.plan import Plan


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
        (_set("version", 3), "version is 3"),
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
        (_set("value", math.nan), "value is nan: must be a finite number"),
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
        (b"", "broken or truncated JSON"),
        (b"{", "broken or truncated JSON"),
        (b"[]", "holds a list"),
        (b"\xff\xfe", "not UTF-8"),
        (b"null", "holds null"),
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
