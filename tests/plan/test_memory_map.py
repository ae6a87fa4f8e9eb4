"""The memory map that a user gets: round trips of its file, and invalid ones are refused in one line."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from map_problems import WORKED_CHIP, WORKED_GRAPH, asked, problems

from graphrl.costs.maps import exact
from graphrl.costs.maps.problem import map_problem
from graphrl.errors import GraphrlError, PlanError
from graphrl.plan.memory_map import MemoryMap

HOW: dict[str, Any] = {"method": "by hand", "seconds": 0.5, "evaluations": 3, "seed": 7}


def worked() -> MemoryMap:
    """The compiler's map of the worked example."""
    return MemoryMap.from_memories(map_problem(WORKED_GRAPH, WORKED_CHIP), [1, 1], [1, 1], **HOW)


@given(st.data())
def test_a_map_is_valid_and_comes_back_from_its_file(data: st.DataObject) -> None:
    problem = data.draw(problems())
    weights, outputs = data.draw(asked(problem))
    memory_map = MemoryMap.from_memories(problem, weights, outputs, **HOW)
    loaded = MemoryMap.from_dict(json.loads(json.dumps(memory_map.to_dict())))
    assert loaded == memory_map
    costs = loaded.check(problem.graph)
    assert costs.valid
    assert costs.latency == exact.evaluate(problem, weights, outputs).latency


def test_the_worked_map(tmp_path: Path) -> None:
    memory_map = worked()
    assert (memory_map.latency, memory_map.speedup) == (6.0, 1.0)
    assert (dict(memory_map.weights), dict(memory_map.outputs)) == ({"a": 1}, {"a": 1, "b": 0})
    path = tmp_path / "map.json"
    memory_map.save(path)
    assert MemoryMap.load(path) == memory_map
    assert list(json.loads(path.read_text())) == [
        *("format", "version", "graph", "method", "chip", "latency", "compiler_latency", "seconds"),
        *("evaluations", "seed", "order", "weights", "outputs"),
    ]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"format": "graphrl-plan"}, "format is 'graphrl-plan': must be 'graphrl-map'"),
        ({"version": 2}, "version is 2: must be 1"),
        ({"speed": 1}, "a map: Object contains unknown field `speed`"),
        ({"order": "ab"}, "a map: Expected `array`, got `str` - at `$.order`"),
        ({"latency": -1.0}, "latency is -1.0: must be a finite number of at least 0"),
        ({"seconds": float("nan")}, "seconds is nan: must be a finite number of at least 0"),
        ({"weights": {"a": 2}}, "weights has memory 2 for op 'a': chip 'worked' has 0 to 1"),
        ({"chip": {}}, "format is None: must be 'graphrl-chip'"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, fields: dict[str, Any], fault: str) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps(worked().to_dict() | fields))
    with pytest.raises(GraphrlError) as error:
        MemoryMap.load(path)
    assert str(error.value) == f"{path}: {error.value.args[0].partition(': ')[2]}"
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"graph": "other"}, "the map is of graph 'other': it cannot be checked against 'worked'"),
        ({"order": ("a", "c")}, "order has 'c', which is no op of graph 'worked'"),
        ({"order": ("a",)}, "order has 1 ops: graph 'worked' has 2; a map of a function or a file is of its layers"),
        ({"order": ("b", "a")}, "order has op 'b' before op 'a'"),
        ({"weights": {}}, "weights has no memory of op 'a'"),
        ({"weights": {"a": 1, "b": 1}}, "weights has op 'b', which has none"),
        ({"outputs": {"a": 1, "b": 1}}, "the map is not valid: outputs of op 'b' do not fit into memory 'small'"),
        ({"latency": 5.0}, "latency is stated as 5.0: it is 6.0"),
        ({"compiler_latency": 5.0}, "compiler_latency is stated as 5.0: it is 6.0"),
    ],
)
def test_a_map_that_is_not_of_the_graph_is_refused(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(PlanError) as error:
        dataclasses.replace(worked(), **fields).check(WORKED_GRAPH)
    assert fault in str(error.value)
