"""P|prec|Cmax is right: under free transfers of zero cost, all keys together reach the optimum of an independent
solver, and nothing is ever below the bound.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_graphs import random_dag
from shortest_makespan import optimum

from graphrl.costs.bounds import lower_bound
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.evaluate import evaluate
from graphrl.costs.problem import Problem
from graphrl.graphs.padding import Sizes, pad_batch
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes.brkga_solver import solve

SIZES = Sizes(ops=16, tensors=16, slots=16, rows=16, uses=24, controls=0, shares=0)


@jax.jit
def makespans(graph, decisions: Decisions, problem: DeviceProblem) -> jax.Array:  # type: ignore[no-untyped-def]
    return evaluate(graph, decisions, problem, memory=False).makespan * graph.second_unit[:, None]


def every_solution(ops: int, devices: int) -> Decisions:
    """All placements with all orders of keys; transfers go first."""
    placements = np.array(list(itertools.product(range(devices), repeat=ops)))
    orders = np.array(list(itertools.permutations(range(ops)))) / ops
    placement = np.zeros((SIZES.ops, 1, len(placements) * len(orders)), np.int32)
    keys = np.zeros(placement.shape, np.float32)
    placement[:ops, 0] = np.repeat(placements, len(orders), 0).T
    keys[:ops, 0] = np.tile(orders, (len(placements), 1)).T
    transfers = np.full((devices, SIZES.tensors, 1, placement.shape[2]), 0.999, np.float32)
    return Decisions(jnp.asarray(placement), jnp.asarray(keys), jnp.asarray(transfers))


@pytest.mark.parametrize("ops", [4, 6])
def test_an_exhaustive_search_over_keys_finds_the_optimum(ops: int) -> None:
    problem, solutions = Problem("makespan", 2, "free"), every_solution(ops, 2)
    gaps = 0
    for seed in range(12):
        graph = random_dag(seed, ops)
        padded = jax.tree.map(jnp.asarray, pad_batch([graph], SIZES))
        values = np.asarray(makespans(padded, solutions, DeviceProblem.of(problem)), np.float64)
        best, bound = optimum(graph, 2), lower_bound(graph, problem)
        assert values.min() == best
        assert bound <= best + 1e-9
        gaps += values.max() > best
    assert gaps >= 9  # on most graphs solutions differ (not on chains): the search has something to find


@pytest.mark.parametrize(("ops", "devices"), [(8, 2), (9, 3), (10, 2)])
def test_search_over_keys_finds_the_optimum_of_graphs_too_large_to_enumerate(ops: int, devices: int) -> None:
    problem = Problem("makespan", devices, "free")
    for seed in range(4):
        graph = random_dag(100 + seed, ops)
        plan = solve(Task(graph, problem, Budget(evaluations=4000), seed))
        assert plan.value == optimum(graph, devices)
