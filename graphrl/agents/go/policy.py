"""GO's policy as a file, and the plans that it makes of a graph."""

import functools
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from graphrl.agents.go.network import networks
from graphrl.agents.go.settings import GDP_NETWORK, SENDS, GoSettings
from graphrl.envs.compile.instance import Choices, CompileParams, instance
from graphrl.envs.compile.observation import Observation, observe, seen
from graphrl.envs.compile.run import Run
from graphrl.learning.ppo.choices import likeliest, sample
from graphrl.training import policy


class Policy(policy.Policy[GoSettings]):
    """See `training.policy.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("go", "gdp")
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "agent.network"
    settings = staticmethod(GoSettings)

    @staticmethod
    def initial(config: GoSettings, key: jax.Array) -> Any:
        """See `training.policy.Policy`."""
        return networks(config.network).policy.init(key, smallest(config))

    def choose(self, params: CompileParams, ran: Run, samples: int, key: jax.Array) -> Choices:
        """Choices for an instance after its start, which ran so: `[samples, n]` each, the likeliest first, the rest
        drawn.
        """
        return _choices(self.config, self.params, params, ran, samples, key)


class GdpPolicy(Policy):
    """GDP's by default (Zhou et al., "GDP: Generalized Device Placement for Dataflow Graphs", 2019): placement alone,
    without superposition and without what couples tasks.
    """

    settings = staticmethod(functools.partial(GoSettings, network=GDP_NETWORK))


def smallest(settings: GoSettings) -> Observation:
    """An observation to make parameters with."""
    params = instance(policy.smallest(), settings.problem, levels=settings.levels)
    params = jax.tree.map(jnp.asarray, params)
    return seen(params, params.start, settings.network.tasks, SENDS)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _choices(
    settings: GoSettings, policy: Any, params: CompileParams, ran: Run, samples: int, key: jax.Array
) -> Choices:
    params, ran = jax.tree.map(jnp.asarray, (params, ran))
    logits = networks(settings.network).policy.apply(policy, observe(params, params.start, settings.network.tasks, ran))
    drawn = jax.vmap(sample, (0, None))(jax.random.split(key, samples), logits)
    action = jax.tree.map(lambda best, rest: rest.at[0].set(best), likeliest(logits), drawn)
    kept = jax.tree.map(lambda was: jnp.broadcast_to(was, (samples, len(was))), params.start)
    return kept._replace(**action)
