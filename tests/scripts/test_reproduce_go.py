"""The script of the tables of placement: its files, and its faults."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launched import Launch, launch
from partitioned_graphs import TRAINING, edge, file_of, node
from processes import check_fault
from reproduce.go.methods import entry_of, policy_notes, with_policy
from reproduce.go.settings import interval
from reproduce.go.table2 import run_time, search_time

from graphrl.agents.go.network import GdpPolicy, Policy
from graphrl.costs.problem import Problem

__all__ = ["launch"]


def measured(launch: Launch, *arguments: str) -> list[dict[str, Any]]:
    """The lines measured by a quick run, without errors."""
    done = launch("go", "--quick", *arguments)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in Path("out/measured.jsonl").read_text().splitlines()]
    assert not [line["error"] for line in lines if line["error"]]
    return lines


def write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.mark.slow
def test_external(launch: Launch, tmp_path: Path) -> None:
    inputs = tmp_path / "data" / "throughput-inputs"
    write(inputs / "LayerGraphs" / "toy_training.json", TRAINING)
    write(inputs / "OperatorGraphs" / "pair.json", file_of([node(1, 2.0), node(2, 2.0)], [edge(1, 2, 1.0)]))
    split = {"cpus": [], "fpgas": [{"nodes": [1]}, {"nodes": [2]}]}
    write(tmp_path / "data" / "human-experts" / "toy_inference_expert.json", split)
    arguments = ("--quick", "--sections", "external", "--data", "data")
    done = launch("go", *arguments)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "go-external.md").read_text()
    toy = "| LayerGraphs/toy_training | 4 | 2 + 1 | 18.00 | 13.00 | 13.00 | 13.00 | 13.00 |"
    assert toy in text
    assert "| OperatorGraphs/pair | 2 | 2 + 1 | 4.00 | - | 3.00 | 3.00 | 3.00 |" in text
    assert "`auto` against expert: 0.00% on 1 graphs, at worst 0.00%" in text
    lines = (tmp_path / "out" / "measured.jsonl").read_text()
    assert launch("go", *arguments).returncode == 0
    assert (tmp_path / "out" / "measured.jsonl").read_text() == lines


def test_faults_are_one_line(launch: Launch, tmp_path: Path) -> None:
    external = ("--quick", "--sections", "external")
    check_fault(launch("go", *external), "section external needs --data")
    check_fault(launch("go", *external, "--data", "none"), "none has no throughput-inputs")
    check_fault(launch("go", "--methods", "cats@3"), "unknown method 'cats'")
    check_fault(launch("go", "--methods", "auto@soon"), "'auto@soon': must be a method, and after @ its seconds")


def table_of(text: str) -> list[list[str]]:
    """The cells of a page's tables."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def test_placements_and_fusion_and_unseen_graphs(launch: Launch, tmp_path: Path) -> None:
    arguments = ("--sections", "table2,fusion,unseen", "--methods", "given,expert,auto@0.2")
    lines = measured(launch, *arguments)
    placed = {
        (line["key"].get("transfer"), line["key"]["method"]): line["value"]
        for line in lines
        if "workload" in line["key"]
    }
    rows = table_of((tmp_path / "out" / "go-table2.md").read_text())
    assert rows[0][2:] == ["`given`", "`expert`", "`auto` 0.2 s"]
    assert rows[2][:3] == ["transformer-xl-2", "2", f"{placed['link', 'given']['makespan']:.3f}"]
    assert float(rows[2][3]) == round(placed["link", "expert"]["makespan"], 3)
    done = launch(
        "go", "--quick", "--sections", "table2", "--methods", "given,list,auto@0.2", "--stored", "--results", "r"
    )
    assert done.returncode == 0, done.stderr
    assert table_of((tmp_path / "r" / "go-table2.md").read_text())[2][2:] == [rows[2][2], "-", rows[2][4]]
    fused = table_of((tmp_path / "out" / "go-fusion.md").read_text())
    assert all(float(part) < 1 for row in fused[2:] for part in row[3:7])
    unseen = [line["value"]["makespan"] for line in lines if line["key"].get("graph", "").startswith("sbm:")]
    assert len(unseen) == 2 * 2 * 3  # graphs, transfer models, methods
    table = table_of((tmp_path / "out" / "go-unseen.md").read_text())
    assert [row[0] for row in table[2:]] == rows[0][2:]
    assert len(measured(launch, *arguments)) == len(lines)


def test_out_of_memory_is_said_as_in_the_paper() -> None:
    fits = {"makespan": 2.0, "excess": 0, "seconds": 1.0, "reached": [(0.5, 2.001)]}
    assert run_time([fits, {**fits, "makespan": 1.0}]) == "1.500"
    assert run_time([fits, {**fits, "excess": 8}]) == "OOM"
    assert run_time([]) == "-"
    assert search_time([fits]) == "1.0 (0.5)"
    assert search_time([{**fits, "reached": []}]) == "1.0"


def test_intervals_are_of_graphs_and_not_of_their_cases() -> None:
    """Two graphs whose cases are alike have the same interval with eight cases each as with one."""
    values, graphs = np.array([0.0, 1.0]), np.array(["a", "b"])
    assert interval(values, graphs) == interval(np.repeat(values, 8), np.repeat(graphs, 8)) == (0.0, 1.0)
    assert interval(np.full(4, 2.0), np.array(["a", "a", "a", "b"])) == (2.0, 2.0)


def test_fusion_alone_and_with_placement_and_order(launch: Launch, tmp_path: Path) -> None:
    lines = measured(launch, "--sections", "table3,figure6,figure6-policies")
    kernels = {line["key"]["rule"]: line["value"]["value"] for line in lines if "rule" in line["key"]}
    assert kernels["anneal"] <= kernels["flips"] <= kernels["xla"] <= kernels["single"] <= kernels["none"]
    searches = {line["key"]["search"]: line["value"]["value"] for line in lines if "search" in line["key"]}
    assert searches["all three"] < searches["placement"]
    assert searches["one after the other"] <= kernels["flips"]  # its start: all on one device
    page = (tmp_path / "out" / "go-table3.md").read_text()
    assert "| transformer-xl-2 | 526 | 151.68 | 120.23 |" in page
    assert "policy of `go`: 4 steps of imitation on 2 programs, " in page
    by_policy = {line["key"]["policy"]: line["value"]["value"] for line in lines if "policy" in line["key"]}
    assert by_policy["go"] <= kernels["xla"]
    assert table_of(page)[2][8:12] == ["-", "-", f"{1e3 * by_policy['go']:.2f}", "-"]
    starts = [f"{1e3 * by_policy[f'start with `{kernels}`']:.2f}" for kernels in ("xla", "go")]
    rows = table_of((tmp_path / "out" / "go-figure6-policies.md").read_text())
    assert rows[-1] == ["transformer-xl-2", starts[0], "-", "-", starts[1], "-", "-", "-"]


def test_unseen_workloads_before_and_after_updates(launch: Launch, tmp_path: Path) -> None:
    lines = measured(launch, "--sections", "figure5", "--transfers", "rendezvous")
    values = [line["value"] for line in lines]
    assert [value["evaluations"] for value in values[1:]] == [1, 65, 65, 89, 89, 89]
    start = values[1]["makespan"]
    assert all(value["makespan"] <= start < values[0]["makespan"] for value in values[1:])
    page = (tmp_path / "out" / "go-figure5.md").read_text()
    row = table_of(page)[2]
    assert row[:3] == ["transformer-xl-2", "526", "2"]
    assert [float(cell) for cell in row[3:10]] == [round(value["makespan"], 4) for value in values]
    assert "- policy of untrained: not trained" in page


def test_policies_of_the_command_line_or_those_there_are(tmp_path: Path) -> None:
    """Each policy has a separate file, which its method names and its column does not."""
    entries = [
        with_policy(entry_of(text, 10.0), None, tmp_path) for text in ("go:finetune=50@600", "gdp", "auto", "untrained")
    ]
    files = [Path(entry.method.partition("checkpoint=")[2]) for entry in entries[:2]]
    assert entries[0].method.startswith("go:finetune=50,checkpoint=")
    assert entries[1].method.startswith("go:checkpoint=")
    assert [entry.label for entry in entries] == [
        "`go:finetune=50` 600 s", "`gdp` 10 s", "`auto` 10 s", "`untrained` 10 s",
    ]  # fmt: skip
    assert entries[2].key == {"method": "auto", "seconds": 10.0}
    assert Policy.load(files[0]).digest == Policy.default(Problem("makespan")).digest
    assert GdpPolicy.load(files[1]).config.network.coupling == "none"
    first, last = policy_notes(entries, None)
    assert first.startswith("policy of go: ")
    assert "scripts/go.toml" in first
    assert last == "policy of gdp and untrained: not trained"
    initial = Policy.load(entries[3].method.partition("checkpoint=")[2])
    assert initial.config == Policy.default(Problem("makespan")).config
    assert initial.digest != Policy.load(files[0]).digest
    trained = with_policy(entry_of("gdp", 1.0), files[1], tmp_path)
    assert trained.method == f"go:checkpoint={files[1]}"
    assert with_policy(entry_of("go:checkpoint=out/go", 1.0), None, tmp_path).method == "go:checkpoint=out/go"


def test_what_is_played_tells_of_gains(launch: Launch, tmp_path: Path) -> None:
    done = launch("go", "--quick", "--sections", "changes")
    assert done.returncode == 0, done.stderr
    rows = table_of((tmp_path / "out" / "go-changes.md").read_text())
    assert [row[0] for row in rows[2:]] == 2 * ["chance", "placement", "schedule", "both", "policy", "the gains"]
    below = [[float(cell) for cell in row[2:4]] for row in rows[2:]]
    assert all(gained > by_chance for gained, by_chance in zip(below[-1], below[6], strict=True))


@pytest.mark.slow
def test_parts_of_the_network(launch: Launch, tmp_path: Path) -> None:
    lines = measured(launch, "--sections", "ablations")
    played = {(line["key"]["method"], line["key"]["graph"]): line["value"]["makespan"] for line in lines[1:]}
    graphs = {graph for _, graph in played}
    assert len(graphs) == 4 + 4 + 1  # of the kinds that are trained on, of the held-out kind, programs
    for graph in graphs:
        hint, drawn, moved = (played[f"go:rounds={how}", graph] for how in ("0", "1,tries=0", "1,tries=256"))
        assert moved <= drawn <= hint
    name, parameters, _, *gains, learned, _ = table_of((tmp_path / "out" / "go-ablations.md").read_text())[2]
    assert (name, parameters, learned) == ("the shipped perceptron's network", "12,937", "-")
    random = [graph for graph in graphs if "sbm" in graph]
    mean = np.mean([1 - played["go:rounds=1,tries=0", graph] / played["go:rounds=0", graph] for graph in random])
    assert gains[2] == f"{100 * mean:.2f}"
    assert len(measured(launch, "--sections", "ablations")) == len(lines)
