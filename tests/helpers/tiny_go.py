"""A small GO: its settings, its network and an untrained policy."""

import dataclasses
import functools

import jax
import numpy as np

from graphrl.agents.go.config import GoConfig, GoSettings
from graphrl.agents.go.network import Policy

NETWORK = GoConfig(
    width=8,
    rounds=1,
    layers=0,
    heads=1,
    superposition="none",
    coupling="none",
    votes=True,
    plan_features=True,
    changes=0.05,
)
TINY = dataclasses.replace(
    GoSettings(), network=NETWORK, transfers=("rendezvous",), devices=(2, 4), rounds=2, samples=8, levels=4
)
TINY = dataclasses.replace(TINY, ppo=dataclasses.replace(TINY.ppo, environments=8, learning_rate=1e-2))


def untrained(settings: GoSettings) -> Policy:
    """An untrained policy."""
    params = jax.jit(functools.partial(Policy.initial, settings))(jax.random.key(0))
    return Policy(settings, jax.tree.map(np.asarray, params))
