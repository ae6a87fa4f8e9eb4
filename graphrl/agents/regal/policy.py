"""REGAL's policy as a file, and the proposals that it makes."""

import functools
from pathlib import Path
from typing import Any, ClassVar

import jax

from graphrl.agents import policy, reinforce
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import networks
from graphrl.envs.proposal.coding import chosen, coding, gene_choices
from graphrl.envs.proposal.env import observe
from graphrl.envs.proposal.instance import ProposalParams, instance
from graphrl.solvers.beta import BetaTable


class Policy(policy.Policy[RegalConfig]):
    """See `agents.policy.Policy`."""

    agent: ClassVar[str] = "regal"
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    settings = staticmethod(RegalConfig)

    @staticmethod
    def initial(config: RegalConfig, key: jax.Array) -> Any:
        """See `agents.policy.Policy`."""
        return networks(config).policy.init(key, observe(smallest()))

    def propose(self, params: ProposalParams, seed: int = 0) -> BetaTable:
        """Proposals for one instance, as `brkga.init` takes them: choices `[k, 1]`.

        They are sampled, as in training and in the papers, so that ops which look alike get different proposals. The
        likeliest ones were 1 to 3% worse than that on two of three policies that we compared.
        """
        choice = _sampled(self.params, params, jax.random.key(seed), self.config)
        return chosen(choice[:, None], coding(self.config.coding))


def smallest() -> ProposalParams:
    """An instance to make parameters with."""
    return instance(policy.smallest())


@functools.partial(jax.jit, static_argnames="config")
def _sampled(params: Any, seen: ProposalParams, key: jax.Array, config: RegalConfig) -> jax.Array:
    action = reinforce.sample(key, networks(config).policy.apply(params, observe(seen)))
    return gene_choices(action, coding(config.coding), seen.graph.sizes, config.problem.devices)
