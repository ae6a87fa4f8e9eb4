"""Bundled sends: the rule, its compiled walk and its twin on the device; the search over such plans."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search_graphs import random_dag

import graphrl
from graphrl.costs import exact
from graphrl.costs.host.clocks import TRANSFERS
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import Choices, make_instance
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.datasets.workloads.go import load
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.rules.list_scheduling import quick_schedule
from graphrl.solvers.rules.placements import layer_stages
from graphrl.solvers.transfer_rules import search, solver
from graphrl.solvers.transfer_rules.plans import op_plan, order_by_keys, set_plan, with_transfers
from graphrl.solvers.transfer_rules.solver import quick_plan, quick_start

DEAR = Problem("makespan", 4, latency=2.0, bandwidth=5.0)
GRAPHS = [regal_like(3, num_ops=40), regal_like(2, num_ops=60), layered(50, 1)]


def drawn(graph: ComputationGraph, devices: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random placement and a random topological order."""
    generator, plan, n = np.random.default_rng(seed), op_plan(graph, Problem("makespan", devices)), len(graph.ops)
    search.prepare()
    order_by_keys(plan, generator.random(n), *np.zeros((2, n), np.int64))
    return generator.integers(0, devices, n), plan.order.copy()


def as_options(problem: Problem) -> dict[str, Any]:
    """Options of `graphrl.optimize`."""
    names = ("objective", "devices", "transfer", "latency", "bandwidth")
    return {name: getattr(problem, name) for name in names}


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("devices", [2, 5])
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_the_walk_is_the_exact_cost_of_the_rules_order(graph: ComputationGraph, devices: int, transfer: Any) -> None:
    for latency, bandwidth in ((DEAR.latency, DEAR.bandwidth), (0.0, math.inf)):
        problem = Problem("makespan", devices, transfer, latency, bandwidth)
        for seed in range(5):
            placement, ops = drawn(graph, devices, seed)
            order = with_transfers(graph, problem, placement, ops)
            plan = op_plan(graph, problem)
            set_plan(plan, placement, ops)
            seconds = exact.evaluate(graph, problem, placement, order).makespan
            assert search.makespan(plan) == pytest.approx(seconds, rel=1e-12)


def ping_pong(count: int) -> ComputationGraph:
    """Ops a0, a1, ... of 1 s, each read by one of the ops b0, b1, ... of 1 s."""
    sources = [Op(f"a{i}", "op", 1.0, outputs=(Tensor(f"t{i}", 1),)) for i in range(count)]
    readers = [Op(f"b{i}", "op", 1.0, inputs=(f"t{i}",)) for i in range(count)]
    return ComputationGraph("ping-pong", (*sources, *readers))


def test_devices_wait_for_one_another_once_where_once_is_enough() -> None:
    graph, problem, placement = ping_pong(4), Problem("makespan", 2), np.repeat([0, 1], 4)
    all_before = with_transfers(graph, problem, placement, np.arange(8))
    assert all_before.tolist() == [0, 1, 2, 3, *(8 + 2 * t + 1 for t in range(4)), 4, 5, 6, 7]
    link = dataclasses.replace(problem, transfer="link")
    assert with_transfers(graph, link, placement, np.arange(8)).tolist() == [0, 1, 2, 3, 9, 4, 11, 5, 13, 6, 15, 7]
    late = np.array([0, 4, 1, 2, 5, 3, 6, 7])  # b0 needs a0; b1 a1, and a2 goes along; b3 needs a3
    assert with_transfers(graph, problem, placement, late).tolist() == [0, 9, 4, 1, 2, 11, 13, 5, 3, 6, 15, 7]


@pytest.mark.parametrize(("transfer", "devices"), [("rendezvous", 2), ("link", 4)])
def test_the_environment_has_the_same_transfers(transfer: Any, devices: int) -> None:
    """Bundled for two devices: with more the device code breaks ties by tensor, the host by pair."""
    graph, problem = GRAPHS[0], dataclasses.replace(DEAR, devices=devices, transfer=transfer)
    n = len(graph.ops)
    placements, order = [drawn(graph, devices, seed)[0] for seed in range(4)], drawn(graph, devices, 9)[1]
    instance = make_instance(graph, problem, levels=4, order=order, reach=0.1)

    priorities = [np.random.default_rng(seed).integers(0, 4, n) for seed in range(4)]
    wide = [(0, 0), (0, len(instance.order) - n)]
    action = {
        name: jnp.asarray(np.pad(np.stack(rows).astype(np.int32), wide))
        for name, rows in (("placement", placements), ("priority", priorities))
    }
    env = graphrl.make("Compile-v0", sends="rule")
    state, _ = env.reset(jax.random.key(0), instance)
    step = jax.jit(jax.vmap(env.step, (None, None, 0, None)))
    runtime = np.asarray(step(jax.random.key(0), state, action, instance)[1].info["runtime"])
    rank = np.empty(n)
    rank[order] = np.arange(n)
    for i, (placement, priority) in enumerate(zip(placements, priorities, strict=True)):
        plan = op_plan(graph, problem)
        order_by_keys(plan, -(n - 1 - rank + 0.1 * n * priority), *np.zeros((2, n), np.int64))
        costs = exact.evaluate(graph, problem, placement, with_transfers(graph, problem, placement, plan.order))
        assert float(runtime[i]) == pytest.approx(costs.makespan, rel=1e-5)


def test_a_start_has_its_own_order() -> None:
    placement, nodes = quick_plan(GRAPHS[2], DEAR)
    ops = nodes[nodes < len(placement)]
    instance = make_instance(GRAPHS[2], DEAR, start=Choices(placement, 0 * placement), order=ops)
    assert instance.order[: len(ops)].tolist() == ops.tolist()


@pytest.mark.parametrize("transfer", ["rendezvous", "link"])
@pytest.mark.parametrize("limit", [None, 16 * 2**30])
def test_hints_begin_with_stages_of_layers(transfer: Any, limit: int | None) -> None:
    """Quick list schedules are far behind stages here."""
    graph = load("transformer-xl-2").colocated
    problem = Problem("makespan", 2, transfer, 2e-6, 16e9, memory_limit=limit, resident_weights=True)
    stages = layer_stages(graph, problem)
    assert stages is not None
    costs = exact.evaluate(graph, problem, *quick_plan(graph, problem))
    assert costs.feasible(problem)
    assert costs.makespan <= 1.001 * exact.evaluate(graph, problem, *stages).makespan


@pytest.mark.parametrize("transfer", ["rendezvous", "link"])
def test_without_time_the_first_quick_plan_is_the_start(transfer: Any) -> None:
    graph, problem = GRAPHS[2], dataclasses.replace(DEAR, transfer=transfer)
    first, best = quick_start(graph, problem, 0.0), quick_start(graph, problem)
    np.testing.assert_array_equal(first.placement, quick_schedule(graph, problem)[0])
    assert best.makespan <= first.makespan
    for start in (first, best):
        nodes = with_transfers(graph, problem, start.placement, start.ops)
        assert start.makespan == pytest.approx(exact.evaluate(graph, problem, start.placement, nodes).makespan)


@pytest.mark.parametrize("problem", [DEAR, Problem("makespan", 4)], ids=["dear", "free of cost"])
def test_annealing_betters_the_best_list_schedule(problem: Problem) -> None:
    graph = regal_like(3, num_ops=150)
    first = exact.evaluate(graph, problem, *quick_plan(graph, problem)).makespan
    plan = graphrl.optimize(graph, **as_options(problem), method="anneal-ops", evaluations=20_000, seed=1)
    plan.check(graph)
    assert plan.makespan < 0.98 * first
    assert plan.evaluations == 20_000
    again = graphrl.optimize(graph, **as_options(problem), method="anneal-ops", evaluations=20_000, seed=1)
    assert again.order == plan.order


def test_annealing_climbs_out_of_a_plan_that_leaves_devices_idle() -> None:
    graph, problem = random_dag(0, 600), Problem("makespan", 4, latency=8.0, bandwidth=20.0)
    first = quick_plan(graph, problem)
    assert first[0].min() == first[0].max()  # a search with the usual cold start stays there
    plan = graphrl.optimize(graph, **as_options(problem), method="anneal-ops", evaluations=20_000, seed=1)
    assert plan.makespan < 0.9 * sum(op.runtime for op in graph.ops)


def test_a_chain_continues_from_the_plan_of_another() -> None:
    graph, seeds = regal_like(3, num_ops=80), np.random.SeedSequence(0).spawn(2)
    one = search.chain(graph, DEAR, quick_plan(graph, DEAR), seeds[0])
    other = search.copy_chain(one, seeds[1])
    first_makespan = search.makespan(other.plan)
    search.anneal(one, 5_000, 0.1, 0.01)
    assert search.makespan(other.plan) == first_makespan  # they share nothing
    search.copy_plan(other, one)
    assert search.makespan(other.plan) == search.makespan(one.plan) < first_makespan == other.score[1]
    search.anneal(other, 100, 0.01, 0.01)
    assert other.score[1] < first_makespan


def test_chains_of_all_cores_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations are the sum over all chains, and the plan keeps a limit, whichever chain found it."""
    monkeypatch.setattr(solver, "count_cores", lambda: 3)
    graph, options = regal_like(3, num_ops=80), {**as_options(DEAR), "method": "anneal-ops", "seconds": 0.5}
    free = graphrl.optimize(graph, **options)
    limit = int(0.9 * max(exact.evaluate(graph, DEAR, *quick_plan(graph, DEAR)).peak_memory))
    within = graphrl.optimize(graph, **options, memory_limit=limit)
    for plan, problem in ((free, DEAR), (within, dataclasses.replace(DEAR, memory_limit=limit))):
        plan.check(graph)
        assert plan.excess == 0
        assert plan.evaluations % 3 == 1
        assert plan.makespan <= exact.evaluate(graph, problem, *quick_plan(graph, problem)).makespan
    assert free.makespan < 0.95 * exact.evaluate(graph, DEAR, *quick_plan(graph, DEAR)).makespan


def test_auto_is_never_worse_than_the_hint() -> None:
    graph, problem = layered(100, 1), Problem("makespan", 4, latency=0.2, bandwidth=50_000.0)
    first = exact.evaluate(graph, problem, *quick_plan(graph, problem)).makespan
    options = {**as_options(problem), "evaluations": 40}
    assert graphrl.optimize(graph, method="list", **options).makespan > first
    assert graphrl.optimize(graph, method="auto", **options).makespan <= first


def test_annealing_keeps_a_memory_limit() -> None:
    """Plans without a limit exceed it."""
    graph, options = regal_like(3, num_ops=80), {**as_options(DEAR), "method": "anneal-ops", "evaluations": 5_000}
    free = graphrl.optimize(graph, **options)
    limit = int(0.9 * max(exact.evaluate(graph, DEAR, *quick_plan(graph, DEAR)).peak_memory))
    within = graphrl.optimize(graph, **options, memory_limit=limit)
    within.check(graph)
    assert within.excess == 0
    limited = dataclasses.replace(DEAR, memory_limit=limit)
    assert free.makespan < within.makespan < exact.evaluate(graph, limited, *quick_plan(graph, limited)).makespan


def test_a_short_search_begins_cooler() -> None:
    assert solver.initial_temperature(30.0, 1e-3, 1e-5) == solver.initial_temperature(1e6, 1e-3, 1e-5) == 1e-3
    assert solver.initial_temperature(0.3, 1e-3, 1e-5) == pytest.approx(1e-4)
    assert solver.initial_temperature(0.0, 1e-3, 1e-5) == 1e-5


def test_what_annealing_refuses() -> None:
    peak = {**as_options(DEAR), "objective": "peak_memory"}
    with pytest.raises(ProblemError, match=r"'anneal-ops' .*makespan"):
        graphrl.optimize(GRAPHS[0], **peak, method="anneal-ops", evaluations=10)
    with pytest.raises(ProblemError, match="sends is 'late': must be one of urgent, rule"):
        graphrl.make("Compile-v0", sends="late")
