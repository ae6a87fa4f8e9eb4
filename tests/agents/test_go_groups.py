"""GO's sequential decoder: groups stay together, padding, exact costs, seeds, and learning."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_graphs import grouped
from search_graphs import random_dag

import graphrl
from graphrl.agents.go import groups
from graphrl.agents.go.agent import learner_of
from graphrl.agents.go.config import GoConfig, GoSettings
from graphrl.agents.go.decode import Decoder, hint_instance
from graphrl.agents.go.groups import GroupsInstance
from graphrl.agents.go.learner import problem_of
from graphrl.agents.go.network import Policy
from graphrl.agents.regal.instances import make_visits
from graphrl.agents.regal.placement import DEVICE_FEATURES, GROUP_FEATURES, place
from graphrl.costs.problem import Problem
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.sets import load_graphs
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.learning.ppo import PpoSettings

PROBLEM = Problem("makespan", 3, "rendezvous", 0.1, 50_000.0)
NETWORK = GoConfig(width=8, rounds=1)
SETTINGS = GoSettings(
    decoder="groups",
    group_counts=(4, 0),
    network=NETWORK,
    ppo=PpoSettings(steps=1, environments=8, learning_rate=1e-2, minibatches=1),
    devices=(3,),
    transfers=("rendezvous",),
    samples=8,
)
GRAPH = layered(40, 1)
SIZES = common_sizes([GRAPH])


@functools.cache
def params() -> Any:
    return groups.initial(NETWORK, jax.random.key(0))


def instance(graph: ComputationGraph = GRAPH, to: Sizes = SIZES, count: int = 6) -> GroupsInstance:
    return groups.make_instance(graph, PROBLEM, to, count)


def plans(one: GroupsInstance, seed: int = 0, count: int = 8) -> groups.Plans:
    drawn = groups.best_plans(NETWORK, params(), jax.random.split(jax.random.key(seed), count), one)
    return jax.tree.map(np.asarray, drawn)


def test_groups_are_on_one_device_and_colocated_ops_in_one_group() -> None:
    graph = grouped(GRAPH, {f"op{i}": i % 5 for i in range(0, 40, 3)})
    one, n = instance(graph), len(graph.ops)
    leader = np.asarray(one.visits.groups.leader)[:n]  # type: ignore[union-attr]
    assert (leader == leader[leader]).all()
    assert len(np.unique(leader)) < n
    assert (leader == leader[graph.leaders]).all()
    placement = plans(one).placement[:, :n]
    assert (placement == placement[:, leader]).all()
    assert len(np.unique(placement, axis=0)) > 1
    assert set(np.unique(placement)) == {0, 1, 2}  # an untrained policy uses all devices


def test_padding_changes_nothing() -> None:
    """Keys are split for the padded number of ops, so only the likeliest plan is drawn from equal keys."""
    wide = dataclasses.replace(SIZES, ops=SIZES.ops + 24, slots=SIZES.slots + 24, uses=SIZES.uses + 16)
    n = len(GRAPH.ops)
    for count in (4, 0):
        near, far = (plans(instance(to=to, count=count), count=1) for to in (SIZES, wide))
        np.testing.assert_array_equal(near.placement[:, :n], far.placement[:, :n])
        np.testing.assert_allclose(near.rank[:, :n], far.rank[:, :n], rtol=1e-6)


@pytest.mark.parametrize("transfer", ["rendezvous", "link"])
def test_costs_are_those_of_the_host(transfer: Any) -> None:
    """For two devices: with more the device code breaks ties of bundled transfers by tensor, the host by pair."""
    problem, n = dataclasses.replace(PROBLEM, devices=2, transfer=transfer), len(GRAPH.ops)
    one = groups.make_instance(GRAPH, problem, SIZES, 6, 1.0)
    drawn = plans(one)
    of_batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (one, groups.Plans(*drawn[:2], jnp.zeros(8))))
    makespans = np.asarray(groups.makespans(*of_batch))[0]
    decoder = Decoder(GRAPH, problem, hint_instance(GRAPH, problem, SIZES, SETTINGS))
    for placement, rank_of_op, makespan in zip(drawn.placement, drawn.rank, makespans, strict=True):
        rank, start = decoder.ranked(placement[:n].astype(np.int64), rank_of_op[:n], (0, np.inf))
        assert rank[1] == pytest.approx(float(makespan), rel=1e-5)
        assert sorted(start.order) == list(range(n))  # type: ignore[arg-type]


def test_plans_over_the_memory_limit_have_the_reward_of_invalid_ones() -> None:
    graph, ratios, limit = layered(40, 5), [], 30_000
    sizes, n = common_sizes([graph]), len(graph.ops)
    for memory in (None, limit):
        one = groups.make_instance(graph, dataclasses.replace(PROBLEM, devices=2, memory_limit=memory), sizes, 6)
        drawn = plans(one)
        of_batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (one, drawn._replace(features=jnp.zeros(8))))
        ratios.append(np.asarray(groups.makespans(*of_batch))[0])
    problem = dataclasses.replace(PROBLEM, devices=2, memory_limit=limit)
    decoder = Decoder(graph, problem, hint_instance(graph, problem, sizes, SETTINGS))
    fits = [
        decoder.ranked(placement[:n].astype(np.int64), place_of_op[:n], (limit, np.inf))[0][0] == 0
        for placement, place_of_op in zip(drawn.placement, drawn.rank, strict=True)
    ]
    assert 0 < sum(fits) < len(fits)
    np.testing.assert_allclose(ratios[1], np.where(fits, ratios[0], 100))


def test_a_group_of_its_own_for_each_op_is_regals_pass() -> None:
    """The groups add features, and change neither the choices nor the other features."""
    graph, sizes = random_dag(3, 20), common_sizes([random_dag(3, 20)])
    devices = jnp.asarray(np.random.default_rng(0).integers(0, 3, sizes.ops), jnp.int32)

    def run(group: np.ndarray | None) -> Any:
        visits = make_visits(graph, sizes, PROBLEM, group)
        return place(visits, PROBLEM, 1, jax.random.key(0), lambda key, op, features: devices[op])

    alone, single = run(None), run(np.arange(20))
    np.testing.assert_array_equal(alone.choice[:20], single.choice[:20])
    shared = len(DEVICE_FEATURES)
    assert single.features.shape[-1] == shared + len(GROUP_FEATURES)
    np.testing.assert_allclose(alone.features[:20], single.features[:20, :, :shared], rtol=1e-6)


def test_group_features_say_what_they_name() -> None:
    """Two chains of two ops: the groups are a chain each, and one tensor goes from the first chain to the second."""
    op = functools.partial(graphrl.graphs.graph.Op, runtime=1.0)
    tensor = graphrl.graphs.graph.Tensor
    graph = ComputationGraph(
        "chains",
        (
            op("a", outputs=(tensor("a", 10_000),)),
            op("b", inputs=("a",), outputs=(tensor("b", 10_000),)),
            op("c", inputs=("a",), outputs=(tensor("c", 10_000),)),
            op("d", inputs=("c",)),
        ),
    )
    visits = make_visits(graph, common_sizes([graph]), PROBLEM, np.array([0, 0, 1, 1]))
    placed = place(visits, PROBLEM, 1, jax.random.key(0), lambda key, op, features: jnp.where(op == 0, 2, 0))
    assert placed.choice[:4].tolist() == [2, 2, 0, 0]
    column = dict(
        zip(GROUP_FEATURES, np.moveaxis(np.asarray(placed.features)[2, :, len(DEVICE_FEATURES) :], 1, 0), strict=True)
    )
    np.testing.assert_allclose(column["ties_here"], [0, 0, 1])
    np.testing.assert_allclose(column["ties_elsewhere"], np.log1p([0.15, 0.15, 0]), rtol=1e-5)  # 0.3 s to 2 s
    np.testing.assert_allclose(column["given"], [-0.5, -0.5, 1])
    np.testing.assert_allclose(column["given_after"], [0, 0, 1.5])
    np.testing.assert_allclose(column["left"], [0.5] * 3)
    np.testing.assert_allclose(column["size"], [1.5] * 3)


def test_it_learns() -> None:
    """From devices at random to plans that are much shorter, and further on one graph."""
    graphs = [layered(40, seed) for seed in range(4)]
    module = learner_of(SETTINGS)
    rows, functions = module.batch(SETTINGS, graphs, common_sizes(graphs)), module.learner(SETTINGS)
    state, update = functions.init(jax.random.key(0)), jax.jit(functions.update)
    before = functions.evaluate(state.params, jax.random.key(9), rows)
    for number in range(60):
        state, metrics = update(state, jax.random.key(number), rows)
    after = functions.evaluate(state.params, jax.random.key(9), rows)
    assert np.isfinite(list(map(float, metrics.values()))).all()
    assert after["mean"] > before["mean"] + 10
    assert after["sampled"] > before["sampled"]


def test_equal_seeds_give_equal_plans_and_others_others() -> None:
    one = instance()
    np.testing.assert_array_equal(plans(one).placement, plans(one).placement)
    assert (plans(one).placement[1:] != plans(one, 1).placement[1:]).any()
    np.testing.assert_array_equal(plans(one).placement[0], plans(one, 1).placement[0])  # the likeliest


@pytest.fixture(name="checkpoint", scope="module")
def _checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("policy") / "groups.msgpack"
    Policy(SETTINGS, params(), "untrained").save(path)
    return str(path)


def test_methods_play_it(checkpoint: str) -> None:
    """Within the evaluations; not behind the quick rule unless alone; updates on the graph help."""
    options: dict[str, Any] = {
        "objective": "makespan", "devices": 3, "transfer": "rendezvous", "latency": 0.1, "bandwidth": 50_000.0,
    }  # fmt: skip

    def solved(settings: str, evaluations: int = 5000) -> Any:
        plan = graphrl.optimize(
            GRAPH, method=f"go:{settings},checkpoint={checkpoint}", evaluations=evaluations, **options
        )
        plan.check(GRAPH)
        return plan

    first, alone = solved("rounds=0"), solved("rounds=1,samples=8,tries=0,alone=true")
    assert solved("rounds=1,samples=8,tries=0").makespan <= first.makespan
    assert first.makespan < alone.makespan  # an untrained policy's
    assert alone.evaluations == 9
    tuned = solved("rounds=1,samples=8,tries=0,alone=true,finetune=40")
    assert tuned.makespan < alone.makespan
    assert tuned.evaluations == 9 + 40 * 8
    assert solved("rounds=1,samples=8,tries=20").makespan <= solved("rounds=1,samples=8,tries=0").makespan
    assert solved("rounds=2,samples=8,finetune=9", evaluations=30).evaluations <= 30


def test_the_policy_that_ships_is_ahead_of_its_initial_network() -> None:
    """On kinds of graphs that it was not trained on."""
    graphs = load_graphs(["series-parallel:150x4@6000", "stochastic-block:150x4@6000"])
    shipped, to = Policy.default(PROBLEM), common_sizes(graphs)
    initial = groups.initial(shipped.config.network, jax.random.key(0))
    keys, logs = jax.random.split(jax.random.key(1), 8), []
    for graph, count in itertools.product(graphs, (32, 0)):
        problem = problem_of(GoSettings(), graph, "rendezvous", 4)
        one = groups.make_instance(graph, problem, to, count)
        decoder = Decoder(graph, problem, hint_instance(graph, problem, to, shipped.config))
        best, n = [], len(graph.ops)
        for weights in (shipped.params, initial):
            drawn = jax.tree.map(np.asarray, groups.best_plans(shipped.config.network, weights, keys, one))
            of_plans = zip(drawn.placement[:, :n].astype(np.int64), drawn.rank[:, :n], strict=True)
            best.append(min(decoder.ranked(*plan, (0, np.inf))[0][1] for plan in of_plans))
        logs.append(np.log(best[0] / best[1]))
    assert np.exp(np.mean(logs)) < 0.92


def test_it_is_for_the_makespan() -> None:
    with pytest.raises(ProblemError, match="decoder is 'groups': must be 'changes' for max_load"):
        GoSettings(
            decoder="groups", problem=Problem("max_load"), network=dataclasses.replace(NETWORK, tasks=("placement",))
        )
    with pytest.raises(ProblemError, match="must be false for a policy with the decoder 'changes'"):
        graphrl.optimize(layered(20, 0), objective="max_load", method="go:alone=true", seconds=1)
    with pytest.raises(ProblemError, match="needs 10 s or more"):  # else the list schedule would be its plan
        graphrl.optimize(layered(20, 0), objective="makespan", devices=2, method="go:alone=true", seconds=1)
    with pytest.raises(ProblemError, match="group_counts"):
        GoSettings(decoder="groups", group_counts=())
