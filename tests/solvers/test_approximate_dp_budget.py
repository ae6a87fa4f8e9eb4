"""Approximate dynamic programming ("approximate-dp"): time, evaluations, memory are kept to, and it may be stopped."""

import time
from collections.abc import Callable

import pytest
from approximate_dp_tasks import ANY, ONE
from search_graphs import random_dag

from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.approximate_dp import program
from graphrl.solvers.orders.approximate_dp.solver import solve
from graphrl.solvers.rules.memory_orders import greedy


@pytest.mark.parametrize("rank", ["peak", "live"])
def test_keeps_to_the_time_and_always_has_a_plan(rank: str) -> None:
    graph = layered(100, 0)
    solve(Task(graph, ONE, Budget(seconds=1e-3), 0), width=64, rank=rank)  # compiles
    began = time.perf_counter()
    plan = solve(Task(graph, ONE, Budget(seconds=1e-3), 0), width=64, rank=rank)
    assert time.perf_counter() - began < 1
    plan.check(graph)
    assert plan.bound is None


def test_evaluations_limit_the_width() -> None:
    graph = layered(100, 0)
    plan = solve(Task(graph, ONE, Budget(evaluations=64), 0))
    assert plan.evaluations == 64
    assert plan.order == solve(Task(graph, ONE, ANY, 0), width=64).order


@pytest.mark.parametrize("rank", ["peak", "live"])
def test_evaluations_limit_all_beams_together(rank: str) -> None:
    graph = layered(100, 0)  # small: a beam of 256 comes first
    plan = solve(Task(graph, ONE, Budget(evaluations=600), 0), rank=rank)
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
def test_interrupted_while_the_greedy_rule_ends_it_it_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layered(100, 0)
    module = "graphrl.solvers.orders.approximate_dp.solver.greedy"

    def stop(flow: Flow, order: list[int]) -> list[int]:
        monkeypatch.setattr(module, greedy)
        raise KeyboardInterrupt

    def time_is_over(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        if evaluations >= 32:
            task.end = 0.0
            monkeypatch.setattr(module, stop)

    task = Task(graph, ONE, ANY, 0, time_is_over)
    with pytest.raises(Interrupted) as caught:
        solve(task, width=64)
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
