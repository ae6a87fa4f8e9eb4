"""All four environments: from anything that is a graph to an instance, a batch, an episode, a plan and a picture."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fusion_graphs import chain_graph
from partitioned_graphs import random_pipeline
from search_graphs import random_dag

import graphrl
from graphrl.costs.problem import Problem
from graphrl.envs import AutoReset, sample_action, specs
from graphrl.envs.graph_environment import GraphEnvironment
from graphrl.errors import GraphrlError, PlanError
from graphrl.graphs.coarsen import coarsened
from graphrl.graphs.datasets.sets import load_graph
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import common_sizes
from graphrl.solvers.chromosomes.brkga import Parameters

KEY = jax.random.key(0)
LINK = Problem("makespan", 3, "link", latency=1.0, bandwidth=5.0)
GRAPH, OTHER = random_dag(0, 10), random_dag(1, 7)
ENVS: dict[str, Any] = {
    "Compile-v0": graphrl.make("Compile-v0", problem=LINK, levels=4, episode_steps=2),
    "MemoryMap-v0": graphrl.make("MemoryMap-v0", episode_steps=2),
    "Ordering-v0": graphrl.make("Ordering-v0"),
    "Proposal-v0": graphrl.make(
        "Proposal-v0", problem=LINK, evaluations=45, parameters=Parameters(12, 3, 3), coding="shapes"
    ),
}


def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
    return (jnp.tanh(x @ weights) @ weights.T).sum()


NO_WEIGHTS = pytest.mark.filterwarnings("ignore:graph 'loss' has no weights to place")
CALLED = (jax.grad(loss), jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32))


def same(one: Any, other: Any) -> bool:
    """True if two trees have equal arrays; typed keys do not count."""
    equal: bool = jax.tree.all(jax.tree.map(lambda a, b: a.dtype == KEY.dtype or np.array_equal(a, b), one, other))
    return equal


@functools.cache
def compiled(env: Any) -> tuple[Any, Any, Any]:
    return jax.jit(env.reset), jax.jit(env.step), jax.jit(env.sample_action)


def played(env: Any, instance: Any) -> list[tuple[Any, Any]]:
    """States and time steps of an episode of random legal actions, each checked against specification and mask."""
    reset, step, act = compiled(env)
    episode, spec = [reset(KEY, instance)], env.action_spec(instance)
    while not episode[-1][1].done:
        key = jax.random.fold_in(KEY, len(episode))
        state, timestep = episode[-1]
        action, mask = act(key, timestep.observation), timestep.observation.action_mask
        specs.validate(spec, action)
        for chosen, allowed in zip(jax.tree.leaves(action), jax.tree.leaves(mask), strict=True):
            assert np.take_along_axis(np.asarray(allowed), np.asarray(chosen)[..., None], -1).all()
        assert same(sample_action(key, env, timestep, instance), action)
        episode.append(step(key, state, action, instance))
    return episode


@NO_WEIGHTS
@pytest.mark.parametrize("id", ENVS)
def test_an_instance_is_of_a_graph_a_path_a_name_or_a_function(id: str, tmp_path: Path) -> None:
    env = ENVS[id]
    graphrl.write_json(GRAPH, tmp_path / "graph.json")
    of_graph = env.instance(GRAPH)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(of_graph))  # on the device
    assert same(env.instance(tmp_path / "graph.json"), of_graph)
    assert same(env.instance(str(tmp_path / "graph.json")), of_graph)
    assert same(env.instance("layered:12@3"), env.instance(load_graph("layered:12@3")))
    traced = graphrl.from_jax(*CALLED)
    assert same(env.instance(*CALLED), env.instance(coarsened(traced) if id == "MemoryMap-v0" else traced))


@NO_WEIGHTS
@pytest.mark.parametrize("id", ENVS)
def test_a_batch_is_padded_alike_and_a_generator_draws_from_it(id: str) -> None:
    env = ENVS[id]
    batch = env.instances([GRAPH, OTHER, "layered:12x2@3", CALLED])
    assert {leaf.shape[0] for leaf in jax.tree.leaves(batch)} == {5}
    assert batch.num_ops[:4].tolist() == [10, 7, 12, 12]
    sizes = (batch.problem if id == "MemoryMap-v0" else batch.graph).sizes
    assert same(env.instance(OTHER, to=sizes), jax.tree.map(lambda x: x[1], batch))
    assert same(env.instances("layered:12x2@3"), env.instances(["layered:12@3", "layered:12@4"]))
    generator = env.generator("layered:12x3@3")
    assert generator.count == 3
    drawn = jax.jit(lambda generator, keys: jax.vmap(generator.sample)(keys))(generator, jax.random.split(KEY, 24))
    each = {
        next(i for i in range(3) if same(generator[i], jax.tree.map(lambda x, n=n: x[n], drawn))) for n in range(24)
    }
    assert each == {0, 1, 2}
    state, _ = jax.jit(lambda key, generator: env.reset(key, generator.sample(key)))(KEY, generator)
    assert any(same(state, compiled(env)[0](KEY, generator[i])[0]) for i in range(3))


VALUES = {"Compile-v0": "runtime", "MemoryMap-v0": "latency", "Ordering-v0": "peak", "Proposal-v0": "objective"}


@pytest.mark.parametrize("id", ENVS)
def test_a_plan_costs_what_the_environment_says_and_is_drawn(id: str, tmp_path: Path) -> None:
    env, instance = ENVS[id], ENVS[id].instance(GRAPH)
    state, timestep = played(env, instance)[-1]
    plan = env.plan(GRAPH, instance, state)
    plan.check(GRAPH)
    if id != "MemoryMap-v0" or float(timestep.info["error"]) == 0:
        assert float(timestep.info[VALUES[id]]) == pytest.approx(plan.value, rel=1e-5)
    picture = env.render(GRAPH, instance, state)
    assert picture._repr_png_().startswith(b"\x89PNG")
    picture.save(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_a_reset_of_proposals_has_the_plan_of_standard_brkga() -> None:
    env, instance = ENVS["Proposal-v0"], ENVS["Proposal-v0"].instance(GRAPH)
    state, timestep = compiled(env)[0](KEY, instance)
    assert env.plan(GRAPH, instance, state).value == pytest.approx(float(timestep.info["standard"]), rel=1e-5)


def runtime_and_plan(env: Any, graph: ComputationGraph) -> tuple[float, Any]:
    instance = env.instance(graph)
    state, timestep = played(env, instance)[-1]
    assert bool(timestep.info["valid"])
    return float(timestep.info["runtime"]), env.plan(graph, instance, state)


@pytest.mark.parametrize("transfer", ["rendezvous", "link"])
def test_plans_whose_sends_follow_the_rule(transfer: Any) -> None:
    problem = dataclasses.replace(LINK, transfer=transfer)
    runtime, plan = runtime_and_plan(graphrl.make("Compile-v0", problem=problem, levels=4, sends="rule"), GRAPH)
    assert plan.value == pytest.approx(runtime, rel=1e-5)


def test_plans_of_kernels_and_of_loads() -> None:
    tasks, chain = ("placement", "priority", "fusion"), chain_graph("exp mul exp add exp")
    env = graphrl.make("Compile-v0", problem=LINK, tasks=tasks, levels=4)
    runtime, plan = runtime_and_plan(env, chain)
    assert plan.inlining is not None
    assert plan.value == pytest.approx(runtime, rel=1e-5)
    plan.check(chain)
    env = graphrl.make("Compile-v0", problem=Problem("max_load", 3, cpus=1), tasks=("placement",))
    runtime, plan = runtime_and_plan(env, random_pipeline(0, 8))
    assert plan.value == pytest.approx(runtime, rel=1e-5)


def test_the_order_so_far_is_in_the_state_and_is_drawn() -> None:
    env, instance = ENVS["Ordering-v0"], ENVS["Ordering-v0"].instance(GRAPH)
    episode = played(env, instance)
    n = instance.nodes.shape[0]
    for count, (state, _) in enumerate(episode):
        assert sorted(state.order[:count].tolist()) == np.flatnonzero(np.asarray(state.waits)[:10] < 0).tolist()
        assert state.order[count:].tolist() == [n] * (n - count)
    for count in (1, 4, 9):
        state, timestep = episode[count]
        (memory,) = env.render(GRAPH, instance, state).axes[-1:]
        top = max(line.get_ydata().max() for line in memory.lines if len(line.get_ydata()))
        assert top == pytest.approx(float(timestep.info["peak"]), rel=1e-6)
        with pytest.raises(PlanError, match=f"{count} of 10 ops have run: a plan has all, env.render draws these"):
            env.plan(GRAPH, instance, state)
    with pytest.raises(PlanError, match="no op has run yet"):
        env.render(GRAPH, instance, episode[0][0])


def test_faults_are_one_line() -> None:
    env = ENVS["Ordering-v0"]
    instance, batch = env.instance(GRAPH), env.instances([GRAPH, OTHER])
    states = jax.vmap(env.reset, (None, 0))(KEY, batch)[0]
    state = compiled(env)[0](KEY, instance)[0]
    for call, fault in (
        (lambda: env.instance("layered:12x2@3"), "'layered:12x2@3' names 2 graphs, where one is needed"),
        (lambda: env.instances([]), "no models: a batch needs at least one"),
        (lambda: env.instance(3), "model is of type int: must be a graph, a path or a JAX function"),
        (lambda: env.instance(GRAPH, 3), "1 arguments for a model that is not a function"),
        (lambda: env.plan(GRAPH, batch, states), "the instance has a batch axis, of 2: pass one"),
        (lambda: env.plan(GRAPH, instance, states), "the state is not of one episode of this instance"),
        (lambda: env.plan(CALLED[0], instance, state), r"needs its arguments: pass \(function, \*arguments\)"),
        (lambda: env.instance(loss), "Without them: TypeError: loss.. missing 2 required positional arguments"),
        (lambda: env.plan(OTHER, instance, state), "the instance has 10 ops: graph 'dag1' has 7"),
        (lambda: graphrl.make("MemoryMap-v0", chip="none"), "chips by name are nnp-i"),
        (lambda: graphrl.make("Compile-v0", problem=Problem("peak_memory")), "must be makespan or max_load"),
    ):
        with pytest.raises(GraphrlError, match=fault) as raised:
            call()
        assert "\n" not in str(raised.value)
    env = ENVS["Compile-v0"]
    instance = env.instance(GRAPH)
    with pytest.raises(PlanError, match="nothing has been chosen yet"):
        env.plan(GRAPH, instance, compiled(env)[0](KEY, instance)[0])


def test_a_function_without_weights_is_no_silent_memory_map() -> None:
    env = ENVS["MemoryMap-v0"]
    with pytest.warns(UserWarning, match=r"graph 'loss' has no weights to place.* weights_argnums") as warned:
        instance = env.instance(*CALLED)
    assert warned[0].filename == __file__
    assert not instance.placed[:, 0].any()
    layers = coarsened(graphrl.from_jax(*CALLED, weights_argnums=0))
    assert env.instance(layers).placed[:, 0].any()


def test_a_wrapped_environment_makes_instances_too() -> None:
    env: Any = AutoReset(ENVS["Compile-v0"])
    assert same(env.instance(GRAPH), ENVS["Compile-v0"].instance(GRAPH))
    assert env.problem == LINK
    with pytest.raises(AttributeError, match="no_such"):
        _ = env.no_such


class Balance(GraphEnvironment[dict[str, Any]]):
    """Instances of an environment of a user, without plans."""

    def make_instances(self, graphs: Sequence[ComputationGraph], to: Any = None) -> dict[str, Any]:
        to = common_sizes(graphs) if to is None else to
        return {"ops": np.array([len(graph.ops) for graph in graphs], np.int32), "size": np.full(len(graphs), to.ops)}


def test_an_environment_that_makes_instances_has_one_several_and_a_generator() -> None:
    env = Balance()
    assert int(env.instance(GRAPH)["ops"]) == 10
    assert env.instances([GRAPH, OTHER])["ops"].tolist() == [10, 7]
    assert int(env.generator([GRAPH, OTHER])[1]["ops"]) == 7
    with pytest.raises(PlanError, match=r"^Balance makes no plans: implement plan\(graph, instance, state\)$"):
        env._plan(GRAPH, env.instance(GRAPH), None)


def test_the_arguments_of_a_function_that_are_weights_are_named() -> None:
    instance = ENVS["MemoryMap-v0"].instance(*CALLED, weights_argnums=0)
    assert instance.placed[:, 0].any()
    with pytest.raises(GraphrlError, match=r"^weights_argnums names arguments of a function: this model is none$"):
        ENVS["Ordering-v0"].instance(GRAPH, weights_argnums=0)
