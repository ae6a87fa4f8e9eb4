"""Approximate dynamic programming ("approximate-dp"): exact where nothing is cut, within its budget, and its parts."""

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from optima import optimum
from search_graphs import random_dag

from graphrl.costs.bounds import lower_bound
from graphrl.costs.exact import evaluate
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.known_optima import KnownPeak, in_tree, out_tree, series_parallel
from graphrl.graphs.datasets.layered import Layered, layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.approximate_dp import program
from graphrl.solvers.orders.approximate_dp.model import LAST, Keys
from graphrl.solvers.orders.approximate_dp.program import least_of_equals
from graphrl.solvers.orders.approximate_dp.solver import solve
from graphrl.solvers.orders.dfs_dp import solve as exact
from graphrl.solvers.rules.memory_orders import greedy

ONE = Problem()
ANY = Budget(evaluations=2**31 - 1)


def least_peak(graph: ComputationGraph) -> float:
    """The least peak over all orders."""
    return exact(Task(graph, ONE, Budget(seconds=60), 0)).value


def scaled(graph: ComputationGraph, by: int) -> ComputationGraph:
    """The graph with all bytes multiplied."""

    def op(op: Op) -> Op:
        outputs = tuple(dataclasses.replace(t, bytes=t.bytes * by) for t in op.outputs)
        return dataclasses.replace(op, outputs=outputs, workspace_bytes=op.workspace_bytes * by)

    return dataclasses.replace(graph, ops=tuple(map(op, graph.ops)))


@given(st.data(), st.sampled_from(["random", "live"]), st.booleans())
@settings(max_examples=40)
def test_is_optimal_where_nothing_is_cut(data: st.DataObject, tie: str, weights: bool) -> None:
    graph = data.draw(random_graphs.graphs(max_ops=7))
    problem = Problem(resident_weights=weights)
    plan = solve(Task(graph, problem, ANY, 0), width=256, tie=tie)
    plan.check(graph)
    resident = int(graph.arrays.weight_bytes.sum()) if weights else 0
    best = int(optimum(graph, ONE)) + resident
    assert plan.bound is not None
    assert lower_bound(graph, problem) <= plan.value
    a = graph.arrays
    takes = np.flatnonzero(a.reuses >= 0)
    if all(a.tensor_bytes[takes] == np.array(Flow(graph).size)[[Flow(graph).reuses[t] for t in takes.tolist()]]):
        assert plan.value == plan.bound == best
    else:
        assert plan.bound <= best <= plan.value


@pytest.mark.parametrize(("rank", "tie"), [("peak", "random"), ("peak", "live"), ("live", "random")])
def test_agrees_with_dynamic_programming_over_sets(rank: str, tie: str) -> None:
    for seed in range(8):
        graph = random_dag(seed, 14)
        plan = solve(Task(graph, ONE, ANY, seed), width=256, rank=rank, tie=tie)
        assert plan.value == plan.bound == least_peak(graph)


def test_sizes_that_do_not_fit_in_32_bits() -> None:
    graph = random_dag(3, 14)
    larger = scaled(graph, 2**40 + 1)  # a common divisor
    assert solve(Task(larger, ONE, ANY, 0), width=256).value == least_peak(larger)
    first, *others = scaled(graph, 10**12).ops
    rounded = dataclasses.replace(graph, ops=(dataclasses.replace(first, workspace_bytes=1), *others))
    plan = solve(Task(rounded, ONE, ANY, 0), width=256)
    best = least_peak(rounded)
    assert plan.bound is not None
    assert best * (1 - 1e-7) <= plan.bound <= best <= plan.value <= best * (1 + 1e-7)


@pytest.mark.parametrize("family", [in_tree, out_tree, series_parallel])
def test_known_optima(family: Callable[[int, int], KnownPeak]) -> None:
    for seed in range(3):
        tree = family(16, seed)
        plan = solve(Task(tree.graph, ONE, ANY, seed), width=256)
        assert plan.value == tree.peak
        assert plan.bound in (None, tree.peak)


def test_hub_with_many_readers_and_many_inputs() -> None:
    """Counters of 40 need six bits; all leaves are live together."""
    leaves = [Op(f"leaf{i}", inputs=("hub",), outputs=(Tensor(f"t{i}", 3),)) for i in range(40)]
    ops = (Op("hub", outputs=(Tensor("hub", 5),)), *leaves, Op("sum", inputs=tuple(f"t{i}" for i in range(40))))
    assert solve(Task(ComputationGraph("hub", ops), ONE, ANY, 0), width=8).value == 5 + 40 * 3


def test_says_that_it_is_optimal_only_if_it_is() -> None:
    for seed in range(20):
        graph = random_dag(seed, 14)
        plan = solve(Task(graph, ONE, ANY, seed), width=8)
        plan.check(graph)
        best = least_peak(graph)
        assert plan.value >= best
        assert plan.bound is None or plan.bound == plan.value == best


def test_wider_beams_are_better_on_the_mean() -> None:
    graphs = [layered(100, seed, Layered(cost_per="node", parameter_cost=False)) for seed in range(4)]
    narrow, wide = (
        np.mean([solve(Task(graph, ONE, ANY, 0), width=width).value for graph in graphs]) for width in (2, 64)
    )
    assert narrow > wide
    first, other = (solve(Task(graphs[0], ONE, ANY, seed), width=64).order for seed in (1, 2))
    assert first != other


# It keeps limits of time, evaluations and memory, and it may be stopped


def test_keeps_to_the_time_and_always_has_a_plan() -> None:
    graph = layered(100, 0)
    solve(Task(graph, ONE, Budget(seconds=1e-3), 0), width=64)  # compiles
    started = time.perf_counter()
    plan = solve(Task(graph, ONE, Budget(seconds=1e-3), 0), width=64)
    assert time.perf_counter() - started < 1
    plan.check(graph)
    assert plan.bound is None


def test_evaluations_limit_the_width() -> None:
    graph = layered(100, 0)
    plan = solve(Task(graph, ONE, Budget(evaluations=64), 0))
    assert plan.evaluations == 64
    assert plan.order == solve(Task(graph, ONE, ANY, 0), width=64).order


def test_evaluations_limit_all_beams_together() -> None:
    graph = layered(100, 0)  # small: a beam of 256 comes first
    plan = solve(Task(graph, ONE, Budget(evaluations=600), 0))
    assert 256 < plan.evaluations <= 600


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports after every step."""
    for module in ("base", "orders.approximate_dp.solver"):
        monkeypatch.setattr(f"graphrl.solvers.{module}.REPORT_SECONDS", 0.0)


@pytest.mark.usefixtures("talkative")
def test_interrupted_it_has_a_plan() -> None:
    def stop(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        if evaluations >= 32:
            raise KeyboardInterrupt

    graph = layered(100, 0)
    with pytest.raises(Interrupted) as caught:
        solve(Task(graph, ONE, ANY, 0, stop), width=64)
    caught.value.plan.check(graph)


@pytest.mark.usefixtures("talkative")
def test_progress_shows_plans_and_changes_nothing() -> None:
    graph, seen = layered(100, 0), list[Plan]()
    plan = solve(Task(graph, ONE, ANY, 0, lambda evaluations, seconds, plan, value: seen.append(plan())), width=64)
    assert len(seen) > 90
    seen[0].check(graph)
    assert plan.order == solve(Task(graph, ONE, ANY, 0), width=64).order


def test_what_does_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrl.solvers.orders.approximate_dp.solver._memory_bytes", lambda: 2**30)
    with pytest.raises(ProblemError, match=r"width must be at most (\d+)") as caught:
        solve(Task(layered(500, 0), ONE, ANY, 0), width=2**20)
    fits = int(str(caught.value).split()[-1])
    assert 10_000 < fits < 2**20


def test_graphs_of_a_bucket_share_a_program() -> None:
    solve(Task(random_dag(0, 14), ONE, ANY, 0), width=8)
    programs = program.advance._cache_size()  # type: ignore[attr-defined]
    for ops in (3, 20, 32):
        solve(Task(random_dag(1, ops), ONE, ANY, 0), width=8)
    assert program.advance._cache_size() == programs  # type: ignore[attr-defined]


# Parts: greedy ends, equal sets, thresholds, units


def test_greedy_goes_on_from_any_start() -> None:
    flow = Flow(layered(60, 0))
    whole = greedy(flow)
    assert all(greedy(flow, whole[:k]) == whole for k in (0, 1, 59, 60))
    for seed in range(20):
        start = np.random.default_rng(seed).integers(1, 60)
        order = greedy(flow, flow.topological[:start])
        assert order[:start] == flow.topological[:start]
        evaluate(flow.graph, ONE, np.zeros(60, np.int64), np.array(order))  # checks that the order is valid


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans()), min_size=1, max_size=60))
def test_equal_sets_become_one(candidates: list[tuple[int, int, bool]]) -> None:
    names, peak, real = (np.array(column) for column in zip(*candidates, strict=True))
    size = 60 - len(names)  # one shape: one program
    hashes = np.random.default_rng(0).integers(0, 2**32, (2, 5), dtype=np.uint32)[:, np.pad(names, (0, size))]
    kept = np.asarray(
        jax.jit(least_of_equals)(
            jnp.asarray(hashes), jnp.asarray(np.pad(peak, (0, size)), jnp.int32), jnp.asarray(np.pad(real, (0, size)))
        )
    )[: len(names)]
    assert all(real[kept])
    assert sorted(names[kept].tolist()) == sorted(set(names[real].tolist()))
    assert all(peak[i] == min(peak[(names == names[i]) & real]) for i in np.flatnonzero(kept))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=40, max_size=40), st.integers(1, 45))
def test_the_threshold_is_the_first_with_enough_before_it(keys: list[tuple[int, int]], goal: int) -> None:
    first, second = np.array(keys).T
    threshold = jax.jit(program.threshold_after)(
        Keys(jnp.int32(first), jnp.uint32(second), jnp.int32(first)), jnp.int32(goal)
    )
    place = int(threshold.first), int(threshold.second)
    assert place == (sorted(keys)[goal - 1] if goal <= 40 else (LAST - 1, 2**32 - 1))
