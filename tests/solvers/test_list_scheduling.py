"""List scheduling, HLFET and ETF: valid, never below the bound, optimal where it is known to be, and within limits."""

import dataclasses
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs, problems
from search_graphs import random_dag
from worked_example import TINY

from graphrl.costs import exact
from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.solvers.base import Budget, PlacedOrder, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.rules.list_scheduling import (
    best_schedule,
    etf,
    hlfet,
    quick_schedule,
    schedule,
    solve_etf,
    solve_hlfet,
    solve_list,
)
from graphrl.solvers.rules.memory_orders import memory_orders
from graphrl.solvers.rules.plan_builder import (
    BYTES,
    FINISH,
    START,
    Choice,
    earliest_first,
    highest_level_first,
    in_order,
    place_all,
)
from graphrl.solvers.rules.plan_state import Builder, builder
from graphrl.solvers.solver import Solver


def cost(graph: ComputationGraph, problem: Problem) -> float:
    return exact.evaluate(graph, problem, *schedule(graph, problem)).objective(problem)


def layered(n: int, seed: int) -> ComputationGraph:
    """Random ops that read one to four of the about 2 sqrt(n) ops before them."""
    rng = np.random.default_rng(seed)
    ops = []
    for i in range(n):
        inputs = {int(j) for j in rng.integers(max(0, i - int(2 * n**0.5)), i, rng.integers(1, 4))} if i > 3 else set()
        ops.append(
            Op(
                f"op{i}",
                runtime=float(rng.integers(1, 20)),
                inputs=tuple(f"t{j}" for j in sorted(inputs)),
                outputs=(Tensor(f"t{i}", int(rng.integers(1, 100))),),
            )
        )
    return ComputationGraph("layered", tuple(ops))


@given(graphs(max_ops=10), problems())
def test_schedules_are_valid_and_between_the_bound_and_one_device(graph: ComputationGraph, problem: Problem) -> None:
    value = cost(graph, problem)
    assert lower_bound(graph, problem) <= value
    one_device = exact.evaluate(graph, problem, np.zeros(len(graph.ops), int), graph.arrays.topological)
    assert value <= one_device.objective(problem)


@given(graphs(max_ops=10), problems())
def test_a_quick_schedule_is_a_plan(graph: ComputationGraph, problem: Problem) -> None:
    value = exact.evaluate(graph, problem, *quick_schedule(graph, problem)).objective(problem)
    assert lower_bound(graph, problem) * (1 - 1e-9) <= value


def test_a_quick_schedule_is_about_as_good_as_the_best_of_the_list_schedules() -> None:
    problem = Problem("makespan", 2)
    for seed in range(8):
        graph = regal_like(seed)
        quick = exact.evaluate(graph, problem, *quick_schedule(graph, problem)).makespan
        assert cost(graph, problem) <= quick <= 1.05 * cost(graph, problem)


@pytest.mark.parametrize("transfer", ["rendezvous", "link"])
def test_where_transfers_are_dear_the_quick_schedule_is_one_device(transfer: Transfer) -> None:
    graph = regal_like(1, num_ops=40)
    problem = Problem("makespan", 2, transfer, latency=20 * float(graph.arrays.runtime.mean()))
    placement, order = quick_schedule(graph, problem)
    assert not placement.any()
    assert exact.evaluate(graph, problem, placement, order).makespan == pytest.approx(graph.arrays.runtime.sum())


def check_builder(b: Builder, graph: ComputationGraph, problem: Problem, plan: PlacedOrder) -> exact.Costs:
    """Checks that a plan is valid, its clocks those of the exact costs, and its memory at most the estimate."""
    placement, order = plan
    costs = exact.evaluate(graph, problem, placement, order)
    ends = dict(zip(order.tolist(), costs.end.tolist(), strict=True))
    assert b.ops["end"][:-1].tolist() == [ends[op] for op in range(len(graph.ops))]
    assert b.makespan == costs.makespan
    assert (costs.peak_memory <= b.peaks).all()
    return costs


@given(st.data())
def test_the_builder_agrees_with_the_exact_costs(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(max_ops=10)), data.draw(problems())
    n = len(graph.ops)
    placement = np.array(data.draw(st.lists(st.integers(0, problem.devices - 1), min_size=n, max_size=n)))
    b = builder(graph, problem)
    plan = place_all(b, graph.arrays.topological, placement)
    assert plan[0].tolist() == placement.tolist()
    assert plan[1][plan[1] < n].tolist() == graph.arrays.topological.tolist()
    check_builder(b, graph, problem, plan)


@given(st.data())
def test_every_rule_agrees_with_the_exact_costs(data: st.DataObject) -> None:
    graph, problem = data.draw(graphs(max_ops=10)), data.draw(problems())
    prices, targets = st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([0.0, 9.0, math.inf])
    least = data.draw(st.sampled_from([START, FINISH, BYTES]))
    choice = Choice(least, data.draw(prices), data.draw(prices), data.draw(targets))
    b = builder(graph, problem)  # computes plans one after the other
    check_builder(b, graph, problem, in_order(b, graph.arrays.topological, choice))
    for local_first in (False, True):
        check_builder(b, graph, problem, highest_level_first(b, choice, local_first=local_first))
    check_builder(b, graph, problem, earliest_first(b))


@given(graphs(max_ops=10), problems())
def test_an_op_goes_where_it_finishes_first(graph: ComputationGraph, problem: Problem) -> None:
    b, order = builder(graph, problem), graph.arrays.topological
    chosen, _ = in_order(b, order, Choice(FINISH))
    ends = []
    for device in range(problem.devices):
        placement = np.where(np.arange(len(order)) == order[-1], device, chosen)
        place_all(b, order, placement)
        ends.append(b.ops["end"][order[-1]])
    assert ends[chosen[order[-1]]] == min(ends)


def test_a_device_within_the_target_goes_first() -> None:
    ops = (Op("long", runtime=9.0), *(Op(f"op{i}", runtime=1.0, outputs=(Tensor(f"t{i}", 5),)) for i in range(3)))
    graph = ComputationGraph("kept", ops, outputs=("t0", "t1", "t2"))
    b = builder(graph, Problem("makespan", 2, "free"))
    for target, peaks in ((math.inf, [0, 15]), (10.0, [5, 10])):
        in_order(b, graph.arrays.topological, Choice(FINISH, target=target))
        assert b.peaks.tolist() == peaks


@given(graphs(max_ops=10))
def test_memory_orders_are_topological_and_best_first(graph: ComputationGraph) -> None:
    n = len(graph.ops)
    zeros = np.zeros(n, int)
    peaks = [exact.evaluate(graph, Problem(), zeros, order).peak_memory[0] for order in memory_orders(Flow(graph))]
    assert peaks == sorted(peaks)
    assert peaks[0] <= exact.evaluate(graph, Problem(), zeros, graph.arrays.topological).peak_memory[0]


def test_memory_orders_of_a_graph_are_made_once_and_count_each_time() -> None:
    graph = layered(50, 0)
    first, again = Flow(graph), Flow(graph)
    assert all(one is other for one, other in zip(memory_orders(first), memory_orders(again), strict=True))
    assert first.evaluations == again.evaluations >= 10  # five rules, each with at least one attempt to improve it
    with pytest.raises(ValueError, match="read-only"):
        memory_orders(first)[0][0] = 0


@given(st.data())
def test_unit_time_in_trees_are_optimal(data: st.DataObject) -> None:
    """Hu 1961: highest level first is optimal for in-trees of unit ops, at the greatest k + ceil(|level > k| / d)."""
    n, devices = data.draw(st.integers(1, 14)), data.draw(st.integers(1, 4))
    consumer = [data.draw(st.integers(0, i - 1)) if i else None for i in range(n)]  # op 0 is the root
    ops = tuple(
        Op(f"op{i}", "", 1.0, tuple(f"t{j}" for j in range(n) if consumer[j] == i), (Tensor(f"t{i}", 1),))
        for i in range(n)
    )
    level = [1] * n
    for i in range(1, n):
        level[i] = level[consumer[i]] + 1  # type: ignore[index]
    optimum = max(k + math.ceil(sum(other > k for other in level) / devices) for k in range(max(level)))
    assert cost(ComputationGraph("tree", ops), Problem("makespan", devices, "free")) == optimum


def test_worked_example() -> None:
    assert cost(TINY, Problem()) == 12  # the optimum
    assert cost(TINY, Problem("makespan")) == 7
    assert cost(TINY, Problem("makespan", 2, "free")) == 5  # a, c, d: the longest path
    assert cost(TINY, Problem("makespan", 2, "rendezvous")) == 5  # send a0 before c starts, b0 when it is done
    assert cost(TINY, Problem("makespan", 2, "free", latency=9.0)) == 7  # not worth a transfer
    assert cost(TINY, Problem(devices=2)) == 11  # c's a0, c0 and workspace


def test_known_optima_of_p_prec_cmax() -> None:
    free = Problem("makespan", 2, "free")
    # 1 s, then six ops of 1 s on two devices, then 1 s
    middle = [Op(f"m{i}", "", 1.0, ("s",), (Tensor(f"t{i}"),)) for i in range(6)]
    last = Op("last", "", 1.0, tuple(f"t{i}" for i in range(6)))
    assert cost(ComputationGraph("bow", (Op("s", "", 1.0, (), (Tensor("s"),)), *middle, last)), free) == 5
    # independent ops of 3 2 2 2: 5 and 4
    jobs = tuple(Op(f"j{i}", runtime=runtime) for i, runtime in enumerate([2.0, 2.0, 3.0, 2.0]))
    assert cost(ComputationGraph("jobs", jobs), free) == 5
    # two chains that never meet: one device each, also where transfers would cost much
    chains = [
        Op(f"{c}{i}", "", 2.0, (f"{c}{i - 1}",) if i else (), (Tensor(f"{c}{i}", 8),)) for c in "xy" for i in range(5)
    ]
    for transfer in ("free", "rendezvous", "link"):
        problem = Problem("makespan", 2, transfer, latency=3.0, bandwidth=1.0)
        assert cost(ComputationGraph("chains", tuple(chains)), problem) == 10


@pytest.mark.parametrize(
    "problem",
    [
        Problem(),
        Problem(devices=4),
        Problem("makespan", 2, "free"),
        Problem("makespan", 4, "rendezvous", latency=5.0, bandwidth=50.0),
        Problem("makespan", 4, "link", latency=5.0, bandwidth=50.0),
    ],
    ids=str,
)
def test_better_than_the_best_of_random_plans(problem: Problem) -> None:
    ratios = []
    for seed in range(3):
        graph, rng = layered(60, seed), np.random.default_rng(seed)
        least = math.inf
        for _ in range(20):
            placement = rng.integers(0, problem.devices, 60)
            order = exact.decode(graph, problem, placement, rng.random(60), rng.random((60, problem.devices)))
            least = min(least, exact.evaluate(graph, problem, placement, order).objective(problem))
        ratios.append(cost(graph, problem) / least)
    assert np.mean(ratios) < 0.95


def test_a_memory_limit_is_respected_where_it_can_be() -> None:
    for seed in range(3):
        graph = layered(60, seed)
        for transfer in ("free", "rendezvous"):
            unlimited = Problem("makespan", 2, transfer)
            free_peak = max(exact.evaluate(graph, unlimited, *schedule(graph, unlimited)).peak_memory)
            least = cost(graph, Problem(devices=2, transfer=unlimited.transfer))
            for limit in (int(least), (int(least) + free_peak) // 2, free_peak):
                limited = dataclasses.replace(unlimited, memory_limit=limit)
                costs = exact.evaluate(graph, limited, *schedule(graph, limited))
                assert costs.feasible(limited)
                assert costs.makespan <= graph.arrays.runtime.sum()


def test_an_impossible_memory_limit_gives_the_least_excess_found() -> None:
    limited = Problem("makespan", 1, memory_limit=1)
    assert exact.evaluate(TINY, limited, *schedule(TINY, limited)).excess(limited) == 11


def test_evaluations_are_counted() -> None:
    assert best_schedule(TINY, Problem("makespan"))[1] == 1
    assert best_schedule(TINY, Problem())[1] > 5
    assert solve_list(Task(TINY, Problem(), Budget(1), 0)).evaluations == best_schedule(TINY, Problem())[1]


@pytest.mark.parametrize("problem", [Problem(devices=4), Problem("makespan", 4)], ids=str)
def test_ten_thousand_ops_in_seconds(problem: Problem) -> None:
    graph = layered(10_000, 0)
    started = time.perf_counter()
    schedule(graph, problem)
    assert time.perf_counter() - started < 60  # 4 s and 8 s on one idle core


def test_many_inputs_are_sent_in_the_order_in_which_they_are_written() -> None:
    count = 500
    runtimes = np.random.default_rng(0).integers(0, 2, count).astype(float).tolist()  # many are written together
    writers = [Op(f"w{i}", runtime=runtimes[i], outputs=(Tensor(f"t{i}", 1),)) for i in range(count)]
    graph = ComputationGraph("fan-in", (*writers, Op("last", inputs=tuple(f"t{i}" for i in range(count)))))
    order = np.append(np.random.default_rng(1).permutation(count), count)
    _, nodes = place_all(builder(graph, Problem("makespan", 2)), order, np.append(np.zeros(count, np.int64), 1))
    end = np.empty(count)
    end[order[:-1]] = np.cumsum(np.array(runtimes)[order[:-1]])
    sent = (nodes[nodes > count] - count - 1) // 2
    assert sent.tolist() == np.lexsort((np.arange(count), end)).tolist()


# HLFET and ETF


BUDGET = Budget(evaluations=1)
RULES = pytest.mark.parametrize("solve", [solve_hlfet, solve_etf], ids=["hlfet", "etf"])
FREE = Problem("makespan", 2, "free")


def pairs(*lengths: float) -> ComputationGraph:
    """An op of each length, and after each of them one of 1 s that reads its tensor."""
    ops = []
    for i, length in enumerate(lengths):
        ops.append(Op(f"a{i}", runtime=length, outputs=(Tensor(f"t{i}", 4),)))
        ops.append(Op(f"b{i}", runtime=1.0, inputs=(f"t{i}",)))
    return ComputationGraph("pairs", tuple(ops))


@RULES
def test_known_optima_of_rules(solve: Solver) -> None:
    assert solve(Task(pairs(5, 5), FREE, BUDGET, 0)).value == 6
    slow = Problem("makespan", 2, "rendezvous", latency=9.0)
    assert solve(Task(pairs(5, 5), slow, BUDGET, 0)).value == 6  # transfers cost more than they gain: a chain a device
    assert solve(Task(pairs(4, 3, 2, 1), FREE, BUDGET, 0)).value == 7  # 14 s of work on two devices


def test_hlfet_goes_by_level_and_etf_by_start() -> None:
    # x goes to device 0 and its tensor takes 4 s to device 1. y has the higher level; z can start immediately on device
    # 1.
    ops = (
        Op("x", runtime=1.0, outputs=(Tensor("x0", 4),)),
        Op("y", runtime=5.0, inputs=("x0",)),
        Op("z", runtime=2.0),
    )
    graph, problem = ComputationGraph("g", ops), Problem("makespan", 2, "free", latency=4.0)
    for rule, names in ((hlfet, ["x", "y", "z"]), (etf, ["x", "z", "y"])):
        placement, order = rule(graph, problem)
        assert [ops[op].name for op in order] == names
        assert placement.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("solve", "most"), [(solve_hlfet, 0.06), (solve_etf, 0.06), (solve_list, 0.02)])
def test_free_transfers_are_near_the_bound(solve: Solver, most: float) -> None:
    problem = Problem("makespan", 4, "free")
    dags = [random_dag(seed) for seed in range(8)]
    gaps = [solve(Task(graph, problem, BUDGET, 0)).value / lower_bound(graph, problem) - 1 for graph in dags]
    assert np.mean(gaps) < most
