"""Whole numbers written as 1e6 or 1000000.0: in files of every format, in settings and as options."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphrl.costs.maps.chip import ChipMemory, MemoryChip, chip_from_dict, read_chip
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.json import graph_from_dict
from graphrl.optimize import optimize
from graphrl.plan.format import read_plan
from graphrl.plan.memory_map import MemoryMap
from graphrl.training.config import Schedule, updated
from graphrl.units import parse_integer

# as it is written, and its value
WHOLE = {
    "1e6": 10**6,
    "1000000.0": 10**6,
    "1E+3": 1000,
    "2.50e1": 25,
    "10e-1": 1,
    "0.0": 0,
    "0e9": 0,
    "1e18": 10**18,
    "9007199254740993.0": 2**53 + 1,  # numbers whose nearest float is 2^53
    "900719925474099.30e1": 2**53 + 1,
    "1152921504606846977.000": 2**60 + 1,
}
BROKEN = (
    *("1.5", "1e400", "1e-3", "NaN", "Infinity", '"4"', "true", "null", "[4]", "-1.0"),
    *("9007199254740992.5", "1.0000000000000000001", "1e-400"),  # numbers whose nearest floats are whole
)


def fault(call: Callable[[], object]) -> str:
    """The message of the GraphrlError that `call` raises."""
    with pytest.raises(GraphrlError) as caught:
        call()
    return str(caught.value)


def graph_text(number: str, field: str) -> str:
    """A graph file in which one integer is the given text."""
    op = {"name": "a", "outputs": [{"name": "t", "bytes": 8}], "flops": 1, "workspace_bytes": 2, "weight_bytes": 3}
    op |= {"runtime": 1.0, "layer": {"batch": 4}, "pipelined": {"colocation": 5}}
    top = {"format": "graphrl-graph", "version": 1, "inputs": [{"name": "x", "bytes": 6}], "ops": [op]}
    top |= {"machine": {"accelerators": 7, "cpus": 9, "memory_bytes": 11}}
    text = json.dumps(top)
    key, digits = {"bytes": ("bytes", "8"), "input": ("bytes", "6")}.get(field, (field, r"[\d.]+"))
    text, count = re.subn(rf'"{key}": {digits}(?=[,}}])', f'"{key}": {number}', json.dumps(top))
    assert count == 1
    return text


FIELDS: dict[str, Callable[[ComputationGraph], Any]] = {
    "bytes": lambda graph: graph.ops[0].outputs[0].bytes,
    "input": lambda graph: graph.inputs[0].bytes,
    "flops": lambda graph: graph.ops[0].flops,
    "workspace_bytes": lambda graph: graph.ops[0].workspace_bytes,
    "weight_bytes": lambda graph: graph.ops[0].weight_bytes,
    "batch": lambda graph: graph.ops[0].layer and graph.ops[0].layer.batch,
    "colocation": lambda graph: graph.ops[0].pipelined and graph.ops[0].pipelined.colocation,
    "accelerators": lambda graph: graph.machine and graph.machine.accelerators,
    "cpus": lambda graph: graph.machine and graph.machine.cpus,
    "memory_bytes": lambda graph: graph.machine and graph.machine.memory_bytes,
}
SMALL = ("batch", "accelerators", "cpus")  # up to 2^31 - 1


@pytest.mark.parametrize("field", FIELDS)
def test_whole_numbers_of_a_graph_and_no_others(field: str, tmp_path: Path) -> None:
    for number, value in WHOLE.items():
        if field in SMALL and value >= 2**31:
            continue
        (tmp_path / "g.json").write_text(graph_text(number, field))
        read = FIELDS[field](read_graph(tmp_path / "g.json"))
        assert (read, type(read)) == (value, int), number
    for number in BROKEN:
        if (field, number) in (("colocation", "-1.0"), ("colocation", "null"), ("memory_bytes", "null")):
            continue
        (tmp_path / "g.json").write_text(graph_text(number, field))
        assert "must be" in fault(lambda: read_graph(tmp_path / "g.json")), number


def test_run_times_stay_floats(tmp_path: Path) -> None:
    for number, value in (("3.0", 3.0), ("1e6", 1e6), ("1e23", 1e23), ("0.1", 0.1)):
        (tmp_path / "g.json").write_text(graph_text(number, "runtime"))
        assert float(read_graph(tmp_path / "g.json").ops[0].runtime) == value


def test_floats_in_a_dict_are_exactly_what_they_are() -> None:
    value = {"format": "graphrl-graph", "version": 1, "ops": [{"name": "a", "flops": 1e23, "weight_bytes": 1e6}]}
    op = graph_from_dict(value).ops[0]
    assert (op.flops, op.weight_bytes) == (int(1e23), 10**6)


def test_sizes_of_partitioned_graphs_are_exact(tmp_path: Path) -> None:
    text = """{"maxFPGAs": 2.0, "maxCPUs": 1e0, "maxSizePerFPGA": 9007199254740993.0, "edges": [],
      "nodes": [{"id": 1e0, "cpuLatency": 1, "fpgaLatency": 1, "size": 9007199254740993, "colorClass": 3.0}]}"""
    (tmp_path / "g.json").write_text(text)
    graph = read_graph(tmp_path / "g.json")
    assert graph.machine is not None
    assert (graph.machine.accelerators, graph.machine.cpus, graph.machine.memory_bytes) == (2, 1, 2**53 + 1)
    assert (graph.ops[0].name, graph.ops[0].weight_bytes) == ("1", 2**53 + 1)


def test_whole_numbers_of_a_plan(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(graph_text("8", "bytes"))
    plan = optimize(read_graph(tmp_path / "g.json"), objective="makespan", devices=2, method="list", memory_limit=10**6)
    plan.save(tmp_path / "p.json")
    text = (tmp_path / "p.json").read_text()
    for old, new in (
        ("1000000", "1e6"),
        ('"devices": 2', '"devices": 2.0'),
        ('"a": ', '"a": 0e'),
        ('"seed": 0', '"seed": 0.0'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "q.json").write_text(text)
    assert read_plan(tmp_path / "q.json") == read_plan(tmp_path / "p.json")
    assert all(type(device) is int for device in read_plan(tmp_path / "q.json")["placement"].values())
    (tmp_path / "q.json").write_text(text.replace("1e6", "1.5"))
    assert "model.memory_limit is 1.5: must be an integer" in fault(lambda: read_plan(tmp_path / "q.json"))


CHIP = MemoryChip("c", 1e12, (ChipMemory("far", 2**53 + 1, 1e9, 1e9), ChipMemory("near", 10**6, 1e12, 1e12)), page=64)


def test_whole_numbers_of_a_chip(tmp_path: Path) -> None:
    CHIP.save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    for old, new in (("9007199254740993", "9007199254740993.0"), ("1000000,", "1e6,"), ('"page": 64', '"page": 6.4e1')):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "c.json").write_text(text)
    assert read_chip(tmp_path / "c.json") == CHIP
    (tmp_path / "c.json").write_text(text.replace("6.4e1", "6.45e1"))
    assert "Expected `int`, got `float`" in fault(lambda: read_chip(tmp_path / "c.json"))
    value = CHIP.to_dict()
    assert chip_from_dict(value | {"page": 64.0, "peak": 10**12}) == CHIP


def test_whole_numbers_of_a_map() -> None:
    value = MemoryMap("g", "m", CHIP, 1.0, 1.0, 1.0, 10, 3, ("a",), {"a": 1}, {"a": 0}).to_dict()
    floats = value | {"evaluations": 1e1, "seed": 3.0, "weights": {"a": 1.0}, "outputs": {"a": 0.0}}
    read = MemoryMap.from_dict(floats)
    assert read == MemoryMap.from_dict(value)
    assert [type(item) for item in (read.evaluations, read.seed, read.weights["a"])] == [int, int, int]
    assert "Expected `int`, got `float`" in fault(lambda: MemoryMap.from_dict(value | {"seed": 1.5}))


def test_whole_numbers_of_settings() -> None:
    assert updated(Schedule(), {"steps": 1e3}) == updated(Schedule(), {"steps": 1000})
    assert "steps is 1.5: must be an integer" in fault(lambda: updated(Schedule(), {"steps": 1.5}))


OPTIONS = {"5_000": 5000, "1_0e3": 10_000, " 7 ": 7, "-3.0": -3, "1152921504606846977": 2**60 + 1}


NO_OPTIONS = (
    *("1.5", "1e400", "1e999999999", "nan", "inf", "", "e3", ".", "1e", "0x10", "9007199254740992.5"),
    *("5_", "_5.0", "5__0.0", "5_e3"),
)


def test_whole_numbers_as_options_and_no_others() -> None:
    for text, value in (OPTIONS | {number: value for number, value in WHOLE.items() if value < 2**53}).items():
        assert parse_integer(text) == value, text
    for text in NO_OPTIONS:
        with pytest.raises(ProblemError, match="is not an integer"):
            parse_integer(text)
    with pytest.raises(ProblemError, match="'1e18' is too large: write such an integer with all its digits"):
        parse_integer("1e18")
