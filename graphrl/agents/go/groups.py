"""GO's sequential decoder: it places groups of ops one after another, and sees the schedule that its choices lead to.

Changes of single ops around a plan cannot move a whole layer to another device, and where a transfer blocks both of its
devices, no single move gains. Here ops that exchange much form groups (`solvers.anneal.clusters`), which are placed in
the order of list scheduling, highest level first: the device of a group is chosen at its first op, and the others
follow. The network sees for each device what REGAL's sequential network sees of an op (`agents.regal.placement`), and
of the group: with which devices it has transfers, and how the work is shared. The ops run in the order in which the
decoder expects them to start. No score made by hand is part of the choice: an untrained network draws devices nearly
uniformly.

`draw` gives plans, whose exact costs are rewards: REINFORCE, with the mean reward of the graph's other plans as the
baseline. Letters: g graphs, a plans of each, n ops, d devices, F features.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from graphrl.agents.go.config import GoConfig
from graphrl.agents.regal.instances import Visits, make_visits
from graphrl.agents.regal.placement import DEVICE_FEATURES, GROUP_FEATURES, OP_FEATURES, place
from graphrl.agents.regal.proposers import SequentialNetwork
from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.problem import Problem
from graphrl.envs.compile.reward import INVALID, Keyed, costs_of
from graphrl.graphs.features import node_features
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import PaddedGraph, Sizes, common_sizes, pad
from graphrl.learning import reinforce
from graphrl.networks.encoders import GraphSage
from graphrl.solvers.anneal.clusters import Clusters
from graphrl.training.agent import tiny_graph

_RANK = OP_FEATURES.index("rank")
_BELOW_ONE = 1 - 2.0**-24


class GroupsInstance(NamedTuple):
    """A graph with its groups; a batch has a leading axis g on every array."""

    graph: PaddedGraph
    problem: DeviceProblem
    nodes: jax.Array | np.ndarray  # [n, F] float32, features of ops; 0 for padding
    visits: Visits
    baseline: jax.Array | np.ndarray  # [] float32, second units: a quick rule's makespan


class Plans(NamedTuple):
    """Plans of one graph, and the choices behind them; the leading axis a is left out."""

    placement: jax.Array  # [n] int32, device of each op
    rank: jax.Array  # [n] float32 in [0, 1), expected order of the ops' starts
    features: jax.Array  # [n, d, F] float32


def make_instance(
    graph: ComputationGraph, problem: Problem, to: Sizes, count: int, baseline: float = 1.0
) -> GroupsInstance:
    """Converts a graph to an instance with about `count` groups, or more where large groups may not join; for 0 every
    op is a group. Colocated ops are in one group. `baseline` is in seconds.
    """
    padded, nodes = pad(graph, to), node_features(graph)
    n = len(graph.ops)
    group = Clusters(graph, problem).of(np.zeros(n, np.int64), count or n)
    return GroupsInstance(
        graph=padded,
        problem=DeviceProblem.of(problem),
        nodes=np.pad(nodes, ((0, to.ops - len(nodes)), (0, 0))).astype(np.float32),
        visits=make_visits(graph, to, problem, group),
        baseline=np.float32(baseline / float(padded.second_unit)),  # type: ignore[arg-type]
    )


class GroupEncoder(nn.Module):
    """GraphSAGE over each op's nearest inputs; an op's vector becomes the mean of its group's.

    Attributes:
      sage: computes the ops' vectors.
    """

    sage: GraphSage

    @nn.compact
    def __call__(self, instance: GroupsInstance) -> jax.Array:
        """Returns vectors `[n, w]` float32, at the first op of each group; those of other ops are arbitrary."""
        inputs, leader = jnp.asarray(instance.visits.inputs), _leader(instance)
        receivers = jnp.broadcast_to(jnp.arange(len(inputs), dtype=jnp.int32)[:, None], inputs.shape)
        ops = self.sage(jnp.asarray(instance.nodes), inputs.ravel(), receivers.ravel())
        count = jnp.zeros(len(ops)).at[leader].add(1.0)
        return jnp.zeros_like(ops).at[leader].add(ops) / jnp.maximum(count, 1.0)[:, None]


def _module(config: GoConfig) -> SequentialNetwork:
    sage = GraphSage(config.width, config.rounds, config.neighbours)
    return SequentialNetwork(GroupEncoder(sage), config.width, levels=1, shifts=1, preference=0.0)


def initial(config: GoConfig, key: jax.Array) -> Any:
    """Initialises the parameters."""
    graph, problem = tiny_graph(), Problem("makespan", 2)
    instance = make_instance(graph, problem, common_sizes([graph]), 2)

    def all_layers(module: SequentialNetwork) -> jax.Array:
        ops = module.embed(instance)  # type: ignore[arg-type]  # as its encoder reads it
        width = len(DEVICE_FEATURES) + len(GROUP_FEATURES)
        return module.placement(ops, jnp.zeros((len(ops), problem.devices, width)))

    return _module(config).init(key, method=all_layers)["params"]


def _call(config: GoConfig, params: Any, method: str, *arguments: Any) -> jax.Array:
    return _module(config).apply({"params": params}, *arguments, method=method)  # type: ignore[return-value]


def draw(
    config: GoConfig, params: Any, keys: jax.Array, instance: GroupsInstance, *, best_first: bool = False
) -> Plans:
    """Draws a plan of one graph for each key `[a]`; with `best_first` the first one's choices are the likeliest."""
    ops = _call(config, params, "embed", instance)

    def one(key: jax.Array, is_best: jax.Array) -> Plans:
        def choose(key: jax.Array, op: jax.Array, features: jax.Array) -> jax.Array:
            logits = _call(config, params, "placement", ops[op], features)
            return jnp.where(is_best, logits.argmax().astype(jnp.int32), reinforce.sample(key, logits))

        placed = place(instance.visits, instance.problem, 1, key, choose)
        return Plans(placed.choice, placed.ops[:, _RANK], placed.features)

    return jax.vmap(one)(keys, best_first & (jnp.arange(len(keys)) == 0))


def makespans(batch: GroupsInstance, plans: Plans) -> jax.Array:
    """Computes the makespans of plans `[g, a, ...]` on their graphs, over the baselines: `[g, a]` float32. Plans over
    the memory limit count as one whose reward is `INVALID`.
    """
    keys = jnp.clip(1 - plans.rank, 0, _BELOW_ONE)
    costs = costs_of(batch.graph, batch.problem, Keyed(plans.placement, keys, None))
    ratio, limit = costs.makespan / jnp.asarray(batch.baseline)[:, None], batch.problem.memory_limit
    if limit is None:
        return ratio
    fits = costs.peak <= (jnp.asarray(limit) / jnp.asarray(batch.graph.byte_unit))[:, None]
    return jnp.where(fits, ratio, INVALID**2)


def first_ops(instance: GroupsInstance) -> jax.Array:
    """Returns True for the first ops of groups, at which the network chooses: `[n]` bool."""
    leader = _leader(instance)
    row = jnp.arange(len(leader), dtype=jnp.int32)
    return (leader == row) & (row < instance.visits.num_ops)


def _leader(instance: GroupsInstance) -> jax.Array:
    assert instance.visits.groups is not None  # `make_instance` makes them
    return jnp.asarray(instance.visits.groups.leader)


def log_prob(
    config: GoConfig, params: Any, instance: GroupsInstance, plans: Plans
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes the log-probabilities of plans `[a, ...]` of one graph, `[a]`, and the mean entropy `[]` and number of
    choices `[]` of a plan: float32, the first two differentiable.
    """
    real = first_ops(instance)
    logits = _call(config, params, "placement", _call(config, params, "embed", instance), plans.features)
    each = jax.vmap(reinforce.log_prob, (0, 0, None))(logits, plans.placement, real)
    nats = jax.vmap(reinforce.entropy, (0, None))(logits, real)
    return each, nats.mean(), real.sum(dtype=jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def best_plans(config: GoConfig, params: Any, keys: jax.Array, instance: GroupsInstance) -> Plans:
    """Draws plans of one graph, `[a, n]` each, the first one the likeliest; without their features."""
    plans = draw(config, params, keys, instance, best_first=True)
    return plans._replace(features=jnp.zeros(()))


def shares(draws: int, counts: Sequence[int]) -> dict[int, int]:
    """Shares draws among numbers of groups: count -> draws."""
    each = [draws // len(counts) + (number < draws % len(counts)) for number in range(len(counts))]
    return {count: share for count, share in zip(counts, each, strict=True) if share}
