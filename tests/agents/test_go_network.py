"""GO's networks: invariant to padding and numbering, sensitive to structure, for any number of devices."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_observations import FUSIONS, LEVELS, TASKS, problem, renumbered, seen
from filled import drawn

from graphrl.agents.go.config import GoConfig
from graphrl.agents.go.network import networks
from graphrl.envs.compile.generator import make_instance
from graphrl.envs.compile.observation import observe
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.graphs.graph import ComputationGraph, Op
from graphrl.graphs.padding import common_sizes
from graphrl.networks.base import Network

GRAPH = regal_like(3, num_ops=20)
WIDER = common_sizes([regal_like(3, num_ops=44)])
SMALL = {"width": 8, "heads": 2, "segment": 8, "rounds": 1, "layers": 1}
CONFIGS = {
    "go": GoConfig(TASKS, votes=True, plan_features=True, **SMALL),  # type: ignore[arg-type]
    "gdp": GoConfig(TASKS, superposition="none", coupling="none", **SMALL),  # type: ignore[arg-type]
    "ops, twice": GoConfig(TASKS, superposition="ops", iterations=2, cached=False, **SMALL),  # type: ignore[arg-type]
}


@functools.cache
def policy(name: str) -> tuple[Any, Any]:
    """Jitted `apply`, and parameters."""
    return applied(networks(CONFIGS[name]).policy)


def applied(network: Network) -> tuple[Any, Any]:
    return jax.jit(network.apply), drawn(jax.eval_shape(network.init, jax.random.key(0), seen(GRAPH)))


@functools.cache
def logits(name: str, devices: int = 2) -> dict[str, np.ndarray]:
    apply, params = policy(name)
    return {task: np.asarray(of) for task, of in apply(params, seen(GRAPH, devices)).items()}


def assert_close(left: dict[str, Any], right: dict[str, Any]) -> None:
    for task in TASKS:
        np.testing.assert_allclose(np.asarray(left[task]), np.asarray(right[task]), rtol=1e-4, atol=1e-4)


def changed(left: dict[str, Any], right: dict[str, Any], task: str) -> bool:
    return bool(np.abs(np.asarray(left[task]) - np.asarray(right[task])).max() > 1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_and_other_numbers_for_the_same_ops_in_the_same_order_change_nothing(name: str) -> None:
    apply, params = policy(name)
    wide, n = apply(params, seen(GRAPH, to=WIDER)), len(GRAPH.ops)
    assert {task: of.shape[1] for task, of in wide.items()} == dict(zip(TASKS, (2, LEVELS, FUSIONS), strict=True))
    assert_close({task: of[:n] for task, of in wide.items()}, {task: of[:n] for task, of in logits(name).items()})
    observation, old = renumbered(seen(GRAPH), 0)
    mixed, real = apply(params, observation), old < n
    assert_close({t: of[real] for t, of in mixed.items()}, {t: of[old][real] for t, of in logits(name).items()})


def test_the_value_depends_neither_on_padding_nor_on_numbers_but_on_the_graph_and_on_the_devices() -> None:
    apply, params = applied(networks(CONFIGS["go"]).value)
    value = float(apply(params, seen(GRAPH)))
    assert float(apply(params, seen(GRAPH, to=WIDER))) == pytest.approx(value, rel=1e-5)
    assert float(apply(params, renumbered(seen(GRAPH), 0).observation)) == pytest.approx(value, rel=1e-5)
    assert float(apply(params, seen(regal_like(4, num_ops=20), to=WIDER))) != pytest.approx(value, rel=1e-4)
    assert float(apply(params, seen(GRAPH, devices=4))) != pytest.approx(value, rel=1e-4)


def test_mapped_over_graphs_and_parameters_it_is_a_loop_and_compiles_once() -> None:
    network = networks(CONFIGS["go"]).policy
    observations = [seen(graph, to=WIDER) for graph in (GRAPH, regal_like(4, num_ops=30))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *observations)
    _, params = policy("go")
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)
    mapped = jax.jit(chex.assert_max_traces(lambda params, seen: jax.vmap(network.apply)(params, seen), n=1))
    mapped(both, stacked)
    out = mapped(both, stacked)
    apply = policy("go")[0]
    for i, observation in enumerate(observations):
        alone = apply(jax.tree.map(lambda leaf, i=i: leaf[i], both), observation)
        assert_close({task: of[i] for task, of in out.items()}, alone)


def test_one_policy_serves_any_number_of_devices_and_scores_them_in_their_order() -> None:
    placement = logits("go", 4)["placement"]
    assert placement.shape[1] == 4
    assert len(np.unique(placement[0].round(5))) == 4  # no two are alike
    apply, params = policy("go")
    observation, other = seen(GRAPH, devices=4), np.array([2, 0, 3, 1])
    permuted = observation._replace(
        options=observation.options | {"placement": observation.options["placement"][other]},
        action_mask=observation.action_mask | {"placement": observation.action_mask["placement"][:, other]},
        plan_features=observation.plan_features._replace(devices=observation.plan_features.devices[:, other]),
        previous=observation.previous
        | {"placement": jnp.asarray(np.argsort(other), jnp.int32)[observation.previous["placement"]]},
    )
    out, expected = apply(params, permuted), logits("go", 4)
    assert_close(out, expected | {"placement": expected["placement"][:, other]})


def test_devices_that_are_not_there_change_nothing_and_are_never_chosen() -> None:
    apply, params = policy("go")
    instance_of = functools.partial(make_instance, GRAPH, problem(2), levels=LEVELS, baseline=1.0)
    few, more = (observe(one, one.start, TASKS[:2]) for one in (instance_of(), instance_of(devices=4)))
    fusion = seen(GRAPH)
    few, more = (
        one._replace(**{name: getattr(one, name) | {"fusion": getattr(fusion, name)["fusion"]} for name in names})
        for one in (few, more)
        for names in [("options", "action_mask", "previous")]
    )
    small, large = apply(params, few), apply(params, more)
    n = len(GRAPH.ops)
    assert float(large["placement"][:n, 2:].max()) < -1e8
    assert_close({t: of[:n] for t, of in small.items()}, {t: of[:n, : small[t].shape[1]] for t, of in large.items()})


@pytest.mark.parametrize("name", CONFIGS)
def test_what_may_not_be_chosen_never_is(name: str) -> None:
    mask = seen(GRAPH).action_mask
    for task, of in logits(name).items():
        assert (of[~np.asarray(mask[task])] < -1e8).all()
        assert (np.abs(of[np.asarray(mask[task])]) < 1e3).all()


@pytest.mark.parametrize(("name", "informed"), [("go", True), ("gdp", False)])
def test_tasks_know_what_the_ones_before_decided_if_they_are_coupled(name: str, informed: bool) -> None:
    apply, params = policy(name)
    observation = seen(GRAPH)
    # the context sees which options there are, and op 0 alone loses one: its decision alone changes
    mask = observation.action_mask["priority"].at[0].set(jnp.arange(LEVELS) == 3)
    out = apply(params, observation._replace(action_mask=observation.action_mask | {"priority": mask}))
    assert not changed(out, logits(name), "placement")
    assert changed(out, logits(name), "fusion") == informed


@pytest.mark.parametrize(("name", "informed"), [("go", True), ("gdp", False)])
def test_what_was_played_is_an_input_if_it_is_to_be(name: str, informed: bool) -> None:
    apply, params = policy(name)
    observation = seen(GRAPH)
    assert np.asarray(observation.plan_features.ops).any()
    for part in observation.plan_features._fields:
        features = observation.plan_features._replace(**{part: -getattr(observation.plan_features, part)})
        out = apply(params, observation._replace(plan_features=features))
        assert changed(out, logits(name), "placement") == informed


def test_the_decision_before_is_an_input() -> None:
    apply, params = policy("go")
    observation = seen(GRAPH)
    other = 1 - observation.previous["placement"]
    out = apply(params, observation._replace(previous=observation.previous | {"placement": other}))
    assert all(changed(out, logits("go"), task) for task in TASKS)


def test_a_second_iteration_sees_what_the_first_decided() -> None:
    config = CONFIGS["ops, twice"]
    observation, params = seen(GRAPH), policy("ops, twice")[1]
    once = networks(GoConfig(TASKS, superposition="ops", cached=False, **SMALL)).policy  # type: ignore[arg-type]
    first: Any = jax.jit(once.apply)(params, observation)
    assert changed(first, logits("ops, twice"), "placement")
    assert config.iterations == 2


def test_an_untrained_policy_prefers_what_was_chosen() -> None:
    observation = seen(GRAPH)
    network = networks(GoConfig(TASKS, spread=0.01, preference=5.0, **SMALL)).policy  # type: ignore[arg-type]
    params = jax.jit(network.init)(jax.random.key(1), observation)
    out: Any = jax.jit(network.apply)(params, observation)
    chosen = observation.previous["placement"][:, None]
    own, other = (jnp.take_along_axis(out["placement"], option, 1) for option in (chosen, 1 - chosen))
    np.testing.assert_allclose(np.asarray(own - other)[: len(GRAPH.ops)], 5.0, atol=0.2)


@pytest.mark.parametrize("which", ["policy", "value"])
def test_gradients_are_finite_also_where_nothing_is_joined(which: str) -> None:
    apart = ComputationGraph("apart", (Op("a", "op", 1.0), Op("b", "op", 2.0)))
    network = getattr(networks(CONFIGS["go"]), which)
    params = drawn(jax.eval_shape(network.init, jax.random.key(0), seen(GRAPH)))

    def loss(params: Any, observation: Any) -> jax.Array:
        # log-probabilities of the first option alone: others may be forbidden
        out = network.apply(params, observation)
        return sum((jax.nn.log_softmax(of)[:2, 0].sum() for of in out.values()), jnp.float32(0)) if of_tasks else out

    of_tasks, slope = which == "policy", jax.jit(jax.grad(loss))
    for graph in (apart, GRAPH):
        gradient = slope(params, seen(graph, to=WIDER))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))


def test_the_tasks_are_those_of_the_observation() -> None:
    network = networks(GoConfig(TASKS[:2], **SMALL)).policy  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r"decides placement, priority.*has fusion, placement, priority"):
        jax.eval_shape(network.init, jax.random.key(0), seen(GRAPH))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 10}, "heads is 4: must divide the width, 10"),
        ({"spread": 0.0}, "spread is 0.0: must be a number above 0"),
        ({"tasks": ()}, "tasks are none: must be one or more of placement, priority, fusion"),
        ({"tasks": ("fusion", "fusion")}, "tasks are fusion, fusion: must be .* each once"),
        ({"superposition": "nodes"}, "superposition is 'nodes': must be one of graph, ops, none"),
        ({"preference": -1.0}, "preference is -1.0: must be at least 0 and finite"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        GoConfig(**settings)
