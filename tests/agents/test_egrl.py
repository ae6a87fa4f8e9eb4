"""EGRL on memory maps: networks see and earn what the environment says; the method's answers, budget and options."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from map_problems import WORKED_CHIP, WORKED_GRAPH

from graphrl.agents.egrl import agent, domain
from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.network import networks
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.device import common_sizes
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.envs.memory_map import MemoryMapEnv, instance
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.methods import find_map_solver
from graphrl.networks.graph_unet import senders_of
from graphrl.networks.heads import Acted
from graphrl.plan.memory_map import MemoryMap
from graphrl.solvers.base import Budget, Interrupted
from graphrl.solvers.maps.task import MapTask

RESNET = map_problem(WORKLOADS["resnet50"](), NNP_I)
WORKED = map_problem(WORKED_GRAPH, WORKED_CHIP)
TINY = "width=8,population=4,boltzmann=0.5"
UNET = EgrlConfig(encoder="unet", width=16, depth=1, heads=2)
BOTH = pytest.mark.parametrize("config", [EgrlConfig(), UNET], ids=["means", "unet"])


def one(problem: MapProblem, to: Any = None) -> domain.Layers:
    """A problem alone."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), domain.layers([problem], to))


def solved(options: str, problem: MapProblem, budget: Budget, seed: int = 0) -> MemoryMap:
    """What the method finds, checked."""
    memory_map = find_map_solver(f"egrl:{TINY}{options}")(MapTask(problem, budget, seed))
    memory_map.check(problem.graph)
    return memory_map


def test_networks_see_and_earn_what_the_environment_says() -> None:
    layers, env, params = one(RESNET), MemoryMapEnv(), jax.tree.map(jnp.asarray, instance(RESNET))
    key = jax.random.key(0)
    state, first = env.reset(key, params)
    seen = domain.observe(layers, domain.start(layers))
    reads = np.asarray(senders_of(seen)) - np.diag(np.asarray(seen.mask, np.float32))
    np.testing.assert_array_equal(reads > 0, first.observation.reads)
    np.testing.assert_array_equal(seen.mask, first.observation.mask)
    for action in jax.random.randint(key, (5, *layers.placed.shape), 0, 3) * jnp.arange(5)[:, None, None] // 4:
        _, last = env.step(key, state, action, params)
        assert float(domain.evaluate(layers, action)) == float(last.reward)
        rectified = float(domain.evaluate(layers, action, "rectified"))
        assert rectified > 0
        assert last.reward <= 0 or rectified == float(last.reward)


def test_the_map_before_is_seen() -> None:
    layers = one(WORKED)
    before = jnp.zeros(layers.placed.shape, jnp.int32).at[1, 0].set(1)
    nodes = domain.observe(layers, before).graph.nodes
    np.testing.assert_array_equal(nodes[:2, -4:], [[1, 0, 1, 0], [0, 1, 1, 0]])


@BOTH
def test_padding_changes_nothing(config: EgrlConfig) -> None:
    large = common_sizes([RESNET, map_problem(WORKLOADS["resnet101"](), NNP_I)])
    actor, critic = networks(config, 3)
    near, far = (one(RESNET, to) for to in (None, large))
    params = actor.init(jax.random.key(0), domain.observe(near, domain.start(near)))
    seen = [domain.observe(each, domain.start(each)) for each in (near, far)]
    logits, padded = (actor.apply(params, each)[:57] for each in seen)
    np.testing.assert_allclose(logits, padded, atol=1e-5)
    actions = [jax.nn.one_hot(each.placed.astype(jnp.int32), 3) for each in (near, far)]
    acted = [Acted(*pair) for pair in zip(seen, actions, strict=True)]
    value_params = critic.init(jax.random.key(0), acted[0])  # type: ignore[arg-type]
    value, same = (critic.apply(value_params, each) for each in acted)  # type: ignore[arg-type]
    np.testing.assert_allclose(value, same, atol=1e-5)


@BOTH
def test_what_is_not_there_changes_no_value_and_lies_in_the_largest_memory(config: EgrlConfig) -> None:
    actor, critic = networks(config, 3)
    layers = one(RESNET)
    seen = domain.observe(layers, domain.start(layers))
    absent = ~np.asarray(layers.placed)
    assert absent[:57].any()
    logits = np.asarray(actor.apply(actor.init(jax.random.key(0), seen), seen))
    assert (logits.argmax(-1)[absent] == 0).all()
    acted = [Acted(seen, jax.nn.one_hot(jnp.where(layers.placed, 1, other), 3)) for other in (0, 2)]
    params = critic.init(jax.random.key(0), acted[0])  # type: ignore[arg-type]
    chex.assert_trees_all_equal(*(critic.apply(params, each) for each in acted))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    ["", ",variant=ea", ",variant=pg,reward=valid", ",migrate_every=0,endless=true", ",endless=true,discounts=0.9+0.5"],
)
def test_answers_are_valid_within_the_budget_and_repeat(options: str) -> None:
    first, second = (solved(options, WORKED, Budget(15), 3) for _ in range(2))
    assert first.evaluations == 15
    assert (first.weights, first.outputs) == (second.weights, second.outputs)
    assert first.latency <= first.compiler_latency


def test_it_finds_the_best_map_of_two_ops() -> None:
    assert solved("", WORKED, Budget(200)).latency == solved("", WORKED, Budget(400), 1).latency == 6.0


def test_graphs_of_one_bucket_share_a_program() -> None:
    solved("", WORKED, Budget(20))
    count = agent._generation._cache_size()  # type: ignore[attr-defined]
    more = Op("c", flops=3, inputs=("b0", "a0"), outputs=(Tensor("c0", 2),))
    three = map_problem(ComputationGraph("three", (*WORKED_GRAPH.ops, more)), WORKED_CHIP)
    solved("", three, Budget(20), 5)
    assert agent._generation._cache_size() == count  # type: ignore[attr-defined]


def test_ctrl_c_gives_the_best_so_far() -> None:
    def stop(evaluations: int, seconds: float, best: object, value: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        find_map_solver(f"egrl:{TINY}")(MapTask(WORKED, Budget(seconds=60.0), 0, stop))
    stopped.value.plan.check(WORKED.graph)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("variant=best", "variant is 'best': must be one of egrl, ea, pg"),
        ("reward=fast", "reward is 'fast': must be one of valid, rectified"),
        ("encoder=unet,width=12", "width is 12: must be a multiple of 2 x 4 heads"),
        ("encoder=gcn", "encoder is 'gcn': must be one of means, unet"),
        ("population=1", "population is 1: must be an integer from 2 to 10,000"),
        ("boltzmann=2", "boltzmann is 2.0: must be from 0 to 1"),
        ("rate=0", "rate is 0.0: must be a number above 0"),
        ("migrate_every=-1", "migrate_every is -1: must be an integer from 0 to 1,000,000"),
        ("discounts=0.9+", r"discounts is '0\.9\+': must be numbers with '\+' between them"),
        ("discounts=0.9+1.5", r"discounts are \(0\.9, 1\.5\): must be 1 to 16 numbers from 0 to 1"),
        ("discounts=nan", r"discounts are \(nan,\): must be"),
    ],
)
def test_wrong_options_are_refused(options: str, fault: str) -> None:
    with pytest.raises(ProblemError, match=fault):
        find_map_solver(f"egrl:{options}")(MapTask(WORKED, Budget(10)))
