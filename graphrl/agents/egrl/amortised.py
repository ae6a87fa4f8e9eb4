"""PPO on the maps of many graphs: a policy learns from what its own maps earn, each an episode of one step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, evaluate, observe, start
from graphrl.agents.egrl.network import networks
from graphrl.learning import ppo, spread
from graphrl.learning.learner import LearnerState, Metrics
from graphrl.learning.ppo import oneshot
from graphrl.learning.ppo.rollout import PolicyValue
from graphrl.learning.ppo.settings import PpoSettings
from graphrl.networks.base import Network

# A map's advantage is over the other maps of its graph: nothing is asked of a value network, which has no parameters.
_NO_VALUE = Network(lambda key, observation: {}, lambda params, observation: jnp.float32(0))


def init(config: EgrlConfig, instances: Layers, key: jax.Array, policy: Any = None) -> LearnerState:
    """See `Learner`."""
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), instances)
    return ppo.init(settings(config), _networks(config, instances), key, observe(first, start(first)), policy)


def update(config: EgrlConfig, state: LearnerState, key: jax.Array, batch: Layers) -> tuple[LearnerState, Metrics]:
    """`config.samples` maps of every graph, and what PPO learns from them.

    The metrics are those of `oneshot.learn`, without the error of values that there are none of.
    """
    try_key, learn_key = jax.random.split(key)
    of, both, graphs = settings(config), _networks(config, batch), batch.placed.shape[0]

    def one(key: jax.Array, problem: Layers) -> oneshot.Tried:
        earned = functools.partial(evaluate, problem, reward=config.reward)
        return oneshot.tried(of, both, state.params, key, observe(problem, start(problem)), earned)

    maps = jax.vmap(one)(spread.keys(try_key, graphs), batch)
    state, metrics = oneshot.learn(of, both, state, spread.keys(learn_key, graphs), maps)
    del metrics["value_error"]
    return state, metrics


def settings(config: EgrlConfig) -> PpoSettings:
    """Of PPO. The ratio is of each choice: of hundreds the product leaves the clip's range at once."""
    return PpoSettings(
        steps=1,
        environments=config.samples,
        minibatches=1,
        ratio="choice",
        entropy=config.entropy,
        value=0.0,
        rate=config.rate,
        gradient_norm=1.0,
    )


def _networks(config: EgrlConfig, batch: Layers) -> PolicyValue:
    return PolicyValue(networks(config, batch.problem.memories).actor, _NO_VALUE)
