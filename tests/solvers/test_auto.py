"""The default method: never worse than its parts, within its budget, and stopped without losing its plan."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from optima import optimum
from search_graphs import tangle
from worked_example import TINY

import graphrl
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.families import sample
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.plan import Plan
from graphrl.solvers.auto import candidates
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.portfolio import Portfolio, Stage
from graphrl.solvers.rules.list_scheduling import etf
from graphrl.solvers.solver import Solver

GOOD = Plan.from_order(TINY, Problem(), [0] * 4, [0, 2, 1, 3], method="b", seconds=1, evaluations=9, seed=0)
BAD = Plan.from_order(TINY, Problem(), [0] * 4, [0, 1, 2, 3], method="b", seconds=0, evaluations=1, seed=0)


@pytest.mark.parametrize("objective", ["peak_memory", "makespan"])
@pytest.mark.parametrize("evaluations", [1, 500])
def test_auto_is_never_worse_than_list(objective: Any, evaluations: int) -> None:
    options: dict[str, Any] = {"objective": objective, "devices": 2, "latency": 0.5, "evaluations": evaluations}
    auto, plain = (graphrl.optimize(tangle(30), method=method, **options) for method in ("auto", "list"))
    assert auto.value <= plain.value
    assert auto.evaluations <= evaluations


def test_auto_is_never_worse_than_list_on_fewer_devices() -> None:
    options: dict[str, Any] = {"objective": "makespan", "latency": 2.0, "transfer": "link"}
    auto = graphrl.optimize(tangle(30), devices=4, evaluations=4, **options)
    assert auto.evaluations <= 4
    for devices in (1, 2, 4):
        assert auto.value <= graphrl.optimize(tangle(30), devices=devices, method="list", **options).value


@pytest.mark.parametrize(("seconds", "is_tried"), [(1.0, True), (0.01, False)])
def test_etf_is_tried_where_it_is_quick_for_the_time(seconds: float, is_tried: bool) -> None:
    graph, problem = layered(700, 1), Problem("makespan", 8, "link", 0.1, 1000.0)
    placement, order = etf(graph, problem)
    plans = candidates(graph, problem, Budget(seconds=seconds))
    assert any((each[0] == placement).all() and list(each[1]) == list(order) for each in plans) == is_tried


@pytest.mark.parametrize(("runtimes", "optimum"), [([1, 1, 1, 1], 2), ([1, 1, 1], 2), ([2, 2, 2], 4)])
def test_auto_stops_at_an_optimum(runtimes: list[float], optimum: float) -> None:
    """Stops at the bound, at the next whole number, and where CP-SAT proves an optimum above it; list search would
    continue.
    """
    graph = ComputationGraph("apart", tuple(Op(f"op{i}", runtime=seconds) for i, seconds in enumerate(runtimes)))
    plan = graphrl.optimize(graph, objective="makespan", devices=2, transfer="free", seconds=60)
    assert plan.value == plan.bound == optimum
    assert plan.seconds < 20


@pytest.mark.parametrize("family", ["in-tree", "out-tree", "series-parallel"])
def test_known_peaks_are_found_and_proved(family: str) -> None:
    graph, facts = sample(family, 200, 0)
    plan = graphrl.optimize(graph, seconds=60)
    assert plan.value == plan.bound == facts["optimal_peak_memory"]
    assert plan.seconds < 30


@pytest.mark.parametrize("seed", [0, 1, 12])
def test_small_graphs_are_solved_exactly(seed: int) -> None:
    graph = layered(10 + seed % 16, seed)
    plan = graphrl.optimize(graph, seconds=30)
    assert plan.value == plan.bound  # proved
    if len(graph.ops) <= 12:
        assert plan.value == optimum(graph, Problem())


@pytest.mark.parametrize("transfer", ["free", "rendezvous", "link"])
def test_a_budget_in_seconds_finds_optimal_makespans(transfer: Any) -> None:
    problem: dict[str, Any] = {"objective": "makespan", "devices": 2, "transfer": transfer, "latency": 0.5}
    plan = graphrl.optimize(TINY, seconds=20, **problem)
    assert plan.value == optimum(TINY, Problem(**problem))
    assert plan.bound == plan.value  # CP-SAT proves it
    assert plan.seconds < 15


# Stages


def staged(*stages: Stage | Callable[..., Plan], bound: float | None = None) -> Plan:
    """The plan of a portfolio of TINY with a bad plan and these stages."""
    named = [each if isinstance(each, Stage) else Stage(Solver(f"stage{i}", "", each)) for i, each in enumerate(stages)]

    def search(task: Task) -> Plan:
        portfolio = Portfolio(task, bound)
        portfolio.add([BAD.decisions(TINY)])
        return portfolio.run(named)

    return Solver("auto", "", search)(Task(TINY, Problem(), Budget(100)))


def good(task: Task) -> Plan:
    return GOOD


def test_stages_share_the_budget_and_start_from_the_best() -> None:
    seen: list[Any] = []

    def look(task: Task, *, starts: Any = ()) -> Plan:
        seen.append((task.budget.evaluations, [plan.decisions(TINY)[1].tolist() for plan in starts]))
        return GOOD

    solver = Solver("look", "", look)
    plan = staged(Stage(solver, 0.5), Stage(solver, options=lambda plans: {"starts": plans}))
    assert seen == [(49, []), (90, [[0, 2, 1, 3], [0, 1, 2, 3]])]
    assert (plan.value, plan.method, plan.evaluations) == (12, "auto", 19)


def test_ctrl_c_in_a_stage_gives_the_best_so_far() -> None:
    def stopped(task: Task) -> Plan:
        raise Interrupted(GOOD)

    with pytest.raises(Interrupted) as caught:
        staged(stopped)
    plan = caught.value.plan
    assert (plan.value, plan.method, plan.evaluations) == (12, "auto", 10)


def test_ctrl_c_before_a_stage_has_a_plan_gives_the_plain_one() -> None:
    def stopped(task: Task) -> Plan:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        staged(stopped)
    assert caught.value.plan.value == BAD.value


def test_ctrl_c_before_there_is_any_plan_passes() -> None:
    def stopped(task: Task) -> Plan:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        Solver("stopped", "", stopped)(Task(TINY, Problem(), Budget(100)))
    assert not isinstance(caught.value, Interrupted)


def test_a_stage_is_ended_by_its_progress_at_the_bound() -> None:
    def solve(task: Task) -> Plan:
        task.best = lambda: GOOD
        task.report(9, 12.0, force=True)
        raise AssertionError("the search went on")

    plan = staged(solve, bound=12.0)
    assert (plan.value, plan.evaluations) == (12, 10)


def test_a_stage_that_cannot_take_the_problem_is_skipped() -> None:
    def refuse(task: Task) -> Plan:
        raise ProblemError("no")

    assert staged(refuse, good).value == 12


def test_a_stage_that_fails_warns_and_the_best_plan_is_kept() -> None:
    def fail(task: Task) -> Plan:
        raise RuntimeError("out of\nmemory")

    with pytest.warns(UserWarning, match=r"stage0 could not run \(out of memory\): the best plan so far is kept"):
        assert staged(fail).value == BAD.value


def test_a_proof_ends_it() -> None:
    def prove(task: Task) -> Plan:
        return dataclasses.replace(GOOD, bound=12.0)

    def never(task: Task) -> Plan:
        raise AssertionError("not needed any more")

    plan = staged(prove, never)
    assert plan.value == plan.bound == 12
