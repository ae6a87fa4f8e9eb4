"""REGAL's policy and baseline, each with a separate graph network, and the trained policy."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from graphrl.agents.regal.config import Hint, RegalConfig
from graphrl.costs.problem import Problem
from graphrl.envs.proposal import ProposalInstance, coding, gene_choices, make_instance, observe, to_beta_table
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.learning import reinforce
from graphrl.networks.base import GraphObservation, Network, network
from graphrl.networks.encoders import MessagePassing, Recurrent
from graphrl.networks.heads import ChoiceLogits, GraphValue
from graphrl.solvers.chromosomes.brkga import BetaTable
from graphrl.training import agent


class Networks(NamedTuple):
    """The networks of a learner; a solver needs only the policy."""

    policy: Network  # observation -> logits [n, d + 1, ..., options] float32
    baseline: Network  # observation -> expected reward [] float32


def networks(config: RegalConfig) -> Networks:
    """Creates the networks of a configuration, without parameters."""
    distributions, devices = coding(config.coding), config.problem.devices
    policy = ChoiceLogits(
        encoder=_encoder(config),
        width=config.width,
        choices=(*distributions.action_spec(1, devices).shape[1:], distributions.values),
        preferred=_preferred(config),
        preference=config.preference,
        shared=config.coding == "moments",
        fixed=config.fixed_genes,
    )
    # rewards are -o_a / o_s: -1 is standard BRKGA
    baseline = GraphValue(encoder=_encoder(config), width=config.width, typical=-1.0)
    return Networks(network(policy), network(baseline))


def _preferred(config: RegalConfig) -> Callable[[GraphObservation], jax.Array]:
    """Returns a function that selects, for every gene, the distribution around the hint, or the uniform one without a
    hint and for genes that are not learned.
    """
    distributions, genes = coding(config.coding), config.problem.devices + 1
    uniform = jnp.asarray(
        distributions.uniform if len(distributions.heads) > 1 else distributions.uniform[0], jnp.int32
    )

    def around(observation: GraphObservation) -> jax.Array:
        near = distributions.nearest(observation.graph.nodes[:-1, -genes:])
        is_fixed = jnp.arange(genes) < config.fixed_genes
        return jnp.where(jnp.broadcast_to(is_fixed.reshape(-1, *[1] * uniform.ndim), near.shape), uniform, near)

    return around if config.hint == "list" else lambda _: uniform


def _encoder(config: RegalConfig) -> nn.Module:
    if config.encoder == "recurrent":
        return Recurrent(config.width)
    return MessagePassing(config.width, config.rounds)


class Policy(agent.Policy[RegalConfig]):
    """See `training.agent.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("regal", "regal-hint")
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    kind: ClassVar[str] = "published"
    network: ClassVar[str] = "encoder, hint, rounds, width, coding, devices"
    settings = staticmethod(RegalConfig)

    @staticmethod
    def initial(config: RegalConfig, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        return networks(config).policy.init(key, observe(tiny_instance(config)))

    @staticmethod
    def shipped(problem: Problem, hint: Hint) -> "Policy":
        """Loads the shipped policy with or without a hint, see `default`."""
        return POLICIES[hint].default(problem)

    def propose(
        self, graph: ComputationGraph, sizes: Sizes, seed: int = 0, problem: Problem | None = None
    ) -> BetaTable:
        """Computes proposals for a graph padded to the sizes, in the form that `brkga.init` takes: choices `[k, 1]`.
        A hint is for `problem`, by default the policy's training problem, with the same number of devices.

        `seed` is for samples, see `choose_action`.
        """
        hint_for = None if self.config.hint == "none" else problem or self.config.problem
        padded = make_instance(graph, sizes, hint_for)
        choice = _choices(self.params, padded, jax.random.key(seed), self.config)
        return to_beta_table(choice[:, None], coding(self.config.coding))


class HintPolicy(Policy):
    """A policy that sees a list schedule by default."""

    kind: ClassVar[str] = "hint"
    settings = staticmethod(functools.partial(RegalConfig, hint="list"))


POLICIES: dict[Hint, type[Policy]] = {"none": Policy, "list": HintPolicy}


def choose_action(config: RegalConfig, key: jax.Array, logits: jax.Array) -> jax.Array:
    """Chooses a trained policy's action from logits `[..., options]`: `[...]` int32.

    With a hint it is the most likely action, since sampled changes to a good plan mostly make it worse. (On 8 programs
    of 658 to 1,288 ops, with peak memory, coding "moments" and a hint at the bound, samples of the initial policy made
    BRKGA's plans 3% worse than without proposals; the most likely action made them 14% better.) Without a hint it is
    sampled, as in training and in the papers, so that ops with equal features get different proposals; the most likely
    action was 1 to 3% worse on two of three policies.
    """
    return logits.argmax(-1).astype(jnp.int32) if config.hint == "list" else reinforce.sample(key, logits)


def tiny_instance(config: RegalConfig) -> ProposalInstance:
    """Creates a tiny instance for initialising parameters."""
    return make_instance(agent.tiny_graph(), None, config.hint_for)


@functools.partial(jax.jit, static_argnames="config")
def _choices(params: Any, padded: ProposalInstance, key: jax.Array, config: RegalConfig) -> jax.Array:
    action = choose_action(config, key, networks(config).policy.apply(params, observe(padded)))
    return gene_choices(action, coding(config.coding), padded.graph.sizes, config.problem.devices)
