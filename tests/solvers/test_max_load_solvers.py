"""Methods for max_load: optima by brute force, contiguous splits, memory, colocation and splits from files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partitioned_graphs import TRAINING, least, random_pipeline

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined, Tensor
from graphrl.graphs.readers.partitioning import partitioning_graph
from graphrl.graphs.topology import topological_order
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Task

SEARCHES = ("auto", "stage-dp", "anneal-load", "equal-stages", "greedy-load", "cp-sat")


def solved(
    graph: ComputationGraph, problem: Problem, method: str, evaluations: int = 2_000, seconds: float = 20.0
) -> Plan:
    plan = find_solver(method)(Task(graph, problem, Budget(evaluations, seconds)))
    plan.check(graph)
    assert plan.excess or plan.value >= lower_bound(graph, problem)
    return plan


def instance(seed: int, ops: int = 7) -> tuple[ComputationGraph, Problem]:
    """Two or three devices, a CPU among them or not; forward graphs and training steps."""
    cpus = seed % 2
    graph = random_pipeline(seed, ops, cpus=cpus > 0, training=seed % 3 == 0)
    return graph, Problem("max_load", 2 + seed % 4 // 2 + cpus, cpus=cpus)


@pytest.mark.parametrize("seed", range(4))
def test_cp_sat_proves_the_optimum(seed: int) -> None:
    graph, problem = instance(seed)
    plan = solved(graph, problem, "cp-sat")
    assert plan.value == pytest.approx(least(graph, problem), abs=1e-9)
    assert plan.bound == pytest.approx(plan.value, rel=1e-6)


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_auto_is_optimal_on_small_graphs(seed: int) -> None:
    graph, problem = instance(seed)
    assert solved(graph, problem, "auto").value == pytest.approx(least(graph, problem), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_program_finds_the_best_contiguous_split(seed: int) -> None:
    graph, problem = instance(seed)
    source, target = graph.arrays.dependencies()
    backward = np.array([op.pipelined is not None and op.pipelined.backward for op in graph.ops])
    forward = ~backward[source] & ~backward[target]

    def contiguous(placement: np.ndarray) -> bool:
        first, second = placement[source[forward]], placement[target[forward]]
        try:
            topological_order(list("abcd")[: problem.devices], first[first != second], second[first != second])
        except Exception:
            return False
        return True

    best = least(graph, problem, contiguous)
    assert solved(graph, problem, "stage-dp").value == pytest.approx(best, abs=1e-9)
    assert solved(graph, problem, "stage-dp:ideals=0").value >= best - 1e-9


@pytest.mark.parametrize("seed", range(2))
def test_memory_limits_are_kept_where_they_can_be(seed: int) -> None:
    graph, problem = instance(seed)
    weights = sum(op.weight_bytes for op in graph.ops)
    problem = dataclasses.replace(problem, memory_limit=max(1, weights * 2 // 3))
    best = least(graph, problem)
    plan = solved(graph, problem, "cp-sat")
    assert (plan.excess == 0) == np.isfinite(best)
    if np.isfinite(best):
        assert plan.value == pytest.approx(best, abs=1e-9)
        assert solved(graph, problem, "anneal-load").excess == 0


@pytest.mark.parametrize("method", SEARCHES)
def test_larger_graphs(method: str) -> None:
    """Never worse than equal stages, and reproducible where no time limit ends it."""
    graph, problem = instance(4, 60)
    plan = solved(graph, problem, method, seconds=1.0 if method in ("auto", "cp-sat") else 60.0)
    if method != "greedy-load":
        assert plan.value <= solved(graph, problem, "equal-stages").value
    if method not in ("auto", "cp-sat"):
        assert dict(solved(graph, problem, method).placement) == dict(plan.placement)


def test_annealing_parts_what_is_contiguous() -> None:
    """a -> b -> c -> d of 3, 1, 1 and 3 s, without transfer costs: each contiguous split has 4 s or more on two
    devices, as has any placement. With e (2 s, isolated) 5 s is the least, which a, e | b, c, d and others reach.
    """
    ops = []
    for index, seconds in enumerate([3.0, 1.0, 1.0, 3.0]):
        inputs = (f"t{index - 1}",) if index else ()
        ops.append(Op(f"op{index}", runtime=seconds, inputs=inputs, outputs=(Tensor(f"t{index}"),)))
    graph = ComputationGraph("chain", (*ops, Op("e", runtime=2.0)))
    assert solved(graph, Problem("max_load", 2), "anneal-load").value == 5.0


def test_a_hint_is_a_start() -> None:
    graph, problem = instance(4, 40)
    best = solved(graph, problem, "anneal-load", 20_000)
    for name in ("anneal-load", "stage-dp", "cp-sat"):
        plan = find_solver(name)(Task(graph, problem, Budget(2)), hint=best)
        assert plan.value <= best.value


def test_devices_without_accelerators() -> None:
    graph = ComputationGraph("cpus", tuple(Op(f"op{i}", pipelined=Pipelined(2.0, cpu_only=True)) for i in range(5)))
    problem = Problem("max_load", 2, cpus=2)
    for method in SEARCHES:
        assert solved(graph, problem, method).value == 6.0


def test_no_time_at_all() -> None:
    graph = ComputationGraph("idle", (Op("a", outputs=(Tensor("t"),)), Op("b", inputs=("t",))))
    for method in SEARCHES:
        assert solved(graph, Problem("max_load", 2), method).value == 0.0


def split_file(folder: Path, value: object) -> str:
    path = folder / "split.json"
    path.write_text(json.dumps(value))
    return str(path)


def test_an_experts_split_of_the_forward_pass(tmp_path: Path) -> None:
    graph = partitioning_graph(TRAINING, "training.json")
    file = split_file(tmp_path, {"cpus": [{"nodes": []}], "fpgas": [{"nodes": [1]}, {"nodes": [2], "load": -1}]})
    plan = solved(graph, Problem("max_load", 3, cpus=1), f"split:file={file}")
    assert list(plan.placement.values()) == [0, 1, 0, 1]
    assert plan.value == pytest.approx(0.013)
    assert plan.evaluations == 1


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"fpgas": []}, "not a split: it has no list 'cpus'"),
        ({"cpus": [], "fpgas": [{"nodes": ["1"]}]}, "fpgas[0] has no list 'nodes' of ids"),
        ({"cpus": [], "fpgas": [{"nodes": [1]}, {"nodes": [1]}]}, "node 1 is on two devices"),
        ({"cpus": [], "fpgas": [{"nodes": [1, 9]}]}, "the split has node 9: 'training' has no such op"),
        ({"cpus": [], "fpgas": [{"nodes": [1]}]}, "places neither op '2:node2'"),
        ({"cpus": [{"nodes": [1]}], "fpgas": []}, "places node 1 on cpus[0]: the problem has 0 of them"),
    ],
)
def test_splits_that_are_refused(tmp_path: Path, split: dict[str, Any], message: str) -> None:
    graph = partitioning_graph(TRAINING, "training.json")
    with pytest.raises(ProblemError) as fault:
        solved(graph, Problem("max_load", 2), f"split:file={split_file(tmp_path, split)}")
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)
