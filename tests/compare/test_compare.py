"""Comparisons: runs, rows, and faults of methods."""

import dataclasses
import json
import sys

import jax
import jax.monitoring
import pytest
from comparison_rows import json_lines
from comparison_runs import chain, diamond, replace_solver, runs_of
from hypothesis import given, settings
from random_graphs import graphs as any_graphs

from graphrl.compare import runs
from graphrl.compare.comparison import compare
from graphrl.compare.runs import Executor, Row, fingerprint, make_runs
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph
from graphrl.plan import Plan
from graphrl.process import near_mmap_limit
from graphrl.progress import compile_clock
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.rules.simple import solve_given


def test_a_row_says_what_the_plan_costs() -> None:
    (row,) = (Executor().execute(run) for run in runs_of("given", graphs=(diamond(),)))
    assert (row.value, row.makespan, row.peak_memory, row.excess, row.error) == (14, 7.0, (14,), 0, None)
    assert row.bound is not None
    assert row.bound <= 12
    assert (row.graph, row.ops, row.seed, row.evaluations) == ("diamond", 4, 0, 1)
    assert [point[1:] for point in row.curve] == [(1, 14), (1, 14)][-len(row.curve) :]
    assert row.curve[-1][0] == row.seconds > 0
    assert row.date.startswith("20")


@settings(max_examples=20)
@given(graph=any_graphs())
def test_rows_survive_the_file(graph: ComputationGraph) -> None:
    runs = make_runs([graph], Problem("makespan", 2, "link", 0.5, 4.0), ["list"], [3], Budget(7, 1.5), cores=2)
    (row,) = (dataclasses.replace(Executor().execute(run), note="é") for run in runs)
    assert Row.from_dict(json.loads(json_lines([row]))) == row


def test_equal_content_is_one_graph() -> None:
    assert fingerprint(diamond("x")) == fingerprint(diamond("y")) != fingerprint(diamond(runtime=2.5))
    assert len(make_runs([diamond("x"), diamond("y")], Problem(), ["list"], [0], Budget(1), cores=1)) == 1


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"seed": 1}, True),
        ({"method": "given"}, True),
        ({"problem": Problem(resident_weights=True)}, True),
        ({"budget": Budget(51)}, True),
        ({"budget": Budget(50, 1.0)}, True),
        ({"graph": chain(2), "fingerprint": fingerprint(chain(2))}, True),
        ({"cores": 2}, False),
        ({"warm_up": False}, False),
        ({"cores": 2, "budget": Budget(None, 1.0)}, True),
        ({"trained": "0123456789abcdef"}, True),
        ({"sizes": None}, False),
    ],
)
def test_the_key_holds_every_setting(change: dict, differs: bool) -> None:
    (run,) = runs_of("list", graphs=(diamond(),))
    if change.get("budget") == Budget(None, 1.0):
        run = dataclasses.replace(run, budget=Budget(None, 1.0))
    assert (dataclasses.replace(run, **change).key != run.key) is differs


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ProblemError("devices must be 1"), "devices must be 1"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("RESOURCE_EXHAUSTED:\nout of memory"), "RuntimeError: RESOURCE_EXHAUSTED: out of memory"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
    ],
)
def test_a_fault_of_a_method_is_a_row(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    def fail(task: Task) -> Plan:
        if task.graph.name == "diamond":
            raise error
        return solve_given(task)

    replace_solver(monkeypatch, fail)
    comparison = compare(runs_of("list"))
    assert [row.error for row in comparison.rows] == [text, None]
    assert [row.value for row in comparison.rows] == [None, 2]


@pytest.mark.parametrize(
    ("lie", "fault"),
    [({"value": 1, "peak_memory": (1,)}, "stated as 1 bytes: it is 14"), ({"bound": 15}, "below the lower bound 15")],
)
def test_a_wrong_plan_is_an_error(monkeypatch: pytest.MonkeyPatch, lie: dict, fault: str) -> None:
    replace_solver(monkeypatch, lambda task: dataclasses.replace(solve_given(task), **lie))
    (row, _) = compare(runs_of("given")).rows
    assert fault in (row.error or "")


def test_the_warm_up_is_short_and_once_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[float | None] = []

    def solve(task: Task) -> Plan:
        budgets.append(task.budget.seconds)
        return solve_given(task)

    replace_solver(monkeypatch, solve)
    compare(runs_of("list", seeds=2, seconds=30))
    assert budgets == [1.0, 30, 30, 30, 30]  # 4 and 5 ops have one padded size
    budgets.clear()
    problems = [Problem("makespan", 2, "link", latency, memory_limit=limit) for latency, limit in ((0, 50), (1, 60))]
    compare([dataclasses.replace(run, problem=problem) for run in runs_of("list", seconds=30) for problem in problems])
    assert budgets == [1.0, 30, 30, 30, 30]  # limits are arguments of one program, compiled in the first run
    budgets.clear()
    compare(runs_of("list", seeds=2))
    assert budgets == [None] * 4
    compare([dataclasses.replace(run, warm_up=False) for run in runs_of("list", seconds=0.5)])
    assert budgets[4:] == [0.5, 0.5]


def test_compile_time_counts_once() -> None:
    with compile_clock() as seconds:
        assert seconds() == 0
        for start, end in ((5, 6), (0, 3), (1, 2)):
            jax.monitoring.record_event_time_span("/jax/core/compile/backend_compile_duration", start, end)
        assert seconds() == 4
        jax.monitoring.record_event_time_span("/jax/core/compile/backend_compile_duration", 2.5, 4)
        jax.monitoring.record_event_time_span("/jax/other", 10, 20)
        assert seconds() == 5
    jax.monitoring.record_event_time_span("/jax/core/compile/backend_compile_duration", 7, 8)
    assert seconds() == 5


def test_compiling_is_seen() -> None:
    # an unusual number of ops, so that no other test has compiled it in this process
    graph = chain(37)
    cold, warm = compare(make_runs([graph], Problem(), ["random"], [0, 1], Budget(80), cores=1)).rows
    assert 0 < cold.compile_seconds < cold.seconds
    assert warm.compile_seconds < 0.1 * cold.compile_seconds
    assert [point[2] for point in warm.curve] == sorted([point[2] for point in warm.curve], reverse=True)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_programs_are_dropped_near_the_limit_of_memory_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert near_mmap_limit(share=1e-6)
    assert not near_mmap_limit(share=1.0)
    dropped: list[bool] = []
    monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(True))
    (run,) = runs_of("list", graphs=(diamond(),))
    for is_near in (False, True):
        monkeypatch.setattr(runs, "near_mmap_limit", lambda is_near=is_near: is_near)
        assert Executor().execute(run).value is not None
        assert bool(dropped) == is_near
