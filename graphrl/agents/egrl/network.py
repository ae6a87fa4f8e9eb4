"""EGRL's actor and critic for memory maps, and the trained policy."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import Layers, Observation, layers, observe, start, uniform
from graphrl.agents.egrl.placement import FEATURES, Placed, TensorVisits, place
from graphrl.costs.maps.device import MapSizes, common_sizes
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.errors import ProblemError
from graphrl.learning.sac import ActorCritic
from graphrl.networks.base import NEVER, SMALL, Network, network
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
    encoder: Any = functools.partial(NeighbourMeans, config.width)
    if config.encoder == "unet":
        encoder = functools.partial(GraphUNet, config.width, config.depth, config.heads)
        actor = network(SubActionLogits(encoder(), 2, memories))
    else:
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

    if config.placement == "sequential":
        return ActorCritic(_sequential(config), Network(critic.init, value))
    return ActorCritic(Network(actor.init, logits), Network(critic.init, value))


class TurnLogits(nn.Module):
    """The sequential actor: logits of a tensor's memories at its turn, by one perceptron for all memories."""

    width: int

    @nn.compact
    def __call__(self, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Returns the logits, `[..., M]`, from the features `[..., M, F]` and the bias `[..., M]` of `placement`."""
        features, bias = turn
        each = nn.Dense(self.width)(features)
        mean = nn.Dense(self.width, use_bias=False)(features.mean(-2))[..., None, :]
        hidden = nn.relu(nn.Dense(self.width)(nn.relu(each + mean)))
        score = nn.Dense(1, use_bias=False, kernel_init=SMALL)(hidden)[..., 0]
        return jnp.where(bias > NEVER / 2, score + bias, NEVER)


def turn_network(config: EgrlConfig) -> Network:
    """Creates the sequential actor's network for the turns of `placement.place`."""
    return network(TurnLogits(config.width))


def place_all(config: EgrlConfig, params: Any, visits: TensorVisits, key: jax.Array | None = None) -> Placed:
    """Places the tensors by the sequential actor: samples, or without a key takes the most likely memories."""
    apply = turn_network(config).apply

    def choose(key_of_turn: jax.Array, turn: Any) -> jax.Array:
        logits = apply(params, turn)
        chosen = logits.argmax(-1) if key is None else jax.random.categorical(key_of_turn, logits)
        return chosen.astype(jnp.int32)

    return place(visits, config.passes, config.preference, jax.random.key(0) if key is None else key, choose)


def _sequential(config: EgrlConfig) -> Network:
    """Creates the sequential actor: its logits are those at the last turn of each tensor, when the most likely memories
    are chosen. Features have no gradient.
    """
    turns = turn_network(config)

    def init(key: jax.Array, observation: Observation) -> Any:
        memories = observation.visits.capacity.shape[-1]  # type: ignore[union-attr]
        return turns.init(key, (jnp.zeros((memories, len(FEATURES))), jnp.zeros(memories)))  # type: ignore[arg-type]

    def logits(params: Any, observation: Observation) -> jax.Array:
        visits = observation.visits
        assert visits is not None  # `layers` makes them for this network
        placed = jax.lax.stop_gradient(place_all(config, jax.lax.stop_gradient(params), visits))
        tensors, memories = len(visits.order), visits.capacity.shape[-1]
        last = turns.apply(params, (placed.features[-tensors:], placed.bias[-tensors:]))  # type: ignore[arg-type]
        each = jnp.zeros((tensors, memories)).at[visits.order].set(jnp.maximum(last, _NEVER))
        return each.reshape(2, tensors // 2, memories).swapaxes(0, 1)

    return Network(init, logits)  # type: ignore[arg-type]


def likeliest(config: EgrlConfig, actor: Any, problem: Layers) -> jax.Array:
    """Returns the map that an actor requests, its most likely memories: `[N, 2]` int32."""
    if config.placement == "sequential":
        return place_all(config, actor, problem.visits).map  # type: ignore[arg-type]
    apply = networks(config, problem.problem.memories).actor.apply
    return apply(actor, observe(problem, start(problem))).argmax(-1).astype(jnp.int32)


# settings that define the networks
NETWORK_SETTINGS = ("placement", "passes", "hint", "preference", "encoder", "width", "depth", "heads")

# Defaults of training that differ from a search's; `variant` and `population` are for learning "search". The policy
# that ships has them, with the further ones of scripts/egrl.toml.
TRAINING_DEFAULTS: dict[str, Any] = {
    "learning": "ppo",
    "placement": "sequential",
    "rate": 0.01,
    "entropy_coefficient": 0.02,
    "variant": "ea",
    "population": 30,
    "hint": "uniform",
    "preference": 2.0,
    "samples": 16,
    "width": 32,
}


class Policy(agent.Policy[EgrlConfig]):
    """See `training.agent.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("egrl",)
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "placement, encoder, width, depth, heads and the chip's number of memories"
    settings = staticmethod(functools.partial(EgrlConfig, **TRAINING_DEFAULTS))

    @staticmethod
    def initial(config: EgrlConfig, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        instance = _one(layers([map_problem(agent.tiny_graph(), config.problem)], None, config.hint, config.placement))
        memories = instance.problem.memories
        return networks(config, memories).actor.init(key, observe(instance, start(instance)))

    @classmethod
    def current_settings(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """See `training.agent.Policy`. Policies of version 0.2 are independent."""
        return {"placement": "independent", **super().current_settings(values)}

    @classmethod
    def default(cls, problem: MapProblem) -> Self:
        """Loads the policy that the package ships, for chips of any number of memories."""
        del problem
        return cls.load_shipped(["memories"], "memory maps")

    def checked(self, problem: MapProblem) -> Self:
        """Checks that the policy fits the problem, and returns the policy.

        Raises:
          ProblemError: the policy is independent, and the problem's chip has another number of memories than the one
            that it was trained for.
        """
        chip = self.config.problem
        if self.config.placement == "independent" and problem.memories != len(chip.memories):
            raise ProblemError(
                f"the policy is for the {len(chip.memories)} memories of chip {chip.name!r}: chip "
                f"{problem.chip.name!r} has {problem.memories}"
            )
        return self

    def request_maps(self, problem: MapProblem) -> np.ndarray:
        """Returns maps `[1 + k, 2n]` int64, each with the weights' memories and then the outputs': the policy's map,
        followed by the requests from which its hint is chosen.
        """
        instance = _one(layers([problem], _shared_sizes(problem), self.config.hint, self.config.placement))
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
