"""Environments to measure: their instances, and the policies that choose actions.

Options are the environments' defaults. A batch has up to `MAX_GRAPHS` different graphs; further environments repeat
them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from graphrl.agents.egrl.domain import layers
from graphrl.agents.egrl.domain import observe as observe_layers
from graphrl.agents.egrl.network import Policy as EgrlPolicy
from graphrl.agents.egrl.network import networks as egrl_networks
from graphrl.agents.go.network import Policy as GoPolicy
from graphrl.agents.go.network import networks as go_networks
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.network import Policy as RegalPolicy
from graphrl.agents.regal.network import make_instances as make_regal_instances
from graphrl.agents.regal.proposers import RegalInstance, proposer
from graphrl.agents.topoformer.network import Policy as TopoformerPolicy
from graphrl.agents.topoformer.network import priorities
from graphrl.bench.cases import random_graphs
from graphrl.costs.maps.chip import NNP_I
from graphrl.costs.maps.problem import MapProblem, map_problem
from graphrl.envs import memory_map, ordering
from graphrl.envs.compile import generator
from graphrl.envs.registry import make
from graphrl.errors import GraphrlError, suggest
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.learning.ppo.settings import sample

MAX_GRAPHS = 64
MAX_OPS_OF_GRAPHS = 1 << 15  # ops of all different graphs: features of pairs of ops take memory and time
RESETS = 4  # different graphs where a reset is a search
NEAR = 0.3  # greatest relative difference between a workload's number of ops and the requested one

PolicyName = Literal["random", "network"]


class Policy(NamedTuple):
    """Chooses the actions of a batch of g environments."""

    prepare: Callable[[jax.Array, Any, Any], Any]  # keys [g], parameters of `Instances` -> state, once an episode
    act: Callable[[jax.Array, Any, Any], Any]  # keys [g], that state, observations -> actions


@dataclasses.dataclass(frozen=True)
class Instances:
    """Instances of an environment, all padded to one size."""

    env: Any
    batch: Any  # leading axis g
    network_params: Any  # further inputs of the network for each instance, leading axis g; () without any
    ops: int  # of each graph
    episode: int  # steps of an episode


class Rollouts(NamedTuple):
    """How rollouts of an environment are made."""

    instances: Callable[[Any, int, int, int], Instances]  # environment, number of ops, of graphs, seed
    network: Callable[[Any, int], Policy]  # environment, seed of the parameters -> the policy of an untrained network
    agent: str  # whose network it is
    is_once: bool = False  # True if the network is called once an episode, so that whole episodes are measured


def find(id: str) -> Rollouts:
    """Returns how rollouts of the environment with that id are made.

    Raises:
      GraphrlError: no case has this name; the message lists the known names.
    """
    if id not in ROLLOUTS:
        raise GraphrlError(f"no environment {id!r} to measure: {suggest(id, ROLLOUTS)}")
    return ROLLOUTS[id]


def make_instances(id: str, ops: int, count: int, seed: int) -> Instances:
    """Creates up to `count` different instances of an environment with about `ops` ops each."""
    env = make(id)
    return find(id).instances(env, ops, max(1, min(count, MAX_GRAPHS, MAX_OPS_OF_GRAPHS // ops)), seed)


def random_policy(env: Any) -> Policy:
    """Creates the policy that chooses uniformly among the legal actions."""
    return _each_step(env.sample_action)


def _compile_instances(env: Any, ops: int, count: int, seed: int) -> Instances:
    batch = generator.make_instances(random_graphs(ops, count, seed), [env.problem] * count)
    return Instances(env, batch, (), ops, env.episode_steps)


def _go(env: Any, seed: int) -> Policy:
    settings = GoPolicy.settings()
    params, apply = GoPolicy.initial(settings, jax.random.key(seed)), go_networks(settings.network).policy.apply
    return _each_step(lambda key, observation: sample(key, apply(params, observation)))


def _map_instances(env: Any, ops: int, count: int, seed: int) -> Instances:
    problems = map_problems(ops, count, seed)
    hint = EgrlPolicy.settings().hint
    return Instances(env, memory_map.make_instances(problems), layers(problems, hint=hint), problems[0].steps, 1)


def map_problems(ops: int, count: int, seed: int) -> list[MapProblem]:
    """Returns the problem of EGRL's workload that has about this number of ops, or else those of layered graphs."""
    workloads = (make() for make in WORKLOADS.values())
    graph = min(workloads, key=lambda graph: abs(len(graph.ops) - ops))
    if abs(len(graph.ops) - ops) <= NEAR * ops:
        return [map_problem(graph, NNP_I)]
    return [map_problem(layered(ops, seed + i), NNP_I) for i in range(count)]


def _egrl(env: Any, seed: int) -> Policy:
    config = EgrlPolicy.settings()
    params = EgrlPolicy.initial(config, jax.random.key(seed))
    apply = egrl_networks(config, len(config.problem.memories)).actor.apply

    def act(key: jax.Array, layer: Any, observation: Any) -> Any:
        return sample(key, apply(params, observe_layers(layer, observation.previous)))

    return Policy(lambda keys, params, layers: layers, jax.vmap(act))


def _ordering_instances(env: Any, ops: int, count: int, seed: int) -> Instances:
    return Instances(env, ordering.make_instances(random_graphs(ops, count, seed)), (), ops, ops)


def _topoformer(env: Any, seed: int) -> Policy:
    config = TopoformerPolicy.settings()
    params = TopoformerPolicy.initial(config, jax.random.key(seed))

    def prepare(keys: jax.Array, batch: Any, _: Any) -> jax.Array:
        # one Gumbel number an op samples a whole order: the ready op of the largest sum is next
        values = priorities(config, params, batch)
        return values + jax.vmap(lambda key: jax.random.gumbel(key, values.shape[1:]))(keys)

    def act(keys: jax.Array, values: jax.Array, observation: Any) -> jax.Array:
        return jnp.where(observation.action_mask, values, -jnp.inf).argmax(-1).astype(jnp.int32)

    return Policy(prepare, act)


def _proposal_instances(env: Any, ops: int, count: int, seed: int) -> Instances:
    instances = make_regal_instances(_regal_config(env), random_graphs(ops, min(count, RESETS), seed))
    return Instances(env, instances.proposal, instances.visits, ops, 1)


def _regal(env: Any, seed: int) -> Policy:
    config = _regal_config(env)
    params, propose = RegalPolicy.initial(config, jax.random.key(seed)), proposer(config).sample

    def act(key: jax.Array, instance: Any, observation: Any) -> jax.Array:
        return propose(params, key, instance).action

    return Policy(lambda keys, batch, visits: RegalInstance(batch, visits), jax.vmap(act))


def _regal_config(env: Any) -> RegalConfig:
    return dataclasses.replace(RegalPolicy.settings(), problem=env.problem, coding=env.coding)


def _each_step(act: Callable[[jax.Array, Any], Any]) -> Policy:
    """Creates a policy of a function of one environment's key and observation."""
    return Policy(lambda *_: (), lambda keys, _, observation: jax.vmap(act)(keys, observation))


ROLLOUTS: Mapping[str, Rollouts] = {
    "Ordering-v0": Rollouts(_ordering_instances, _topoformer, "topoformer", is_once=True),
    "MemoryMap-v0": Rollouts(_map_instances, _egrl, "egrl"),
    "Compile-v0": Rollouts(_compile_instances, _go, "go"),
    "Proposal-v0": Rollouts(_proposal_instances, _regal, "regal"),
}
