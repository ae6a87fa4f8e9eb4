"""Environments to measure: their graphs and instances, the policies that choose actions, and gymnasium's adapter.

Options are the environments' defaults. A batch has up to `MAX_GRAPHS` different random graphs, or one given model;
further environments repeat them. Models of `Sharding-v0` are sharding problems.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.egrl.config import EgrlConfig
from graphrl.agents.egrl.domain import layers as egrl_layers
from graphrl.agents.egrl.domain import observe as observe_layers
from graphrl.agents.egrl.network import Policy as EgrlPolicy
from graphrl.agents.egrl.network import networks as egrl_networks
from graphrl.agents.go.network import Policy as GoPolicy
from graphrl.agents.go.network import networks as go_networks
from graphrl.agents.regal.config import RegalConfig
from graphrl.agents.regal.instances import RegalInstance
from graphrl.agents.regal.instances import make_instances as make_regal_instances
from graphrl.agents.regal.network import Policy as RegalPolicy
from graphrl.agents.regal.proposers import proposer
from graphrl.agents.topoformer.network import Policy as TopoformerPolicy
from graphrl.agents.topoformer.network import call_once
from graphrl.bench.cases import random_graphs
from graphrl.costs.maps.chip import find_chip
from graphrl.costs.maps.problem import map_problem
from graphrl.envs.adapters.gymnasium import to_gymnasium, to_gymnasium_vector
from graphrl.envs.registry import make
from graphrl.errors import GraphrlError, suggest
from graphrl.graphs.datasets.layered import layered
from graphrl.graphs.datasets.sets import layers_of, load_graph
from graphrl.graphs.datasets.workloads.egrl import WORKLOADS
from graphrl.graphs.graph import ComputationGraph
from graphrl.learning.ppo.settings import sample
from graphrl.sharding.datasets import load_problem
from graphrl.sharding.layers import layers

MAX_GRAPHS = 64
MAX_OPS_OF_GRAPHS = 1 << 15  # ops of all different graphs: features of pairs of ops take memory and time
RESETS = 4  # different graphs where a reset is a search
NEAR = 0.3  # greatest relative difference between a workload's number of ops and the requested one

PolicyName = Literal["random", "network", "gymnasium"]


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
    episode: int  # steps of an episode

    @property
    def ops(self) -> int:
        """Number of ops of each graph."""
        return int(self.batch.num_ops[0])


def _one_step(env: Any, graph: ComputationGraph) -> int:
    return 1


class Rollouts(NamedTuple):
    """How rollouts of an environment are made."""

    network: Callable[[Any, int], Policy] | None  # environment, seed of the parameters -> that of an untrained network
    agent: str  # whose network it is, "" for none
    is_once: bool = False  # True if the network is called once an episode, so that whole episodes are measured
    episode: Callable[[Any, Any], int] = _one_step  # environment, graph -> steps of an episode
    graphs: Callable[[int, int, int], list[Any]] = random_graphs  # number of ops, of graphs, seed
    load: Callable[[str], Any] = load_graph  # file or name of a model -> its graph
    ops: Callable[[Any], int] = lambda graph: len(graph.ops)  # number of ops of a graph
    takes_graphs: bool = True  # False: its models are no computation graphs
    inputs: Callable[[Any, Sequence[ComputationGraph]], Any] = lambda env, graphs: ()  # of the network, see `Instances`


def find(id: str) -> Rollouts:
    """Returns how rollouts of the environment with that id are made.

    Raises:
      GraphrlError: no case has this name; the message lists the known names.
    """
    if id not in ROLLOUTS:
        own = "for your own, time jax.vmap of its step in a jax.lax.scan"
        raise GraphrlError(f"no environment {id!r} to measure: {suggest(id, ROLLOUTS)}; {own}")
    return ROLLOUTS[id]


def make_graphs(id: str, ops: int, count: int, seed: int) -> list[Any]:
    """Generates up to `count` different graphs of about `ops` ops each for an environment."""
    return find(id).graphs(ops, max(1, min(count, MAX_GRAPHS, MAX_OPS_OF_GRAPHS // ops)), seed)


def make_instances(id: str, graphs: Sequence[Any]) -> Instances:
    """Creates the instances of graphs with equally many ops, on the host."""
    env, rollouts = make(id), find(id)
    batch = jax.device_get(env.instances(graphs))
    return Instances(env, batch, rollouts.inputs(env, graphs), rollouts.episode(env, graphs[0]))


def random_policy(env: Any) -> Policy:
    """Creates the policy that chooses uniformly among the legal actions."""
    return _each_step(env.sample_action)


def gymnasium_steps(instances: Instances, count: int, seed: int) -> Callable[[int], int]:
    """Starts episodes in gymnasium's adapter: `to_gymnasium` of one environment, or `to_gymnasium_vector` of several.

    Returns:
      A function that makes a number of steps in each environment with random valid actions, which NumPy draws from the
      `action_mask` of the observation. Episodes that end start again. It returns the number of steps of all.

    Raises:
      GraphrlError: gymnasium is not installed.
    """
    index = np.arange(count) % len(instances.batch.num_ops)
    batch = jax.tree.map(lambda leaf: leaf[index if count > 1 else 0], instances.batch)
    env = (to_gymnasium_vector if count > 1 else to_gymnasium)(instances.env, batch)
    rng, (observation, _) = np.random.default_rng(seed), env.reset(seed=seed)

    def draw(mask: np.ndarray) -> np.ndarray:
        return (mask * (1 - rng.random(mask.shape, np.float32))).argmax(-1)  # 1 - x is never 0

    def work(runs: int) -> int:
        nonlocal observation
        for _ in range(runs):
            observation, _, ended, cut, _ = env.step(jax.tree.map(draw, observation["action_mask"]))
            if count == 1 and (ended or cut):  # a vector environment resets episodes that end
                observation, _ = env.reset()
        return runs * count

    return work


def _go(env: Any, seed: int) -> Policy:
    settings = GoPolicy.settings()
    params, apply = GoPolicy.initial(settings, jax.random.key(seed)), go_networks(settings.network).policy.apply
    return _each_step(lambda key, observation: sample(key, apply(params, observation)))


def map_graphs(ops: int, count: int, seed: int) -> list[ComputationGraph]:
    """Returns EGRL's workload that has about this number of ops, or else layered graphs."""
    graph = min((make() for make in WORKLOADS.values()), key=lambda graph: abs(len(graph.ops) - ops))
    return [graph] if abs(len(graph.ops) - ops) <= NEAR * ops else [layered(ops, seed + i) for i in range(count)]


def _layers(env: Any, graphs: Sequence[ComputationGraph]) -> Any:
    chip = find_chip(env.chip)
    return egrl_layers([map_problem(graph, chip) for graph in graphs], hint=_egrl_config().hint)


def _egrl_config() -> EgrlConfig:
    # a step of the environment is a whole map: the independent network makes it in one call, as in the paper, while the
    # sequential policy is a loop over all tensors, whose time would be measured instead of the environment's
    return dataclasses.replace(EgrlPolicy.settings(), placement="independent")


def _egrl(env: Any, seed: int) -> Policy:
    config = _egrl_config()
    params = EgrlPolicy.initial(config, jax.random.key(seed))
    apply = egrl_networks(config, len(config.problem.memories)).actor.apply

    def act(key: jax.Array, layer: Any, observation: Any) -> Any:
        return sample(key, apply(params, observe_layers(layer, observation.previous)))

    return Policy(lambda keys, params, layers: layers, jax.vmap(act))


def _topoformer(env: Any, seed: int) -> Policy:
    config = TopoformerPolicy.settings()
    params = TopoformerPolicy.initial(config, jax.random.key(seed))

    def prepare(keys: jax.Array, batch: Any, _: Any) -> jax.Array:
        # one Gumbel number an op samples a whole order: the ready op of the largest sum is next
        values = call_once(config, params, batch)
        return values + jax.vmap(lambda key: jax.random.gumbel(key, values.shape[1:]))(keys)

    def act(keys: jax.Array, values: jax.Array, observation: Any) -> jax.Array:
        return jnp.where(observation.action_mask, values, -jnp.inf).argmax(-1).astype(jnp.int32)

    return Policy(prepare, act)


def _visits(env: Any, graphs: Sequence[ComputationGraph]) -> Any:
    return make_regal_instances(_regal_config(env), graphs).visits


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
    "Ordering-v0": Rollouts(_topoformer, "topoformer", is_once=True, episode=lambda env, graph: len(graph.ops)),
    "MemoryMap-v0": Rollouts(_egrl, "egrl", graphs=map_graphs, load=layers_of, inputs=_layers),
    "Compile-v0": Rollouts(_go, "go", episode=lambda env, graph: env.episode_steps),
    "Proposal-v0": Rollouts(
        _regal,
        "regal",
        graphs=lambda ops, count, seed: random_graphs(ops, min(count, RESETS), seed),
        inputs=_visits,
    ),
    "Sharding-v0": Rollouts(
        None,
        "",
        graphs=lambda ops, count, seed: [layers(ops, seed + i) for i in range(count)],
        load=load_problem,
        ops=lambda problem: len(problem.sizes),
        takes_graphs=False,
    ),
}
