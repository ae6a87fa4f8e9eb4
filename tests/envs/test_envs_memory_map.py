"""`MemoryMap-v0`: its contract, rewards of algorithm 1 of EGRL, and batches of graphs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from map_problems import WORKED_CHIP, WORKED_GRAPH

import graphrl
from graphrl.costs.maps import exact
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.device import MapSizes
from graphrl.costs.maps.problem import map_problem
from graphrl.envs.memory_map import make_instance, make_instances
from graphrl.envs.testing import check_env
from graphrl.errors import ProblemError
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS

KEY = jax.random.key(0)


@pytest.mark.parametrize("episode_steps", [1, 5])
def test_the_contract(episode_steps: int) -> None:
    problem = map_problem(WORKLOADS["resnet50"](), NNP_I)
    env = graphrl.make("MemoryMap-v0", episode_steps=episode_steps)
    check_env(env, make_instance(problem), wider=make_instance(problem, MapSizes(80, 90, 8)))


def test_rewards_of_the_worked_example() -> None:
    env, instance = graphrl.make("MemoryMap-v0"), make_instance(map_problem(WORKED_GRAPH, WORKED_CHIP))
    state, first = env.reset(KEY, instance)
    assert float(first.info["latency"]) == 16.0
    n = instance.nodes.shape[0]
    for memories, reward, speedup in (
        ([[1, 1], [1, 1]], -4 / 12, 0.0),
        ([[1, 1], [0, 0]], 1.0, 1.0),
        ([[0, 0], [1, 0]], (6 / 16) ** 2, 6 / 16),
    ):
        action = jnp.ones((n, 2), jnp.int32).at[:2].set(jnp.asarray(memories, jnp.int32))
        after, timestep = env.step(KEY, state, action, instance)
        assert float(timestep.reward) == pytest.approx(reward)
        assert float(timestep.info["speedup"]) == pytest.approx(speedup)
        assert bool(timestep.terminated)
        assert timestep.observation.previous[:2].tolist() == [memories[0], [0, memories[1][1]]]
        assert int(after.step) == 1
    assert first.observation.action_mask[:2, :, 1].tolist() == [[True, True], [False, True]]
    assert first.observation.mask.tolist() == [True, True] + [False] * (n - 2)


def test_a_batch_of_graphs_earns_what_the_twin_says() -> None:
    problems = [map_problem(WORKLOADS[name](), NNP_I) for name in ("resnet50", "resnet101")]
    env, instance = graphrl.make("MemoryMap-v0", squared=False), make_instances(problems)
    action = np.random.default_rng(0).integers(0, 2, (*instance.nodes.shape[:2], 2)).astype(np.int32)
    state, _ = jax.vmap(env.reset, (None, 0))(KEY, instance)
    _, timestep = jax.vmap(env.step, (None, 0, 0, 0))(KEY, state, jnp.asarray(action), instance)
    for i, problem in enumerate(problems):
        costs = exact.evaluate(problem, *action[i, : problem.steps].T)
        expected = costs.reward(exact.compiler(problem).latency, squared=False)
        assert float(timestep.reward[i]) == pytest.approx(expected, rel=2e-6)


def test_episodes_have_steps() -> None:
    with pytest.raises(ProblemError, match="episode_steps is 0"):
        graphrl.make("MemoryMap-v0", episode_steps=0)
