"""The benchmark: its yardsticks compute what graphrl computes, and the command gives its rows, files and errors."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs as any_graphs
from rich.console import Console

from graphrl.bench import plain
from graphrl.bench.cases import PARAMETERS, TRANSFERS, Row, Settings, problem
from graphrl.bench.chromosomes import padded, random_chromosomes, split
from graphrl.bench.compiled import CompiledGraphs, Unavailable, find_compiler, library
from graphrl.bench.envs import EnvRow
from graphrl.bench.envs_report import print_envs
from graphrl.bench.external import Reference, binary_graph
from graphrl.bench.graphs import FAMILIES, random_graph, random_graphs
from graphrl.bench.measure import check_agreement
from graphrl.bench.plain_graph import plain_batch
from graphrl.bench.programs import Costs, Program
from graphrl.bench.report import json_lines
from graphrl.bench.timing import Sample, interleaved
from graphrl.cli import main
from graphrl.costs import exact
from graphrl.costs.problem import Problem, Transfer
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.brkga import Parameters

HAS_COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))
compiled_only = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")

# Few examples of many graphs each: every example compiles a program of its own shape.
batches = st.lists(any_graphs(sharing=False), min_size=12, max_size=12)
few = settings(max_examples=2, suppress_health_check=list(HealthCheck))


def exact_costs(graph: ComputationGraph, task: Problem, genes: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """What the host twin says of one chromosome: makespan and peaks."""
    placement, op_keys, transfer_keys = split(genes, graph, task.devices)
    found = exact.evaluate(graph, task, placement, exact.decode(graph, task, placement, op_keys, transfer_keys))
    return found.makespan, found.peak_memory


def chromosomes(graphs: list[ComputationGraph], devices: int, count: int) -> list[np.ndarray]:
    """Random chromosomes of each graph; the second half of them with keys that often tie."""
    found = [random_chromosomes(graph, devices, count, seed) for seed, graph in enumerate(graphs)]
    for genes in found:
        genes[count // 2 :] = np.floor(genes[count // 2 :] * 4) / 4
    return found


# The yardsticks


@pytest.mark.parametrize(("transfer", "devices"), [("rendezvous", 3), ("link", 2), ("free", 1)])
@few
@given(graphs=batches)
def test_plain_is_exact(transfer: Transfer, devices: int, graphs: list[ComputationGraph]) -> None:
    task = Problem("makespan", devices, transfer, 0.5, 4.0)
    genes = chromosomes(graphs, devices, 6)
    sizes = common_sizes(graphs)
    stacked = np.stack([padded(x, graph, sizes, devices) for x, graph in zip(genes, graphs, strict=True)])
    costs = jax.vmap(jax.vmap(lambda graph, x: plain.costs(graph, x, task), (None, 0)))
    makespan, peak = jax.device_get(jax.jit(costs)(plain_batch(graphs, task), stacked))
    for g, graph in enumerate(graphs):
        for p in range(6):
            assert (makespan[g, p], tuple(peak[g, p])) == exact_costs(graph, task, genes[g][p])


@compiled_only
@pytest.mark.parametrize("devices", [1, 3])
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(graphs=batches, transfer=st.sampled_from(TRANSFERS))
def test_compiled_is_exact(devices: int, graphs: list[ComputationGraph], transfer: Transfer) -> None:
    task = Problem("makespan", devices, transfer, 0.5, 4.0)
    genes = chromosomes(graphs, devices, 4)
    both = CompiledGraphs(graphs, task).evaluate(genes, timed=True, memory=True, threads=2)
    one = CompiledGraphs(graphs, task).evaluate(genes, timed=True, memory=False, repeats=2)
    other = CompiledGraphs(graphs, task).evaluate(genes, timed=False, memory=True)
    for g, graph in enumerate(graphs):
        for p in range(4):
            assert (both[0][g, p], tuple(both[1][g, p])) == exact_costs(graph, task, genes[g][p])
    assert (one[0] == both[0]).all()
    assert (other[1] == both[1]).all()
    assert not one[1].any()
    assert not other[0].any()


@compiled_only
@pytest.mark.parametrize("objective", ["peak_memory", "makespan"])
def test_compiled_search_is_a_search(objective: str) -> None:
    task = problem(objective, "rendezvous")  # type: ignore[arg-type]
    graphs = random_graphs(24, 3, 0)
    batch = CompiledGraphs(graphs, task)
    values, best = batch.search(PARAMETERS, 20, seed=1, threads=2)
    again, _ = batch.search(PARAMETERS, 20, seed=1)
    first, _ = batch.search(PARAMETERS, 1, seed=1)
    assert (values == again).all()
    assert (values < first).any()
    assert (values <= first).all()
    for graph, value, genes in zip(graphs, values, best, strict=True):
        makespan, peak = exact_costs(graph, task, genes)
        assert value == (makespan if objective == "makespan" else max(peak))


def test_plain_search_is_a_search() -> None:
    task = problem("peak_memory", "free")
    (graph,) = random_graphs(16, 1, 0)
    parameters = Parameters(population=10, elites=3, mutants=2)
    single = jax.tree.map(lambda x: jnp.asarray(x[0]), plain_batch([graph], task))
    search = jax.jit(lambda key: plain.search(single, key, task, parameters, 6))
    genes, value = jax.device_get(search(jax.random.key(0)))
    assert max(exact_costs(graph, task, np.asarray(genes))[1]) == value  # 16 ops need no padding


def test_yardsticks_refuse_what_they_leave_out() -> None:
    ops = (Op("a", outputs=(Tensor("x", 4),)), Op("b", inputs=("x",), outputs=(Tensor("y", 4, alias="x"),)))
    with pytest.raises(GraphrlError, match="aliases"):
        plain_batch([ComputationGraph("aliased", ops)], problem("peak_memory", "free"))
    with pytest.raises(GraphrlError, match="memory limits"):
        CompiledGraphs(random_graphs(16, 1, 0), Problem("makespan", memory_limit=1))


def test_disagreement_is_told() -> None:
    costs = Costs(np.ones((2, 3)), np.ones((2, 3, 2)))
    wrong = Costs(np.ones((1, 3)), np.array([[[1, 1], [1, 2], [1, 1]]]))
    ours, theirs = (Program(name, lambda runs: Sample(1, 0.1, 0.1), 2, 3, costs=costs) for name in ("graphrl", "plain"))
    check_agreement([ours, theirs])
    with pytest.raises(GraphrlError, match="peak memory of graph 0, chromosome 1"):
        check_agreement([ours, theirs._replace(graphs=1, costs=wrong)])


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


# The user's reference


FAKE = """#!{python}
import sys
if sys.argv[1] == "bench":
    print("g threads=1 mode=5 2000 ev/s 500 us/eval (1)")
else:
    print('{{"s": 0.25, "threads": ' + sys.argv[3] + "}}")
"""


def test_reference_is_read(tmp_path: Path) -> None:
    path = tmp_path / "reference"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    graphs = random_graphs(16, 2, 0)
    with Reference(str(path), 1) as reference:
        assert reference.evaluation(graphs).run(3) == Sample(600, None, 0.3)
        assert reference.search(graphs, "makespan", PARAMETERS, 62, 0).run(1) == Sample(2 * 4980, None, 0.5)
    with Reference(str(path), 2) as reference:
        assert reference.evaluation(graphs).run(1) == Sample(200, 0.1, None)
    path.write_text("#!/bin/sh\nexit 3\n")
    with Reference(str(path), 1) as reference, pytest.raises(GraphrlError, match="bench failed with exit code 3"):
        reference.evaluation(graphs).run(1)
    path.write_text("#!/bin/sh\necho hello\n")
    with Reference(str(path), 1) as reference, pytest.raises(GraphrlError, match="must say"):
        reference.evaluation(graphs).run(1)
    with pytest.raises(GraphrlError, match="it is no file"):
        Reference(str(tmp_path), 1)


def test_reference_graphs_are_binary() -> None:
    graph = random_graph("layered", 16, 0)
    data = binary_graph(graph)
    ops, edges = np.frombuffer(data, np.int32, 2)
    assert (ops, edges) == (16, len(graph.arrays.use_op))
    assert len(data) == 8 + 8 * edges + 8 * ops
    with pytest.raises(GraphrlError, match="one tensor each"):
        binary_graph(ComputationGraph("none", (Op("a"),)))


def test_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="no-such-compiler not found"):
        find_compiler()
    library.cache_clear()
    with pytest.raises(Unavailable):
        CompiledGraphs(random_graphs(16, 1, 0), problem("makespan", "link"))


# Timing and settings


def test_programs_take_turns() -> None:
    calls: list[tuple[str, int]] = []

    def program(name: str, seconds: float):  # type: ignore[no-untyped-def]
        def run(runs: int) -> Sample:
            calls.append((name, runs))
            return Sample(10 * runs, runs * seconds, None)

        return run

    slow, fast = interleaved([program("slow", 0.4), program("fast", 0.01)], 3, 0.1)
    assert calls[-6:] == [("slow", 1), ("fast", 10)] * 3
    assert slow.evaluations == 10
    assert fast.evaluations == 100
    assert fast.median("cpu") == pytest.approx(0.1)  # knows wall time only
    assert fast.known_median("cpu") is None
    assert fast.per_second("wall") == pytest.approx(1000)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"sizes": (3,)}, "sizes has 3"),
        ({"sizes": ()}, "sizes is empty"),
        ({"methods": ("plain", "plain")}, "must name each once"),
        ({"methods": ("fast",)}, "known are graphrl, plain"),
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
    assert len(cases) == 2 * 9
    assert {case.transfer for case in cases if case.makespan} == set(TRANSFERS)
    assert [case.objective for case in cases if case.search] == ["peak_memory", "makespan"] * 2


# The command


def test_command_measures_and_writes(tmp_path: Path) -> None:
    """In a process of its own, as the number of CPU devices and the compilation cache are a process's."""
    command = [sys.executable, "-m", "graphrl", "bench", "--quick", "--sizes", "64", "--threads", "1", "--json"]
    package = Path(sys.modules["graphrl"].__file__ or "").parents[1]
    env = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(
        [*command, "--output", "out"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["1/2", "2/2"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bench.jsonl", "bench.png"]
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "bench.jsonl").read_text() == done.stdout
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["what"], row["method"]) for row in rows] == [
        (what, method)
        for what in ("decode + makespan + memory", "brkga")
        for method in ("graphrl", "plain", "compiled")
    ]
    for row in rows:
        assert list(row) == [field.name for field in Row.__dataclass_fields__.values()]
        if row["method"] != "compiled" or HAS_COMPILER:
            assert row["note"] is None
            assert 0 < row["min_s"] <= row["median_s"]
            assert row["evaluations_per_s"] == pytest.approx(row["evaluations"] / row["median_s"])
        if row["method"] != "compiled":
            assert row["compile_s"] > 0
    search = rows[3]
    assert search["ratio_to_plain"] == pytest.approx(search["evaluations_per_s"] / rows[4]["evaluations_per_s"])
    assert 0 < search["own_share"] < 1
    assert search["beta_share"] < 1
    assert search["cached_compile_s"] > 0
    assert json_lines([Row(**row) for row in rows]) == done.stdout


def test_command_measures_environments(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "graphrl", "bench", "--envs", "1,2", "--quick", "--sizes", "16", "--threads", "1"]
    package = Path(sys.modules["graphrl"].__file__ or "").parents[1]
    env = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(
        [*command, "--json", "--output", "out"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == ["1/2", "2/2"]
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "bench.jsonl").read_text() == done.stdout
    rows = [EnvRow(**json.loads(line)) for line in done.stdout.splitlines()]
    assert [(row.env, row.n, row.envs, row.transfer) for row in rows] == [
        ("Proposal-v0", 16, count, "rendezvous") for count in (1, 2)
    ]
    for row in rows:
        assert row.evaluations_per_s == pytest.approx(row.proposals_per_s * row.evaluations)
        assert row.ratio_to_batch > 0
    console = Console(file=io.StringIO(), width=140)
    print_envs(rows, console)
    assert "proposals / s" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["--envs", "1,1"], 2, "envs is 1, 1: must name numbers from 1, each once"),
        (["--envs", "--methods", "plain"], 1, "--methods does not go with --envs"),
        (["--sizes", "many"], 2, "'many' is not an integer"),
        (["--sizes", "8"], 2, "must be from 16"),
        (["--methods", "guess"], 2, "methods has 'guess'"),
        (["--threads", "0"], 2, "threads is 0"),
        (["--output", "file"], 1, "it is a file, and must be a folder"),
        (["--reference", "missing", "--threads", "1"], 1, "cannot read missing: it is no file"),
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
