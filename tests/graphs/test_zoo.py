"""The model zoo: the format, sets of programs by words, noise."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl import optimize
from graphrl.cli import main
from graphrl.errors import GraphError, GraphrlError, ProblemError
from graphrl.graphs.datasets import zoo
from graphrl.graphs.datasets.sets import load_graphs, model_graph
from graphrl.graphs.datasets.zoo import storage
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.layers import Layer


def program(graph: ComputationGraph, batch: int = 8, architecture: str = "vgg16", level: str = "hlo") -> zoo.ZooProgram:
    """A program of the zoo with this graph under the name that it gets from a file."""
    order = graph.arrays.topological
    schedules = {"default": order, "memory": order[::-1] if graph.arrays.dependencies()[0].size == 0 else order}
    traced = zoo.ZooProgram(
        architecture,
        "vgg",
        "training",
        batch,
        level,
        graph,
        schedules if level == "hlo" else {},
        {"default": 12, "memory": 7} if level == "hlo" else {},
        {"jax": "0.10.2"},
        "2026-11-21",
    )
    return dataclasses.replace(traced, graph=dataclasses.replace(graph, name=traced.name))


def times(graph: ComputationGraph, factor: int) -> ComputationGraph:
    """The same ops with other bytes, and shapes of another batch."""
    ops = [
        dataclasses.replace(
            op,
            outputs=tuple(dataclasses.replace(t, bytes=factor * t.bytes) for t in op.outputs),
            layer=op.layer and dataclasses.replace(op.layer, batch=factor * op.layer.batch),
        )
        for op in graph.ops
    ]
    return dataclasses.replace(graph, ops=tuple(ops))


@st.composite
def shaped(draw: st.DrawFn) -> ComputationGraph:
    """Graphs some of whose ops have shapes."""
    graph = draw(graphs())
    numbers = st.lists(st.integers(0, 3), min_size=13, max_size=13)
    ops = [dataclasses.replace(op, layer=draw(st.none() | numbers.map(lambda row: Layer(*row)))) for op in graph.ops]
    return dataclasses.replace(graph, ops=tuple(ops))


def same(a: zoo.ZooProgram, b: zoo.ZooProgram) -> bool:
    """Checks that two programs are equal in everything."""
    schedules = [{key: order.tolist() for key, order in p.schedules.items()} for p in (a, b)]
    rest = [dataclasses.replace(p, schedules={}) for p in (a, b)]
    return schedules[0] == schedules[1] and rest[0] == rest[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo of two architectures."""
    path = tmp_path_factory.mktemp("zoo")
    chain = tuple(
        Op(f"conv.{i}", "Conv", 0.5, (f"conv.{i - 1}",) if i else ("x",), (Tensor(f"conv.{i}", 4 + i),))
        for i in range(4)
    )
    graph = ComputationGraph("chain", chain, (Tensor("x", 4),), ("conv.3",))
    for times_bytes, architecture in enumerate(("vgg16", "vgg19"), 1):
        for level in zoo.LEVELS:
            programs = [program(times(graph, times_bytes * batch), batch, architecture, level) for batch in (1, 8)]
            storage.write_programs(programs, path)
    zoo.write_index(path)
    return path


@given(shaped(), st.integers(2, 9))
def test_a_file_gives_its_programs_back(
    tmp_path_factory: pytest.TempPathFactory, graph: ComputationGraph, k: int
) -> None:
    programs = [program(graph, 1), program(times(graph, k), 8)]
    path = storage.write_programs(programs, tmp_path_factory.mktemp("zoo"))
    for wanted in programs:
        assert same(storage.read_program(path, wanted.batch), wanted)


def test_batches_of_one_structure_share_it_whatever_their_schedules(tmp_path: Path) -> None:
    ops = [Op(f"op.{i}", outputs=(Tensor(f"op.{i}", 5),)) for i in range(6)]
    programs = [
        program(ComputationGraph("a", tuple(ops)), 1),
        program(times(ComputationGraph("b", tuple(ops[::-1])), 8), 8),
        program(ComputationGraph("c", (*ops, Op("op.6"))), 16),
    ]
    path = storage.write_programs(programs, tmp_path)
    assert [len(group["programs"]) for group in storage._content(str(path))["groups"]] == [2, 1]
    for wanted in programs:
        assert same(storage.read_program(path, wanted.batch), wanted)


def test_run_times_keep_four_digits(tmp_path: Path) -> None:
    path = storage.write_programs(
        [program(ComputationGraph("a", (Op("a", runtime=1.23456e-5, flops=123456789),)))], tmp_path
    )
    op = storage.read_program(path, 8).graph.ops[0]
    assert (op.runtime, op.flops) == (1.235e-5, 123456789)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    path = storage.write_programs([program(ComputationGraph("a", (Op("a"),)))], tmp_path)
    with pytest.raises(GraphrlError, match="no program with a batch of 3: there are 8"):
        storage.read_program(path, 3)
    cut = tmp_path / "cut.json.xz"
    cut.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(GraphError, match=r"cut\.json\.xz: broken or truncated"):
        storage.read_program(cut, 8)
    (tmp_path / zoo.INDEX).write_text("[]")
    with pytest.raises(GraphError, match="not an index of the zoo"):
        zoo.entries(tmp_path)
    with pytest.raises(GraphrlError, match=r"has no model zoo: scripts/build_zoo\.py builds it"):
        zoo.entries(tmp_path / "nowhere")


def test_names_and_loading(folder: Path) -> None:
    assert len(zoo.entries(folder)) == 8
    program = zoo.load("vgg19/training/b8/hlo", folder=folder)
    assert program.name == program.graph.name == "vgg19/training/b8/hlo"
    assert program.graph.arrays.tensor_bytes.tolist() == [64, 80, 96, 112]
    assert zoo.select_one(program.name, folder).split == program.split == "train"


def test_sets_by_words(folder: Path) -> None:
    def names(text: str) -> list[str]:
        return [entry.name for entry in zoo.select(text, folder)]

    assert names("vgg16/b1") == ["vgg16/training/b1/hlo", "vgg16/training/b1/jaxpr"]
    assert names("hlo/vgg*/b8") == ["vgg16/training/b8/hlo", "vgg19/training/b8/hlo"]
    every = [entry.name for entry in zoo.entries(folder)]
    assert names("*") == names("train-split") == names("vgg-family") == names("training") == every
    assert zoo.select_one("vgg16/b1/hlo", folder).name == "vgg16/training/b1/hlo"
    assert zoo.load("zoo:vgg16/b1/hlo", folder=folder).name == "vgg16/training/b1/hlo"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vgg61/training", "no program has 'vgg61': similar: vgg19, vgg16, vgg-family"),
        ("VGG16/b1", "no program has 'VGG16': similar: vgg16"),
        ("train", "no program has 'train': similar: training, train-split"),
        ("vgg16/quux", "no program has 'quux': zoo:vgg16/training/b1/hlo is a program's whole name"),
        ("", "zoo: names no program: give words as in zoo:vgg16/training/b1/hlo"),
        ("vgg16/b1/vgg19", r"without 'vgg19': vgg16/training/b1/hlo, vgg16/training/b1/jaxpr$"),
        ("vgg16", "names 4 programs, where one is needed: for example zoo:vgg16/training/b1/hlo"),
    ],
)
def test_wrong_names_say_what_there_is(folder: Path, text: str, reason: str) -> None:
    with pytest.raises(ProblemError, match=reason):
        zoo.load(text, folder=folder)


@given(graphs(), st.integers(0, 5))
def test_noise_keeps_the_topology_and_what_shares_a_buffer(graph: ComputationGraph, seed: int) -> None:
    noisy = zoo.augmented(graph, seed, 1.0)  # a reuse that no longer fits would be refused
    assert noisy == zoo.augmented(graph, seed, 1.0)
    assert [op.inputs for op in noisy.ops] == [op.inputs for op in graph.ops]
    a, b = graph.arrays, noisy.arrays
    for field in ("reuses", "alias", "flops"):
        assert (getattr(a, field) == getattr(b, field)).all()
    for before, after in ((a.tensor_bytes, b.tensor_bytes), (a.weight_bytes, b.weight_bytes), (a.runtime, b.runtime)):
        assert ((before == 0) == (after == 0)).all()


def test_noise_is_multiplicative_and_differs_by_seed() -> None:
    ops = tuple(Op(f"op{i}", runtime=2.0, outputs=(Tensor(f"t{i}", 10**9),)) for i in range(4000))
    graph = ComputationGraph("wide", ops)
    noisy = zoo.augmented(graph, 0, 0.3)
    for factors in (noisy.arrays.runtime / 2.0, noisy.arrays.tensor_bytes / 1e9):
        assert abs(np.log(factors).mean()) < 0.02
        assert abs(np.log(factors).std() - 0.3) < 0.02
    assert noisy != zoo.augmented(graph, 1, 0.3)
    assert zoo.augmented(graph, 0, 0.0).ops == graph.ops
    with pytest.raises(ProblemError, match=r"sigma is -1: must be from 0 to 3"):
        zoo.augmented(graph, 0, -1)


def test_zoo_names_are_models(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAPHRL_ZOO", str(folder))
    loaded = zoo.load("vgg16/b1/hlo").graph
    assert model_graph("zoo:vgg16/b1/hlo") == loaded
    assert optimize("zoo:vgg16/b1/hlo", method="given", evaluations=1).graph == loaded.name
    assert [graph.name for graph in load_graphs(["zoo:b1/hlo"])] == ["vgg16/training/b1/hlo", "vgg19/training/b1/hlo"]
    assert main(["convert", "zoo:vgg16/b1/hlo", str(tmp_path / "graph.json")]) == 0
    assert model_graph(tmp_path / "graph.json") == loaded
    assert main(["optimize", "zoo:vgg61/b1/hlo"]) == 2
    assert "similar: vgg19" in capsys.readouterr().err
    assert main(["compare", "zoo:vgg*/b1/hlo", "--methods", "given", "--evaluations", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["runs"] == 2
