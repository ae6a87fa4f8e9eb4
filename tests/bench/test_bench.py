"""`graphrl bench`: graphs, timing, settings, and the command."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import run_python

from graphrl.bench.cases import FAMILIES, TRANSFERS, Row, Settings, random_graph
from graphrl.bench.envs import ENVS, EnvRow
from graphrl.bench.measure import check_agreement
from graphrl.bench.report import json_lines, print_table
from graphrl.bench.timing import Costs, Program, Sample, interleaved
from graphrl.cli import main
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


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"sizes": (3,)}, "sizes has 3"),
        ({"sizes": ()}, "sizes is empty"),
        ({"transfers": ("free", "free")}, "must name each once"),
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


# What is compared


def test_disagreement_is_told() -> None:
    costs = Costs(np.ones((2, 3)), np.ones((2, 3, 2)))
    wrong = Costs(np.ones((1, 3)), np.array([[[1, 1], [1, 2], [1, 1]]]))
    ours = Program(lambda runs: Sample(1, 0.1, 0.1), costs=costs)
    check_agreement({"graphrl": ours, "plain": ours})
    with pytest.raises(GraphrlError, match="peak memory of graph 0, chromosome 1"):
        check_agreement({"graphrl": ours, "none": ours._replace(costs=None), "plain": ours._replace(costs=wrong)})


# The command


def test_search_is_measured_beside_the_yardstick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own, as the number of CPU devices and the compilation cache are a process's."""
    arguments = ["bench", "--quick", "--sizes", "16", "--threads", "1", "--json", "--output", "out"]
    done = run_python(tmp_path, "-m", "graphrl", *arguments)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["1/2", "2/2"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bench.jsonl", "bench.png"]
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "bench.jsonl").read_text() == done.stdout
    rows = [Row(**json.loads(line)) for line in done.stdout.splitlines()]
    assert json_lines(rows) == done.stdout
    both = "decode + makespan + memory"
    assert [(row.what, row.graphs, row.method) for row in rows] == [
        (both, 64, "graphrl"),
        (both, 64, "numba"),
        ("brkga", 3, "graphrl"),
    ]
    for row in rows:
        assert 0 < row.min_s <= row.median_s
        assert row.evaluations_per_s == pytest.approx(row.evaluations / row.median_s)
        assert (row.compile_s is None) == (row.method == "numba")
        assert (row.own_share is None) == (row.what != "brkga")
    ours, numba, search = rows
    assert ours.ratios == pytest.approx({"numba": ours.evaluations_per_s / numba.evaluations_per_s})
    assert search.own_share is not None
    assert search.beta_share is not None
    assert search.cached_compile_s is not None
    assert 0 < search.own_share < 1
    assert search.beta_share < 1
    assert search.cached_compile_s > 0
    print_table(rows)
    table = capsys.readouterr().out
    assert "/ numba" in table
    assert table.index(" 64 ") < table.index("BRKGA")


def test_command_measures_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "--envs", "2", "--quick", "--sizes", "16", "--threads", "1", "--json", "--output", "out"]
    done = run_python(tmp_path, "-m", "graphrl", *arguments)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["1/1"]
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "bench.jsonl").read_text() == done.stdout
    rows = [EnvRow(**json.loads(line)) for line in done.stdout.splitlines()]
    assert [(row.env, row.n, row.envs, row.transfer) for row in rows] == [("Proposal-v0", 16, 2, "rendezvous")]
    for row in rows:
        assert row.evaluations_per_s == pytest.approx(row.proposals_per_s * row.evaluations)
        assert row.ratio_to_batch > 0
    ENVS.table.print(rows)
    assert "proposals / s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["--envs", "1,1"], 2, "envs is 1, 1: must name numbers from 1 to 65536, each once"),
        (["--envs", "99999999"], 2, "envs is 99999999: must name numbers from 1 to 65536"),
        (["--envs", "--seed", "-1"], 2, "seed is -1"),
        (["--sizes", ""], 2, "sizes is empty"),
        (["--envs", "--transfers", ""], 2, "transfers is empty"),
        (["--envs", "--graphs", "3"], 1, "--graphs does not go with --envs"),
        (["--orders", "0"], 2, "orders is 0: must name numbers from 1 to 4096, each once"),
        (["--orders", "--transfers", "link"], 1, "--transfers does not go with --orders"),
        (["--maps", "--transfers", "link"], 1, "--transfers does not go with --maps"),
        (["--maps", "--orders"], 2, "not allowed with argument"),
        (["--decisions", "--transfers", "link"], 1, "--transfers does not go with --decisions"),
        (["--sizes", "many"], 2, "'many' is not an integer"),
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
    cache = jax.config.values["jax_enable_compilation_cache"]
    try:
        assert main(["bench", *arguments]) == code
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert fault in printed.err
    assert len(printed.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
