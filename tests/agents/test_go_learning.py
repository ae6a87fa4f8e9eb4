"""GO's networks learn on `Compile-v0` by PPO: from random placements to those of list schedules."""

import jax
import numpy as np
import pytest

import graphrl
from graphrl.agents.go.config import GoConfig
from graphrl.agents.go.network import networks
from graphrl.costs.problem import Problem
from graphrl.envs.compile.generator import instances
from graphrl.graphs.datasets.regal_like import regal_like
from graphrl.learning import ppo


@pytest.mark.slow
def test_one_policy_learns_to_place_two_graphs() -> None:
    problem = Problem("makespan", 2, "link", latency=1.0, bandwidth=10.0)
    params = instances([regal_like(seed, num_ops=20) for seed in (3, 4)], [problem] * 2, levels=4)
    config = GoConfig(("placement", "priority"), width=16, heads=2, segment=16, rounds=1, layers=1)
    settings = ppo.PpoSettings(steps=1, environments=32, minibatches=1, ratio="choice", rate=1e-3, entropy=0.0)
    env = graphrl.make("Compile-v0")
    _, metrics = ppo.train(settings, env, networks(config), params, jax.random.key(0), updates=80)
    reward = np.asarray(metrics["reward"])
    assert -1.3 < reward[:5].mean() < -1.15
    assert reward[-5:].mean() > -1.09  # -1.17 is what equal chances of both devices earn, -1 list schedules
