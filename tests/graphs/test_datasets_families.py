"""Families by name, and the launcher that writes folders of graphs."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.families import FAMILIES, full_options, sample
from graphrl.graphs.datasets.layered import Layered, layered
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.readers import read_graph

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_graphs.py"


def launch(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["make_graphs.py", *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_a_function_of_the_seed(family: str) -> None:
    graph, facts = sample(family, 24, 5)
    assert sample(family, 24, 5) == (graph, facts)
    assert sample(family, 24, 6)[0] != graph
    assert graph.arrays.num_ops == 24 + 2 * graph.name.startswith("regal-like")
    solved = {"in-tree", "out-tree", "series-parallel", "planted"}
    assert bool(facts) == (family in solved)


def test_options() -> None:
    assert sample("layered", 40, 1, {"cost_per": "node", "parameter_cost": False})[0] == layered(
        40, 1, Layered(cost_per="node", parameter_cost=False)
    )
    assert sample("regal-like", None, 1, {"model": "ws"}) == sample("watts-strogatz", None, 1)
    assert sample("stochastic-block", 30, 1)[0] == regal_like(1, "sbm", 30)
    assert full_options("planted", {"devices": 4}) == {"devices": 4, "inputs": 2.0, "window": 3}
    assert sample("planted", 40, 1, {"devices": 4, "inputs": 1})[1]["devices"] == 4


@pytest.mark.parametrize(
    ("family", "num_ops", "options", "fault"),
    [
        ("tree", 9, {}, "unknown graph family 'tree': the nearest of 19 known are in-tree, out-tree"),
        ("layered", None, {}, "family 'layered': needs a number of ops"),
        ("planted", 9, {"device": 2}, "family 'planted' has no option 'device': known are devices, inputs, window"),
        ("planted", 9, {"devices": "2"}, "option devices is '2': must have the type of its default, 2"),
        ("planted", 9, {"devices": True}, "option devices is True: must have"),
        ("layered", 9, {"parameter_cost": 1}, "option parameter_cost is 1: must have the type of its default, True"),
        ("layered", 9, {"weights": (0.5, 0.6, 0.0, 0.0)}, "must be at least 0, with the sum 1, one for each mean"),
        ("layered", 9, {"weights": (0.5, 0.5)}, "must be at least 0, with the sum 1, one for each mean"),
        ("layered", 9, {"means": (1.0, 1.0, 1.0, -1.0)}, "means are .*: must be above 0"),
        ("layered", 9, {"bytes_per_cost": 0}, "bytes_per_cost is 0: must be at least 1"),
        ("regal-like", 9, {"er_probability": 1.5}, "er_probability is 1.5: must be from 0 to 1"),
        ("regal-like", None, {"least_ops": 300}, "most_ops is 200: must be an integer of at least 300"),
        ("regal-like", 9, {"sbm_blocks": 0}, "sbm_blocks is 0: must be an integer of at least 1"),
        ("regal-like", 9, {"deviation": -1.0}, "deviation is -1.0: must be finite, and the deviation at least 0"),
        ("planted", 9, {"inputs": -1.0}, "inputs is -1.0: must be from 0 to 1000"),
        ("series-parallel", 9, {"branching": 2.0}, "branching is 2.0: must be from 0 to 1"),
    ],
)
def test_errors(family: str, num_ops: int, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        sample(family, num_ops, 0, options)


def test_the_launcher_writes_graphs_and_a_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("out-tree", "--count", 3, "--ops", 20, "--seed", 7, "--set", "window=4", "--out", tmp_path / "a")
    launch(monkeypatch, *arguments)
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert {key: manifest[key] for key in ("family", "ops")} == {"family": "out-tree", "ops": 20}
    assert manifest["options"] == {"window": 4, "least": 16, "most": 2048, "workspace": 0.5}
    assert [entry["seed"] for entry in manifest["graphs"]] == [7, 8, 9]
    for entry in manifest["graphs"]:
        graph, facts = sample("out-tree", 20, entry["seed"], {"window": 4})
        assert read_graph(tmp_path / "a" / entry["file"]) == graph
        assert entry["optimal_peak_memory"] == facts["optimal_peak_memory"]
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert len(before) == 4
    launch(monkeypatch, *arguments)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.slow
def test_the_launcher_filters_and_records_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(
        monkeypatch,
        "regal-like",
        "--count",
        2,
        "--ops",
        12,
        "--room-filter",
        80,
        240,
        "--shorter",
        0.04,
        "--out",
        tmp_path,
    )
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["room_filter"] == {
        "low_evaluations": 80,
        "high_evaluations": 240,
        "shorter": 0.04,
        "devices": 2,
        "transfer": "rendezvous",
        "memory_limit": None,
        "brkga": {"population": 100, "elites": 20, "mutants": 20, "elite_bias": 0.7},
        "brkga_seed": "the graph's",
    }
    assert len(manifest["graphs"]) == 2
    for entry in manifest["graphs"]:
        assert entry["high"] <= 0.96 * entry["low"]
        assert read_graph(tmp_path / entry["file"]) == regal_like(entry["seed"], num_ops=12)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("layered",), "family 'layered': needs a number of ops"),
        (("layered", "--ops", 2), "num_ops is 2: must be an integer of at least 3"),
        (("layered", "--ops", 9, "--set", "wide=1"), "has no option 'wide'"),
        (("layered", "--ops", 9, "--set", "cost_per=op"), "cost_per is 'op': must be layer or node"),
        (("layered", "--ops", 9, "--seed", -1), "seed is -1"),
        (("layered", "--ops", 9, "--count", 0), "--count is 0: must be at least 1"),
    ],
)
def test_the_launcher_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], fault: str
) -> None:
    with pytest.raises(SystemExit, match=fault):
        launch(monkeypatch, *arguments, "--out", tmp_path)
    assert not list(tmp_path.iterdir())
