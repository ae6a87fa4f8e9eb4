"""`graphrl map`: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest
from command_line import check_failure

from graphrl.cli import main
from graphrl.graphs.datasets import zoo
from graphrl.graphs.layers.coarsen import coarsened
from graphrl.graphs.readers import read_graph
from graphrl.plan.memory_map import MemoryMap

RESNET = "zoo:resnet50/inference/b1/jaxpr"


def test_a_model_is_mapped_layer_by_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "map.json"
    command = ["map", RESNET, "--evaluations", "2000", "--output", str(path), "--json"]
    assert main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    memory_map = MemoryMap.load(path)
    memory_map.check(coarsened(zoo.load(RESNET.removeprefix("zoo:")).graph))
    assert len(memory_map.order) == 57
    assert (printed["latency"], printed["evaluations"]) == (memory_map.latency, 2000)
    assert printed["speedup"] > 1
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["latency"] == memory_map.latency


def test_graph_json_is_taken_as_it_is(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chip = folder / "chip.json"
    memories = [
        {"name": "far", "capacity": None, "read": 1, "write": 1},
        {"name": "near", "capacity": 8, "read": 9, "write": 9},
    ]
    fields = {"format": "graphrl-chip", "version": 1, "name": "toy", "peak": 1, "memories": memories, "page": 1}
    chip.write_text(json.dumps(fields))
    path = folder / "map.json"
    command = ["map", model, "--chip", str(chip), "--method", "cp-sat", "--seconds", "5", "--output", str(path)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    MemoryMap.load(path).check(read_graph(model))
    for part in ("tiny on toy: 4 ops", "optimal", "near", "method       cp-sat", f"written      {path}"):
        assert part in printed


def test_a_generated_graph_is_taken_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "layered:30", "--method", "compiler", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["speedup"], printed["evaluations"], printed["bound"]) == (1.0, 1, None)


def test_wrong_arguments_are_refused(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(["map", model, "--chip", "nope"], 2, "chips by name are nnp-i", capsys)
    check_failure(["map", model, "--method", "nope"], 2, "unknown method 'nope': known are auto", capsys)
    check_failure(["map", model, "--output", str(folder / "map.onnx")], 2, "must not end in .onnx", capsys)
    check_failure(["map", str(folder / "none.onnx")], 1, "No such file", capsys)
    bad = folder / "bad.json"
    bad.write_text('{"format": "graphrl-chip", "version": 1, "name": "x", "peak": NaN, "memories": []}')
    check_failure(["map", model, "--chip", str(bad)], 2, "peak is nan", capsys)
