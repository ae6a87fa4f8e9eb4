"""What a policy of `Compile-v0` sees: a `networks.base.DecisionObservation`."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jraph

from graphrl.envs.compile.instance import Choices, CompileParams
from graphrl.envs.compile.played import Played, played
from graphrl.envs.compile.run import Run, Sends, possible, run
from graphrl.errors import ProblemError
from graphrl.graphs.jraph_view import to_graphs_tuple


class Observation(NamedTuple):
    """n ops, e uses, f control edges and F features, all padded; of each task o options with G features."""

    graph: jraph.GraphsTuple  # nodes [n + 1, F], senders and receivers [e + f], no edges: see `to_graphs_tuple`
    mask: jax.Array  # [n] bool, real ops
    order: jax.Array  # [n] int32, ops in a topological order, then padding
    options: dict[str, jax.Array]  # [o, G] float32
    action_mask: dict[
        str, jax.Array
    ]  # [n, o] bool; option 0 alone for padding, devices of all but a group's first, and fusion where it is not legal
    previous: dict[str, jax.Array]  # [n] int32, what was chosen last
    played: Played  # how that ran


def seen(params: CompileParams, chosen: Choices, tasks: Sequence[str], sends: Sends) -> Observation:
    """An instance after some choices, which are run for it. See `CompileEnv`."""
    params, chosen = jax.tree.map(jnp.asarray, (params, chosen))
    return observe(params, chosen, tasks, run(params, possible(params, chosen), sends))


def observe(params: CompileParams, chosen: Choices, tasks: Sequence[str], ran: Run) -> Observation:
    """An instance after some choices, and after these have run, for a policy that decides some tasks."""
    mask = jnp.arange(params.order.shape[0], dtype=jnp.int32) < params.graph.num_ops
    is_chosen = jnp.where(mask, chosen.placement, 0).min() >= 0
    return shown(params, chosen, tasks, _played(ran, is_chosen, params.present.shape[0]))


def shown(params: CompileParams, chosen: Choices, tasks: Sequence[str], played: Played) -> Observation:
    """The same where it is known how they ran."""
    n = params.order.shape[0]
    mask = jnp.arange(n, dtype=jnp.int32) < params.graph.num_ops
    options = options_of(params, tasks)
    present = {task: jnp.ones(features.shape[0], bool) for task, features in options.items()}
    present["placement"] = jnp.asarray(params.present)
    decides = {"placement": mask & (params.leader == jnp.arange(n, dtype=jnp.int32)), "priority": mask}
    if params.fusion is not None:
        decides["fusion"] = mask & params.fusion.problem.legal[:n]
    graph = to_graphs_tuple(params.graph, jnp.asarray(params.nodes), jnp.zeros((params.graph.sizes.uses, 0)))
    return Observation(
        graph=graph._replace(edges=None),
        mask=mask,
        order=jnp.asarray(params.order),
        options=options,
        action_mask={task: allowed(present[task], decides[task]) for task in tasks},
        previous={task: jnp.asarray(was) for task, was in chosen.of(tasks).items()},
        played=played,
    )


def _played(ran: Run, is_chosen: jax.Array, devices: int) -> Played:
    """By op; 0 where nothing was chosen."""
    times = played(ran.graph, ran.placement, ran.place, ran.end, devices)
    return jax.tree.map(lambda of: jnp.where(is_chosen, jnp.zeros_like(of).at[ran.op].set(of, mode="drop"), 0.0), times)


def options_of(params: CompileParams, tasks: Sequence[str]) -> dict[str, jax.Array]:
    """Of some tasks the features of options, `[o, G]` float32.

    Raises:
      ProblemError: fusion is one of them, and the instance has none.
    """
    features = {"placement": params.devices, "priority": params.levels}
    if params.fusion is not None:
        features["fusion"] = params.fusion.levels
    elif "fusion" in tasks:
        raise ProblemError("the task 'fusion' needs instances with a fusion problem, and this one has none")
    return {task: jnp.asarray(features[task]) for task in tasks}


def allowed(present: jax.Array, decides: jax.Array) -> jax.Array:
    """Which options `[o]` may be chosen of every op: `[n, o]` bool; those that do not decide `[n]` have the first."""
    first = jnp.arange(present.shape[0], dtype=jnp.int32) == 0
    return jnp.where(decides[:, None], present[None], first[None])
