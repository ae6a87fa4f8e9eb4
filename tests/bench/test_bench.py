"""`graphrl bench`: graphs, timing, settings, and the command with each of its kinds."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from map_problems import WORKED_CHIP, WORKED_GRAPH

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.go.config import GoConfig
from graphrl.bench import policies
from graphrl.bench.cases import FAMILIES, TRANSFERS, Row, Settings, random_graph
from graphrl.bench.maps import KERNEL, MAPS, MapRow, generation_program
from graphrl.bench.measure import check_agreement
from graphrl.bench.policies import CONFIG, DECODERS, LEARNING, ORDERS, SAMPLES, OrderRow
from graphrl.bench.report import SEARCH_TABLE, print_shares
from graphrl.bench.timing import Costs, Limit, Program, Sample, interleaved
from graphrl.cli import main
from graphrl.costs.maps.problem import map_problem
from graphrl.errors import GraphrlError, ProblemError

# Graphs and chromosomes


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_are_as_described(family: str) -> None:
    for num_ops in (64, 128, 512):
        graph = random_graph(family, num_ops, 3)
        assert graph == random_graph(family, num_ops, 3) != random_graph(family, num_ops, 4)
        a = graph.arrays
        assert a.num_ops == a.num_tensors == num_ops
        assert 2 <= len(a.use_op) / num_ops <= 3
        assert (a.topological == np.arange(num_ops)).all()
        assert (a.runtime == np.round(a.runtime)).all()


def test_graphs_refuse_wrong_arguments() -> None:
    with pytest.raises(ProblemError, match="known are training, layered, hubs"):
        random_graph("tree", 64, 0)
    with pytest.raises(ProblemError, match="at least 16"):
        random_graph("hubs", 3, 0)


# Timing and settings


def test_programs_take_turns() -> None:
    calls: list[tuple[str, int]] = []

    def program(name: str, seconds: float):  # type: ignore[no-untyped-def]
        def run(runs: int) -> Sample:
            calls.append((name, runs))
            return Sample(10 * runs, runs * seconds, 2 * runs * seconds)

        return run

    slow, fast = interleaved([program("slow", 0.4), program("fast", 0.01)], 3, 0.1)
    assert calls[-6:] == [("slow", 1), ("fast", 10)] * 3
    assert slow.evaluations == 10
    assert fast.evaluations == 100
    assert fast.median("cpu") == pytest.approx(0.2)
    assert fast.per_second("wall") == pytest.approx(1000)


def test_a_limit_leaves_cases_out() -> None:
    spent = Limit(0.0)
    assert list(spent.within("abc")) == ["a"]
    assert spent.left_out == 2
    enough = Limit(1000.0)
    assert list(enough.within("abc")) == ["a", "b", "c"]
    assert enough.left_out == 0
    assert 0 < enough.share(4).left <= 250


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"sizes": (3,)}, "sizes has 3"),
        ({"sizes": ()}, "sizes is empty"),
        ({"transfers": ("free", "free")}, "must list each once"),
        ({"transfers": ("carrier",)}, "known are free"),
        ({"threads": 0}, "threads is 0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"threads": 2, "graphs": 3}, "multiple of the 2 threads"),
    ],
)
def test_settings_are_checked(wrong: dict, fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        Settings(**wrong)


def test_cases_cover_the_models() -> None:
    cases = list(Settings(sizes=(64, 128)).cases())
    assert len(cases) == len(set(cases)) == 2 * 10
    assert [(case.num_ops, case.graphs) for case in cases[:4]] == [(64, 1), (64, 64), (128, 1), (128, 64)]
    assert {case.transfer for case in cases if case.makespan} == set(TRANSFERS)
    assert [case.objective for case in cases if case.search] == ["makespan", "peak_memory"] * 2


# Comparison of programs


def test_disagreement_is_an_error() -> None:
    costs = Costs(np.ones((2, 3)), np.ones((2, 3, 2)))
    wrong = Costs(np.ones((1, 3)), np.array([[[1, 1], [1, 2], [1, 1]]]))
    ours = Program(lambda runs: Sample(1, 0.1, 0.1), costs=costs)
    check_agreement({"graphrl": ours, "plain": ours})
    with pytest.raises(GraphrlError, match="peak memory of graph 0, chromosome 1"):
        check_agreement({"graphrl": ours, "none": ours._replace(costs=None), "plain": ours._replace(costs=wrong)})


# The command


@pytest.fixture
def own_cache() -> Iterator[None]:
    """Restores jax's cache of compiled programs, which the command disables, for later tests."""
    jax.devices()  # the tests' two: the command would ask for one
    cache = jax.config.values["jax_enable_compilation_cache"]
    yield
    jax.config.update("jax_enable_compilation_cache", cache)


def measured(folder: Path, capsys: pytest.CaptureFixture[str], arguments: str, cases: int) -> list[dict[str, Any]]:
    """The rows of a small run that must succeed, as JSON; speeds are not tested."""
    out = folder / "out"
    assert main(["bench", *arguments.split(), "--all", "--quick", "--json", "--output", str(out)]) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if not line.startswith("graphrl: compiling")]  # once a machine
    progress = [line.partition(" ")[0] for line in lines]
    assert progress == [f"{i + 1}/{cases}" for i in range(cases)]
    assert sorted(path.name for path in out.iterdir()) == ["bench.jsonl", "bench.png"]
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "bench.jsonl").read_text() == printed.out
    return [json.loads(line) for line in printed.out.splitlines()]


@pytest.mark.usefixtures("own_cache")
def test_search_is_measured_with_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row(**row) for row in measured(tmp_path, capsys, "--sizes 16 --threads 1", 2)]
    both = "decode + makespan + memory"
    assert [(row.what, row.graphs, row.method) for row in rows] == [
        (both, 64, "graphrl"),
        (both, 64, "pure JAX"),
        ("brkga", 3, "graphrl"),
    ]
    for row in rows:
        assert 0 < row.min_s <= row.median_s
        assert row.evaluations_per_s == pytest.approx(row.evaluations / row.median_s)
        assert row.compile_s is not None
        assert (row.own_share is None) == (row.what != "brkga")
    ours, jax, search = rows
    assert ours.ratios == pytest.approx({"pure JAX": ours.evaluations_per_s / jax.evaluations_per_s})
    assert search.own_share is not None
    assert search.beta_share is not None
    assert search.cached_compile_s is not None
    assert 0 < search.own_share < 1
    assert search.beta_share < 1
    assert search.cached_compile_s > 0
    show = SEARCH_TABLE.printer()
    show([rows[:2]])
    first = capsys.readouterr().out
    show([rows[2:]])
    assert "times pure JAX" in first
    assert " 64 " in first
    assert "BRKGA, peak memory" in capsys.readouterr().out
    print_shares(rows)
    assert "Beta draws" in capsys.readouterr().out


@pytest.mark.usefixtures("own_cache")
def test_command_measures_decoders_and_learning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [OrderRow(**row) for row in measured(tmp_path, capsys, "--orders 2 --sizes 16 --threads 1", 1)]
    assert [(row.work, row.n, row.graphs) for row in rows] == [(work, 16, 2) for work in (*DECODERS, LEARNING)]
    assert [row.orders for row in rows] == [1, SAMPLES, SAMPLES, CONFIG.samples]
    assert all(row.orders_per_s > 0 and row.ratio_to_drawing > 0 for row in rows)
    ORDERS.table.printer()(rows)
    assert "orders / s" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_rows_of_deciding_and_learning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = GoConfig(width=8, rounds=1, layers=0, heads=1, superposition="none", coupling="none")
    monkeypatch.setattr(policies, "GO", dataclasses.replace(policies.GO, network=small))
    rows = measured(tmp_path, capsys, "--decisions 1 --sizes 40,1100 --threads 1", 2)
    assert [(row["n"], row["work"]) for row in rows] == [(40, "deciding"), (40, "learning"), (1100, "deciding")]
    assert all(row["per_s"] > 0 for row in rows)


@pytest.mark.usefixtures("own_cache")
def test_command_measures_memory_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [MapRow(**row) for row in measured(tmp_path, capsys, "--maps 2,6 --sizes 80,108 --threads 2", 4)]
    assert [(row.work, row.n, row.maps) for row in rows] == [(KERNEL, n, maps) for n in (80, 108) for maps in (2, 6)]
    assert rows[-1].graph == "resnet101"
    assert all(row.maps_per_s > 0 and row.ratio_to_host > 0 for row in rows)
    MAPS.table.printer()(rows)
    assert "maps / s" in capsys.readouterr().out


def test_generations_follow_each_other() -> None:
    config = EgrlConfig(width=8, depth=0, population=4, boltzmann=0.5)
    program = generation_program(map_problem(WORKED_GRAPH, WORKED_CHIP), config, 0)
    assert program.run(2).evaluations == 2 * config.settings.rollouts
    assert program.compile_s > 0


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["Order-v0"], 1, "no environment 'Order-v0' to measure: known are Ordering-v0, MemoryMap-v0"),
        (["--envs", "Go"], 1, "known are Ordering-v0, MemoryMap-v0, Compile-v0, Proposal-v0"),
        (
            ["--envs", "1,8"],
            1,
            "--envs is 1,8: must be names of environments, as in `graphrl bench Proposal-v0",
        ),
        (["--envs", ""], 2, "environments are none"),
        (["--envs", "--counts", "0,4"], 2, "counts is 0, 4: must be different numbers from 1 to 65536"),
        (["--envs", "--policies", "greedy"], 2, "must be one or more of random, network, gymnasium"),
        (["Ordering-v0", "--models", "absent.onnx"], 1, "cannot read absent.onnx"),
        (["Ordering-v0", "--models", "layered:20x3"], 2, "names 3 graphs, where one is needed"),
        (["Ordering-v0", "--models", "layered:20", "--sizes", "64"], 1, "--sizes does not go with --models"),
        (["--models", "layered:20"], 1, "--models does not go with the search"),
        (["--envs", "--graphs", "3"], 1, "--graphs does not go with environments"),
        (["Ordering-v0", "--orders"], 1, "--orders does not go with environments"),
        (["--counts", "3"], 1, "--counts does not go with the search: leave it out"),
        (["--maps", "--counts", "3"], 1, "--counts does not go with --maps"),
        (["--all", "--seconds", "3"], 2, "not allowed with argument"),
        (["--envs", "--seed", "-1"], 2, "seed is -1"),
        (["--sizes", ""], 2, "sizes is empty"),
        (["--transfers", ""], 2, "transfers is empty"),
        (["--orders", "0"], 2, "orders is 0: must be different numbers from 1 to 4096"),
        (["--orders", "--transfers", "link"], 1, "--transfers does not go with --orders"),
        (["--maps", "--transfers", "link"], 1, "--transfers does not go with --maps"),
        (["--maps", "--orders"], 2, "not allowed with argument"),
        (["--decisions", "--transfers", "link"], 1, "--transfers does not go with --decisions"),
        (["--sizes", "8"], 2, "must be from 16"),
        (["--transfers", "guess"], 2, "transfers has 'guess'"),
        (["--threads", "0"], 2, "threads is 0"),
        (["--output", "file"], 1, "it is a file, and must be a folder"),
        (["--output", ""], 1, "cannot make the folder '': it is no name of a folder"),
    ],
)
def test_command_tells_faults_in_a_line(
    arguments: list[str],
    code: int,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["bench", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert fault in printed.err
    assert len(printed.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
