"""Tuned BRKGA, BRKGA from plain plans, BRKGA with options; the grid and what is stored of it."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from keyed_searches import PROBLEMS
from search_graphs import random_dag

from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import pad_batch
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes import brkga_solver
from graphrl.solvers.chromosomes.brkga import Parameters, op_proposals, run_batch
from graphrl.solvers.chromosomes.brkga_solver import (
    Grid,
    Setting,
    evolve,
    solve,
    solve_warm,
    stored,
    stored_setting,
    tune,
)
from graphrl.solvers.rules.list_scheduling import schedule

PROBLEM = PROBLEMS[0]


def test_the_warm_start_is_never_lost() -> None:
    for problem in (PROBLEMS[0], dataclasses.replace(PROBLEMS[0], memory_limit=400)):
        graph = random_dag(2)
        start = exact.evaluate(graph, problem, *schedule(graph, problem))
        plan = solve_warm(Task(graph, problem, Budget(evaluations=160), 0))
        assert plan.method == "brkga+"
        assert plan.rank <= start.rank(problem)


def test_options_are_the_parameters() -> None:
    graph, budget = random_dag(0), Budget(evaluations=500)
    parameters = Parameters(50, 5, 10, 0.8)
    plan = solve(Task(graph, PROBLEM, budget, 0), population=50, elites=5, mutants=10, bias=0.8)
    assert plan.order == evolve(Task(graph, PROBLEM, budget, 0), parameters).order
    with pytest.raises(ProblemError, match="elites is 100"):
        solve(Task(graph, PROBLEM, budget, 0), elites=100)


@pytest.mark.parametrize("bias", [0.5, 0.7, 1.0])
def test_a_traced_bias_means_what_the_static_one_does(bias: float) -> None:
    padded = pad_batch([random_dag(seed) for seed in range(2)])
    keys = jax.random.split(jax.random.key(0), 2)
    static = run_batch(keys, padded, PROBLEM, Parameters(20, 4, 4, bias), 160)
    traced = run_batch(keys, padded, PROBLEM, Parameters(20, 4, 4), 160, elite_bias=jnp.full(2, bias, jnp.float32))
    for a, b in zip(static, traced, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_grid_scores_every_setting_as_the_solver_would() -> None:
    grid = Grid(populations=(20,), elites=(0.2,), mutants=(0.1,), biases=(0.6, 0.9), shapes=(0.5, 1.0))
    graphs = [random_dag(seed) for seed in range(2)]
    scores = tune(graphs, PROBLEM, 160, grid, seed=0)
    assert len(scores) == 2 * 4
    assert len({round(score, 6) for score in scores.values()}) > 4
    setting = Setting(20, 4, 2, 0.9, 1.0, 1.0)
    keys = jax.random.split(jax.random.key(0), 2)
    values = run_batch(keys, pad_batch(graphs), PROBLEM, Parameters(20, 4, 2, 0.9), 160)[1]
    assert scores[setting] == pytest.approx(float(np.exp(np.log(np.asarray(values)).mean())), rel=0.02)


@pytest.mark.parametrize("objective", ["makespan", "peak_memory"])
def test_what_is_stored_is_of_the_grid_and_says_how_it_was_found(objective: str) -> None:
    setting, grid = stored_setting(objective), stored()["grid"]
    Parameters(setting.population, setting.elites, setting.mutants, setting.elite_bias)
    assert setting.population in grid["populations"]
    assert {setting.alpha, setting.beta} <= set(grid["shapes"])
    assert {"command", "date", "seed", "graphs", "evaluations"} <= set(stored())


def test_the_proposals_of_the_solver_are_the_stored_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, budget = random_dag(0), Budget(evaluations=500)
    settings: dict[str, Any] = {"settings": {"makespan": dataclasses.asdict(Setting(30, 5, 5, 0.8, 0.5, 2.0))}}
    monkeypatch.setattr(brkga_solver, "stored", lambda: settings)
    parameters = Parameters(30, 5, 5, 0.8)
    proposals = partial(op_proposals, [(0.5, 2.0)], devices=PROBLEM.devices, graphs=1)
    expected = evolve(Task(graph, PROBLEM, budget, 0), parameters, proposals=proposals)
    assert brkga_solver.solve_tuned(Task(graph, PROBLEM, budget, 0)).order == expected.order
    assert expected.order != evolve(Task(graph, PROBLEM, budget, 0), parameters).order


def test_problem_without_memory_limit_has_all_objectives() -> None:
    assert set(stored()["settings"]) == {Problem().objective, Problem("makespan").objective}
