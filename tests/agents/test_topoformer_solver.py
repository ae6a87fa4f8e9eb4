"""A policy of Topoformer as a method: its orders are orders, decoders and starts are what they say, refusals."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from graphrl.agents.regal.network import Policy as RegalPolicy
from graphrl.agents.topoformer import agent, network
from graphrl.agents.topoformer.config import PROBLEM, TopoformerConfig
from graphrl.agents.topoformer.network import Policy
from graphrl.costs.problem import Problem
from graphrl.envs.ordering import instances
from graphrl.errors import GraphrlError, ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.padding import common_sizes
from graphrl.methods import find_solver
from graphrl.plan import Plan
from graphrl.solvers.base import Budget, Interrupted, Task

CONFIG = TopoformerConfig(layers=1, width=8, heads=1, head_width=4)
GRAPH = layered(30, 1)
BUDGET = Budget(evaluations=100)


def untrained(seed: int = 0) -> Policy:
    params = jax.jit(functools.partial(Policy.initial, CONFIG))(jax.random.key(seed))
    return Policy(CONFIG, jax.tree.map(np.asarray, params), "by hand")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    path = tmp_path / "policy.msgpack"
    untrained().save(path)
    return str(path)


def test_every_order_of_a_decoder_is_counted_and_none_beyond_the_budget(saved: str) -> None:
    for decode, budget, count in (("sample", BUDGET, 16), ("sample", Budget(evaluations=5), 5), ("beam", BUDGET, 16)):
        plan = find_solver(f"topoformer:decode={decode},checkpoint={saved}")(Task(GRAPH, PROBLEM, budget, 3))
        plan.check(GRAPH)
        assert (plan.method, plan.evaluations, plan.seed) == ("topoformer", count, 3)


def test_neither_padding_nor_company_changes_a_greedy_order(saved: str) -> None:
    other = layered(50, 2)
    solve, to = find_solver(f"topoformer:checkpoint={saved}"), common_sizes([GRAPH, other])
    own, padded = (solve(Task(GRAPH, PROBLEM, BUDGET, 0, sizes=sizes)) for sizes in (None, to))
    assert to != common_sizes([GRAPH])
    assert padded.order == own.order
    together = untrained().rollout(instances([GRAPH, other], to), "greedy")
    np.testing.assert_array_equal(together.order[0, 0, : len(GRAPH.ops)], own.decisions(GRAPH)[1])


def test_annealing_from_learned_orders_is_no_worse_than_them(saved: str) -> None:
    learned = find_solver(f"topoformer:decode=sample,checkpoint={saved}")(Task(GRAPH, PROBLEM, BUDGET, 0))
    solve = find_solver(f"topoformer+:checkpoint={saved}")
    plan, few = (solve(Task(GRAPH, PROBLEM, Budget(evaluations=count), 0)) for count in (3000, 16))
    plan.check(GRAPH)
    assert plan.method == few.method == "topoformer+"
    assert plan.evaluations > 2000
    assert plan.value <= learned.value
    assert (few.evaluations, few.order) == (16, learned.order)


def test_progress_and_ctrl_c_count_what_both_halves_took(saved: str) -> None:
    looks: list[tuple[int, float, Plan, float]] = []

    def look(evaluations: int, seconds: float, plan: Callable[[], Plan], value: float) -> None:
        looks.append((evaluations, seconds, plan(), value))
        if len(looks) == 3:
            raise KeyboardInterrupt

    started = time.perf_counter()
    with pytest.raises(Interrupted) as stop:
        find_solver(f"topoformer+:checkpoint={saved}")(Task(GRAPH, PROBLEM, Budget(evaluations=10**8), 4, look))
    passed = time.perf_counter() - started
    stop.value.plan.check(GRAPH)
    assert stop.value.plan.order == looks[-1][2].order
    first, _, last = looks
    assert first[0] == 16 < last[0] == stop.value.plan.evaluations
    assert first[1] < last[1] <= stop.value.plan.seconds <= passed
    for evaluations, _, plan, value in [*looks, (last[0], 0.0, stop.value.plan, last[3])]:
        assert (plan.method, plan.evaluations, plan.seed) == ("topoformer+", evaluations, 4)
        assert plan.value == pytest.approx(value)
        assert value <= first[3]


def test_ctrl_c_before_annealing_has_a_plan_leaves_the_learned_one(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **more: object) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(agent, "anneal", stop)
    with pytest.raises(Interrupted) as caught:
        find_solver(f"topoformer+:checkpoint={saved}")(Task(GRAPH, PROBLEM, BUDGET, 0))
    learned = find_solver(f"topoformer:decode=sample,checkpoint={saved}")(Task(GRAPH, PROBLEM, BUDGET, 0))
    plan = caught.value.plan
    assert (plan.method, plan.evaluations, plan.order) == ("topoformer+", 16, learned.order)


def test_wrong_options_and_problems_are_one_line(saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, fault in (
        ("decode=best", "decode is 'best': must be one of greedy, sample, beam"),
        ("samples=0", "samples is 0: must be from 1 to 4,096"),
    ):
        with pytest.raises(ProblemError, match=fault):
            find_solver(f"topoformer:{option},checkpoint={saved}")(Task(GRAPH, PROBLEM, BUDGET, 0))
    for method in ("topoformer", "topoformer+"):
        with pytest.raises(ProblemError, match="orders the ops of one device: devices must be 1, and is 2"):
            find_solver(method)(Task(GRAPH, Problem("peak_memory", 2), BUDGET, 0))
    with pytest.raises(GraphrlError, match="is 'graphrl-regal-policy' version 1: must be graphrl-topoformer-policy"):
        Policy.load(RegalPolicy.defaults / "published" / "makespan.msgpack")
    monkeypatch.setattr(Policy, "defaults", tmp_path)
    with pytest.raises(GraphrlError, match="no policy for peak_memory comes with graphrl: name one, as in topoformer:"):
        find_solver("topoformer")(Task(GRAPH, PROBLEM, BUDGET, 0))


def test_one_program_serves_a_bucket(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of one bucket of ops whose numbers of rows and uses are in several buckets."""
    graphs = [layered(100, seed) for seed in range(4)]
    assert len({common_sizes([graph]) for graph in graphs}) == 4
    traced, decode = [], network.orders

    def orders(*args: Any) -> Any:
        traced.append(args)
        return decode(*args)

    monkeypatch.setattr(network, "orders", orders)
    for graph in graphs:
        find_solver(f"topoformer:checkpoint={saved}")(Task(graph, PROBLEM, BUDGET, 0))
    assert len(traced) == 1
