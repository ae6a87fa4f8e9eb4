"""GO's policy and value networks, each with a separate graph network, and the trained policy."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.go import groups
from graphrl.agents.go.config import GDP_NETWORK, GoConfig, GoSettings
from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.fusion.problem import fusion_problem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.features import PlanFeatures, no_features
from graphrl.envs.compile.generator import Choices, CompileInstance, make_instance
from graphrl.envs.compile.observation import Observation, observe
from graphrl.learning.ppo import PolicyValue
from graphrl.networks.base import NEVER, Network, network
from graphrl.networks.decisions import (
    DecisionLogits,
    DecisionVectors,
    Modulation,
    OpEmbedding,
    SegmentAttention,
    SegmentLayer,
    TaskHeads,
)
from graphrl.networks.encoders import GraphSage
from graphrl.networks.heads import GraphValue
from graphrl.training import agent


def networks(config: GoConfig) -> PolicyValue:
    """Creates the networks of a configuration, without parameters, for `Compile-v0` observations of the same tasks."""
    policy = DecisionLogits(
        embedding=_embedding(config),
        layers=tuple(_layer(config) for _ in range(config.layers)),
        heads=TaskHeads(config.tasks, _attention(config), config.coupling, config.spread),
        modulation=None if config.superposition == "none" else Modulation(_layer(config), config.superposition),
        iterations=config.iterations,
        preference=config.preference,
        votes=config.votes,
    )
    # rewards are -sqrt(run time / baseline's run time): -1 is a plan as good as the baseline
    value = GraphValue(encoder=DecisionVectors(_embedding(config)), width=config.width, typical=-1.0)
    logits_network = network(policy)
    return PolicyValue(changing(logits_network, config.changes) if config.changes else logits_network, network(value))


def changing(policy: Network, share: float) -> Network:
    """Wraps a policy so that, for each task, the expected share of ops that change their choice equals `share`.

    The logits of the last choices are shifted by one number per graph, through which no gradient flows. A policy that
    starts from a good plan and is free to change nothing soon does so, because most changes make the plan worse. With a
    fixed share it can only learn which changes do not.
    """

    def apply(params: Any, observation: Any) -> dict[str, jax.Array]:
        logits = policy.apply(params, observation)
        previous, mask = observation.previous, observation.action_mask
        return {task: _shifted(logits[task], previous[task], mask[task], share) for task in logits}

    return Network(policy.init, apply)  # type: ignore[arg-type]  # gives a dict of arrays


def _shifted(logits: jax.Array, previous: jax.Array, mask: jax.Array, share: float) -> jax.Array:
    """Shifts the logits `[n, o]` of the last choices by a number, found by bisection, such that the expected share of
    changes among ops with more than one allowed option is `share`.
    """
    last = jax.nn.one_hot(previous, logits.shape[-1], dtype=bool)
    last_logit = jnp.where(last, logits, 0.0).sum(-1)
    relative = last_logit - jax.nn.logsumexp(jnp.where(last, NEVER, logits), axis=-1)
    movable = (mask.sum(-1) > 1) & last.any(-1)

    def bisect(_: int, between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = (between[0] + between[1]) / 2
        changes = jnp.where(movable, jax.nn.sigmoid(-relative - middle), 0.0).sum()
        too_many = changes > share * movable.sum(dtype=jnp.float32)
        return jnp.where(too_many, middle, between[0]), jnp.where(too_many, between[1], middle)

    low, high = jax.lax.fori_loop(0, 24, bisect, (jnp.float32(-40), jnp.float32(40)))
    return logits + jnp.where(last & movable[:, None], jax.lax.stop_gradient((low + high) / 2), 0.0)


def _embedding(config: GoConfig) -> OpEmbedding:
    sage = GraphSage(config.width, config.rounds, config.neighbours)
    return OpEmbedding(config.tasks, config.width, sage, config.plan_features)


def _layer(config: GoConfig) -> SegmentLayer:
    return SegmentLayer(_attention(config))


def _attention(config: GoConfig) -> SegmentAttention:
    return SegmentAttention(config.width, config.heads, config.segment, config.cached)


_ANY = DeviceProblem.of(Problem("makespan"))
# On a CPU, XLA then compiles in a tenth of the time, and the program runs up to five times as long (jax 0.10.2).
FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
if jax.__version_info__ < (0, 11):  # later versions lack this option
    FAST_COMPILE["xla_cpu_use_fusion_emitters"] = False


class Policy(agent.Policy[GoSettings]):
    """See `training.agent.Policy`."""

    agents: ClassVar[tuple[str, ...]] = ("go", "gdp")
    defaults: ClassVar[Path] = Path(__file__).parent / "defaults"
    network: ClassVar[str] = "agent.network"
    settings = staticmethod(GoSettings)

    @staticmethod
    def initial(config: GoSettings, key: jax.Array) -> Any:
        """See `training.agent.Policy`."""
        if config.decoder == "groups":
            return groups.initial(config.network, key)
        return networks(config.network).policy.init(key, tiny_observation(config))

    def logits(
        self, instance: CompileInstance, features: PlanFeatures, *, fast_compile: bool = False
    ) -> dict[str, np.ndarray]:
        """Computes the logits `[n, o]` float32 of each task, for an instance at its start and the features of that
        plan's schedule. `fast_compile` compiles for a CPU with few optimisations, if time is short.
        """
        instance = dataclasses.replace(instance, problem=_ANY)  # not part of the observation: one program for all
        logits = _fast_compile_logits if fast_compile and jax.default_backend() == "cpu" else _logits
        return dict(jax.device_get(logits(self.config, self.params, instance, features)))


class GdpPolicy(Policy):
    """A policy with the settings of GDP by default (Zhou et al., "GDP: Generalized Device Placement for Dataflow
    Graphs", 2019): placement alone, without superposition and without coupling of tasks.
    """

    settings = staticmethod(functools.partial(GoSettings, network=GDP_NETWORK))


def tiny_observation(settings: GoSettings) -> Observation:
    """Creates a tiny observation for initialising parameters."""
    graph = agent.tiny_graph()
    fusion = fusion_problem(graph) if "fusion" in settings.network.tasks else None
    instance = jax.tree.map(jnp.asarray, make_instance(graph, settings.problem, levels=settings.levels, fusion=fusion))
    return observe(instance, instance.start, settings.network.tasks, no_features(instance))


def _apply(
    settings: GoSettings, policy: Any, instance: CompileInstance, features: PlanFeatures
) -> dict[str, jax.Array]:
    observation = observe(instance, instance.start, settings.network.tasks, features)
    logits: Any = networks(settings.network).policy.apply(policy, observation)
    return dict(logits)


_logits = jax.jit(_apply, static_argnums=0)
_fast_compile_logits = jax.jit(_apply, static_argnums=0, compiler_options=FAST_COMPILE)


def sample_choices(logits: dict[str, np.ndarray], start: Choices, samples: int, rng: np.random.Generator) -> Choices:
    """Samples choices from logits, `[samples, n]` int32 each, the most likely first; tasks without logits keep `start`.
    Runs on the host: a sampling program takes as long to compile as the network, and longer to run.
    """
    unchanged = Choices(*(np.broadcast_to(choice, (samples, len(choice))) for choice in start[:2]))
    return unchanged._replace(**{task: _options(of_task, samples, rng) for task, of_task in logits.items()})


def _options(logits: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    sums = np.cumsum(np.exp(logits - logits.max(1, keepdims=True), dtype=np.float64), 1)
    sums /= sums[:, -1:]  # so that rounding never selects a forbidden option
    options = np.empty((samples, len(logits)), np.int32)
    options[0] = logits.argmax(1)
    for sample in range(1, samples):
        options[sample] = (rng.random(len(logits))[:, None] >= sums).sum(1)
    return options


def ranked_changes(logits: np.ndarray, placement: np.ndarray) -> np.ndarray:
    """Sorts all allowed changes, pairs of an op and a new device, by logit relative to the op's current device, highest
    first: `[k, 2]` int64.

    Args:
      logits: `[n, d]`, logits of the devices.
      placement: `[n]`, current devices.
    """
    relative = logits - np.take_along_axis(logits, np.asarray(placement)[:, None], 1)
    relative[(logits <= NEVER / 2) | (np.arange(logits.shape[1]) == np.asarray(placement)[:, None])] = -np.inf
    order = np.argsort(-relative, axis=None, kind="stable")[: np.isfinite(relative).sum()]
    return np.stack(np.unravel_index(order, relative.shape), 1).astype(np.int64)
