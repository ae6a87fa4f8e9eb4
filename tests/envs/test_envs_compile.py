"""`Compile-v0`: the contract, rewards as the exact twin has them, memory limits, batches of several device counts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_observations import KEY, LEVELS, padded, random_choices
from random_graphs import grouped

import graphrl
from graphrl.costs import exact
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import Choices, instance, instances
from graphrl.envs.testing import check_env
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.rules.list_scheduling import quick_schedule

GRAPH = regal_like(3, num_ops=20)
WIDER = common_sizes([regal_like(3, num_ops=44)])
LINK = Problem("makespan", 4, "link", latency=2.0, bandwidth=5.0)


def _at(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def exact_costs(graph: ComputationGraph, problem: Problem, choices: Choices) -> exact.Costs:
    """The host twin: keys of ops and transfers from the choices, their order, and its costs."""
    a, levels = graph.arrays, LEVELS
    n = a.num_ops
    keys = (choices.priority * n + n - 1 - a.rank).astype(np.float32) / np.float32(levels * n)
    transfers = np.zeros((a.num_tensors, problem.devices), np.float32)
    np.maximum.at(transfers, (a.use_tensor, np.asarray(choices.placement)[a.use_op]), keys[a.use_op])
    order = exact.decode(graph, problem, choices.placement, keys, transfers)
    return exact.evaluate(graph, problem, choices.placement, order)


@pytest.mark.parametrize(("tasks", "steps"), [(("placement", "priority"), 1), (("priority",), 3)])
def test_the_contract(tasks: Any, steps: int) -> None:
    start = random_choices(GRAPH, 4, 9)
    narrow, wide = (instance(GRAPH, LINK, to, levels=LEVELS, start=start) for to in (None, WIDER))
    check_env(graphrl.make("Compile-v0", tasks=tasks, episode_steps=steps), narrow, wider=wide, tolerance=1e-5)


@pytest.mark.parametrize("transfer", ["link", "rendezvous", "free"])
def test_rewards_are_those_of_the_exact_twin(transfer: Any) -> None:
    problem = dataclasses.replace(LINK, transfer=transfer)
    env, params = graphrl.make("Compile-v0"), instance(GRAPH, problem, levels=LEVELS, baseline=100.0)
    step = jax.jit(env.step)
    state, _ = env.reset(KEY, params)
    for seed in range(5):
        choices = random_choices(GRAPH, 4, seed)
        _, timestep = step(KEY, state, padded(choices, len(params.order)), params)
        seconds = exact_costs(GRAPH, problem, choices).makespan
        assert float(timestep.info["runtime"]) == pytest.approx(seconds, rel=1e-5)
        assert float(timestep.reward) == pytest.approx(-((seconds / 100) ** 0.5), rel=1e-5)


def forks() -> ComputationGraph:
    """A source, a short op, a long one and what follows it: who goes first decides. 1 s, 1 s, 5 s, 5 s."""
    source = Op("source", "op", 1.0, outputs=(Tensor("s", 4),))
    short, long = Op("short", "op", 1.0, inputs=("s",)), Op("long", "op", 5.0, inputs=("s",), outputs=(Tensor("l", 4),))
    return ComputationGraph("forks", (source, short, long, Op("end", "op", 5.0, inputs=("l",))))


def test_priorities_decide_who_runs_first_and_ties_go_by_the_order() -> None:
    problem = Problem("makespan", 2)  # transfers take no time, but both devices wait for one (rendezvous)
    env, params = graphrl.make("Compile-v0"), instance(forks(), problem, levels=2, baseline=11.0)
    state, _ = env.reset(KEY, params)
    n = len(params.order)

    def runtime(priority: list[int]) -> float:
        action = padded(Choices(np.array([0, 0, 0, 1]), np.array(priority)), n)
        return float(env.step(KEY, state, action, params)[1].info["runtime"])

    assert runtime([0, 0, 0, 0]) == 12.0  # short before long, the first in the order
    assert runtime([0, 0, 1, 1]) == 11.0  # long before short
    _, alone = env.step(KEY, state, padded(Choices(np.zeros(4, np.int32), np.zeros(4, np.int32)), n), params)
    assert float(alone.info["runtime"]) == 12.0


def test_what_does_not_fit_earns_minus_ten() -> None:
    for limit, valid in ((1000, True), (7, False)):
        problem = Problem("makespan", 2, memory_limit=limit)
        env, params = graphrl.make("Compile-v0"), instance(forks(), problem, baseline=12.0)
        state, _ = env.reset(KEY, params)
        nothing = padded(Choices(np.zeros(4, np.int32), np.zeros(4, np.int32)), len(params.order))
        _, timestep = env.step(KEY, state, nothing, params)
        assert bool(timestep.info["valid"]) == valid
        assert float(timestep.reward) == (-1.0 if valid else -10.0)


def test_a_batch_has_graphs_of_several_device_counts() -> None:
    graphs = [GRAPH, regal_like(5, num_ops=30)]
    problems = [dataclasses.replace(LINK, devices=devices) for devices in (2, 4)]
    env, params = graphrl.make("Compile-v0"), instances(graphs, problems, levels=LEVELS)
    assert params.runs_on[:, 0].tolist() == [[True, True, False, False], [True] * 4]
    each = [random_choices(graph, one.devices, 1) for graph, one in zip(graphs, problems, strict=True)]
    action = jax.tree.map(lambda *rows: jnp.stack(rows), *(padded(one, params.order.shape[1]) for one in each))
    state, first = jax.vmap(env.reset, (None, 0))(KEY, params)
    _, timestep = jax.vmap(env.step, (None, 0, 0, 0))(KEY, state, action, params)
    for i in range(2):
        seconds = exact_costs(graphs[i], problems[i], each[i]).makespan
        assert float(timestep.info["runtime"][i]) == pytest.approx(seconds, rel=1e-5)
    assert not bool(first.observation.action_mask["placement"][0, :, 2:].any())
    # of the first graph devices 2 and 3 are not there: who asks for them gets device 0
    asked = action | {"placement": jnp.where(action["placement"] == 0, 3, action["placement"])}
    _, other = jax.vmap(env.step, (None, 0, 0, 0))(KEY, state, asked, params)
    assert float(other.reward[0]) == float(timestep.reward[0])
    assert float(other.reward[1]) != float(timestep.reward[1])


@pytest.mark.parametrize("limited", [False, True])
def test_mapped_over_choices_and_graphs_it_is_a_loop(limited: bool) -> None:
    graphs, seeds = [GRAPH, regal_like(5, num_ops=30)], range(3)
    drawn = [[random_choices(graph, 4, seed) for seed in seeds] for graph in graphs]
    costs = [[exact_costs(graph, LINK, one) for one in row] for graph, row in zip(graphs, drawn, strict=True)]
    peaks = np.array([[max(one.peak_memory) for one in row] for row in costs])
    problem = dataclasses.replace(LINK, memory_limit=int(np.median(peaks)) if limited else None)
    env, batch = graphrl.make("Compile-v0"), instances(graphs, [problem] * 2, levels=LEVELS)
    n = batch.order.shape[1]
    actions = {
        task: jnp.stack([jnp.stack([padded(one, n)[task] for one in row]) for row in drawn]) for task in env.tasks
    }
    state = env.reset(KEY, jax.tree.map(lambda leaf: leaf[0], batch))[0]

    def step(action: Any, params: Any) -> jax.Array:
        return env.step(KEY, state, action, params)[1].reward

    one = jax.jit(step)
    loop = np.array([[one(_at(actions, g, seed), _at(batch, g)) for seed in seeds] for g in range(2)])
    assert (loop > -10).tolist() == (peaks <= problem.memory_limit if limited else peaks > 0).tolist()
    choices_first, graphs_first = jax.vmap(step, (0, None)), jax.vmap(step)
    by_choices = jax.jit(jax.vmap(choices_first))(actions, batch)
    by_graphs = jax.jit(jax.vmap(graphs_first, (1, None), 1))(actions, batch)
    in_turn = jax.jit(lambda *pair: jax.lax.map(lambda pair: choices_first(*pair), pair))(actions, batch)
    for mapped in (by_choices, by_graphs, in_turn):
        np.testing.assert_allclose(np.asarray(mapped), loop, rtol=1e-6)


def test_ops_of_a_group_stand_where_its_first_op_does() -> None:
    groups = np.arange(len(GRAPH.ops)) % 7
    graph = grouped(GRAPH, {op.name: group for op, group in zip(GRAPH.ops, groups.tolist(), strict=True)})
    env, params = graphrl.make("Compile-v0"), instance(graph, LINK, levels=LEVELS, baseline=1.0)
    wide = instance(graph, LINK, WIDER, levels=LEVELS, baseline=1.0)
    check_env(env, params, wider=wide, tolerance=1e-5)
    state, first = env.reset(KEY, params)
    choices = random_choices(GRAPH, 4, 0)
    after, timestep = env.step(KEY, state, padded(choices, len(params.order)), params)
    order = GRAPH.arrays.topological
    leader = np.array([next(op for op in order if groups[op] == group) for group in groups])
    together = choices._replace(placement=np.asarray(choices.placement)[leader])
    assert after.chosen.placement[: len(groups)].tolist() == together.placement.tolist()
    assert float(timestep.info["runtime"]) == pytest.approx(exact_costs(graph, LINK, together).makespan, rel=1e-5)
    free = first.observation.action_mask["placement"][: len(groups), 1:].all(1)
    assert free.tolist() == (leader == np.arange(len(groups))).tolist()


def test_tasks_that_are_not_decided_stay_as_they_were_given() -> None:
    given, other = random_choices(GRAPH, 4, 1), random_choices(GRAPH, 4, 2)
    params = instance(GRAPH, LINK, levels=LEVELS, start=given, baseline=1.0)
    both, alone = (graphrl.make("Compile-v0", tasks=tasks) for tasks in (("placement", "priority"), ("priority",)))
    action = padded(given._replace(priority=other.priority), len(params.order))
    rewards = []
    for env in (both, alone):
        state, first = env.reset(KEY, params)
        assert set(first.observation.options) == set(env.tasks)
        _, timestep = env.step(KEY, state, {task: action[task] for task in env.tasks}, params)
        rewards.append(float(timestep.reward))
    assert rewards[0] == rewards[1]


def test_the_default_baseline_is_a_list_schedule() -> None:
    params = instance(GRAPH, LINK)
    best = exact.evaluate(GRAPH, LINK, *quick_schedule(GRAPH, LINK)).makespan
    assert float(params.baseline * params.graph.second_unit) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: graphrl.make("Compile-v0", tasks=()), "tasks are none: must be one or more of placement, priority"),
        (lambda: graphrl.make("Compile-v0", tasks=("order",)), "tasks are order"),
        (lambda: graphrl.make("Compile-v0", episode_steps=0), "episode_steps is 0"),
        (lambda: instance(GRAPH, Problem("peak_memory", 2)), "objective is 'peak_memory': must be makespan"),
        (lambda: instance(GRAPH, LINK, devices=2), "devices is 2: must be at least the problem's 4"),
        (lambda: instance(GRAPH, LINK, levels=0), "levels is 0"),
        (
            lambda: instances([GRAPH, GRAPH], [LINK, dataclasses.replace(LINK, transfer="free")]),
            "must have one transfer model",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        make()
