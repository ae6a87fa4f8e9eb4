"""The registry of methods: what is in it, options of a method, and that every one gives a plan."""

import re
from importlib import import_module
from typing import Any

import pytest

import graphrl
from graphrl.agents import AGENTS, find_agent
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.trees import in_tree
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers import SOLVERS, TRAINED, find_solver


def ladder(rungs: int) -> ComputationGraph:
    """Two chains that cross: enough choices to search through."""
    ops = [Op("left0", runtime=1, outputs=(Tensor("l0", 5),)), Op("right0", runtime=1, outputs=(Tensor("r0", 3),))]
    for i in range(1, rungs):
        ops.append(Op(f"left{i}", "L", 1 + i % 3, (f"l{i - 1}", f"r{i - 1}"), (Tensor(f"l{i}", 1 + 7 * i % 11),)))
        ops.append(Op(f"right{i}", "R", 1 + i % 2, (f"r{i - 1}",), (Tensor(f"r{i}", 1 + 5 * i % 7),)))
    return ComputationGraph("ladder", tuple(ops))


def test_every_registered_solver_is_there() -> None:
    assert all(callable(find_solver(name)) for name in SOLVERS)
    known = re.escape(", ".join(SOLVERS))
    with pytest.raises(ProblemError, match=f"^unknown method 'magic': known are {known}$"):
        find_solver("magic")
    with pytest.raises(ProblemError, match="method is of type int: must be a name"):
        find_solver(3)  # type: ignore[arg-type]


def test_trained_methods_are_those_of_the_agents() -> None:
    assert set(TRAINED) <= set(SOLVERS)
    assert set(TRAINED) == {method for name in AGENTS for method in find_agent(name).methods}
    assert all(callable(import_module(place.partition(":")[0]).digest) for place in TRAINED.values())


ONE_DEVICE = (
    "xla|inductor|depth-first|breadth-first|alap|random-|series-parallel|dfs-dp|beam|min-cut|anneal$|topoformer"
)


@pytest.mark.parametrize("method", SOLVERS)
def test_every_method_gives_a_plan_that_checks(method: str) -> None:
    ordering = re.match(ONE_DEVICE, method)
    for objective in ("peak_memory",) if method == "series-parallel" else ("peak_memory", "makespan"):
        devices = 1 if ordering else 2
        options: dict[str, Any] = {"objective": objective, "devices": devices, "evaluations": 200, "seed": 1}
        graph = in_tree(6, 0).graph if method == "series-parallel" else ladder(4)
        plan = graphrl.optimize(graph, method=method, **options)
        plan.check(graph)
        assert plan.method == method
        assert plan.bound is not None
        assert 0 < plan.bound <= plan.value
        assert plan.evaluations >= 1
        assert plan.seed == 1
    if ordering:
        with pytest.raises(ProblemError, match=re.escape(f"method '{method}' orders the ops of one device")):
            graphrl.optimize(ladder(4), method=method, devices=2, evaluations=200)


def test_options_of_a_method() -> None:
    assert graphrl.optimize(ladder(5), method="random-ready:samples=3", evaluations=50).evaluations == 3
    assert graphrl.optimize(ladder(5), method="dfs-dp:paper=true,states=10", evaluations=50).value > 0


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("list:x=1", "method 'list' has no option 'x': it has none"),
        ("brkga:size=1", "method 'brkga' has no option 'size': its options are population, elites, mutants, bias"),
        ("brkga:population=many", "option 'population' of method 'brkga' is 'many': must be an integer"),
        ("brkga:bias=", "option 'bias' of method 'brkga' is '': must be a number"),
        ("topoformer:checkpoint=", "option 'checkpoint' of method 'topoformer' is '': must be a text"),
        ("topoformer:checkpoint", "option 'checkpoint' of method 'topoformer' is '': must be a text"),
        ("brkga:", "method 'brkga' has no option ''"),
        ("brkga:elites=3,elites=4", "method 'brkga' has option 'elites' twice"),
        ("dfs-dp:paper=yes", "option 'paper' of method 'dfs-dp' is 'yes': must be true or false"),
    ],
)
def test_bad_options_of_a_method(method: str, fault: str) -> None:
    with pytest.raises(ProblemError, match=re.escape(fault)):
        graphrl.optimize(ladder(5), method=method)
