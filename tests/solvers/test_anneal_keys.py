"""Annealing on placement and keys: its moves, and what the solver makes of them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keyed_searches import PROBLEMS, interrupted_plan
from optima import optimum
from random_graphs import graphs, plans, problems
from search_graphs import SIZES, random_dag
from worked_example import TINY

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.device.decisions import to_genes
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.padding import Sizes, pad_batch
from graphrl.random_bits import random_words
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.chromosomes.anneal_keys import MIX, solve
from graphrl.solvers.chromosomes.brkga_solver import decisions, evolve
from graphrl.solvers.chromosomes.neighbourhood import WORDS, Mix, from_order, mutate, random_solution, to_decisions
from graphrl.solvers.rules.list_scheduling import schedule

_mutate = jax.jit(mutate, static_argnames=("mix", "devices"))
_decisions = jax.jit(to_decisions, static_argnames=("devices",))
LARGE = Sizes(ops=8, tensors=24, slots=32, rows=48, uses=48, controls=8, shares=24)


@settings(max_examples=50)
@given(st.data())
def test_a_plan_as_a_solution_decodes_to_itself(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(max_ops=8)), data.draw(problems())
    placement, order = data.draw(plans(graph, problem))
    padded = jax.tree.map(jnp.asarray, pad_batch([graph], LARGE))
    solution = jax.tree.map(jnp.asarray, from_order(graph, problem, LARGE, placement, order))
    genes = to_genes(_decisions(padded, solution, problem.devices), problem.devices)
    again = decisions(graph, problem, LARGE, np.asarray(genes)[:, 0, 0])
    np.testing.assert_array_equal(again[0], placement)
    wanted, decoded = (exact.evaluate(graph, problem, placement, o) for o in (order, again[1]))
    assert decoded.makespan == wanted.makespan
    assert decoded.peak_memory == wanted.peak_memory


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("kind", range(5))
def test_a_move_changes_what_it_says_and_no_more(kind: int, devices: int) -> None:
    if devices == 1 and kind not in (2, 3):
        return  # there is nowhere to move to
    padded = jax.tree.map(jnp.asarray, pad_batch([random_dag(0)], SIZES))
    lanes, n = 200, 30
    before = random_solution(jnp.asarray([[1, 2]], jnp.uint32), SIZES, devices, lanes)
    mix = Mix(*(float(i == kind) for i in range(5)))
    words = random_words(jnp.asarray([[3, 4]], jnp.uint32), WORDS, lanes)
    after = _mutate(padded, before, words, mix, devices)
    changed = [np.asarray(a != b).reshape(-1, lanes).sum(0) for a, b in zip(before, after, strict=True)]
    most = [(1, 0, 0), (2, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1)][kind]
    assert all(count.max() <= limit for count, limit in zip(changed, most, strict=True))
    moved = sum(changed) > 0
    assert moved.mean() > (0.4 if kind == 4 else 0.9)
    placement, keys, lateness = (np.asarray(x) for x in after)
    assert placement.min() >= 0
    assert placement.max() < devices
    assert keys.min() >= 0
    assert keys.max() < 1
    assert lateness.min() >= 0
    assert lateness.max() <= 1
    np.testing.assert_array_equal(placement[n:], before.placement[n:])  # padding is left alone
    if kind == 3:
        np.testing.assert_array_equal(np.sort(keys, 0), np.sort(before.op_keys, 0))
    if kind == 1:
        a = random_dag(0).arrays
        for lane in np.flatnonzero(changed[0]):
            together = placement[a.producer[a.use_tensor], 0, lane] == placement[a.use_op, 0, lane]
            assert together.any()


def test_mix_is_a_distribution_on_any_number_of_devices() -> None:
    assert sum(MIX) == pytest.approx(1)
    assert sum(MIX.on(1)) == pytest.approx(1)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_plans_are_valid_repeatable_and_not_worse_than_list_scheduling(problem: Problem) -> None:
    graph, budget = random_dag(0), Budget(evaluations=2000)
    plan = solve(Task(graph, problem, budget, 3))
    plan.check(graph)
    start = exact.evaluate(graph, problem, *schedule(graph, problem)).objective(problem)
    assert lower_bound(graph, problem) <= plan.value <= start
    again = solve(Task(graph, problem, budget, 3))
    assert (again.order, again.placement) == (plan.order, plan.placement)
    assert plan.evaluations <= 2000


@pytest.mark.parametrize("start", ["list", "random"])
@pytest.mark.parametrize(
    "problem", [Problem("makespan", 2, latency=0.25), Problem("makespan", 2, "link", bandwidth=8.0), Problem(devices=2)]
)
def test_tiny_optima_are_found(problem: Problem, start: str) -> None:
    plan = solve(Task(TINY, problem, Budget(evaluations=6400), 0), start=start)
    assert plan.value == pytest.approx(optimum(TINY, problem), rel=1e-6)


def test_better_than_brkga_from_the_same_start() -> None:
    problem, budget = Problem("makespan", 2, "rendezvous"), Budget(evaluations=6000)
    ratios = []
    for seed in range(3):
        graph = random_dag(seed)
        other = evolve(Task(graph, problem, budget, 0, sizes=SIZES), warm_starts=[schedule(graph, problem)])
        ratios.append(solve(Task(graph, problem, budget, 0, sizes=SIZES)).value / other.value)
    assert np.mean(ratios) < 1


def test_a_memory_limit_is_kept_where_it_can_be() -> None:
    graph, free = random_dag(1), Problem("makespan", 2, "rendezvous")
    peak = max(exact.evaluate(graph, free, *schedule(graph, free)).peak_memory)
    memory = Problem("peak_memory", 2)
    least = int(exact.evaluate(graph, memory, *schedule(graph, memory)).objective(memory))
    for limit in (least, (least + peak) // 2):
        limited = dataclasses.replace(free, memory_limit=limit)
        plan = solve(Task(graph, limited, Budget(evaluations=3000), 0))
        plan.check(graph)
        assert plan.excess == 0
        assert plan.rank <= exact.evaluate(graph, limited, *schedule(graph, limited)).rank(limited)
    impossible = solve(Task(graph, dataclasses.replace(free, memory_limit=1), Budget(evaluations=400), 0))
    assert 0 < impossible.excess < least + 1


def test_a_budget_below_one_step_is_kept() -> None:
    assert solve(Task(TINY, PROBLEMS[0], Budget(evaluations=3), 0)).evaluations == 3


def test_interrupted_it_has_a_plan() -> None:
    interrupted_plan(solve, random_dag(0), PROBLEMS[0]).check(random_dag(0))


@pytest.mark.parametrize("options", [{"start": "none"}, {"chains": 0}, {"tries": 0}, {"hot": 0.1, "cold": 0.2}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match=f"{next(iter(options))} is"):
        solve(Task(TINY, PROBLEMS[0], Budget(evaluations=100), 0), **options)
