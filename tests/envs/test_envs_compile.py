"""`Compile-v0`: its contract, rewards and observations of a schedule against the exact twin, limits, batches."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_observations import KEY, LEVELS, keys_of, order_of, padded, random_choices
from fusion_graphs import CHIP, chain_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, grouped

import graphrl
from graphrl.costs import exact
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.compiled_features import DEVICE_TIMES, OP_TIMES
from graphrl.envs.compile.features import PlanFeatures, schedule_features_on_host
from graphrl.envs.compile.generator import Choices, CompileInstance, make_instance, make_instances
from graphrl.envs.testing import check_env
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.solvers.rules.list_scheduling import quick_schedule
from graphrl.solvers.transfer_rules.plans import with_transfers

GRAPH = regal_like(3, num_ops=20)
WIDER = common_sizes([regal_like(3, num_ops=44)])
LINK = Problem("makespan", 4, "link", latency=2.0, bandwidth=5.0)


def _at(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def exact_costs(graph: ComputationGraph, problem: Problem, choices: Choices) -> exact.Costs:
    """Costs by the host twin."""
    order = order_of(graph, problem, choices.placement, keys_of(graph, choices.priority))
    return exact.evaluate(graph, problem, choices.placement, order)


def test_the_contract() -> None:
    """With the usual tasks; groups: `test_ops_of_a_group_stand_where_its_first_op_does`."""
    start = random_choices(GRAPH, 4, 9)
    narrow, wide = (make_instance(GRAPH, LINK, to, levels=LEVELS, start=start) for to in (None, WIDER))
    check_env(graphrl.make("Compile-v0", tasks=("priority",), episode_steps=3), narrow, wider=wide, tolerance=1e-5)


def forks() -> ComputationGraph:
    """A source, a short op, a long op and its successor of 1 s, 1 s, 5 s, 5 s: the order of the middle two decides."""
    source = Op("source", "op", 1.0, outputs=(Tensor("s", 4),))
    short, long = Op("short", "op", 1.0, inputs=("s",)), Op("long", "op", 5.0, inputs=("s",), outputs=(Tensor("l", 4),))
    return ComputationGraph("forks", (source, short, long, Op("end", "op", 5.0, inputs=("l",))))


def test_priorities_decide_who_runs_first_and_ties_go_by_the_order() -> None:
    problem = Problem("makespan", 2)  # transfers take no time, but both devices wait for one (rendezvous)
    env, instance = graphrl.make("Compile-v0"), make_instance(forks(), problem, levels=2, baseline=11.0)
    state, _ = env.reset(KEY, instance)
    n = len(instance.order)

    def runtime(priority: list[int]) -> float:
        action = padded(Choices(np.array([0, 0, 0, 1]), np.array(priority)), n)
        return float(env.step(KEY, state, action, instance)[1].info["runtime"])

    assert runtime([0, 0, 0, 0]) == 12.0  # short before long, the first in the order
    assert runtime([0, 0, 1, 1]) == 11.0  # long before short


def test_what_does_not_fit_earns_minus_ten() -> None:
    for limit, valid in ((1000, True), (7, False)):
        problem = Problem("makespan", 2, memory_limit=limit)
        env, instance = graphrl.make("Compile-v0"), make_instance(forks(), problem, baseline=12.0)
        state, _ = env.reset(KEY, instance)
        nothing = padded(Choices(np.zeros(4, np.int32), np.zeros(4, np.int32)), len(instance.order))
        _, timestep = env.step(KEY, state, nothing, instance)
        assert bool(timestep.info["valid"]) == valid
        assert float(timestep.reward) == (-1.0 if valid else -10.0)


def test_a_batch_has_graphs_of_several_device_counts() -> None:
    graphs = [GRAPH, regal_like(5, num_ops=30)]
    problems = [dataclasses.replace(LINK, devices=devices) for devices in (2, 4)]
    env, instance = graphrl.make("Compile-v0"), make_instances(graphs, problems, levels=LEVELS)
    assert instance.runs_on[:, 0].tolist() == [[True, True, False, False], [True] * 4]
    each = [random_choices(graph, one.devices, 1) for graph, one in zip(graphs, problems, strict=True)]
    action = jax.tree.map(lambda *rows: jnp.stack(rows), *(padded(one, instance.order.shape[1]) for one in each))
    state, first = jax.vmap(env.reset, (None, 0))(KEY, instance)
    _, timestep = jax.vmap(env.step, (None, 0, 0, 0))(KEY, state, action, instance)
    for i in range(2):
        seconds = exact_costs(graphs[i], problems[i], each[i]).makespan
        assert float(timestep.info["runtime"][i]) == pytest.approx(seconds, rel=1e-5)
    assert not bool(first.observation.action_mask["placement"][0, :, 2:].any())
    # the first graph lacks devices 2 and 3: an action that chooses them gets device 0
    asked = action | {"placement": jnp.where(action["placement"] == 0, 3, action["placement"])}
    _, other = jax.vmap(env.step, (None, 0, 0, 0))(KEY, state, asked, instance)
    assert float(other.reward[0]) == float(timestep.reward[0])
    assert float(other.reward[1]) != float(timestep.reward[1])


def test_mapped_over_choices_and_graphs_it_is_a_loop() -> None:
    graphs, seeds = [GRAPH, regal_like(5, num_ops=30)], range(3)
    drawn = [[random_choices(graph, 4, seed) for seed in seeds] for graph in graphs]
    costs = [[exact_costs(graph, LINK, one) for one in row] for graph, row in zip(graphs, drawn, strict=True)]
    peaks = np.array([[max(one.peak_memory) for one in row] for row in costs])
    problem = dataclasses.replace(LINK, memory_limit=int(np.median(peaks)))
    env, batch = graphrl.make("Compile-v0"), make_instances(graphs, [problem] * 2, levels=LEVELS)
    n = batch.order.shape[1]
    actions = {
        task: jnp.stack([jnp.stack([padded(one, n)[task] for one in row]) for row in drawn]) for task in env.tasks
    }
    state = env.reset(KEY, jax.tree.map(lambda leaf: leaf[0], batch))[0]

    def step(action: Any, instance: Any) -> jax.Array:
        return env.step(KEY, state, action, instance)[1].reward

    one = jax.jit(step)
    loop = np.array([[one(_at(actions, g, seed), _at(batch, g)) for seed in seeds] for g in range(2)])
    assert (loop > -10).tolist() == (peaks <= problem.memory_limit).tolist()
    choices_first, graphs_first = jax.vmap(step, (0, None)), jax.vmap(step)
    by_choices = jax.jit(jax.vmap(choices_first))(actions, batch)
    by_graphs = jax.jit(jax.vmap(graphs_first, (1, None), 1))(actions, batch)
    in_turn = jax.jit(lambda *pair: jax.lax.map(lambda pair: choices_first(*pair), pair))(actions, batch)
    for mapped in (by_choices, by_graphs, in_turn):
        np.testing.assert_allclose(np.asarray(mapped), loop, rtol=1e-6)


def test_ops_of_a_group_stand_where_its_first_op_does() -> None:
    groups = np.arange(len(GRAPH.ops)) % 7
    graph = grouped(GRAPH, {op.name: group for op, group in zip(GRAPH.ops, groups.tolist(), strict=True)})
    env, instance = graphrl.make("Compile-v0"), make_instance(graph, LINK, levels=LEVELS, baseline=1.0)
    wide = make_instance(graph, LINK, WIDER, levels=LEVELS, baseline=1.0)
    check_env(env, instance, wider=wide, tolerance=1e-5)
    state, first = env.reset(KEY, instance)
    choices = random_choices(GRAPH, 4, 0)
    after, timestep = env.step(KEY, state, padded(choices, len(instance.order)), instance)
    order = GRAPH.arrays.topological
    leader = np.array([next(op for op in order if groups[op] == group) for group in groups])
    together = choices._replace(placement=np.asarray(choices.placement)[leader])
    assert after.chosen.placement[: len(groups)].tolist() == together.placement.tolist()
    assert float(timestep.info["runtime"]) == pytest.approx(exact_costs(graph, LINK, together).makespan, rel=1e-5)
    free = first.observation.action_mask["placement"][: len(groups), 1:].all(1)
    assert free.tolist() == (leader == np.arange(len(groups))).tolist()


def test_tasks_that_are_not_decided_stay_as_they_were_given() -> None:
    given, other = random_choices(GRAPH, 4, 1), random_choices(GRAPH, 4, 2)
    instance = make_instance(GRAPH, LINK, levels=LEVELS, start=given, baseline=1.0)
    both, alone = (graphrl.make("Compile-v0", tasks=tasks) for tasks in (("placement", "priority"), ("priority",)))
    action = padded(given._replace(priority=other.priority), len(instance.order))
    rewards = []
    for env in (both, alone):
        state, first = env.reset(KEY, instance)
        assert set(first.observation.options) == set(env.tasks)
        _, timestep = env.step(KEY, state, {task: action[task] for task in env.tasks}, instance)
        rewards.append(float(timestep.reward))
    assert rewards[0] == rewards[1]


def test_the_default_baseline_is_a_list_schedule() -> None:
    instance = make_instance(GRAPH, LINK)
    best = exact.evaluate(GRAPH, LINK, *quick_schedule(GRAPH, LINK)).makespan
    assert float(instance.baseline * instance.graph.second_unit) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: graphrl.make("Compile-v0", tasks=()), "tasks are none: must be one or more of placement, priority"),
        (lambda: graphrl.make("Compile-v0", tasks=("order",)), "tasks are order"),
        (lambda: graphrl.make("Compile-v0", episode_steps=0), "episode_steps is 0"),
        (lambda: make_instance(GRAPH, Problem("peak_memory", 2)), "objective is 'peak_memory': must be makespan"),
        (lambda: make_instance(GRAPH, LINK, devices=2), "devices is 2: must be at least the problem's 4"),
        (lambda: make_instance(GRAPH, LINK, levels=0), "levels is 0"),
        (
            lambda: make_instances([GRAPH, GRAPH], [LINK, dataclasses.replace(LINK, transfer="free")]),
            "must have one transfer model",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()


SIZES = Sizes(ops=48, tensors=96, slots=144, rows=192, uses=256, controls=64, shares=32)
ROOMIER = Sizes(ops=64, tensors=128, slots=192, rows=256, uses=320, controls=96, shares=64)
PLAYED = regal_like(3, num_ops=40)
BASELINE = 100.0  # seconds
MODES = list(itertools.product(("link", "free", "rendezvous"), ("urgent", "rule")))


def devices_of(transfer: str, sends: str) -> int:
    """With more than two devices the device code breaks ties between bundled sends by tensor, the host by pair."""
    return 2 if (transfer, sends) == ("rendezvous", "rule") else 3


def problem_of(transfer: Any, sends: str = "urgent") -> Problem:
    return Problem("makespan", devices_of(transfer, sends), transfer, latency=0.5, bandwidth=5.0)


def instance_of(graph: ComputationGraph, transfer: Any, sends: str, to: Sizes | None = SIZES) -> CompileInstance:
    return make_instance(graph, problem_of(transfer, sends), to, levels=LEVELS, baseline=BASELINE)


@functools.cache
def step(sends: Any) -> Any:
    """Observation of the schedule, and the reward."""
    env = graphrl.make("Compile-v0", sends=sends)

    def observed(instance: CompileInstance, action: dict[str, jax.Array]) -> tuple[PlanFeatures, jax.Array]:
        state = env.reset(KEY, instance)[0]
        timestep = env.step(KEY, state, action, instance)[1]
        return timestep.observation.plan_features, timestep.reward

    return jax.jit(observed)


def expected(graph: ComputationGraph, transfer: Any, sends: str, choices: Choices) -> tuple[PlanFeatures, float]:
    """Observation of the exact twin's schedule by the host code, and the reward."""
    problem, n = problem_of(transfer, sends), len(graph.ops)
    placement, keys = np.asarray(choices.placement, np.int64), keys_of(graph, choices.priority)
    if sends == "rule":
        alone = order_of(graph, dataclasses.replace(problem, devices=1), np.zeros(n, np.int64), keys)
        order = with_transfers(graph, problem, placement, alone)
    else:
        order = order_of(graph, problem, placement, keys)
    ran, (end, place), costs = order < n, np.empty((2, n)), exact.evaluate(graph, problem, placement, order)
    end[order[ran]] = costs.end[ran]
    place[order[ran]] = np.arange(n)
    played = schedule_features_on_host(graph, placement, place.astype(np.int64), end, problem.devices, n)
    return played, -((costs.makespan / BASELINE) ** 0.5)


def check(played: PlanFeatures, right: PlanFeatures) -> None:
    """The rows of ops are equal."""
    for one, other in zip(played, right, strict=True):
        np.testing.assert_allclose(np.asarray(one)[: len(right.ops)], other, atol=2e-4)


@pytest.mark.parametrize(("transfer", "sends"), MODES)
@settings(max_examples=30)
@given(graph=graphs(max_ops=12), seed=st.integers(0, 99))
def test_it_is_what_the_exact_twin_did(transfer: Any, sends: Any, graph: ComputationGraph, seed: int) -> None:
    if graph.arrays.runtime.sum() == 0:
        return  # shares of a run time of 0 are undefined
    choices = random_choices(graph, devices_of(transfer, sends), seed)
    played, reward = step(sends)(instance_of(graph, transfer, sends), padded(choices, SIZES.ops))
    right, paid = expected(graph, transfer, sends, choices)
    check(played, right)
    assert float(reward) == pytest.approx(paid, rel=1e-5)
    assert not np.asarray(played.ops)[len(graph.ops) :].any()
    assert not np.asarray(played.devices)[len(graph.ops) :].any()


@pytest.mark.parametrize(("transfer", "sends"), [("link", "urgent"), ("rendezvous", "rule")])
def test_padding_changes_nothing_and_mapped_it_is_a_loop(transfer: Any, sends: Any) -> None:
    choices = [random_choices(PLAYED, devices_of(transfer, sends), seed) for seed in range(3)]
    instance = instance_of(PLAYED, transfer, sends)
    actions = [padded(one, SIZES.ops) for one in choices]
    each = [step(sends)(instance, action)[0] for action in actions]
    mapped, _ = jax.vmap(step(sends), (None, 0))(instance, jax.tree.map(lambda *rows: jnp.stack(rows), *actions))
    wide, _ = step(sends)(instance_of(PLAYED, transfer, sends, ROOMIER), padded(choices[0], ROOMIER.ops))
    n = len(PLAYED.ops)
    for i, one in enumerate(each):
        check(one, expected(PLAYED, transfer, sends, choices[i])[0])
        for name in PlanFeatures._fields:
            np.testing.assert_allclose(getattr(mapped, name)[i], getattr(one, name), atol=1e-6)
    for name in PlanFeatures._fields:
        np.testing.assert_allclose(getattr(wide, name)[:n], getattr(each[0], name)[:n], atol=1e-6)
    assert each[0].ops.shape == (SIZES.ops, OP_TIMES)
    assert each[0].devices.shape == (SIZES.ops, devices_of(transfer, sends), DEVICE_TIMES)


def test_before_anything_is_chosen_nothing_was_played() -> None:
    start = random_choices(PLAYED, 3, 0)
    env = graphrl.make("Compile-v0")
    nothing, begun = (
        env.reset(KEY, make_instance(PLAYED, problem_of("link"), levels=LEVELS, baseline=1.0, start=one))[1].observation
        for one in (None, start)
    )
    assert not any(np.asarray(of).any() for of in nothing.plan_features)
    check(begun.plan_features, expected(PLAYED, "link", "urgent", start)[0])


def test_of_kernels_it_is_known_what_their_roots_did() -> None:
    """Three ops in a row, two of them inlined in the last: it has the whole run time, the others none."""
    fusion = fusion_problem(chain_graph("exp mul exp"), CHIP)
    tasks = ("placement", "priority", "fusion")
    env = graphrl.make("Compile-v0", tasks=tasks)
    instance = make_instance(fusion.graph, problem_of("link"), fusion=fusion, baseline=1.0)
    zero, state = jnp.zeros(len(instance.order), jnp.int32), env.reset(KEY, instance)[0]

    def ends(level: int) -> np.ndarray:
        action = {"placement": zero, "priority": zero, "fusion": zero + level}
        return np.asarray(env.step(KEY, state, action, instance)[1].observation.plan_features.ops)[:3, 1]

    np.testing.assert_allclose(ends(0), [1 / 3, 2 / 3, 1], atol=1e-6)
    np.testing.assert_allclose(ends(1), [0, 0, 1], atol=1e-6)
