"""`Compile-v0` under `max_load`: its contract, and rewards and observed loads equal to the exact twin's."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_observations import KEY
from fusion_graphs import CHIP, chain_graph
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from partitioned_graphs import costs_of, least, random_pipeline

import graphrl
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import CPU, Pipeline, Problem
from graphrl.envs.compile.env import CompileEnv
from graphrl.envs.compile.features import PlanFeatures
from graphrl.envs.compile.generator import CompileInstance, make_instance, make_instances
from graphrl.envs.testing import check_env
from graphrl.errors import ProblemError
from graphrl.graphs.graph import ComputationGraph, Op, Pipelined
from graphrl.graphs.padding import Sizes

ENV: Any = graphrl.make("Compile-v0", tasks=("placement",))
TO = Sizes(ops=12, tensors=12, slots=24, rows=24, uses=48, controls=0, shares=0)
WIDER = Sizes(*(2 * size for size in dataclasses.astuple(TO)))
DEVICES = 4
FUSION = fusion_problem(chain_graph("exp mul exp"), CHIP)
CPU_ONLY = ComputationGraph("cpu", (Op("a", pipelined=Pipelined(1.0, cpu_only=True)),))


def problem_of(seed: int, limit: int | None = None) -> Problem:
    return Problem("max_load", 2 + seed % 3, memory_limit=limit, cpus=seed % 2)


def graph_of(seed: int, ops: int = 12) -> ComputationGraph:
    return random_pipeline(seed, ops, cpus=seed % 2 == 1, training=seed % 3 == 0)


def instance_of(graph: ComputationGraph, problem: Problem, **options: Any) -> CompileInstance:
    return make_instance(graph, problem, TO, devices=DEVICES, **options)


def possible(graph: ComputationGraph, problem: Problem, placement: np.ndarray) -> np.ndarray:
    """Moves groups to their first op's device, or to the first device that can run them if that one cannot."""
    pipeline, chosen = Pipeline.of(graph, problem), placement.copy()
    for group in range(int(pipeline.colocation.max()) + 1):
        members = pipeline.colocation == group
        first = graph.arrays.topological[members[graph.arrays.topological]][0]
        can = [np.isfinite(pipeline.runtime[members, kind]).all() for kind in pipeline.kinds]
        if not any(can):  # a group that no device runs
            reject()
        asked = placement[first]
        chosen[members] = asked if asked < problem.devices and can[asked] else can.index(True)
    return chosen


@functools.cache
def step() -> Any:
    def stepped(placement: jax.Array, instance: CompileInstance) -> Any:
        return ENV.step(KEY, ENV.reset(KEY, instance)[0], {"placement": placement}, instance)[1]

    return jax.jit(stepped)


def rows(placement: np.ndarray) -> jax.Array:
    return jnp.asarray(np.pad(placement, (0, TO.ops - len(placement))).astype(np.int32))


@pytest.mark.parametrize("seed", [0, 5])
def test_the_contract(seed: int) -> None:
    graph, problem = graph_of(seed), problem_of(seed, 40)
    narrow, wide = (make_instance(graph, problem, to, baseline=10.0) for to in (TO, WIDER))
    check_env(ENV, narrow, wider=wide, tolerance=1e-5)


@settings(max_examples=60)
@example(seed=53, limit=None)
@given(seed=st.integers(0, 10**6), limit=st.sampled_from([None, 20]))
def test_rewards_are_those_of_the_exact_twin(seed: int, limit: int | None) -> None:
    graph, problem = graph_of(seed), problem_of(seed, limit)
    placement = np.random.default_rng(seed).integers(0, DEVICES, 12)
    timestep = step()(rows(placement), instance_of(graph, problem, baseline=10.0))
    costs = costs_of(graph, problem, possible(graph, problem, placement).tolist())
    assert float(timestep.info["runtime"]) == pytest.approx(max(costs.loads), rel=1e-5, abs=1e-6)
    valid = costs.feasible(problem)
    assert bool(timestep.info["valid"]) == valid
    assert float(timestep.reward) == pytest.approx(-((max(costs.loads) / 10) ** 0.5) if valid else -10, rel=1e-5)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_what_is_seen_is_what_single_moves_come_to(seed: int) -> None:
    """Loads and weights with a group on another device equal the exact twin's after the move."""
    graph, problem = graph_of(seed), problem_of(seed, 20)
    placement = possible(graph, problem, np.random.default_rng(seed).integers(0, DEVICES, 12))
    before = costs_of(graph, problem, placement.tolist())
    if (largest := max(before.loads)) == 0:
        return
    played: PlanFeatures = step()(rows(placement), instance_of(graph, problem, baseline=10.0)).observation.plan_features
    ops, pairs, kinds = np.asarray(played.ops), np.asarray(played.devices), Pipeline.of(graph, problem).kinds
    assert not ops[12:].any()
    assert not pairs[12:].any()
    for op, device in np.ndindex(12, problem.devices):
        moved = np.where(graph.leaders == graph.leaders[op], device, placement)
        if (possible(graph, problem, moved) != moved).any():
            continue
        after, own = costs_of(graph, problem, moved.tolist()), placement[op]
        seen = pairs[op, device] * largest
        np.testing.assert_allclose(seen[:3], [before.loads[device], after.loads[device], max(after.loads)], atol=1e-4)
        norms = [np.linalg.norm(costs.loads, 8) for costs in (before, after)]
        assert seen[3] == pytest.approx(norms[1] - norms[0], abs=1e-3 * largest)
        if device != own:
            assert seen[4] + seen[5] == pytest.approx(after.loads[device] - before.loads[device], abs=1e-4)
            assert ops[op, 7] * largest == pytest.approx(after.loads[own], abs=1e-4)
        held = 0.0 if kinds[device] == CPU else after.peak_memory[device] / 20
        np.testing.assert_allclose(pairs[op, device, 6:], [min(held, 2), float(held > 1)], atol=1e-5)


def test_devices_that_cannot_run_an_op_may_not_be_chosen() -> None:
    graph, problem = graph_of(5), problem_of(5)
    mask = np.asarray(ENV.reset(KEY, instance_of(graph, problem))[1].observation.action_mask["placement"])
    for op, device in np.ndindex(12, DEVICES):
        decides = graph.leaders[op] == op
        alone = np.where(graph.leaders == op, device, possible(graph, problem, np.full(12, 99)))
        can = device < problem.devices and (possible(graph, problem, alone) == alone).all()
        assert mask[op, device] == (can if decides else device == 0)


def test_the_default_baseline_is_a_quick_rule() -> None:
    """At least the optimum, at most the largest load of everything on the first possible device."""
    graph, problem = graph_of(6, 7), problem_of(6)
    instance = make_instance(graph, problem)
    seconds = float(instance.baseline * instance.second_unit)
    assert least(graph, problem) <= seconds * (1 + 1e-6)
    assert seconds <= max(costs_of(graph, problem, possible(graph, problem, np.zeros(7, np.int64)).tolist()).loads)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: CompileEnv().reset(KEY, instance_of(graph_of(0), problem_of(0))),
            "the task 'priority' needs an objective that depends on the order",
        ),
        (
            lambda: make_instance(FUSION.graph, Problem("max_load", 2), fusion=FUSION),
            "fusion needs the objective makespan",
        ),
        (
            lambda: make_instances([graph_of(0)] * 2, [problem_of(0), Problem("makespan", 2)], TO),
            "must have one transfer model and one objective",
        ),
        (lambda: make_instance(CPU_ONLY, Problem("max_load", 1)), "op 'a' can run on none of the devices"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()
