"""`graphrl map`: its printed and written results, and its refusals."""

import json
from pathlib import Path

import onnx_models
import pytest
from command_line import check_failure

from graphrl.cli import main
from graphrl.costs.maps.chip import NNP_I
from graphrl.graphs.coarsen import coarsened
from graphrl.graphs.datasets import zoo
from graphrl.graphs.readers import read_graph
from graphrl.plan import Plan
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.maps.task import MapTask

RESNET = "zoo:resnet50/inference/b1/jaxpr"


def test_a_model_is_mapped_layer_by_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "map.json"
    command, picture = ["map", RESNET, "--evaluations", "2000", "--output", str(path), "--json"], folder / "map.svg"
    assert main([*command, "--plot", str(picture)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["written"] == [str(path), str(picture)]
    assert picture.read_bytes()[:4] == b"<?xm"
    memory_map = MemoryMap.load(path)
    memory_map.check(coarsened(zoo.load(RESNET.removeprefix("zoo:")).graph))
    assert len(memory_map.order) == 57
    assert (printed["latency"], printed["evaluations"]) == (memory_map.latency, 2000)
    assert printed["speedup"] > 1
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["latency"] == memory_map.latency


def test_a_map_that_cannot_be_written_is_saved_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best_map, command = MapTask.best_map, ["map", RESNET, "--method", "random", "--evaluations", "1"]
    assert main(command) == 0  # compiles, which prints a line on a new machine
    capsys.readouterr()

    def vanish(task: MapTask) -> MemoryMap:
        folder.rmdir()
        return best_map(task)

    monkeypatch.setattr(MapTask, "best_map", vanish)
    monkeypatch.setenv("TMPDIR", str(folder.parent))
    monkeypatch.setattr("tempfile.tempdir", None)
    check_failure([*command, "--output", str(folder / "map.json")], 1, "; the map is in", capsys)
    (saved,) = folder.parent.glob("graphrl-*/map.json")
    MemoryMap.load(saved).check(coarsened(zoo.load(RESNET.removeprefix("zoo:")).graph))


def test_a_chip_file_is_not_overwritten(folder: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "chip.json"
    NNP_I.save(path)
    before = path.read_bytes()
    command = ["map", model, "--chip", str(path), "--method", "compiler", "--output", str(path)]
    check_failure(command, 2, "--output", capsys)
    assert path.read_bytes() == before


def test_ops_run_in_the_order_of_a_plan(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, path = folder / "plan.json", folder / "map.json"
    assert main(["optimize", model, "--method", "random-ready", "--evaluations", "1", "--output", str(plan)]) == 0
    assert main(["map", model, "--method", "compiler", "--order", str(plan), "--output", str(path)]) == 0
    graph = read_graph(model)
    order = Plan.load(plan).decisions(graph)[1]
    assert MemoryMap.load(path).order == tuple(graph.ops[op].name for op in order)
    capsys.readouterr()
    check_failure(["map", "layered:9", "--order", str(plan)], 1, "placement misses op", capsys)


def test_open_dimensions_of_onnx_are_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "open.onnx"
    nodes = [onnx_models.node("MatMul", ["x", "w"], ["y"])]
    weights = [onnx_models.weight("w", 6, 4)]
    path.write_bytes(onnx_models.model(nodes, {"x": ("batch", 6)}, ["y"], weights=weights))
    command = ["map", str(path), "--method", "compiler", "--json"]
    check_failure(command, 1, "batch", capsys)
    assert main([*command, "--dim", "batch=8"]) == 0


def test_graph_json_is_not_coarsened(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_generated_graph_is_not_coarsened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "layered:30", "--method", "compiler", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["speedup"], printed["evaluations"], printed["bound"]) == (1.0, 1, None)


def test_wrong_arguments_are_refused(model: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_failure(["map", model, "--chip", "nope"], 2, "chips by name are nnp-i", capsys)
    check_failure(["map", model, "--method", "nope"], 2, "unknown method 'nope': the nearest of 13 known are", capsys)
    check_failure(["map", model, "--output", str(folder / "map.onnx")], 2, "not in .onnx", capsys)
    check_failure(["map", model, "--plot", str(folder / "map.txt")], 1, "its ending must be one of .png", capsys)
    check_failure(["map", str(folder / "none.onnx")], 1, "No such file", capsys)
    bad = folder / "bad.json"
    bad.write_text('{"format": "graphrl-chip", "version": 1, "name": "x", "peak": NaN, "memories": []}')
    check_failure(["map", model, "--chip", str(bad)], 2, "peak is nan", capsys)
