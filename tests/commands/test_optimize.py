"""`graphrl.optimize`: arguments, budgets, results, and stopping early."""

import dataclasses
import importlib
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from processes import run_python
from search_graphs import tangle
from worked_example import TINY

import graphrl
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import GraphError, GraphrlError, ProblemError
from graphrl.plan import Plan
from graphrl.solvers.base import Budget

# Budgets


@pytest.mark.parametrize("evaluations", [0, 1.5, True, 2**31, "5"])
def test_bad_evaluations(evaluations: Any) -> None:
    with pytest.raises(ProblemError, match="evaluations"):
        Budget(evaluations)


@pytest.mark.parametrize("seconds", [0, math.inf, math.nan, True, "1"])
def test_bad_seconds(seconds: Any) -> None:
    with pytest.raises(ProblemError, match="seconds"):
        Budget(100, seconds)
    with pytest.raises(ProblemError, match="neither"):
        Budget()


def test_remaining_budget() -> None:
    assert Budget(10, 5.0).minus(4, 2.0) == Budget(6, 3.0)
    assert Budget(10).minus(10, 2.0) is None
    assert Budget(None, 5.0).minus(10**6, 5.0) is None
    assert Budget(None, 5.0).minus(10**6, 1.0) == Budget(None, 4.0)


# Arguments of `optimize`


def test_a_graph_a_path_and_a_function(tmp_path: Path) -> None:
    graphrl.write_json(TINY, tmp_path / "tiny.json")
    assert graphrl.optimize(TINY, evaluations=50).value == 12
    assert graphrl.optimize(tmp_path / "tiny.json", evaluations=50).value == 12
    assert graphrl.optimize(str(tmp_path / "tiny.json"), evaluations=50).value == 12

    def double(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * jnp.float32(2)

    plan = graphrl.optimize(double, jax.ShapeDtypeStruct((1000,), jnp.float32), evaluations=50, chip="cpu")
    assert plan.value == 8000
    assert plan.makespan > 0


@pytest.mark.parametrize(
    ("model", "arguments", "options", "fault"),
    [
        (TINY, (1,), {}, "not a function"),
        (TINY, (Problem("makespan", 2),), {}, "a problem is given by keywords"),
        (3, (), {}, "must be a graph, a path or a JAX function"),
        ("no/such/file", (), {}, "no/such/file"),
        (TINY, (), {"objective": "speed"}, "objective"),
        (TINY, (), {"memory_limit": 10}, "memory_limit"),
        (TINY, (), {"method": "magic"}, "unknown method"),
        (TINY, (), {"seconds": -1.0}, "seconds"),
        (TINY, (), {"seed": 2**32}, "seed"),
        (TINY, (), {"seed": 0.5}, "seed"),
    ],
)
def test_bad_options_are_one_line(model: Any, arguments: tuple, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(GraphrlError, match=fault) as caught:
        graphrl.optimize(model, *arguments, **options)
    assert "\n" not in str(caught.value)


# Results


def test_results_repeat_by_seed() -> None:
    first, second = (graphrl.optimize(tangle(30), devices=2, evaluations=500, seed=7) for _ in range(2))
    assert (first.placement, first.order) == (second.placement, second.order)


def test_a_plan_over_the_limit_has_an_excess() -> None:
    plan = graphrl.optimize(TINY, objective="makespan", memory_limit=11, evaluations=100)
    assert plan.excess == 1  # 12 bytes is the optimum
    within = graphrl.optimize(TINY, objective="makespan", memory_limit=12, evaluations=100)
    assert within.excess == 0
    assert within.bound == lower_bound(TINY, Problem("makespan", memory_limit=12))


def test_progress_reports_the_best_plan() -> None:
    reports: list[tuple[int, float]] = []

    def progress(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        best = plan()
        best.check(graph)
        assert best.value == pytest.approx(value, rel=1e-5)
        assert seconds >= 0
        reports.append((evaluations, best.value))

    graph = tangle(40)
    plan = graphrl.optimize(graph, objective="makespan", devices=2, latency=0.7, seconds=1.5, progress=progress)
    assert plan.gap is not None
    assert plan.gap > 0  # or it would have stopped early
    assert len(reports) >= 2
    assert [entry[0] for entry in reports] == sorted(entry[0] for entry in reports)
    assert [entry[1] for entry in reports] == sorted((entry[1] for entry in reports), reverse=True)
    assert reports[-1][1] >= plan.value


# The public names


def test_optimize_stays_a_function_however_it_is_imported() -> None:
    importlib.import_module("graphrl.optimize")
    assert callable(graphrl.optimize)
    assert not isinstance(graphrl.optimize, types.ModuleType)


def test_packages_are_attributes_without_an_import_of_their_own(tmp_path: Path) -> None:
    """In a new process: here other tests have imported them."""
    program = "import graphrl; print(graphrl.envs.AutoReset.__name__, graphrl.agents.find_agent, graphrl.learning)"
    done = run_python(tmp_path, "-c", program)
    assert done.stdout.startswith("AutoReset <function find_agent"), done.stderr


def test_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        graphrl.magic  # noqa: B018
    assert set(graphrl.__all__) <= set(dir(graphrl))
    assert issubclass(GraphError, graphrl.GraphrlError)
    assert dataclasses.is_dataclass(graphrl.Plan)
