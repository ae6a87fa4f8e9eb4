"""REGAL's sequential placement: its estimates, the symmetry of devices, padding, and its samples."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_graphs import random_dag

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import NEIGHBOURS, make_instance, make_instances, make_visits
from graphrl.agents.regal.network import Policy
from graphrl.agents.regal.placement import DEVICE_FEATURES, OP_FEATURES, Placed, place
from graphrl.agents.regal.proposers import LEVELS, SHIFTS, proposer
from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import coding
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import common_sizes
from graphrl.methods import find_solver
from graphrl.solvers.base import Budget, Task

SIZES = common_sizes([random_dag(0, 24)])
FREE = Problem("makespan", 2, "free")
MEMORY = Problem("peak_memory", 2)
CONFIG = RegalConfig(rounds=1, width=8)


def placed(graph: ComputationGraph, problem: Problem, devices: np.ndarray, sizes: Any = SIZES) -> Placed:
    """The ops on the given devices, in the order of the visits."""
    visits, chosen = make_visits(graph, sizes, problem), np.pad(devices, (0, sizes.ops - len(devices)))
    return _placed(visits, jnp.asarray(chosen, jnp.int32), problem)


def _place(visits: Any, devices: jax.Array, problem: Problem) -> Placed:
    return place(visits, problem, 1, jax.random.key(0), lambda key, op, features: devices[op])


_placed = jax.jit(_place, static_argnums=2)


def column(result: Placed, name: str) -> np.ndarray:
    return np.asarray(result.features)[..., DEVICE_FEATURES.index(name)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), ops=st.integers(1, 24), problem=st.sampled_from([FREE, MEMORY]))
def test_visits_are_a_topological_order_with_its_neighbours(seed: int, ops: int, problem: Problem) -> None:
    graph = random_dag(seed, ops)
    visits, a = make_visits(graph, SIZES, problem), graph.arrays
    order = np.asarray(visits.order)
    assert sorted(order) == list(range(SIZES.ops))
    assert sorted(order[:ops]) == list(range(ops))
    turn = np.argsort(order)
    readers = [set(a.use_op[a.producer[a.use_tensor] == op]) for op in range(ops)]
    for op in range(ops):
        inputs = set(a.producer[a.use_tensor[a.use_op == op]])
        assert set(visits.inputs[op]) - {SIZES.ops} == inputs
        assert set(visits.readers[op]) - {SIZES.ops} == readers[op]
        assert all(turn[before] < turn[op] for before in inputs)
    assert visits.uses[:ops].tolist() == [len(of_op) for of_op in readers]


def test_an_op_keeps_its_last_inputs_and_its_first_readers() -> None:
    count = NEIGHBOURS + 4
    sources = [Op(f"s{i}", runtime=1.0 + i, outputs=(Tensor(f"t{i}", 1),)) for i in range(count)]
    sink = Op("sink", runtime=1.0, inputs=tuple(f"t{i}" for i in range(count)))
    graph = ComputationGraph("star", (*sources, sink))
    visits = make_visits(graph, common_sizes([graph]), FREE)
    assert visits.order[:count].tolist() == list(range(count))[::-1]  # the longest first
    assert sorted(visits.inputs[count]) == list(range(NEIGHBOURS))  # so that the short ones end last


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), ops=st.integers(2, 24))
def test_starts_without_transfers_are_those_of_a_schedule_that_fills_gaps(seed: int, ops: int) -> None:
    """It is feasible: run in the order of starts, no op starts later. Nor does one start later than without gaps."""
    graph, devices = random_dag(seed, ops), np.random.default_rng(seed).integers(0, 2, ops)
    visits, runtime = make_visits(graph, SIZES, FREE), graph.arrays.runtime

    def ends(order: np.ndarray) -> np.ndarray:
        end, free = np.zeros(ops), np.zeros(2)
        for op in order:
            inputs = [v for v in visits.inputs[op] if v < ops]
            end[op] = free[devices[op]] = max([free[devices[op]], *end[inputs]]) + runtime[op]
        return end

    features = np.asarray(placed(graph, FREE, devices).ops)[:ops]
    rank, visited = features[:, OP_FEATURES.index("rank")], np.asarray(visits.order)[:ops]
    plain, by_start = ends(visited), ends(visited[np.argsort(rank[visited], kind="stable")])
    whole = runtime.max() * 10 / features[runtime.argmax(), OP_FEATURES.index("duration")]
    start = features[:, OP_FEATURES.index("start")] * whole
    assert (start <= plain - runtime + 1e-4 * whole).all()
    assert (start >= by_start - runtime - 1e-4 * whole).all()
    np.testing.assert_allclose(features[:, OP_FEATURES.index("duration")], 10 * runtime / whole, rtol=1e-3, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), ops=st.integers(2, 24))
def test_the_peak_on_one_device_is_exact(seed: int, ops: int) -> None:
    """Its share of two devices is the unit of bytes."""
    graph = random_dag(seed, ops)
    visits = make_visits(graph, SIZES, MEMORY)
    order = np.asarray(visits.order)[:ops].astype(np.int64)
    costs = exact.evaluate(graph, MEMORY, np.zeros(ops, np.int64), order)
    live = np.expm1(column(placed(graph, MEMORY, np.zeros(ops, np.int64)), "live")[:ops, 0]) / 4
    assert live.max() == pytest.approx(2, rel=1e-4)
    sizes = [sum(tensor.bytes for tensor in op.outputs) for op in graph.ops]
    unit = np.array(sizes) / np.maximum(np.asarray(visits.output)[:ops], 1e-9)
    assert live.max() * unit[0] == pytest.approx(max(costs.peak_memory), rel=1e-4)


@pytest.mark.parametrize("problem", [Problem("makespan", 2), MEMORY, Problem("makespan", 2, "link", latency=0.5)])
def test_exchanged_devices_exchange_their_features(problem: Problem) -> None:
    graph, devices = random_dag(3, 20), np.random.default_rng(0).integers(0, 2, 20)
    one, other = placed(graph, problem, devices), placed(graph, problem, 1 - devices)
    np.testing.assert_allclose(one.features[:20], other.features[:20, ::-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(one.ops, other.ops)
    assert np.ptp(np.asarray(one.features)[:20], axis=(0, 1)).min() >= 0
    seen = [name for name in DEVICE_FEATURES if np.ptp(column(one, name)[:20]) > 0]
    assert set(seen) >= {"end", "idle", "inputs_here", "siblings", "load", "placed", "live", "added", "freed"}


def test_a_blocking_transfer_delays_its_sender() -> None:
    graph = ComputationGraph(
        "two", (Op("a", runtime=1.0, outputs=(Tensor("t", 4),)), Op("b", runtime=1.0, inputs=("t",)))
    )
    problem, sizes = Problem("makespan", 2, "rendezvous", latency=1.0), common_sizes([graph])
    blocking = placed(graph, problem, np.array([0, 1]), sizes)
    free = placed(graph, dataclasses.replace(problem, transfer="free"), np.array([0, 1]), sizes)
    assert column(blocking, "delay")[1, 1] > 0 == column(blocking, "delay")[1, 0]
    assert not column(free, "delay").any()


@pytest.mark.parametrize("problem", [Problem("makespan", 2), MEMORY])
def test_proposals_depend_on_neither_padding_nor_batch(problem: Problem) -> None:
    config = dataclasses.replace(CONFIG, problem=problem)
    graphs = [random_dag(seed, 12 + seed) for seed in range(3)]
    params, policy = Policy.initial(config, jax.random.key(0)), proposer(config)
    best = jax.jit(lambda instance: policy.best(params, jax.random.key(0), instance).action)
    batch = jax.vmap(best)(make_instances(config, graphs, SIZES))
    for graph, together in zip(graphs, batch, strict=True):
        alone = best(make_instance(config, graph))
        np.testing.assert_array_equal(together[: len(graph.ops)], alone[: len(graph.ops)])


def test_a_sample_says_device_certainty_and_priority_and_their_probability() -> None:
    config, distributions = dataclasses.replace(CONFIG, problem=Problem("makespan", 3)), coding("moments")
    graph = random_dag(5, 18)
    instance, policy = make_instance(config, graph), proposer(config)
    params = policy.init(jax.random.key(1), instance)
    sampled = jax.vmap(policy.sample, (None, 0, None))(params, jax.random.split(jax.random.key(2), 5), instance)
    mean = distributions.means
    row = np.asarray(sampled.action)[:, :18]
    device, level = np.divmod(np.asarray(sampled.choices.place)[:, :18], len(LEVELS))
    affinity = mean[row[..., :3]]
    is_certain = level > 0
    assert (affinity.argmax(-1) == device)[is_certain].all()
    assert (affinity[~is_certain] == 0.5).all()
    shift, start = np.asarray(sampled.choices.priority)[:, :18], np.asarray(sampled.choices.ops)[:, :18]
    wanted = 1 - start[..., OP_FEATURES.index("rank")] + np.array([shift or 0.0 for shift in SHIFTS])[shift]
    assert (row[shift == 0, 3] == distributions.uniform[0]).all()
    is_shifted = shift > 0
    np.testing.assert_allclose(mean[row[..., 3]][is_shifted], wanted.clip(1 / 16, 15 / 16)[is_shifted], atol=0.0313)
    chosen = policy.log_prob(params, instance, sampled.choices)
    assert chosen.choices == 36
    nearly_uniform = -18 * (np.log(3 * len(LEVELS)) + np.log(len(SHIFTS)))
    assert np.asarray(chosen.log_prob) == pytest.approx(np.full(5, nearly_uniform), rel=0.5)
    assert float(chosen.entropy) == pytest.approx(-nearly_uniform, rel=0.4)


def test_a_policy_plans_for_any_number_of_devices(tmp_path: Any) -> None:
    Policy(CONFIG, Policy.initial(CONFIG, jax.random.key(0))).save(tmp_path / "policy")
    solve = find_solver(f"regal:checkpoint={tmp_path / 'policy'}")
    for devices in (1, 3):
        plan = solve(Task(random_dag(1, 15), Problem("makespan", devices), Budget(evaluations=80), 0))
        assert set(plan.placement.values()) <= set(range(devices))
