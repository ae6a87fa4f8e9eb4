"""Searches for memory maps: valid answers within the budget, the same for the same seed, and their quality."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from map_problems import WORKED_CHIP, WORKED_GRAPH, problems

from graphrl.costs.maps import exact
from graphrl.costs.maps.chip import NNP_I, ChipMemory, MemoryChip
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.methods import MAP_METHODS, find_map_solver
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Budget, Interrupted
from graphrl.solvers.maps.task import MapTask

SEARCHES = [name for name in MAP_METHODS if name not in ("cp-sat", "egrl", "egrl-policy", "ppo")]  # test_egrl.py


def solved(method: str, problem: MapProblem, budget: Budget, seed: int = 0) -> MemoryMap:
    """The method's map, checked."""
    memory_map = find_map_solver(method)(MapTask(problem, budget, seed))
    memory_map.check(problem.graph)
    assert budget.evaluations is None or memory_map.evaluations <= budget.evaluations
    assert memory_map.method == method.partition(":")[0]
    return memory_map


def best_of_all(problem: MapProblem) -> float:
    """The least latency of all maps, by enumeration."""
    n, m = problem.steps, problem.memories
    places = np.flatnonzero(np.concatenate([problem.has_weights, problem.has_outputs]))
    row = np.zeros(2 * n, np.int64)
    latencies = []
    for choice in itertools.product(range(m), repeat=len(places)):
        row[places] = choice
        latencies.append(exact.evaluate(problem, *np.split(row, 2)).latency)
    return min(latencies)


@settings(max_examples=25)
@given(st.data())
def test_cp_sat_is_the_best_of_all(data: st.DataObject) -> None:
    problem = data.draw(problems(max_ops=4))
    if problem.memories ** int(problem.has_weights.sum() + problem.has_outputs.sum()) > 1000:
        return
    memory_map = solved("cp-sat:workers=1", problem, Budget(seconds=10.0))
    best = best_of_all(problem)
    assert memory_map.latency == pytest.approx(best, rel=2e-5)
    if memory_map.bound is not None:
        assert memory_map.bound <= best * (1 + 1e-9)
    for method in SEARCHES:
        assert solved(method, problem, Budget(50)).latency >= best * (1 - 1e-12)


@pytest.mark.parametrize("method", SEARCHES)
def test_answers_are_valid_within_the_budget_and_repeat(method: str) -> None:
    problem = map_problem(WORKLOADS["resnet50"](), NNP_I)
    solved(method, problem, Budget(1))
    first, second = (solved(method, problem, Budget(300), seed=3) for _ in range(2))
    assert (first.weights, first.outputs, first.evaluations) == (second.weights, second.outputs, second.evaluations)


@pytest.mark.parametrize(
    ("method", "least", "most"),
    [
        ("all-slowest", 987, 988),
        ("compiler", 313.5, 314),
        ("benefit", 300, 314),
        ("greedy-dp", 310, 314),
        ("random", 330, 390),
        ("local-search", 284, 306),
        ("anneal", 284, 301),
        ("brkga", 284, 310),
        ("auto", 284, 301),
    ],
)
def test_resnet50_in_the_papers_budget(method: str, least: float, most: float) -> None:
    latency = solved(method, map_problem(WORKLOADS["resnet50"](), NNP_I), Budget(4_000)).latency
    assert least <= latency * 1e6 <= most


def test_cp_sat_counts_more_bytes_than_fit_its_integers() -> None:
    ops = (
        Op("a", outputs=(Tensor("a0", 4),)),
        Op("b", inputs=("a0",), outputs=(Tensor("b0", 2),), weight_bytes=2**62 - 3),
        Op("c", inputs=("b0",), outputs=(Tensor("c0", 2**62 - 9),), weight_bytes=1),
    )
    graph = ComputationGraph("huge", ops)
    for capacity in (0, 8, 2**61, 2**62):
        memories = ChipMemory("big", None, 1, 1), ChipMemory("small", capacity, 4, 4)
        problem = map_problem(graph, MemoryChip("worked", 1.0, memories, page=1))
        memory_map = solved("cp-sat:workers=1", problem, Budget(seconds=4.0))
        best = best_of_all(problem)
        assert memory_map.latency == pytest.approx(best, rel=2e-5)
        assert memory_map.bound is None or memory_map.bound <= best * (1 + 1e-9)


def test_cp_sat_proves_a_bound_below_every_map() -> None:
    problem = map_problem(WORKLOADS["resnet50"](), NNP_I)
    memory_map = solved("cp-sat", problem, Budget(seconds=4.0))
    assert memory_map.bound is not None
    assert 150 < memory_map.bound * 1e6 <= 283.45
    assert memory_map.latency >= memory_map.bound


@pytest.mark.parametrize("method", ["auto", "cp-sat"])
def test_memories_may_differ_by_any_factor(method: str) -> None:
    flash = ChipMemory("flash", None, 8e7, 1e-9)  # usable for reading only
    chip = MemoryChip("micro", 1e9, (flash, ChipMemory("sram", 26_214_400, 2e9, 2e9)))
    memory_map = solved(method, map_problem(WORKLOADS["resnet50"](), chip), Budget(seconds=2.0))
    assert memory_map.bound is not None
    assert memory_map.bound <= memory_map.latency <= memory_map.compiler_latency


@pytest.mark.parametrize("method", ["anneal", "local-search:patience=100000000", "random", "brkga", "auto"])
def test_seconds_end_a_search(method: str) -> None:
    memory_map = solved(method, map_problem(WORKED_GRAPH, WORKED_CHIP), Budget(seconds=0.2))
    assert memory_map.seconds < 2.0
    assert memory_map.latency == best_of_all(map_problem(WORKED_GRAPH, WORKED_CHIP))


def test_ctrl_c_gives_the_best_so_far() -> None:
    def stop(evaluations: int, seconds: float, best: object, value: float) -> None:
        raise KeyboardInterrupt

    task = MapTask(map_problem(WORKLOADS["bert"](), NNP_I), Budget(seconds=30.0), 0, stop)
    with pytest.raises(Interrupted) as stopped:
        find_map_solver("random")(task)
    stopped.value.plan.check(task.problem.graph)


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("egg", "unknown method 'egg': the nearest of 13 known are egrl"),
        ("brkga:population=1", "elites must be from 1"),
        ("anneal:cold=1", "cold at most hot"),
        ("local-search:patience=0", "patience is 0: must be at least 1"),
        ("cp-sat:gap=2", "gap is 2.0: must be from 0 to below 1"),
        ("random:width=3", "method 'random' has no option 'width'"),
    ],
)
def test_wrong_methods_and_options_are_refused(method: str, fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        find_map_solver(method)(MapTask(map_problem(WORKED_GRAPH, WORKED_CHIP), Budget(10)))
