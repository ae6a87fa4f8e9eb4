"""Annealing over topological orders: its state on the device is the exact memory, and it finds good orders."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs

from graphrl.costs.bounds import lower_bound
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.trees import in_tree
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.plan import OpStep, Plan
from graphrl.solvers.base import Budget, Interrupted, Task
from graphrl.solvers.flow import Flow
from graphrl.solvers.orders.anneal import moves as moves_module
from graphrl.solvers.orders.anneal import solver
from graphrl.solvers.orders.anneal.moves import Moves, WeighedBuffers, build_moves
from graphrl.solvers.orders.anneal.solver import Profile, load, solve
from graphrl.solvers.orders.anneal.window import STEPS, Chains, anneal_window
from graphrl.solvers.orders.dfs_dp import solve as exact
from graphrl.solvers.orders.usage import Usage

QUICK = Budget(evaluations=8 * STEPS * 8)
HOT = 0.5  # temperature at which almost every move is made


def parts(graph: ComputationGraph) -> tuple[Flow, Moves, Profile]:
    flow = Flow(graph)
    buffers = WeighedBuffers(flow)
    return flow, build_moves(flow, buffers, 1.0), Profile(buffers, 1.0)


def real(order: np.ndarray, n: int) -> np.ndarray:
    """Orders without padding."""
    return order[order < n].reshape(len(order), n).astype(np.int64)


def annealed(graph: ComputationGraph, windows: int, width: int, temperature: float) -> tuple[Chains, Profile]:
    flow, moves, profile = parts(graph)
    n = flow.num_ops
    chains = load(np.tile(np.array(flow.topological), (2, 1)), profile)
    step = jax.jit(anneal_window, static_argnums=4)
    for i in range(windows):
        key = jax.random.key(i)
        chains = step(chains, moves, key, jnp.full((2, 1), temperature), min(width, chains.order.shape[1]))
        orders = real(np.asarray(chains.order), n)
        for order in orders:
            assert_topological(flow, order)
        during, before = profile(orders)
        # padding may stand between ops: the memory of the places of ops is compared
        at = np.asarray(chains.order) < n
        np.testing.assert_array_equal(np.asarray(chains.during)[:, 1:-2][at].reshape(2, n), during)
        np.testing.assert_array_equal(np.asarray(chains.before)[:, 1:-2][at].reshape(2, n), before[:, :n])
    return chains, profile


def assert_topological(flow: Flow, order: np.ndarray) -> None:
    place = np.argsort(order)
    assert sorted(order.tolist()) == list(range(flow.num_ops))
    assert all(place[before] < place[op] for op in range(flow.num_ops) for before in flow.predecessors[op])


@pytest.mark.parametrize(("ops", "width"), [(20, 128), (60, 32), (150, 64)])
def test_the_device_keeps_the_exact_memory(ops: int, width: int) -> None:
    graph = layered(ops, 1)
    chains, profile = annealed(graph, 6, width, HOT)
    orders = real(np.asarray(chains.order), ops)
    assert (orders[0] != orders[1]).any()  # the chains go their own ways
    best = real(np.asarray(chains.best_order), ops)
    np.testing.assert_array_equal(profile(best)[0].max(1), np.asarray(chains.best))


@settings(max_examples=25)
@given(graphs(max_ops=8))
def test_the_device_keeps_the_exact_memory_of_any_graph(graph: ComputationGraph) -> None:
    annealed(graph, 2, 16, HOT)


@given(graphs(max_ops=8, sharing=False), st.integers(0, 99))
def test_the_profile_is_the_exact_peak(graph: ComputationGraph, seed: int) -> None:
    flow, _, profile = parts(graph)
    order = np.array([flow.topological])
    np.testing.assert_array_equal(profile(order)[0].max(1), Usage(flow).peaks(order))


def test_an_output_in_place_of_an_input_that_nobody_else_reads_is_one_buffer() -> None:
    a = Op("a", outputs=(Tensor("x", 8),))
    b = Op("b", inputs=("x",), outputs=(Tensor("y", 8, reuses="x"),))
    c = Op("c", inputs=("y",))
    flow, _, profile = parts(ComputationGraph("chain", (a, b, c)))
    order = np.array([flow.topological])
    assert profile(order)[0].tolist() == [[8, 8, 8]]
    assert Usage(flow).peaks(order).tolist() == [8]


def test_at_zero_temperature_no_move_is_worse() -> None:
    graph = layered(60, 3)
    flow, moves, profile = parts(graph)
    chains = load(np.array([flow.topological] * 2), profile)
    energies = []
    step = jax.jit(anneal_window, static_argnums=4)
    for i in range(5):
        chains = step(chains, moves, jax.random.key(i), jnp.full((2, 1), 1e-9), 60)
        energies.append(np.asarray(chains.during).max(1))
    assert (np.diff(energies, axis=0) <= 1e-3 * energies[0]).all()
    assert (energies[-1] < energies[0]).all()


def test_ops_with_too_many_neighbours_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of many users are left out of what is weighed, and ops of many dependencies are fixed: what the chains
    keep is then inexact between chunks, and every plan still exact.
    """
    monkeypatch.setattr(moves_module, "MAX_ENTRIES", 6)
    graph = layered(60, 0)
    _, moves, _ = parts(graph)
    assert 0 < np.asarray(moves.fixed[:60]).sum() < 60
    plan = solve(Task(graph, Problem(), QUICK, 0))
    plan.check(graph)


@pytest.mark.parametrize("seed", range(3))
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
    rules = Usage(flow)(solver.start_orders(flow, Usage(flow), 8, 0, ())).max(1).min()
    assert solve(Task(graph, Problem(), Budget(evaluations=8 * STEPS * 60), 0)).value < 0.99 * rules


def test_a_given_start_is_never_lost() -> None:
    graph = layered(60, 1)
    best = exact(Task(graph, Problem(), Budget(seconds=60), 0))
    names = {op.name: i for i, op in enumerate(graph.ops)}
    start = np.array([names[step.op] for step in best.order if isinstance(step, OpStep)])
    assert solve(Task(graph, Problem(), Budget(evaluations=1), 0), chains=1, starts=(start,)).value == best.value


def test_the_same_seed_gives_the_same_plan() -> None:
    graph = layered(150, 5)
    first, again, other = (solve(Task(graph, Problem(), QUICK, seed)) for seed in (1, 1, 2))
    assert first.order == again.order
    assert first.order != other.order


def test_evaluations_are_counted_and_progress_is_told() -> None:
    reports: list[tuple[int, float]] = []

    def progress(evaluations: int, seconds: float, plan: object, value: float) -> None:
        reports.append((evaluations, value))

    solve(Task(layered(60, 0), Problem(), Budget(evaluations=8 * STEPS), 0))  # compiles
    plan = solve(Task(layered(60, 0), Problem(), Budget(seconds=2), 0, progress))
    assert plan.evaluations % (8 * STEPS) == 0
    assert reports
    assert all(a[0] < b[0] and a[1] >= b[1] for a, b in itertools.pairwise(reports))
    assert plan.value <= reports[-1][1]


def test_one_program_serves_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of one bucket whose ops have from 21 to 38 neighbours, and one whose ops have 80."""
    shapes = []
    one_window = anneal_window

    def traced(*args: Any) -> Chains:
        shapes.append(args[1].entry.shape)
        return one_window(*args)

    monkeypatch.setattr(solver, "anneal_window", traced)
    for seed in (0, 1, 2, 3, 5):
        solve(Task(layered(100, seed), Problem(), Budget(evaluations=3 * STEPS), 0), chains=3)
    assert len(shapes) == 1
    solve(Task(layered(100, 4), Problem(), Budget(evaluations=3 * STEPS), 0), chains=3)
    assert len(shapes) == len(set(shapes)) == 2


def test_interrupted_search_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **more: object) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(solver, "_anneal", stop)
    with pytest.raises(Interrupted) as caught:
        solve(Task(layered(30, 0), Problem(), QUICK, 0))
    caught.value.plan.check(layered(30, 0))


def test_several_devices_are_refused() -> None:
    with pytest.raises(ProblemError, match="method 'anneal' orders the ops of one device: devices must be 1, and is 2"):
        solve(Task(layered(30, 0), Problem(devices=2), QUICK, 0))


@pytest.mark.parametrize("chains", [-1, 0, 10**6])
def test_chains_out_of_range_are_refused(chains: int) -> None:
    with pytest.raises(ProblemError, match=f"chains is {chains}: must be from 1 to 1,024"):
        solve(Task(layered(30, 0), Problem(), QUICK, 0), chains=chains)
