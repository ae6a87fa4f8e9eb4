"""CP-SAT is exact: it equals exhaustive search under every transfer model, objective and memory limit."""

import dataclasses
import gc
import signal
import threading
import time

import numpy as np
import pytest
from device_graphs import random_graph
from optima import least_rank
from search_graphs import random_dag

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import PlanError, ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.exact import solver
from graphrl.solvers.exact.engine import Quanta, byte_unit
from graphrl.solvers.exact.solver import solve
from graphrl.solvers.rules.list_scheduling import schedule
from graphrl.solvers.rules.simple import given_order

pytest.importorskip("ortools")

ENOUGH = Budget(seconds=30)


def every_problem(rng: np.random.Generator) -> list[Problem]:
    """Every objective and transfer model, with and without a memory limit, on one random number of devices."""
    latency, bandwidth = float(rng.choice([0, 0, 0.5])), float(rng.choice([np.inf, 4.0]))
    common = Problem("peak_memory", int(rng.choice([1, 2, 2, 3])), "free", latency, bandwidth, None, rng.random() < 0.5)
    problems = [common]
    for limit in (None, int(rng.choice([5, 10, 15, 20, 30]))):
        changes = {"objective": "makespan", "memory_limit": limit}
        problems += [dataclasses.replace(common, transfer=t, **changes) for t in ("rendezvous", "free", "link")]  # type: ignore[arg-type]
    return problems


@pytest.mark.parametrize("part", range(2))
def test_equals_exhaustive_search(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if part % 2:  # only a poor plan is known, so that the models do all the work
        monkeypatch.setattr(solver, "schedule", given_order)
        monkeypatch.setattr(solver, "lower_bound", lambda graph, problem: 0.0)
    rng = np.random.default_rng(part)
    solved = 0
    while solved < 30:
        graph, problems = random_graph(rng, 5), every_problem(rng)
        for problem in problems if len(graph.ops) > 2 else ():
            reuses = (graph.arrays.reuses >= 0).any() and problem.devices > 1
            if reuses and (problem.objective == "peak_memory" or problem.memory_limit is not None):
                with pytest.raises(ProblemError, match="reuse an input's buffer on one device"):
                    solve(Task(graph, problem, ENOUGH, part))
                continue
            plan = solve(Task(graph, problem, ENOUGH, part))
            plan.check(graph)
            assert plan.rank == least_rank(graph, problem)
            assert plan.bound is not None
            assert plan.bound <= plan.value
            assert plan.excess or plan.bound == plan.value
            solved += 1


@pytest.mark.parametrize("transfer", ["free", "rendezvous", "link"])
def test_larger_graphs_are_never_worse_than_list_scheduling_and_the_bound_holds(transfer: str) -> None:
    graph = random_dag(3, 20)
    problem = Problem("makespan", 3, transfer, 0.3, 7.0)  # type: ignore[arg-type]  # no seconds that floats hold exactly
    plan = solve(Task(graph, problem, Budget(seconds=1), 0))
    plan.check(graph)
    assert plan.bound is not None
    assert lower_bound(graph, problem) <= plan.bound <= plan.value
    assert plan.value <= exact.evaluate(graph, problem, *schedule(graph, problem)).makespan


def test_a_hint_is_the_start_if_it_is_better_than_list_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, problem = random_dag(5, 16), Problem("makespan", 2, "rendezvous", 0.5)
    best = solve(Task(graph, problem, ENOUGH, 0))
    monkeypatch.setattr(solver, "schedule", given_order)
    placement, order = best.decisions(graph)
    tensor, device = np.divmod(order - len(graph.ops), 2)
    mirrored = np.where(order < len(graph.ops), order, len(graph.ops) + 2 * tensor + 1 - device)
    hint = Task(graph, problem, ENOUGH).plan(1 - placement, mirrored, evaluations=1)
    again = solve(Task(graph, problem, Budget(evaluations=1), 0), hint=hint)
    assert (again.value, again.evaluations) == (best.value, 1)
    assert solve(Task(graph, problem, ENOUGH, 0), hint=hint).bound == best.value
    with pytest.raises(PlanError):
        solve(Task(random_dag(5, 15), problem, ENOUGH, 0), hint=hint)


def test_time_and_evaluations_are_limits() -> None:
    graph, problem = random_dag(0, 40), Problem("makespan", 4, "rendezvous", 1.0)
    started = time.perf_counter()
    plan = solve(Task(graph, problem, Budget(seconds=0.5), 0))
    assert time.perf_counter() - started < 2.5
    assert plan.bound is not None
    assert plan.bound < plan.value
    plans = [solve(Task(graph, problem, Budget(evaluations=3), 1), workers=1) for _ in range(2)]
    assert [plan.evaluations for plan in plans] == [3, 3]
    assert plans[0].order == plans[1].order
    assert plans[0].value <= exact.evaluate(graph, problem, *schedule(graph, problem)).makespan


def test_progress_hears_of_the_best_plan_and_can_stop_the_search() -> None:
    class Enough(Exception):
        pass

    values: list[float] = []

    def progress(evaluations: int, seconds: float, plan, value: float) -> None:  # type: ignore[no-untyped-def]
        assert plan().value == value
        values.append(value)
        if len(values) == 3:
            raise Enough

    graph, problem = random_dag(0, 60), Problem("makespan", 4, "rendezvous", 1.0)
    with pytest.raises(Enough):
        solve(Task(graph, problem, ENOUGH, 0, progress))
    assert values == sorted(values, reverse=True)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_gives_the_best_plan_so_far() -> None:
    graph, problem = random_dag(0, 60), Problem("makespan", 4, "rendezvous", 1.0)
    timer = threading.Timer(0.7, signal.raise_signal, (signal.SIGINT,))
    gc.collect()
    gc.disable()  # hypothesis has a callback there, in which an interrupt would be lost
    try:
        timer.start()
        started = time.perf_counter()
        with pytest.raises(Interrupted) as stop:
            solve(Task(graph, problem, ENOUGH, 0))
        timer.join()
    finally:
        gc.enable()
    assert time.perf_counter() - started < 5
    plan: Plan = stop.value.plan
    plan.check(graph)
    assert plan.method == "cp-sat"


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(ProblemError, match="up to 5000 ops"):
        solve(Task(random_dag(0, 5001), Problem(), ENOUGH, 0))
    with pytest.raises(ProblemError, match="pairs of nodes"):
        solve(Task(random_dag(0, 400), Problem("makespan", 2, "free", memory_limit=9), ENOUGH, 0))


def test_quanta_are_exact_where_they_can_be_and_round_down_where_not() -> None:
    exact_ones = Quanta.of([1.5, 0.0, 2.25, 3.0])
    assert exact_ones.exact
    assert exact_ones.lengths == (2, 0, 3, 4)
    assert exact_ones.bound(9) == 6.75
    assert (exact_ones.at_least(6.75), exact_ones.at_least(6.76)) == (9, 10)
    thirds = Quanta.of([0.1, 1 / 3, 1e9 / 7])
    assert not thirds.exact
    assert all(thirds.bound(q) <= s for q, s in zip(thirds.lengths, [0.1, 1 / 3, 1e9 / 7], strict=True))
    assert thirds.bound(thirds.lengths[2]) > 1e9 / 7 * (1 - 1e-6)
    coarse = Quanta.of([0.1, 1 / 3, 0.0, 1.0], coarse=True)
    assert 3 * 2**5 <= sum(coarse.lengths) <= 3 * 2**8
    assert Quanta.of([1.5, 0.0, 2.25, 3.0], coarse=True) == exact_ones
    assert Quanta.of([5e-324, 1e-310, 1e30]).lengths[:2] == (0, 0)
    assert Quanta.of([5e-324, 1.5e-323], coarse=True).lengths == (1, 3)
    assert Quanta.of([0.0, 0.0]).lengths == (0, 0)
    assert byte_unit([0, 12, 20]) == 4
    assert byte_unit([0]) == 1
    with pytest.raises(ProblemError, match="2\\^50 units"):
        byte_unit([2**60, 1])
