"""`ShardingEnv`, and its observation."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.envs import specs
from graphrl.envs.base import TimeStep
from graphrl.envs.graph_environment import GraphEnvironment
from graphrl.envs.sharding.generator import MOST_LOG, ShardingInstance, ShardingSizes, common_sizes, make_instances
from graphrl.envs.sharding.reward import conditional, evaluate, fits, memory, over_span, possible, reward
from graphrl.errors import PlanError, ProblemError
from graphrl.sharding.datasets import load_problems
from graphrl.sharding.plan import ShardingPlan
from graphrl.sharding.problem import ShardingProblem


class Observation(NamedTuple):
    """Observation of a problem with N nodes, S strategies a node, E edges and C costs of edges, all padded.

    Costs of `pairs`, `previous_cost` and features are logs: log(1 + c N' / baseline's cost) for N' real nodes, at most
    16. Bytes are in shares of the limit. All fields but those with `previous` are constant within an episode.

    Attributes:
      nodes: `[N, F]` float32, features of nodes (`generator.NODE_FEATURES`); 0 for padding. Constant.
      strategies: `[N, S, G]` float32, features of strategies (`generator.STRATEGY_FEATURES`); 0 for padding. Constant.
      edges: `[E, 2]` int32, first and last nodes, the lower one first; N for padding. Constant.
      edge_features: `[E, H]` float32, features of edges (`generator.EDGE_FEATURES`); 0 for padding. Constant.
      pairs: `[C]` float32, costs of pairs of strategies, edge after edge; 0 for padding. Constant.
      pair_first: `[C]` int32, e S + i for a pair with strategy i of edge e's first node; E S for padding. Constant.
      pair_last: `[C]` int32, e S + j for a pair with strategy j of its last node; E S for padding. Constant.
      mask: `[N]` bool, True for real nodes. Constant.
      action_mask: `[N, S]` bool, strategies that are there and whose cost is not prohibitive; the first one if all are,
        and for padding. Constant.
      previous: `[N]` int32, the last plan; after `reset`, the baseline's.
      previous_cost: `[N, S]` float32, cost of each strategy if all other nodes keep the last plan; 0 for padding.
      previous_memory: `[N]` float32, mean memory of the last plan while a node lives, in shares of the limit.
    """

    nodes: jax.Array
    strategies: jax.Array
    edges: jax.Array
    edge_features: jax.Array
    pairs: jax.Array
    pair_first: jax.Array
    pair_last: jax.Array
    mask: jax.Array
    action_mask: jax.Array
    previous: jax.Array
    previous_cost: jax.Array
    previous_memory: jax.Array


class State(NamedTuple):
    """State of one episode."""

    previous: jax.Array  # [N] int32, the last plan
    step: jax.Array  # [] int32, number of environment steps so far


@dataclasses.dataclass(frozen=True)
class ShardingEnv(GraphEnvironment[ShardingInstance]):
    """`Sharding-v0`: choose a strategy for every node, so that the sum of costs is least and memory fits.

    The problem is that of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism (`graphrl.sharding`).

    - Observation: features of nodes, strategies and edges, all costs of edges, and the last plan with its conditional
      costs and memory (`Observation`).
    - Action: a strategy for each node, int32 `[N]`. Strategies that `action_mask` forbids count as the first that it
      allows.
    - Reward: -cost / cost of the baseline's plan, if the plan is within the limit at all times and has no prohibitive
      cost. Else -1 - excess - share: the excess of the peak as a share of the limit, and the share of nodes and edges
      whose cost is prohibitive. The baseline is the best of a few descents by single nodes
      (`graphrl.sharding.baseline`); prohibitive costs do not count in its cost. So plans that earn more than -1 fit,
      and are cheaper than the baseline's; one that fits and is dearer may earn less than one that does not fit.
    - End: terminated after `episode_steps` steps, each of which sets all strategies.
    - State: the last plan. No random numbers are drawn.
    - Info: "cost", in the problem's units, without prohibitive ones, "prohibitive", the number of these, "peak", bytes,
      and "fits". After `reset` these are the baseline's.

    Instances are made of `ShardingProblem`s, of files, and of names: `sharding-layers:200x64@7` for random models,
    `problem.json.gz:200x64@7` for connected parts of a file (`graphrl.sharding.datasets`).

    Attributes:
      episode_steps: number of steps; with more than 1, later steps refine the last plan.

    Version history: v0, the first.

    Raises:
      ProblemError: `episode_steps` is not an integer of at least 1.
    """

    episode_steps: int = 1

    def __post_init__(self) -> None:
        if type(self.episode_steps) is not int or self.episode_steps < 1:
            raise ProblemError(f"episode_steps is {self.episode_steps!r}: must be an integer of at least 1")

    def reset(self, key: jax.Array, instance: ShardingInstance) -> tuple[State, TimeStep[Observation]]:
        """Starts with the baseline's plan. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        _, info = _outcome(instance, instance.start)
        no = jnp.asarray(False)
        first = _observe(instance, instance.start)
        return State(instance.start, jnp.int32(0)), TimeStep(first, jnp.float32(0), no, no, info)

    def step(
        self, key: jax.Array, state: State, action: jax.Array, instance: ShardingInstance
    ) -> tuple[State, TimeStep[Observation]]:
        """Sets all strategies. See `Environment`; `key` is not used."""
        del key
        instance = jax.tree.map(jnp.asarray, instance)
        state = State(possible(instance, action), state.step + jnp.int32(1))
        earned, info = _outcome(instance, state.previous)
        over = state.step >= self.episode_steps
        return state, TimeStep(_observe(instance, state.previous), earned, over, jnp.asarray(False), info)

    def observation_spec(self, instance: ShardingInstance) -> Any:
        """See `Environment`."""
        shapes = jax.eval_shape(lambda instance: self.reset(jax.random.key(0), instance)[1].observation, instance)
        n, most = shapes.action_mask.shape
        slots = shapes.edges.shape[0] * most
        fields = jax.tree.map(lambda array: specs.ArraySpec(array.shape, array.dtype), shapes)
        return fields._replace(
            edges=specs.integers(shapes.edges.shape, 0, n),
            pair_first=specs.integers(shapes.pair_first.shape, 0, slots),
            pair_last=specs.integers(shapes.pair_last.shape, 0, slots),
            previous=specs.choices((n,), most),
        )

    def action_spec(self, instance: ShardingInstance) -> specs.ArraySpec:
        """See `Environment`."""
        n, most = instance.cost.shape
        return specs.choices((n,), most)

    def make_instances(  # type: ignore[override]
        self, graphs: Sequence[ShardingProblem], to: ShardingSizes | None = None
    ) -> ShardingInstance:
        """Converts problems to a batch of instances. See `GraphEnvironment`."""
        return make_instances(graphs, to)

    def load(self, names: Sequence[str]) -> list[ShardingProblem]:  # type: ignore[override]
        """Loads the problems of files and names. Raises GraphrlError for one that cannot be read."""
        return load_problems(names)

    def sizes(self, graphs: Sequence[ShardingProblem]) -> ShardingSizes:  # type: ignore[override]
        """Returns the smallest bucket of sizes that covers all of the problems, for `to`."""
        return common_sizes(graphs)

    def _graphs(self, model: Any, **options: Any) -> list[Any]:
        if isinstance(model, ShardingProblem):
            return [model]
        if isinstance(model, str | os.PathLike):
            return list(self.load([os.fspath(model)]))
        raise ProblemError(
            f"model is of type {type(model).__name__}: Sharding-v0 takes a ShardingProblem, a file, or a name such as "
            "sharding-layers:200@7"
        )

    def _plan(self, graph: Any, instance: ShardingInstance, state: State) -> Any:
        plan = plan_of(graph, state)
        plan.check(graph)
        return plan

    def _picture(self, graph: Any, instance: ShardingInstance, state: State) -> Any:
        from graphrl.sharding.picture import plot  # imports matplotlib

        return plot(graph, plan_of(graph, state))

    def _check_is_of(self, graph: Any, instance: ShardingInstance) -> None:
        if len(graph.sizes) != instance.num_ops:
            raise PlanError(f"the instance has {instance.num_ops} nodes: {graph.name!r} has {len(graph.sizes)}")
        if not np.array_equal(instance.edges[: len(graph.edges)], np.sort(graph.edges, 1)):
            raise PlanError(f"the instance is of another problem than {graph.name!r}, with as many nodes")


def plan_of(problem: ShardingProblem, state: State) -> ShardingPlan:
    """Makes the plan of a state, with exact costs, whether it fits or not; the bound is the trivial one of the least
    costs of nodes and edges.
    """
    strategies = np.asarray(state.previous)[: len(problem.sizes)].astype(np.int64)
    bound = sum(
        int(np.minimum.reduceat(cost, offset[:-1]).sum()) if len(offset) > 1 else 0
        for cost, offset in ((problem.cost, problem.offset), (problem.edge_cost, problem.edge_offset))
    )
    return ShardingPlan.of(problem, strategies, "Sharding-v0", bound)


def _outcome(instance: ShardingInstance, plan: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the reward of a plan `[N]`, and the info of `ShardingEnv`."""
    costs = evaluate(instance, plan)
    return reward(instance, costs), {
        "cost": costs.cost * instance.cost_unit,
        "prohibitive": costs.prohibitive,
        "peak": costs.peak * instance.byte_unit,
        "fits": fits(instance, costs),
    }


def _observe(instance: ShardingInstance, plan: jax.Array) -> Observation:
    n, most = instance.cost.shape

    def log(cost: jax.Array) -> jax.Array:
        return jnp.minimum(jnp.log1p(cost * instance.num_ops.astype(jnp.float32)), MOST_LOG)

    is_there = jnp.arange(most, dtype=jnp.int32)[None] < instance.strategies[:, None]
    mask = jnp.arange(n, dtype=jnp.int32) < instance.num_ops
    times = (instance.span[:, 1] - instance.span[:, 0]).astype(jnp.float32)
    return Observation(
        nodes=instance.node_features,
        strategies=instance.strategy_features,
        edges=instance.edges,
        edge_features=instance.edge_features,
        pairs=log(instance.pair_cost),
        pair_first=instance.pair_first,
        pair_last=instance.pair_last,
        mask=mask,
        action_mask=instance.allowed,
        previous=plan,
        previous_cost=jnp.where(is_there & mask[:, None], log(conditional(instance, plan)), 0),
        previous_memory=over_span(instance, memory(instance, plan)) / jnp.maximum(times, 1),
    )
