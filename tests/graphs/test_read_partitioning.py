"""Graphs of dnn-partitioning: recognised by content, kept in our format, and refused in one line where broken."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from broken import refusal
from partitioned_graphs import TRAINING, edge, file_of, node

from graphrl.graphs.graph import ComputationGraph, Machine, Op, Pipelined, Tensor
from graphrl.graphs.readers import read_graph
from graphrl.graphs.readers.json import write_json


def written(folder: Path, value: object, name: str = "model.json") -> Path:
    path = folder / name
    text = json.dumps(value).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def test_a_training_step(tmp_path: Path) -> None:
    def op(number: int, runtime: float, inputs: tuple[str, ...], tensor: Tensor, colour: int, backward: bool) -> Op:
        pipelined = Pipelined(10 * runtime * 1e-3, False, colour, backward)
        return Op(f"{number}:node{number}", "", runtime * 1e-3, inputs, (tensor,), weight_bytes=1, pipelined=pipelined)

    expected = ComputationGraph(
        "model",
        (
            op(1, 3.0, (), Tensor("1", 9, transfer_seconds=1e-3), 1, False),
            op(2, 4.0, ("1",), Tensor("2", transfer_seconds=0.25e-3), 2, False),
            op(3, 5.0, ("1", "4"), Tensor("3", transfer_seconds=0.0), 1, True),
            op(4, 6.0, ("2",), Tensor("4", transfer_seconds=2e-3), 2, True),
        ),
        machine=Machine(2, 1, 100),
    )
    assert read_graph(written(tmp_path, TRAINING)) == expected
    assert read_graph(written(tmp_path, TRAINING, "model.json.gz")) == expected


def test_our_format_keeps_all_of_it(tmp_path: Path) -> None:
    graph = read_graph(written(tmp_path, file_of([node(7, 1.0, supportedOnFpga=False), *TRAINING["nodes"]], [])))
    write_json(graph, tmp_path / "ours.json")
    assert read_graph(tmp_path / "ours.json") == graph


def test_what_may_be_left_out(tmp_path: Path) -> None:
    """Keys in any order, none about the machine, and a node for CPUs alone, without a time on an accelerator."""
    bare = {"id": 5, "cpuLatency": 2, "supportedOnFpga": 0, "layerId": 3}
    graph = read_graph(written(tmp_path, {"edges": [], "nodes": [bare], "comment": "x"}))
    assert graph.machine is None
    assert graph.ops == (
        Op("5", outputs=(Tensor("5", transfer_seconds=0.0),), pipelined=Pipelined(0.002, cpu_only=True)),
    )


def test_fractions_of_bytes(tmp_path: Path) -> None:
    graph = read_graph(written(tmp_path, file_of([node(1, 1.0, size=2.5)], [], size=7.9)))
    assert graph.ops[0].weight_bytes == 3
    assert graph.machine == Machine(2, 1, 7)


def broken(**changes: Any) -> dict[str, Any]:
    return {**file_of([node(1, 1.0), node(2, 1.0)], [edge(1, 2, 1.0)]), **changes}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (broken(nodes=[], edges=[]), "has no ops"),
        (broken(nodes={}), "Expected `array`, got `object` - at `$.nodes`"),
        (broken(nodes=[3]), "Expected `object`, got `int` - at `$.nodes[0]`"),
        (broken(nodes=[node(1, 1.0), node(1, 1.0)], edges=[]), "node 1 appears twice"),
        (broken(nodes=[{"id": 1, "cpuLatency": 1}], edges=[]), "node 1 has no 'fpgaLatency'"),
        (broken(nodes=[node(1, -1.0)], edges=[]), "Expected `float` >= 0.0 - at `$.nodes[0].cpuLatency`"),
        (broken(nodes=[node(1, 1.0, fpgaLatency=-1)], edges=[]), "node 1: fpgaLatency: Expected `float` >= 0.0"),
        (broken(nodes=[node(1, float("nan"))], edges=[]), "Expected `float` >= 0.0 - at `$.nodes[0].cpuLatency`"),
        (broken(nodes=[node(1, 1.0, size="big")], edges=[]), "at `$.nodes[0].size`"),
        (broken(nodes=[node(1, 1.0, supportedOnFpga="False")], edges=[]), "at `$.nodes[0].supportedOnFpga`"),
        (
            broken(nodes=[node(1, 1.0, colorClass=1.5)], edges=[]),
            "Expected `int | null`, got `float` - at `$.nodes[0].colorClass`",
        ),
        (broken(edges=[edge(1, 3, 1.0)]), "edge number 0: destId is 3: there is no such node"),
        (broken(edges=[{"sourceId": 1, "destId": 2}]), "missing required field `cost` - at `$.edges[0]`"),
        (broken(edges=[edge(1, 2, 1.0), edge(2, 1, 1.0)]), "cycle"),
        (broken(edges=[edge(1, 2, 1.0), edge(1, 2, 2.0)]), "cost is 2.0: must be 1.0, as of the other edges of node 1"),
        (broken(maxFPGAs=0, maxCPUs=0), "there must be a device"),
        (broken(maxFPGAs=1.5), "Expected `int`, got `float` - at `$.maxFPGAs`"),
        (broken(maxSizePerFPGA=float("inf")), "at `$.maxSizePerFPGA`"),
    ],
)
def test_refusals(tmp_path: Path, value: object, message: str) -> None:
    path = written(tmp_path, value)
    assert message in refusal(lambda: read_graph(path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pipelined", {"cpu_runtime": -1}, "pipelined.cpu_runtime is -1: must be at least 0 seconds"),
        ("pipelined", {"cpu_only": True}, "cpu_only is true without cpu_runtime"),
        ("pipelined", {"colocation": "a"}, "pipelined.colocation is 'a': must be an integer"),
        ("pipelined", {"gpu": 1}, "unknown key"),
        ("outputs", [{"name": "t", "transfer_seconds": "1"}], "transfer_seconds is '1'"),
    ],
)
def test_refusals_of_our_format(tmp_path: Path, key: str, value: object, message: str) -> None:
    graph = {"format": "graphrl-graph", "version": 1, "ops": [{"name": "a", key: value}]}
    path = written(tmp_path, graph)
    assert message in refusal(lambda: read_graph(path))


def test_a_machine_without_accelerators_named(tmp_path: Path) -> None:
    graph = {"format": "graphrl-graph", "version": 1, "ops": [{"name": "a"}], "machine": {"cpus": 1}}
    path = written(tmp_path, graph)
    assert 'machine has no "accelerators"' in refusal(lambda: read_graph(path))
