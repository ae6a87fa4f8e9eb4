"""Comparisons: runs and their rows, the file that survives kills, and several processes."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dying_workers import die_of_diamonds
from hypothesis import given, settings
from random_graphs import graphs as any_graphs

import graphrl.compare.execute as execute_module
from graphrl.bench.machine import cores
from graphrl.commands.runs_bar import Forecast
from graphrl.compare.comparison import compare
from graphrl.compare.compiling import _covered
from graphrl.compare.execute import Executor
from graphrl.compare.pool import execute_all, share
from graphrl.compare.runs import Row, Run, fingerprint, make_runs
from graphrl.compare.store import json_lines, open_store, read_rows
from graphrl.compare.table import summarise
from graphrl.costs.problem import Problem
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.sets import generated, load_graphs
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.readers.json import write_json
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Progress
from graphrl.solvers.plain import solve_given

PACKAGE = Path(execute_module.__file__).parents[2]


def diamond(name: str = "diamond", runtime: float = 2.0) -> ComputationGraph:
    """The worked example of DESIGN.md 3: the best order peaks at 12 B, the given one at 14 B."""
    ops = (
        Op("a", runtime=1, outputs=(Tensor("a0", 4),)),
        Op("b", runtime=runtime, inputs=("a0",), outputs=(Tensor("b0", 3),)),
        Op("c", runtime=3, inputs=("a0",), outputs=(Tensor("c0", 5),), workspace_bytes=2),
        Op("d", runtime=1, inputs=("b0", "c0"), outputs=(Tensor("d0", 1),)),
    )
    return ComputationGraph(name, ops)


def chain(length: int) -> ComputationGraph:
    ops = [Op(f"o{i}", "", 1.0, (f"t{i - 1}",) if i else (), (Tensor(f"t{i}", 1),)) for i in range(length)]
    return ComputationGraph(f"chain{length}", tuple(ops))


def runs_of(*methods: str, seeds: int = 1, graphs: tuple[ComputationGraph, ...] = (), **options: object) -> list[Run]:
    budget = Budget(50) if not options.get("seconds") else Budget(None, options["seconds"])  # type: ignore[arg-type]
    problem = Problem(devices=1)
    return make_runs(graphs or (diamond(), chain(5)), problem, methods, range(seeds), budget, cores=1)


# Runs and rows


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


def replace_solver(
    monkeypatch: pytest.MonkeyPatch, solve: Callable[[ComputationGraph, Problem, Budget, int, Progress | None], Plan]
) -> None:
    monkeypatch.setattr(execute_module, "find_solver", lambda name: solve)


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
    def fail(graph: ComputationGraph, *_: object) -> Plan:
        if graph.name == "diamond":
            raise error
        return solve_given(graph, Problem(), Budget(1), 0)

    replace_solver(monkeypatch, fail)
    found = compare(runs_of("list"))
    assert [row.error for row in found.rows] == [text, None]
    assert [row.value for row in found.rows] == [None, 2]


def test_a_wrong_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(graph: ComputationGraph, problem: Problem, *_: object) -> Plan:
        return dataclasses.replace(solve_given(graph, problem, Budget(1), 0), value=1, peak_memory=(1,))

    replace_solver(monkeypatch, lie)
    (row, _) = compare(runs_of("given")).rows
    assert "stated as 1 bytes: it is 14" in (row.error or "")


def test_a_value_below_a_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def boast(graph: ComputationGraph, problem: Problem, *_: object) -> Plan:
        return dataclasses.replace(solve_given(graph, problem, Budget(1), 0), bound=15)

    replace_solver(monkeypatch, boast)
    (row, _) = compare(runs_of("given")).rows
    assert "below the lower bound 15" in (row.error or "")


def test_the_warm_up_is_short_and_once_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[float | None] = []

    def solve(graph: ComputationGraph, problem: Problem, budget: Budget, *_: object) -> Plan:
        budgets.append(budget.seconds)
        return solve_given(graph, problem, budget, 0)

    replace_solver(monkeypatch, solve)
    compare(runs_of("list", seeds=2, seconds=30))
    assert budgets == [1.0, 30, 30, 30, 30]  # 4 and 5 ops are of one padded size
    budgets.clear()
    compare(runs_of("list", seeds=2))
    assert budgets == [None] * 4
    compare([dataclasses.replace(run, warm_up=False) for run in runs_of("list", seconds=0.5)])
    assert budgets[4:] == [0.5, 0.5]


def test_compile_time_counts_once() -> None:
    assert _covered([(5, 6), (0, 3), (1, 2), (2.5, 4)]) == pytest.approx(5)
    assert _covered([]) == 0


def test_compiling_is_seen() -> None:
    # an odd number of ops of its own, so that no other test has compiled it in this process
    graph = chain(37)
    cold, warm = compare(make_runs([graph], Problem(), ["random"], [0, 1], Budget(80), cores=1)).rows
    assert 0 < cold.compile_seconds < cold.seconds
    assert warm.compile_seconds < 0.1 * cold.compile_seconds
    assert [point[2] for point in warm.curve] == sorted([point[2] for point in warm.curve], reverse=True)


# The file


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert compare(runs_of("given", seeds=2), path).made == 4
    again = compare(runs_of("list", "given", seeds=2), path)
    assert (again.made, len(again.rows), again.known) == (4, 8, [])
    assert [row.method for row in again.rows] == ["list", "list", "given", "given"] * 2
    changed = compare(runs_of("given", graphs=(diamond(runtime=9), chain(5))), path)
    assert (changed.made, len(changed.known)) == (1, 7)
    assert len(read_rows(path)) == 9


def test_failures_are_run_again_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    with monkeypatch.context() as patch:
        replace_solver(patch, lambda *_: 1 / 0)  # type: ignore[arg-type]
        compare(runs_of("given"), path)
    assert compare(runs_of("given"), path).made == 0
    retried = compare(runs_of("given"), path, retry=True)
    assert (retried.made, [row.error for row in retried.rows]) == (2, [None, None])
    assert [row.error for row in read_rows(path)] == [None, None]


def test_every_cut_of_the_last_line_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    rows = compare(runs_of("given", "list"), path).rows
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in (start, start + 1, start + 9, start + 40, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with open_store(path) as store:
            known = list(store.rows.values())
            if len(known) < 4:
                assert known == rows[:3]
                store.append(rows[3])
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hello", "line 1: it is no JSON"),
        ('{"format": "graphrl-plan", "version": 1}', "line 1: it is no run"),
        ('{"format": "graphrl-run", "version": 7}\n', "version is 7"),
        ('{"format": "graphrl-run", "version": 1}\n', "missing"),
        ('{"format": "graphrl-ru\n{}\n', "line 1: it is no JSON"),
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "precious.txt"
    path.write_text(text)
    with pytest.raises(GraphrlError, match=fault):
        compare(runs_of("given"), path)
    assert path.read_text() == text


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with open_store(path), pytest.raises(GraphrlError, match="another comparison"):
        compare(runs_of("given"), path)
    with pytest.raises(GraphrlError, match="plain file"):
        compare(runs_of("given"), tmp_path)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(graph: ComputationGraph, problem: Problem, budget: Budget, seed: int, *_: object) -> Plan:
        if graph.name != "diamond":
            raise KeyboardInterrupt
        return solve_given(graph, problem, budget, seed)

    path = tmp_path / "runs.jsonl"
    with monkeypatch.context() as patch:
        replace_solver(patch, stop)
        found = compare(runs_of("given"), path)
    assert (found.interrupted, len(found.rows)) == (True, 1)
    assert compare(runs_of("given"), path).made == 1


SLOW = """
import sys, time
import graphrl.compare.execute as execute
from graphrl.compare.comparison import compare
from test_compare import runs_of
from graphrl.solvers.plain import solve_given

def slow(*arguments):
    time.sleep(0.05)
    return solve_given(*arguments)

execute.find_solver = lambda name: slow
compare(runs_of("given", "list", seeds=20), sys.argv[1])
"""


def test_a_killed_comparison_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(PACKAGE), str(Path(__file__).parent)))}
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(path)], env=environment)
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < 5:
            assert process.poll() is None, "the comparison ended by itself"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    path.write_bytes(path.read_bytes() + b'{"format": "graphrl-run", "ver')  # as if it had been writing
    before = read_rows(path)
    assert 5 <= len(before) < 80
    resumed = compare(runs_of("given", "list", seeds=20), path)
    assert resumed.made == 80 - len(before)
    assert [row for row in resumed.rows if row in before] == before
    straight = summarise(compare(runs_of("given", "list", seeds=20)).rows)
    for ours, theirs in zip(summarise(resumed.rows), straight, strict=True):
        assert dataclasses.replace(ours, seconds=theirs.seconds) == theirs


# Several processes


@pytest.mark.skipif(cores() < 2, reason="one core")
def test_processes_give_the_same_rows() -> None:
    environment = dict(os.environ)
    runs = runs_of("given", "list", "no-such-method", seeds=2)
    found = compare(runs, processes=2, prepare=die_of_diamonds)
    assert found.made == 12
    expected = compare(runs).rows
    for row, other in zip(found.rows, expected, strict=True):
        if row.graph == "diamond" and row.method == "list":
            assert "died (signal 9, Killed)" in (row.error or "")
        else:
            assert (row.key, row.value, row.error) == (other.key, other.value, other.error)
    assert "unknown method" in (found.rows[-1].error or "")
    assert dict(os.environ) == environment


def test_processes_are_at_most_the_cores() -> None:
    assert share(1) == cores()
    with pytest.raises(ProblemError, match="processes is 0: must be from 1"):
        share(0)
    with pytest.raises(ProblemError, match="cores of this machine"):
        list(execute_all(runs_of("given"), 100_000))


def test_the_forecast_learns() -> None:
    runs = runs_of("given", "list", seeds=2, seconds=10)
    forecast = Forecast(runs, 2)
    assert forecast.seconds_left() == pytest.approx(8 * 10 / 2)
    row = compare(runs[:1]).rows[0]
    forecast.add(dataclasses.replace(row, seconds=4.0))
    assert forecast.seconds_left() == pytest.approx((3 * 4 + 4 * 10) / 2)


# Graphs


def test_graphs_come_from_files_folders_and_sets(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_json(diamond(name), tmp_path / f"{name}.json.gz")
    for name in ("notes.txt", "manifest.json", ".hidden.json"):
        (tmp_path / name).write_text("{}")
    found = load_graphs([str(tmp_path / "b.json.gz"), str(tmp_path), "layered:20x2@5", "regal-like:", "in-tree:9"])
    assert [graph.name for graph in found[:3]] == ["b", "a", "b"]
    assert [len(graph.ops) for graph in found[3:5]] == [20, 20]
    assert found[3] == next(generated("layered:20@5"))
    assert len(found) == 7
    (tmp_path / "empty").mkdir()
    with pytest.raises(GraphrlError, match="the folder has no graphs"):
        load_graphs([str(tmp_path / "empty")])
    for wrong in ("layered", "layered:x3", "graphs:5x3", "layered:5x3x2", "layered:5x-1", "layered:1e9", "regal-like"):
        with pytest.raises(ProblemError, match=r"no set of graphs; sets are layered:100x20"):
            load_graphs([wrong])
    for slip, says in (("layered:10x99999999999", "graphs: must be at most"), ("in-tree:1" + "0" * 30, "ops: must be")):
        with pytest.raises(ProblemError, match=says):
            load_graphs([slip])
    with pytest.raises(ProblemError):
        load_graphs(["layered:1x2"])
