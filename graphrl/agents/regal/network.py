"""REGAL's baseline network, and the trained policy."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import RegalInstance, make_instance, tiny_instance
from graphrl.agents.regal.proposers import encoder, proposer
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import coding, gene_choices, to_beta_table
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.networks.base import Network, network
from graphrl.networks.heads import GraphValue
from graphrl.solvers.chromosomes.brkga import BetaTable
from graphrl.training import agent


def baseline(config: RegalConfig) -> Network:
    """Creates the learned baseline, without parameters: observation -> expected reward `[]` float32."""
    # rewards are -o_a / o_s: -1 is standard BRKGA
    return network(GraphValue(encoder=encoder(config), width=config.width, typical=-1.0))


class Policy(agent.Policy[RegalConfig]):
    """See `training.agent.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("regal",)
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "placement, encoder, rounds, width, coding, devices"
    settings = staticmethod(RegalConfig)

    @staticmethod
    def initial(config: RegalConfig, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        return proposer(config).init(key, tiny_instance(config))

    def propose(
        self, graph: ComputationGraph, sizes: Sizes, seed: int = 0, problem: Problem | None = None
    ) -> BetaTable:
        """Computes proposals for a graph padded to the sizes, in the form that `brkga.init` takes: choices `[k, 1]`.

        `problem` is the one to plan for, by default that of the policy's training; an independent network needs the
        same number of devices. `seed` is for samples, see `Proposer.best`.
        """
        problem = problem or self.config.problem
        instance = make_instance(self.config, graph, sizes, problem)
        choice = _choices(self.params, instance, jax.random.key(seed), self.config, problem)
        return to_beta_table(choice[:, None], coding(self.config.coding))

    @classmethod
    def current_settings(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `training.agent.Policy`. Version 0.2 had one network, uniform keys of transfers, and a list
        schedule as its optional hint.
        """
        values = {"placement": "independent", "transfer_keys": "uniform", **super().current_settings(values)}
        if values.get("hint") == "none":
            del values["hint"]
        return values


@functools.partial(jax.jit, static_argnames=("config", "problem"))
def _choices(params: Any, instance: RegalInstance, key: jax.Array, config: RegalConfig, problem: Problem) -> jax.Array:
    action = proposer(config, problem).best(params, key, instance).action
    return gene_choices(action, coding(config.coding), instance.proposal.graph, problem.devices, config.transfer_keys)
