"""A small GO: its network and settings."""

import dataclasses

from graphrl.agents.go.config import GoConfig, GoSettings

NETWORK = GoConfig(
    width=8, rounds=1, layers=0, heads=1, superposition="none", coupling="none", votes=True, played=True, changes=0.05
)


TINY = dataclasses.replace(
    GoSettings(), network=NETWORK, transfers=("rendezvous",), devices=(2, 4), rounds=2, samples=8, levels=4
)


TINY = dataclasses.replace(TINY, ppo=dataclasses.replace(TINY.ppo, environments=8, rate=1e-2))
