"""`Sharding-v0`: its contract, costs on the device against the exact twin, masks, messages, instances and plans."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shardings import TINY, brute_force, random_problem, write

import graphrl
from graphrl.envs import adapters
from graphrl.envs.sharding.generator import ShardingSizes, make_instance, make_instances, oriented
from graphrl.envs.sharding.messages import min_sum
from graphrl.envs.sharding.reward import conditional, evaluate, fits, memory, possible, reward
from graphrl.envs.testing import check_env
from graphrl.errors import GraphrlError, PlanError, ProblemError
from graphrl.sharding.baseline import baseline, descended
from graphrl.sharding.layers import layers, least_bytes
from graphrl.sharding.problem import PROHIBITIVE, UNLIMITED, ShardingProblem, read_problem

KEY = jax.random.key(0)
SIZES = ShardingSizes(ops=8, strategies=4, edges=12, pairs=112, times=16)  # of all small problems here: few programs
PRICES = jnp.geomspace(1e-3, 10, 4)
seeds = st.integers(0, 10_000)


def on_device(problem: ShardingProblem, to: ShardingSizes | None = SIZES) -> Any:
    """The instance of a problem that has a plan which fits."""
    try:
        return jax.tree.map(jnp.asarray, make_instance(problem, to))
    except ProblemError:
        assume(False)


def random_plan(problem: ShardingProblem, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, problem.sizes)


def padded(plan: np.ndarray) -> jax.Array:
    return jnp.zeros(SIZES.ops, jnp.int32).at[: len(plan)].set(jnp.asarray(plan, jnp.int32))


@jax.jit
def figures(instance: Any, plan: jax.Array) -> Any:
    costs = evaluate(instance, plan)
    others = memory(instance, plan), conditional(instance, plan), reward(instance, costs), fits(instance, costs)
    return costs, *others


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_costs_and_memory_are_those_of_the_exact_twin(seed: int) -> None:
    problem = random_problem(seed, prohibitive=0.1)
    instance, plan = jax.device_get(on_device(problem)), random_plan(problem, seed)
    costs, over_time, given_others, earned, is_fitting = jax.device_get(figures(instance, padded(plan)))
    exact = np.concatenate(problem.costs(plan))
    usual = exact[exact < PROHIBITIVE].sum()
    assert costs.cost * instance.cost_unit == pytest.approx(usual, rel=1e-5, abs=1e-5)
    assert costs.prohibitive == (exact >= PROHIBITIVE).sum()
    assert costs.peak * instance.byte_unit == pytest.approx(problem.peak(plan), rel=1e-5)
    k = len(problem.times)
    assert over_time[:k] * instance.byte_unit == pytest.approx(problem.memory(plan), rel=1e-5, abs=1e-5)
    assert over_time[k:] == pytest.approx(0, abs=1e-5)
    excess = max(0, problem.peak(plan) - problem.limit) / problem.limit
    share = costs.prohibitive / (len(problem.sizes) + len(problem.edges))
    assert is_fitting == (excess == share == 0)
    assert earned == pytest.approx(-usual / instance.cost_unit if is_fitting else -1 - excess - share, rel=1e-5)
    _check_conditional(problem, plan, given_others.astype(float) * float(instance.cost_unit))


def _check_conditional(problem: ShardingProblem, plan: np.ndarray, given_others: np.ndarray) -> None:
    """Every strategy costs what the whole plan costs with it, less what the other nodes and edges cost."""
    for node, size in enumerate(problem.sizes):
        changed = [np.where(np.arange(len(plan)) == node, strategy, plan) for strategy in range(size)]
        total = [problem.total_cost(one) for one in changed]
        above = np.array([cost - min(total) for cost in total], float)
        is_usual = above < PROHIBITIVE / 2
        actual = given_others[node, :size] - given_others[node, :size].min()
        np.testing.assert_array_equal(actual < PROHIBITIVE / 2, is_usual)
        if given_others[node, :size].min() < PROHIBITIVE / 2:  # else float32 leaves no digits to others
            assert actual[is_usual] == pytest.approx(above[is_usual], rel=1e-4, abs=1e-2)


def test_many_plans_at_once_are_those_one_by_one() -> None:
    problem = random_problem(3, prohibitive=0.0)
    instance = on_device(problem)
    plans = np.stack([random_plan(problem, seed) for seed in range(2000)])
    wide = jnp.zeros((2000, SIZES.ops), jnp.int32).at[:, : plans.shape[1]].set(jnp.asarray(plans, jnp.int32))
    costs = jax.jit(jax.vmap(evaluate, (None, 0)))(instance, wide)
    exact = [(problem.total_cost(plan), problem.peak(plan)) for plan in plans]
    assert costs.cost * instance.cost_unit == pytest.approx([cost for cost, _ in exact], rel=1e-5)
    assert costs.peak * instance.byte_unit == pytest.approx([peak for _, peak in exact], rel=1e-5)
    one = figures(instance, wide[7])[0]
    assert float(one.cost) == pytest.approx(float(costs.cost[7]), rel=1e-6)


def test_the_contract() -> None:
    problem, env = layers(9, 1), graphrl.make("Sharding-v0", episode_steps=2)
    instance = make_instance(problem)
    each = dataclasses.asdict(instance.sizes)
    wider = ShardingSizes(**{name: size + number for number, (name, size) in enumerate(each.items(), 2)})
    check_env(env, instance, wider=make_instance(problem, wider), copies=2)


def test_an_episode_of_the_tiny_problem(tmp_path: Path) -> None:
    """Equal strategies avoid the edge's cost, but both cheap ones take 6 bytes of 5; the baseline is the optimum."""
    env, path = graphrl.make("Sharding-v0", episode_steps=2), write(tmp_path / "tiny.json", TINY)
    problem, instance = read_problem(path), env.instance(path)
    assert baseline(problem).tolist() == [1, 0]
    state, timestep = env.reset(KEY, instance)
    assert timestep.observation.previous[:2].tolist() == [1, 0]
    assert (float(timestep.info["cost"]), float(timestep.info["peak"])) == (6, 4)
    for plan, earned, cost, peak in (([0, 0], -7 / 6, 7, 2), ([1, 1], -1 - 1 / 5, 1, 6), ([0, 1], -9 / 6, 9, 4)):
        action = jnp.zeros(instance.cost.shape[0], jnp.int32).at[:2].set(jnp.asarray(plan, jnp.int32))
        after, timestep = env.step(KEY, state, action, instance)
        assert float(timestep.reward) == pytest.approx(earned)
        assert (float(timestep.info["cost"]), float(timestep.info["peak"])) == pytest.approx((cost, peak))
        assert bool(timestep.info["fits"]) == (peak <= 5)
        assert not timestep.done
    assert env.step(KEY, after, action, instance)[1].done
    made = env.plan(problem, instance, after)
    assert (made.cost, made.peak_bytes, made.strategies) == (9, 4, [0, 1])
    assert env.render(path, instance, after)._repr_png_().startswith(b"\x89PNG")


def test_strategies_that_are_not_there_are_masked() -> None:
    problem = random_problem(5, prohibitive=0.0)
    cost = problem.cost.copy()
    several = np.flatnonzero(problem.sizes > 1)[0]
    cost[problem.offset[several]] = PROHIBITIVE
    instance = on_device(dataclasses.replace(problem, cost=cost, limit=UNLIMITED))
    expected = np.arange(SIZES.strategies) < np.append(problem.sizes, np.ones(SIZES.ops - len(problem.sizes)))[:, None]
    expected[several, 0] = False
    np.testing.assert_array_equal(instance.allowed, expected)
    for strategy in (-1, 0, SIZES.strategies - 1, 99):
        plan = np.asarray(possible(instance, jnp.full(SIZES.ops, strategy, jnp.int32)))
        assert np.take_along_axis(expected, plan[:, None], 1).all()
        wrong = ~np.take_along_axis(expected, np.clip(np.full((SIZES.ops, 1), strategy), 0, 3), 1)[:, 0]
        np.testing.assert_array_equal(plan[wrong], expected.argmax(1)[wrong])


def test_problems_of_a_bucket_share_a_program() -> None:
    env = graphrl.make("Sharding-v0")
    batch = make_instances([layers(9, seed) for seed in range(3)])
    step = jax.jit(chex.assert_max_traces(env.step, n=1))
    rewards = []
    for index in range(3):
        instance = jax.tree.map(lambda leaf, index=index: jnp.asarray(leaf[index]), batch)
        state, _ = env.reset(KEY, instance)
        rewards.append(float(step(KEY, state, state.previous, instance)[1].reward))
    assert rewards == pytest.approx([-1] * 3)  # the baseline's plans


# Baseline and messages


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_the_baseline_is_no_worse_than_a_descent(seed: int) -> None:
    problem = random_problem(seed, prohibitive=0.1)
    try:
        plan = baseline(problem)
    except ProblemError:
        assume(False)
    least = least_bytes(problem)
    assert problem.total_cost(plan) <= problem.total_cost(descended(problem, least)) <= problem.total_cost(least)
    assert problem.peak(plan) <= max(problem.limit, problem.peak(least))


def test_edges_are_turned_to_the_higher_node() -> None:
    problem = random_problem(2, prohibitive=0.1)
    turned = oriented(problem)
    assert (problem.edges[:, 0] > problem.edges[:, 1]).any()
    assert (turned.edges[:, 0] < turned.edges[:, 1]).all()
    for seed in range(20):
        plan = random_plan(problem, seed)
        assert turned.total_cost(plan) == problem.total_cost(plan)


searched = jax.jit(jax.vmap(functools.partial(min_sum, rounds=30), (None, 0)))


def tree(seed: int) -> ShardingProblem:
    """A tree without a limit, whose relaxation has no gap."""
    problem = random_problem(seed, prohibitive=0.0)
    count = len(problem.sizes) - 1
    offset = problem.edge_offset[: count + 1]
    return dataclasses.replace(
        problem,
        edges=problem.edges[:count],
        edge_offset=offset,
        edge_cost=problem.edge_cost[: offset[-1]],
        limit=UNLIMITED,
    )


@pytest.mark.parametrize("seed", range(8))
def test_messages_solve_trees(seed: int) -> None:
    problem = tree(seed)
    instance = on_device(problem)
    start = least_bytes(problem)  # so that the plan is not the baseline's
    plans, costs = searched(dataclasses.replace(instance, start=padded(start)), PRICES)
    best = int(costs.cost.argmin())
    plan = np.asarray(plans[best])[: len(problem.sizes)].astype(np.int64)
    assert problem.total_cost(plan) == brute_force(problem)


def test_messages_under_a_limit_fit_and_are_close_to_the_optimum() -> None:
    ratios = []
    for seed in itertools.count():
        problem = random_problem(seed, prohibitive=0.1)
        optimum = brute_force(problem)
        if optimum is None:
            continue
        instance = on_device(problem)
        plans, costs = searched(instance, PRICES)
        plan = np.asarray(plans[int(costs.cost.argmin())])[: len(problem.sizes)].astype(np.int64)
        assert problem.peak(plan) <= problem.limit
        assert problem.total_cost(plan) <= problem.total_cost(baseline(problem))
        ratios.append(problem.total_cost(plan) / max(1, optimum))
        if len(ratios) == 10:
            break
    assert min(ratios) == 1
    assert np.mean(ratios) < 1.05


# Instances, and other libraries


def same(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_instances_are_of_problems_files_and_names(tmp_path: Path) -> None:
    env, problem = graphrl.make("Sharding-v0"), layers(9, 3)
    path = write(tmp_path / "tiny.json.gz", TINY)
    instance = env.instance("sharding-layers:9@3")
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(instance))
    assert same(env.instance(problem), instance)
    assert same(env.instance(str(path)), env.instance(path))
    batch = env.instances(["sharding-layers:9x2@3", problem, path])
    assert batch.num_ops.tolist() == [9, 9, 9, 2]
    assert same(env.instance(path, to=batch.sizes), jax.tree.map(lambda leaf: leaf[3], batch))
    generator = env.generator("sharding-layers:9x3")
    drawn = jax.vmap(generator.sample)(jax.random.split(KEY, 20))
    assert len(np.unique(np.asarray(drawn.cost_unit))) == 3


def test_faults_are_one_line(tmp_path: Path) -> None:
    env, problem = graphrl.make("Sharding-v0"), layers(9, 3)
    instance = env.instance(problem)
    state, _ = env.reset(KEY, instance)
    too_much = dataclasses.replace(problem, limit=problem.peak(least_bytes(problem)) - 1)
    for call, fault in (
        (lambda: env.instance("layered:9"), "cannot read layered: No such file"),
        (lambda: env.instance("sharding-layers:"), "is no set of problems: an example is sharding-layers:200x64@7"),
        (lambda: env.instance(3), "model is of type int: Sharding-v0 takes a ShardingProblem, a file, or a name"),
        (lambda: env.instance(problem, to=SIZES), "more than the ShardingSizes"),
        (lambda: env.instances([]), "no models"),
        (lambda: env.plan(layers(8, 3), instance, state), "the instance has 9 nodes: 'sharding-layers:8@3' has 8"),
        (lambda: env.plan(too_much, instance, state), "the limit is"),
        (lambda: graphrl.make("Sharding-v0", episode_steps=0), "episode_steps is 0"),
    ):
        with pytest.raises(GraphrlError, match=fault) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_other_libraries_play_it() -> None:
    env = graphrl.make("Sharding-v0", episode_steps=2)
    instance = env.instance("sharding-layers:9@3")
    expected = float(env.step(KEY, env.reset(KEY, instance)[0], jnp.zeros(9, jnp.int32), instance)[1].reward)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        pytest.importorskip("gymnasium")
        one = adapters.to_gymnasium(env, instance, flat=True)
        observation, _ = one.reset(seed=0)
        assert observation in one.observation_space
        assert one.step(np.zeros(9, np.int32))[1] == pytest.approx(expected)
        many = adapters.to_gymnasium_vector(env, env.instances("sharding-layers:9x2@3"))
        many.reset(seed=0)
        assert many.step(np.zeros((2, 9), np.int32))[1][0] == pytest.approx(expected)
        pytest.importorskip("gymnax")
        other = adapters.to_gymnax(env, instance)
        _, started = other.reset(KEY, instance)
        assert float(other.step(KEY, started, jnp.zeros(9, jnp.int32), instance)[2]) == pytest.approx(expected)
        pytest.importorskip("jumanji")
        third = adapters.to_jumanji(env, instance)
        begun, _ = third.reset(KEY)
        assert float(third.step(begun, jnp.zeros(9, jnp.int32))[1].reward) == pytest.approx(expected)


def test_a_plan_that_does_not_fit_is_none() -> None:
    env, problem = graphrl.make("Sharding-v0"), layers(9, 3)
    instance = env.instance(problem)
    state, _ = env.reset(KEY, instance)
    most = np.lexsort((problem.usage, np.repeat(np.arange(9), problem.sizes)))[problem.offset[1:] - 1]
    dear = state._replace(previous=state.previous.at[:9].set(jnp.asarray(most - problem.offset[:-1], jnp.int32)))
    with pytest.raises(PlanError, match=r"the limit is|prohibitive"):
        env.plan(problem, instance, dear)
