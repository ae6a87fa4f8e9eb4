"""REGAL's baseline network, its instances, and the trained policy."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax

from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.proposers import RegalInstance, encoder, proposer
from graphrl.agents.regal.visits import make_visits
from graphrl.costs.problem import Problem
from graphrl.envs.graph_environment import stacked
from graphrl.envs.proposal import coding, gene_choices, make_instance, to_beta_table
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, common_sizes
from graphrl.networks.base import Network, network
from graphrl.networks.heads import GraphValue
from graphrl.solvers.chromosomes.brkga import BetaTable
from graphrl.training import agent


def baseline(config: RegalConfig) -> Network:
    """Creates the learned baseline, without parameters: observation -> expected reward `[]` float32."""
    # rewards are -o_a / o_s: -1 is standard BRKGA
    return network(GraphValue(encoder=encoder(config), width=config.width, typical=-1.0))


def make_instances(config: RegalConfig, graphs: Sequence[ComputationGraph], to: Sizes | None = None) -> RegalInstance:
    """Converts graphs to a batch (leading axis g), padded to `to` (by default the smallest bucket that covers all).

    Raises:
      GraphError: `to` is too small for a graph.
    """
    to = common_sizes(graphs) if to is None else to
    return stacked([make_regal_instance(config, graph, to) for graph in graphs])


def make_regal_instance(
    config: RegalConfig, graph: ComputationGraph, to: Sizes | None = None, problem: Problem | None = None
) -> RegalInstance:
    """Converts one graph to an instance, for `problem` or by default the configuration's. See `make_instances`."""
    to, problem = common_sizes([graph]) if to is None else to, problem or config.problem
    visits = make_visits(graph, to, problem) if config.placement == "sequential" else None
    return RegalInstance(make_instance(graph, to), visits)


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
        instance = make_regal_instance(self.config, graph, sizes, problem)
        choice = _choices(self.params, instance, jax.random.key(seed), self.config, problem)
        return to_beta_table(choice[:, None], coding(self.config.coding))

    @classmethod
    def current_settings(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `training.agent.Policy`. Version 0.2 had one network, and a list schedule as its optional hint."""
        values = {"placement": "independent", **super().current_settings(values)}
        if values.get("hint") == "none":
            del values["hint"]
        return values


def tiny_instance(config: RegalConfig) -> RegalInstance:
    """Creates a tiny instance for initialising parameters."""
    return make_regal_instance(config, agent.tiny_graph())


@functools.partial(jax.jit, static_argnames=("config", "problem"))
def _choices(params: Any, instance: RegalInstance, key: jax.Array, config: RegalConfig, problem: Problem) -> jax.Array:
    action = proposer(config, problem).best(params, key, instance).action
    return gene_choices(action, coding(config.coding), instance.proposal.graph.sizes, problem.devices)
