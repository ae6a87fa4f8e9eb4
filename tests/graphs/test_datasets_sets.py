"""Graphs by name: files, folders, sets of generated graphs, and set names that denote one graph."""

import tracemalloc
from pathlib import Path

import pytest
from comparison_runs import diamond

from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.datasets.sets import in_both, load_graph, load_graphs
from graphrl.graphs.readers.json import write_json
from graphrl.optimize import optimize


def test_graphs_come_from_files_folders_and_sets(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_json(diamond(name), tmp_path / f"{name}.json.gz")
    for name in ("notes.txt", "manifest.json", ".hidden.json"):
        (tmp_path / name).write_text("{}")
    loaded = load_graphs([str(tmp_path / "b.json.gz"), str(tmp_path), "layered:20x2@5", "regal-like:", "in-tree:9"])
    assert [graph.name for graph in loaded[:3]] == ["b", "a", "b"]
    assert [len(graph.ops) for graph in loaded[3:5]] == [20, 20]
    assert loaded[3] == load_graph("layered:20@5")
    assert len(loaded) == 7
    (tmp_path / "empty").mkdir()
    with pytest.raises(GraphrlError, match="the folder has no graphs"):
        load_graphs([str(tmp_path / "empty")])
    for wrong in ("layered", "layered:x3", "graphs:5x3", "layered:5x3x2", "layered:5x-1", "layered:1e9", "regal-like"):
        with pytest.raises(ProblemError, match=r"no set of graphs; sets are layered:100x20"):
            load_graphs([wrong])
    for name, fault in (("layered:10x99999999999", "graphs: must be at most"), ("in-tree:1" + "0" * 30, "ops: must")):
        with pytest.raises(ProblemError, match=fault):
            load_graphs([name])
    with pytest.raises(ProblemError, match="layered:1: num_ops is 1"):
        load_graphs(["layered:1x2"])


def test_graphs_are_told_apart_without_reading_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("no graph")
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    assert in_both([str(tmp_path / "link.json")], [str(tmp_path)]) == str(tmp_path / "a.json")
    assert in_both(["layered:20x2@5", "regal-like:"], ["layered:20x9@6"]) == "layered:20@6"
    assert in_both(["layered:20x2@5", "regal-like:"], ["layered:20x9@7", "layered:30x9", "in-tree:20x9"]) is None
    assert in_both(["regal-like:x3@7"], ["zoo:hlo", "layered:20x2", "regal-like:"]) is None
    assert in_both(["zoo:resnet50"], ["zoo:resnet50/inference/b1/hlo"]) == "zoo:resnet50/inference/b1/hlo"


def test_the_largest_sets_are_told_apart_without_naming_each_graph() -> None:
    tracemalloc.start()
    assert in_both(["regal-like:x1000000"], ["regal-like:x1000000@1000000"]) is None
    assert in_both(["regal-like:x1000000"], ["regal-like:x1000000@999999"]) == "regal-like:@999999"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_one_graph_by_name() -> None:
    """The name of a set of one graph is accepted wherever a model is."""
    for name, seed in (("layered:20", 0), ("layered:20@7", 7), ("layered:20x1@7", 7)):
        assert load_graph(name) == layered(20, seed)
    assert optimize("layered:20@7", method="given", evaluations=1).graph == "layered-20-7"
    assert load_graph("regal-like:") == regal_like(0)
    several = (("layered:20x3", "3", "layered:20@0"), ("regal-like:x2000@7", "2,000", "regal-like:@7"))
    for name, count, one in several:
        with pytest.raises(ProblemError, match=f"{name} names {count} graphs, where one is needed: .* {one}$"):
            load_graph(name)
    with pytest.raises(ProblemError, match="graphs:5 is no file, no folder and no set of graphs"):
        load_graph("graphs:5")
    with pytest.raises(GraphrlError, match=r"cannot read graph\.json"):
        load_graph("graph.json")


def test_a_file_named_like_a_set_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(diamond("mine"), "layered:20x3")
    assert load_graph("layered:20x3").name == "mine"
