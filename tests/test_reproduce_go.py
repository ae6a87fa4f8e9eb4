"""The script of the tables of placement: what it writes, and its faults."""

import json
import subprocess
from pathlib import Path
from typing import Any

from partitioned_graphs import TRAINING, edge, file_of, node
from processes import check_fault, run_script


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_script("reproduce_go", folder, "--out", "out", *arguments)


def write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_external(tmp_path: Path) -> None:
    inputs = tmp_path / "data" / "throughput-inputs"
    write(inputs / "LayerGraphs" / "toy_training.json", TRAINING)
    write(inputs / "OperatorGraphs" / "pair.json", file_of([node(1, 2.0), node(2, 2.0)], [edge(1, 2, 1.0)]))
    split = {"cpus": [], "fpgas": [{"nodes": [1]}, {"nodes": [2]}]}
    write(tmp_path / "data" / "human-experts" / "toy_inference_expert.json", split)
    arguments = ("--quick", "--sections", "external", "--data", "data")
    done = run(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "go-external.md").read_text()
    toy = "| LayerGraphs/toy_training | 4 | 2 + 1 | 18.00 | 13.00 | 13.00 | 13.00 | 13.00 |"
    assert toy in text
    assert "| OperatorGraphs/pair | 2 | 2 + 1 | 4.00 | - | 3.00 | 3.00 | 3.00 |" in text
    assert "`auto` against expert: 0.00% on 1 graphs, at worst 0.00%" in text
    lines = (tmp_path / "out" / "measured.jsonl").read_text()
    assert run(tmp_path, *arguments).returncode == 0
    assert (tmp_path / "out" / "measured.jsonl").read_text() == lines


def test_faults_are_one_line(tmp_path: Path) -> None:
    check_fault(run(tmp_path, "--quick"), "section external needs --data")
    check_fault(run(tmp_path, "--quick", "--data", "none"), "none has no throughput-inputs")


def test_fusion_alone_and_with_placement_and_order(tmp_path: Path) -> None:
    done = run(tmp_path, "--quick", "--sections", "table3,figure6")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "measured.jsonl").read_text().splitlines()]
    assert not [line["error"] for line in lines if line["error"]]
    kernels = {line["key"]["rule"]: line["value"]["value"] for line in lines if "rule" in line["key"]}
    assert kernels["anneal"] <= kernels["flips"] <= kernels["xla"] <= kernels["single"] <= kernels["none"]
    searches = {line["key"]["search"]: line["value"]["value"] for line in lines if "search" in line["key"]}
    assert searches["all three"] < searches["placement"]
    assert searches["one after the other"] <= kernels["flips"]  # where it begins: all on one device
    assert "| transformer-xl-2 | 526 | 151.68 | 120.23 |" in (tmp_path / "out" / "go-table3.md").read_text()
