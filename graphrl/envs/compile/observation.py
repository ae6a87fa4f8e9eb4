"""Observation of `Compile-v0`: a `networks.base.DecisionObservation`."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jraph

from graphrl.envs.compile.features import PlanFeatures
from graphrl.envs.compile.generator import Choices, CompileInstance
from graphrl.envs.compile.reward import Outcome, outcome, possible_choices
from graphrl.envs.compile.sends import Sends
from graphrl.errors import ProblemError
from graphrl.graphs.jraph_view import to_graphs_tuple


class Observation(NamedTuple):
    """Observation of a graph with n ops, e uses of tensors and f control edges, all padded; each task has o options
    with G features. The tasks are "placement", "priority" and "fusion", as far as the environment decides them.

    All fields but `previous` and `plan_features` are constant within an episode.

    Attributes:
      graph: `nodes` `[n + 1, F]` float32, features of ops without units, node n is padding; `senders` and `receivers`
        `[e + f]` int32; no `edges` (`graphs.jraph_view.to_graphs_tuple`). Constant.
      mask: `[n]` bool, True for real ops. Constant.
      order: `[n]` int32, ops in a topological order, then padding. Constant.
      options: for each task `[o, G]` float32, features of its options: devices or levels. Constant.
      action_mask: for each task `[n, o]` bool; only option 0 for padding, for devices of all but a group's first op,
        and for fusion where it is illegal. Constant.
      previous: for each task `[n]` int32, the last choices; -1 before the first.
      plan_features: features of the simulated run of `previous`, in shares of its makespan or largest load
        (`features.PlanFeatures`); 0 before the first choices.
    """

    graph: jraph.GraphsTuple
    mask: jax.Array
    order: jax.Array
    options: dict[str, jax.Array]
    action_mask: dict[str, jax.Array]
    previous: dict[str, jax.Array]
    plan_features: PlanFeatures


def observe(
    instance: CompileInstance,
    chosen: Choices,
    tasks: Sequence[str],
    features: PlanFeatures | None = None,
    *,
    sends: Sends = "urgent",
) -> Observation:
    """Returns the observation after some choices, for a policy that decides the given tasks. If `features` is None, the
    choices are simulated to compute them, with `sends` as in `CompileEnv`.
    """
    if features is None:
        instance, chosen = jax.tree.map(jnp.asarray, (instance, chosen))
        features = plan_features(instance, chosen, outcome(instance, possible_choices(instance, chosen), sends))
    n = instance.order.shape[0]
    mask = jnp.arange(n, dtype=jnp.int32) < instance.graph.num_ops
    options = options_of(instance, tasks)
    permitted = {task: jnp.ones((1, rows.shape[0]), bool) for task, rows in options.items()}
    permitted["placement"] = jnp.asarray(instance.runs_on)
    decides = {"placement": mask & (instance.leader == jnp.arange(n, dtype=jnp.int32)), "priority": mask}
    if instance.fusion is not None:
        decides["fusion"] = mask & instance.fusion.problem.legal[:n]
    graph = to_graphs_tuple(instance.graph, jnp.asarray(instance.nodes), jnp.zeros((instance.graph.sizes.uses, 0)))
    return Observation(
        graph=graph._replace(edges=None),
        mask=mask,
        order=jnp.asarray(instance.order),
        options=options,
        action_mask={task: allowed(permitted[task], decides[task]) for task in tasks},
        previous={task: jnp.asarray(choice) for task, choice in chosen.of(tasks).items()},
        plan_features=features,
    )


def plan_features(instance: CompileInstance, chosen: Choices, result: Outcome) -> PlanFeatures:
    """Returns the features of some choices' result; 0 for padding, and everywhere before the first choice."""
    mask = jnp.arange(instance.order.shape[0], dtype=jnp.int32) < instance.graph.num_ops
    is_chosen = jnp.where(mask, chosen.placement, 0).min() >= 0
    return PlanFeatures(*(_rows(values, mask & is_chosen) for values in result.features))


def _rows(values: jax.Array, are: jax.Array) -> jax.Array:
    """Sets the rows of `[n, ...]` to 0 where `are` `[n]` is False."""
    return jnp.where(are.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


def options_of(instance: CompileInstance, tasks: Sequence[str]) -> dict[str, jax.Array]:
    """Returns the features of the given tasks' options, `[o, G]` float32 each.

    Raises:
      ProblemError: the instance has no options for a task.
    """
    features = {"placement": instance.devices}
    if instance.levels is not None:
        features["priority"] = instance.levels
    elif "priority" in tasks:
        raise ProblemError("the task 'priority' needs an objective that depends on the order: max_load does not")
    if instance.fusion is not None:
        features["fusion"] = instance.fusion.levels
    elif "fusion" in tasks:
        raise ProblemError("the task 'fusion' needs an instance with a fusion problem: this one has none")
    return {task: jnp.asarray(features[task]) for task in tasks}


def allowed(permitted: jax.Array, decides: jax.Array) -> jax.Array:
    """Computes the allowed options of every op, `[n, o]` bool: those `permitted`, `[n, o]` or `[1, o]` for all ops, or
    only the first for ops that do not decide (`decides` `[n]` bool).
    """
    first = jnp.arange(permitted.shape[1], dtype=jnp.int32) == 0
    return jnp.where(decides[:, None], permitted, first)
