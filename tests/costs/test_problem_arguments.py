"""Latency, bandwidth and memory limit are arguments: problems that differ only in them share one compiled program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from search_graphs import random_dag

from graphrl.costs.problem import Problem
from graphrl.envs.proposal import ProposalEnv, make_instance
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes import brkga

FIRST = Problem("makespan", 2, "link", latency=0.25, bandwidth=8.0, memory_limit=70)
OTHERS: list[dict[str, Any]] = [
    {"latency": 0.0, "bandwidth": 3.7},
    {"bandwidth": float("inf"), "memory_limit": 31},
]
METHODS = ("brkga", "random")
SMALL = brkga.Parameters(population=12, elites=3, mutants=3)


def run_batch(problem: Problem) -> None:
    one = make_instance(random_dag(0)).graph
    graph = jax.tree.map(lambda x: np.stack([x, x]), one)
    brkga.run_batch(jax.random.split(jax.random.key(0), 2), graph, problem, SMALL, 45)


def proposal(problem: Problem) -> None:
    ProposalEnv(problem, 45, SMALL).reset(jax.random.key(0), make_instance(random_dag(0)))


def solving(method: str) -> Callable[[Problem], None]:
    def solve(problem: Problem) -> None:
        find_solver(method)(Task(random_dag(0), problem, Budget(evaluations=160)))

    return solve


@pytest.mark.parametrize(
    "work",
    [*map(solving, METHODS), run_batch, proposal],
    ids=[*METHODS, "run_batch", "Proposal-v0"],
)
def test_other_figures_compile_nothing(work: Callable[[Problem], None], caplog: pytest.LogCaptureFixture) -> None:
    with jax.log_compiles():
        jax.jit(lambda x: x + 1)(1.0)
        assert "Compiling" in caplog.text  # the log names each compiled program
        work(FIRST)
        caplog.clear()
        for other in OTHERS:
            work(dataclasses.replace(FIRST, **other))
        assert "Compiling" not in caplog.text
