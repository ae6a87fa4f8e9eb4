"""The registry of methods: its entries, options of a method, and a plan from every one."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs, problems
from search_graphs import random_dag

import graphrl
from graphrl.agents import AGENTS, find_agent
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.known_optima import in_tree
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.methods import MAP_METHODS, METHODS, OLD_NAMES, describe, find_solver
from graphrl.plan import Plan
from graphrl.solvers import auto
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.solver import SOLVERS, Solver


def ladder(rungs: int) -> ComputationGraph:
    """Two chains that cross: enough choices to search through."""
    ops = [Op("left0", runtime=1, outputs=(Tensor("l0", 5),)), Op("right0", runtime=1, outputs=(Tensor("r0", 3),))]
    for i in range(1, rungs):
        ops.append(Op(f"left{i}", "L", 1 + i % 3, (f"l{i - 1}", f"r{i - 1}"), (Tensor(f"l{i}", 1 + 7 * i % 11),)))
        ops.append(Op(f"right{i}", "R", 1 + i % 2, (f"r{i - 1}",), (Tensor(f"r{i}", 1 + 5 * i % 7),)))
    return ComputationGraph("ladder", tuple(ops))


def test_every_registered_solver_is_there() -> None:
    assert [find_solver(name).name for name in METHODS] == list(METHODS)
    assert [method.name for method in describe()] == list(METHODS)
    with pytest.raises(ProblemError, match=rf"^unknown method 'brgka': the nearest of {len(METHODS)} known are brkga,"):
        find_solver("brgka")
    with pytest.raises(ProblemError, match=r"^there is no method 'anneal-keys' any more: use 'anneal-schedule'$"):
        find_solver("anneal-keys:chains=4")
    with pytest.raises(ProblemError, match=r"^there is no method 'brute-force' any more: use 'cp-sat'$"):
        find_solver("brute-force:steps=9")
    with pytest.raises(ProblemError, match=r"^there is no method 'regal-hint' any more: use 'regal'$"):
        find_solver("regal-hint:checkpoint=policy")
    with pytest.raises(ProblemError, match="method is of type int: must be a name"):
        find_solver(3)  # type: ignore[arg-type]


def test_no_solver_is_registered_that_has_no_line() -> None:
    list(describe())  # imports all modules of methods
    ours = {name for name, solver in SOLVERS.items() if solver.search.__module__.startswith("graphrl.")}  # not a test's
    assert ours == set(METHODS)


def test_a_method_says_what_it_is() -> None:
    rows = {method.name: method for method in describe()}
    for method in rows.values():
        assert method.help
        assert len(method.help) <= 100
        assert "\n" not in method.help
    assert rows["series-parallel"][2:] == ("one", "peak_memory", "", False, "part of `auto`")
    assert rows["brkga"][2:] == (
        "any number", "peak_memory, makespan", "population=100, elites=20, mutants=20, bias=0.7", False,
        "published baseline",
    )  # fmt: skip
    assert rows["regal"].trained
    stages = auto.stages(ladder(4), Problem("makespan", 2, "free"), Budget(seconds=60.0))
    assert {rows[stage.solver.name].kind for stage in stages} == {"part of `auto`"}


def test_trained_methods_are_those_of_the_agents() -> None:
    agents = [find_agent(name) for name in AGENTS]
    played = {method for agent in agents for method in agent.methods(agent.policy.settings())}
    played |= {"regal+"}  # is mostly `auto`: no part of the table of `graphrl evaluate`
    assert played - {"egrl-policy"} == {method.name for method in describe() if method.trained}
    assert "egrl-policy" in played & set(MAP_METHODS)


@pytest.mark.parametrize("name", OLD_NAMES)
def test_an_old_name_is_the_new_one(name: str) -> None:
    assert find_solver(name) is find_solver(OLD_NAMES[name])
    options: dict[str, Any] = {"evaluations": 200, "seed": 1}
    old, new = (graphrl.optimize(ladder(4), method=f"{each}:width=20", **options) for each in (name, OLD_NAMES[name]))
    assert (old.order, old.method) == (new.order, OLD_NAMES[name])


def test_importing_the_registry_imports_no_method() -> None:
    heavy = ("jax", "ortools.sat", "graphrl.agents", "graphrl.solvers.auto")
    code = f"import sys, graphrl, graphrl.methods; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


ONE_DEVICE = (
    "xla|inductor|depth-first|breadth-first|alap|random-|series-parallel|dfs-dp|approximate-dp|min-cut|anneal$|"
    "topoformer"
)


NEED_FILES = ("split", "go", "go+", "ppo")
SMALLER = {"hdp": "hdp:hidden=8,groups=4,children=4"}  # its networks are large by default


@pytest.mark.parametrize("method", [method for method in METHODS if method not in NEED_FILES])
def test_every_method_gives_a_plan_that_checks(method: str) -> None:
    ordering = re.match(ONE_DEVICE, method)
    for objective in find_solver(method).objectives:
        devices = 1 if ordering else 2
        options: dict[str, Any] = {"objective": objective, "devices": devices, "evaluations": 200, "seed": 1}
        options["transfer"] = "free" if method == "anneal-list" else "rendezvous"
        graph = in_tree(6, 0).graph if method == "series-parallel" else ladder(4)
        plan = graphrl.optimize(graph, method=SMALLER.get(method, method), **options)
        plan.check(graph)
        assert plan.method == method
        assert plan.bound is not None
        assert 0 < plan.bound <= plan.value
        assert plan.evaluations >= 1
        assert plan.seed == 1
    if ordering:
        with pytest.raises(ProblemError, match=re.escape(f"method '{method}' orders the ops of one device")):
            graphrl.optimize(ladder(4), method=method, devices=2, evaluations=200)


SEARCHES = [
    *(
        (method, Problem("makespan", 2, latency=0.5, bandwidth=20.0))
        for method in (
            "anneal-ops", "anneal-schedule", "multilevel:coarse=8", "local-search", "brkga", "brkga+", "brkga-tuned",
            "random",
        )
    ),
    ("anneal", Problem()),
    ("min-cut", Problem()),
    ("random-ready:samples=0", Problem()),
    ("anneal-list:hot=100", Problem("makespan", 3, "free")),
]  # fmt: skip


def interrupted_plan(solve: Solver, graph: ComputationGraph, problem: Problem) -> Plan:
    """The plan of an `Interrupted` at the second progress report."""
    reports = 0

    def stop(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        nonlocal reports
        reports += 1
        if reports == 2:
            raise KeyboardInterrupt

    try:
        solve(Task(graph, problem, Budget(seconds=60.0), 0, stop))
    except Interrupted as stopped:
        return stopped.plan
    raise AssertionError("the search did not stop")


@pytest.mark.parametrize(("method", "problem"), SEARCHES, ids=lambda each: each if isinstance(each, str) else "")
def test_searches_repeat_keep_their_budget_and_give_a_plan_when_interrupted(method: str, problem: Problem) -> None:
    graph, solve = random_dag(1), find_solver(method)
    plan, again, other = (solve(Task(graph, problem, Budget(evaluations=1_000), seed)) for seed in (3, 3, 4))
    plan.check(graph)
    assert (again.order, again.placement, again.evaluations) == (plan.order, plan.placement, plan.evaluations)
    assert method == "brkga+" or (other.order, other.placement) != (plan.order, plan.placement)  # it keeps its start
    assert lower_bound(graph, problem) * (1 - 1e-9) <= plan.value
    assert plan.evaluations <= 1_000
    assert solve(Task(graph, problem, Budget(evaluations=1))).evaluations == 1
    if method != "anneal-list:hot=100":  # it reaches the bound
        interrupted_plan(solve, graph, problem).check(graph)


def test_options_of_a_method() -> None:
    assert graphrl.optimize(ladder(5), method="random-ready:samples=3", evaluations=50).evaluations == 3
    assert graphrl.optimize(ladder(5), method="dfs-dp:paper=true,states=10", evaluations=50).value > 0


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("hlfet:x=1", "method 'hlfet' has no option 'x': it has none"),
        ("brkga:size=1", "method 'brkga' has no option 'size': known are population, elites, mutants, bias"),
        ("brkga:population=many", "option 'population' of method 'brkga' is 'many': must be an integer"),
        ("brkga:bias=", "option 'bias' of method 'brkga' is '': must be a number"),
        ("topoformer:checkpoint=", "option 'checkpoint' of method 'topoformer' is '': must be a text"),
        ("brkga:", "method 'brkga' has no option ''"),
        ("brkga:elites=3,elites=4", "method 'brkga' has option 'elites' twice"),
        ("dfs-dp:paper=yes", "option 'paper' of method 'dfs-dp' is 'yes': must be true or false"),
        ("dfs-dp:states=-1", "states is -1"),
        ("brkga:elites=100", "elites is 100: must be from 1 to population - 1 = 99"),
        ("brkga:elites=0", "elites is 0"),
        ("brkga:mutants=81", "mutants is 81: must be from 0 to population - elites = 80"),
        ("brkga:bias=0.4", "elite_bias is 0.4: must be from 0.5 to 1"),
        ("approximate-dp:width=0", "width is 0"),
        ("approximate-dp:tie=first", "tie is 'first': must be random or live"),
        ("approximate-dp:rank=size", "rank is 'size': must be peak or live"),
        ("anneal:chains=0", "chains is 0: must be from 1 to 1,024"),
        ("anneal:chains=1000000", "chains is 1000000: must be from 1 to 1,024"),
        ("anneal-schedule:chains=-1", "chains is -1"),
        ("anneal-schedule:hot=0.1,cold=0.2", "hot is"),
        ("anneal-ops:hot=1e-5", "hot is 1e-05 and cold is 3e-05: must be above 0"),
        ("local-search:patience=0", "must be at least 1"),
        ("multilevel:coarse=0", "coarse is 0: must be at least 1"),
        ("cp-sat:workers=-1", "workers is -1"),
        ("cp-sat:gap=1", "gap is 1"),
        ("random-ready:samples=-1", "samples is -1"),
        ("expert:order=x", "order is 'x': must be fifo or level"),
        ("split", "write split:file=PATH"),
    ],
)
def test_bad_options_of_a_method(method: str, fault: str) -> None:
    name = method.partition(":")[0]
    objective = find_solver(name).objectives[-1]
    with pytest.raises(ProblemError, match=re.escape(fault)):
        graphrl.optimize(ladder(5), method=method, objective=objective, evaluations=10)


QUICK = ("given", "list", "hlfet", "etf", "metis", "expert", "depth-first", "random-priorities", "xla", "inductor")


@given(graphs(max_ops=10), problems(), st.integers(0, 2**31))
def test_plans_of_quick_methods_are_valid_and_not_below_the_bound(
    graph: ComputationGraph, problem: Problem, seed: int
) -> None:
    for method in QUICK:
        ordering = re.match(ONE_DEVICE, method)
        taken = dataclasses.replace(problem, devices=1) if ordering else problem
        task = Task(graph, taken, Budget(evaluations=20), seed)
        plan = find_solver(method)(task)
        plan.check(graph)
        assert (plan.method, plan.seed) == (method, seed)
        assert plan.value >= lower_bound(graph, task.problem)
