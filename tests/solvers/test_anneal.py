"""Annealing over topological orders: its memory profile is exact, and it finds good orders."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.graphs.datasets.known_optima import in_tree
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import OpStep
from graphrl.solvers.anneal.orders import STEPS, Chain, MoveBuffers, Profile, anneal, solve, start_chains, start_orders
from graphrl.solvers.base import Budget, Task
from graphrl.solvers.flow import Flow, Usage
from graphrl.solvers.orders.dfs_dp import solve as exact

QUICK = Budget(evaluations=8 * STEPS * 8)
HOT = 0.5  # temperature at which almost every move is made


def profile_of(graph: ComputationGraph) -> Profile:
    return Profile(MoveBuffers(Flow(graph)))


def annealed(graph: ComputationGraph, windows: int, temperature: float, seed: int = 0) -> Chain:
    """A chain after some windows; checks after each of them that its memory is that of its order."""
    flow, profile = Flow(graph), profile_of(graph)
    weighed = MoveBuffers(flow).arrays(flow)
    (chain,) = start_chains(np.array([flow.topological]), profile, [np.random.SeedSequence(seed)])
    for _ in range(windows):
        anneal(chain, weighed, 1, STEPS, temperature, temperature)
        assert_topological(flow, chain.order)
        during, before = profile(chain.order)
        np.testing.assert_array_equal(chain.during, during)
        np.testing.assert_array_equal(chain.before, before)
        assert chain.place[chain.order].tolist() == list(range(flow.num_ops))
        assert chain.best[0] == profile(chain.best_order)[0].max() <= during.max()
    return chain


def assert_topological(flow: Flow, order: np.ndarray) -> None:
    place = np.argsort(order)
    assert sorted(order.tolist()) == list(range(flow.num_ops))
    assert all(place[before] < place[op] for op in range(flow.num_ops) for before in flow.predecessors[op])


@pytest.mark.parametrize("ops", [20, 400])
def test_a_chain_keeps_the_exact_memory(ops: int) -> None:
    graph = layered(ops, 1)
    first, second = (annealed(graph, 6, HOT, seed) for seed in range(2))
    assert (first.order != second.order).any()  # chains diverge


@settings(max_examples=50)
@given(graphs(max_ops=12))
def test_a_chain_keeps_the_exact_memory_of_any_graph(graph: ComputationGraph) -> None:
    annealed(graph, 2, HOT)


@given(graphs(max_ops=8, sharing=False), st.integers(0, 99))
def test_the_profile_is_the_exact_peak(graph: ComputationGraph, seed: int) -> None:
    flow = Flow(graph)
    order = np.array(flow.topological)
    assert profile_of(graph)(order)[0].max() == Usage(flow).peaks(order[None])[0]


def test_an_output_in_place_of_an_input_that_no_other_op_reads_is_one_buffer() -> None:
    a = Op("a", outputs=(Tensor("x", 8),))
    b = Op("b", inputs=("x",), outputs=(Tensor("y", 8, reuses="x"),))
    c = Op("c", inputs=("y",))
    graph = ComputationGraph("chain", (a, b, c))
    order = np.array(Flow(graph).topological)
    assert profile_of(graph)(order)[0].tolist() == [8, 8, 8]
    assert Usage(Flow(graph)).peaks(order[None]).tolist() == [8]


def test_at_zero_temperature_peaks_fall() -> None:
    graph = layered(60, 3)
    start = profile_of(graph)(np.array(Flow(graph).topological))[0].max()
    cold = [annealed(graph, windows, 1e-12).during.max() for windows in (1, 2, 20)]
    assert start > cold[0] >= cold[1] >= cold[2]


def test_many_readers_of_one_buffer() -> None:
    source = Op("a", outputs=(Tensor("x", 8),))
    readers = (Op(f"r{i}", inputs=("x",), outputs=(Tensor(f"y{i}", i),)) for i in range(700))
    annealed(ComputationGraph("fan", (source, *readers)), 3, HOT)


@pytest.mark.parametrize("seed", range(2))
def test_known_optima(seed: int) -> None:
    tree = in_tree(30, seed)
    plan = solve(Task(tree.graph, Problem(), Budget(evaluations=8 * STEPS * 100), seed))
    assert plan.value == tree.peak
    graph = layered(30, seed)
    assert (
        solve(Task(graph, Problem(), Budget(evaluations=8 * STEPS * 20), 0)).value
        == exact(Task(graph, Problem(), Budget(seconds=60), 0)).value
    )


@settings(max_examples=20, deadline=None)
@given(graphs(max_ops=8), st.booleans(), st.sampled_from(["peak_memory", "makespan"]))
def test_any_graph_gives_a_plan(graph: ComputationGraph, weights: bool, objective: str) -> None:
    problem = Problem(objective, resident_weights=weights)  # type: ignore[arg-type]
    plan = solve(Task(graph, problem, Budget(evaluations=STEPS), 0), chains=1)
    plan.check(graph)
    assert plan.value >= lower_bound(graph, problem) * (1 - 1e-9)


def test_better_than_where_it_starts() -> None:
    graph = layered(300, 1)
    flow = Flow(graph)
    rules = Usage(flow)(start_orders(flow, Usage(flow), 8, 0, ())).max(1).min()
    assert solve(Task(graph, Problem(), Budget(evaluations=8 * STEPS * 60), 0)).value < 0.99 * rules


def test_a_given_start_is_never_lost() -> None:
    graph = layered(60, 1)
    best = exact(Task(graph, Problem(), Budget(seconds=60), 0))
    names = {op.name: i for i, op in enumerate(graph.ops)}
    start = np.array([names[step.op] for step in best.order if isinstance(step, OpStep)])
    assert solve(Task(graph, Problem(), Budget(evaluations=1), 0), chains=1, starts=(start,)).value == best.value


def test_evaluations_are_counted_and_progress_is_reported() -> None:
    reports: list[tuple[int, float]] = []

    def progress(evaluations: int, seconds: float, plan: object, value: float) -> None:
        reports.append((evaluations, value))

    plan = solve(Task(layered(60, 0), Problem(), Budget(seconds=2), 0, progress))
    assert plan.evaluations % (8 * STEPS) == 0
    assert reports
    assert all(a[0] < b[0] and a[1] >= b[1] for a, b in itertools.pairwise(reports))
    assert plan.value <= reports[-1][1]


def test_without_memory_to_save_it_ends() -> None:
    graph = ComputationGraph("two", (Op("a", runtime=1), Op("b", runtime=1)))
    assert solve(Task(graph, Problem(), Budget(seconds=60.0))).seconds < 10
