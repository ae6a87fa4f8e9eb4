"""The yardsticks of `scripts/bench.py`: exact, searches, measured beside graphrl, and named where there is none."""

import json
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import check_fault, run_script
from random_graphs import graphs as any_graphs
from reproduce.yardsticks import plain
from reproduce.yardsticks.compiled import CompiledGraphs, find_compiler, library
from reproduce.yardsticks.plain_graph import plain_batch

from graphrl.bench.cases import PARAMETERS, TRANSFERS, problem
from graphrl.bench.graphs import padded, random_chromosomes, random_graphs
from graphrl.bench.measure import Unavailable, check_agreement
from graphrl.bench.timing import Costs, Program, Sample
from graphrl.costs import exact
from graphrl.costs.problem import Problem, Transfer
from graphrl.errors import GraphrlError
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.chromosomes.brkga import Parameters

HAS_COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))
compiled_only = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")

# Few examples of many graphs each: every example compiles a program of its own shape.
batches = st.lists(any_graphs(sharing=False), min_size=12, max_size=12)
few = settings(max_examples=2, suppress_health_check=list(HealthCheck))


def split(genes: np.ndarray, graph: ComputationGraph, devices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One chromosome as placement `[n]`, op keys `[n]` and transfer keys `[t, d]`: what `costs.exact` takes."""
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    affinities, op_keys, transfer_keys = np.split(genes, [devices * n, (devices + 1) * n])
    return affinities.reshape(devices, n).argmax(0), op_keys, transfer_keys.reshape(devices, t).T


def exact_costs(graph: ComputationGraph, task: Problem, genes: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """What the host twin says of one chromosome: makespan and peaks."""
    placement, op_keys, transfer_keys = split(genes, graph, task.devices)
    costs = exact.evaluate(graph, task, placement, exact.decode(graph, task, placement, op_keys, transfer_keys))
    return costs.makespan, costs.peak_memory


def chromosomes(graphs: list[ComputationGraph], devices: int, count: int) -> list[np.ndarray]:
    """Random chromosomes of each graph; the second half of them with keys that often tie."""
    batches = [random_chromosomes(graph, devices, count, seed) for seed, graph in enumerate(graphs)]
    for genes in batches:
        genes[count // 2 :] = np.floor(genes[count // 2 :] * 4) / 4
    return batches


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
    ours = Program(lambda runs: Sample(1, 0.1, 0.1), costs=costs)
    check_agreement({"graphrl": ours, "plain": ours})
    with pytest.raises(GraphrlError, match="peak memory of graph 0, chromosome 1"):
        check_agreement({"graphrl": ours, "none": ours._replace(costs=None), "plain": ours._replace(costs=wrong)})


def test_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match="no-such-compiler not found"):
        find_compiler()
    library.cache_clear()
    with pytest.raises(Unavailable):
        CompiledGraphs(random_graphs(16, 1, 0), problem("makespan", "link"))


# The script


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """scripts/bench.py in a process of its own."""
    return run_script("bench", folder, "--threads", "1", *arguments)


def test_the_script_measures_graphrl_beside_the_yardsticks(tmp_path: Path) -> None:
    options = "--quick", "--sizes", "16", "--output", "out"
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert "/ plain" in done.stdout
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    rows = [json.loads(line) for line in (tmp_path / "out" / "bench.jsonl").read_text().splitlines()]
    assert [(row["what"], row["method"]) for row in rows] == [
        (what, method)
        for what in ("decode + makespan + memory", "brkga")
        for method in ("graphrl", "plain", "compiled")
    ]
    for row in rows:
        if row["method"] != "compiled" or HAS_COMPILER:
            assert row["note"] is None
            assert row["evaluations_per_s"] == pytest.approx(row["evaluations"] / row["median_s"])
        assert (row["compile_s"] is not None) == (row["method"] in ("graphrl", "plain"))
    ours, plain_row = rows[3:5]
    rate = ours["evaluations_per_s"] / plain_row["evaluations_per_s"]
    assert ours["ratios"]["plain"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (("--yardsticks", "guess"), 2, "yardsticks has 'guess': known are plain, compiled"),
        (("--output", ""), 1, "bench: cannot make the folder '': it is no name of a folder"),
    ],
)
def test_faults_of_the_script_are_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, fault: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == code
    check_fault(done, fault)
