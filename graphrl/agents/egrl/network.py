"""EGRL's actor and critic for memory maps, and the trained policy."""

import functools
from pathlib import Path
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, layers, observe, start, uniform
from graphrl.costs.maps.device import MapSizes, common_sizes
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import ProblemError
from graphrl.learning.sac import ActorCritic
from graphrl.networks.base import SMALL, Network, network
from graphrl.networks.encoders import NeighbourMeans
from graphrl.networks.graph_unet import GraphUNet
from graphrl.networks.heads import Acted, SubActionLogits, TwinValue
from graphrl.training import agent

_NEVER = -20.0  # logit of memories other than 0 for absent tensors


@functools.cache
def networks(config: EgrlConfig, memories: int) -> ActorCritic:
    """Creates actor and critic with the configuration's encoder, without parameters.

    Absent tensors are in memory 0: the actor gives other memories almost no probability, and the critic ignores actions
    on them.
    """
    if config.encoder == "unet":
        encoder: Any = functools.partial(GraphUNet, config.width, config.depth, config.heads)
        actor = network(SubActionLogits(encoder(), 2, memories))
    else:
        encoder = functools.partial(NeighbourMeans, config.width)
        # small initial logits, so that they do not hide a preference; searches without one start with diverse networks
        last_init = SMALL if config.preference else nn.initializers.lecun_normal()
        actor = network(SubActionLogits(encoder(), 2, memories, hidden=0, last_init=last_init))
    critic = network(TwinValue(encoder()))

    def logits(params: Any, observation: Any) -> jax.Array:
        preferred = config.preference * jax.nn.one_hot(observation.preferred, memories)
        is_free = observation.placed[:, :, None] | (jnp.arange(memories) == 0)[None, None]
        return jnp.where(is_free, actor.apply(params, observation) + preferred, _NEVER)

    def value(params: Any, acted: Any) -> jax.Array:
        action = jnp.where(acted.observation.placed[:, :, None], acted.action, 0.0)
        return critic.apply(params, Acted(acted.observation, action))  # type: ignore[arg-type]

    return ActorCritic(Network(actor.init, logits), Network(critic.init, value))


def likeliest(config: EgrlConfig, actor: Any, problem: Layers) -> jax.Array:
    """Returns the map that an actor requests, its most likely memories: `[N, 2]` int32."""
    apply = networks(config, problem.problem.memories).actor.apply
    return apply(actor, observe(problem, start(problem))).argmax(-1).astype(jnp.int32)


NETWORK_SETTINGS = ("hint", "preference", "encoder", "width", "depth", "heads")  # settings that define the networks

# Defaults of training that differ from a search's: the best found for a minute of training on 18 graphs.
TRAINING_DEFAULTS: dict[str, Any] = {
    "learning": "ppo",
    "rate": 0.01,
    "entropy_coefficient": 0.02,
    "variant": "ea",
    "population": 30,
    "hint": "uniform",
    "preference": 2.0,
    "width": 32,
}


class Policy(agent.Policy[EgrlConfig]):
    """See `training.agent.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("egrl",)
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "encoder, width, depth, heads and the chip's number of memories"
    settings = staticmethod(functools.partial(EgrlConfig, **TRAINING_DEFAULTS))

    @staticmethod
    def initial(config: EgrlConfig, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        instance = _one(layers([map_problem(agent.tiny_graph(), config.problem)], hint=config.hint))
        memories = instance.problem.memories
        return networks(config, memories).actor.init(key, observe(instance, start(instance)))

    @classmethod
    def default(cls, problem: MapProblem) -> Self:
        """Loads the policy that the package ships for chips with the problem's number of memories.

        Raises:
          GraphrlError: the package ships no such policy.
        """
        return cls.load_shipped([f"memories-{problem.memories}"], f"chips of {problem.memories} memories")

    def checked(self, problem: MapProblem) -> Self:
        """Checks that the policy fits the problem, and returns the policy.

        Raises:
          ProblemError: the problem's chip has another number of memories than the one that the policy was trained for.
        """
        chip = self.config.problem
        if problem.memories != len(chip.memories):
            raise ProblemError(
                f"the policy is for the {len(chip.memories)} memories of chip {chip.name!r}: chip "
                f"{problem.chip.name!r} has {problem.memories}"
            )
        return self

    def request_maps(self, problem: MapProblem) -> np.ndarray:
        """Returns maps `[1 + k, 2n]` int64, each with the weights' memories and then the outputs': the policy's map,
        followed by the requests from which its hint is chosen.
        """
        instance = _one(layers([problem], _shared_sizes(problem), self.config.hint))
        requested = np.asarray(_request(self.config, self.params, instance), np.int64)
        maps = np.concatenate([requested[None, : problem.steps], uniform(problem, self.config.hint)])
        return maps.swapaxes(1, 2).reshape(len(maps), -1)


@functools.partial(jax.jit, static_argnums=0)
def _request(config: EgrlConfig, params: Any, instance: Layers) -> jax.Array:
    return likeliest(config, params, instance)


def _one(batch: Layers) -> Layers:
    return jax.tree.map(lambda leaf: leaf[0], batch)


def _shared_sizes(problem: MapProblem) -> MapSizes:
    """Computes padded sizes that are equal for most problems whose numbers of steps round up to the same power of two,
    so that one program supports them.
    """
    own = common_sizes([problem])
    steps = 1 << (own.steps - 1).bit_length()
    return MapSizes(steps, max(2 * steps, own.rows), max(steps, own.reads))
