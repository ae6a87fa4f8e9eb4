"""Learner of GO's sequential decoder (`groups.py`): REINFORCE on the exact costs of plans, of many graphs or of one.

A batch has one number of devices and one transfer model, which the programs are compiled for; those of its first graph.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import optax

from graphrl.agents.go import groups
from graphrl.agents.go.config import GoSettings
from graphrl.agents.go.decode import Decoder
from graphrl.agents.go.groups import GroupsInstance
from graphrl.agents.go.learner import problem_of
from graphrl.costs.problem import Problem
from graphrl.envs.graph_environment import stacked
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes
from graphrl.learning import learner as learning
from graphrl.learning import reinforce
from graphrl.learning.learner import Learner, LearnerState, Metrics

HINT_SECONDS = 0.02  # for the quick rule to which rewards are relative: it has no other effect on learning
CLIP = 3.0  # largest absolute value of normalised advantages


def learner(settings: GoSettings) -> Learner:
    """Creates the learner of a configuration, from the functions below."""
    functions = partial(init, settings), partial(update, settings), partial(evaluate, settings)
    return Learner(*functions, score="sampled", unit="%")


def init(settings: GoSettings, key: jax.Array, policy: Any = None) -> LearnerState:
    """Creates the state before training, with the parameters "policy"; see `Learner`."""
    params = {"policy": groups.initial(settings.network, key) if policy is None else policy}
    return LearnerState(params, _optimiser(settings).init(params), jnp.int32(0))


def batch(settings: GoSettings, graphs: Sequence[ComputationGraph], to: Sizes) -> GroupsInstance:
    """Converts graphs to instances, all with the devices and the transfer model of the first."""
    which = crc32(graphs[0].name.encode())
    transfer = settings.transfers[which // 7 % len(settings.transfers)]
    devices = settings.devices[which % len(settings.devices)]
    return stacked([_row(settings, graph, to, problem_of(settings, graph, transfer, devices)) for graph in graphs])


def _row(settings: GoSettings, graph: ComputationGraph, to: Sizes, problem: Problem) -> GroupsInstance:
    count = settings.group_counts[crc32(graph.name.encode()) // 49 % len(settings.group_counts)]
    hint = Decoder.start(graph, problem, HINT_SECONDS).seconds
    return groups.make_instance(graph, problem, to, count, hint)


def update(
    settings: GoSettings, state: LearnerState, key: jax.Array, batch: GroupsInstance
) -> tuple[LearnerState, Metrics]:
    """Takes one gradient step on `settings.ppo.environments` plans of each graph; see `Learner`.

    Returns:
      The new state, and the metrics of `reinforce.loss`, "improvement" (percent by which plans are shorter than the
      quick rule's) and "grad_norm".
    """
    state, metrics, _, _ = step(settings, state, key, batch)
    return state, metrics


def step(
    settings: GoSettings, state: LearnerState, key: jax.Array, batch: GroupsInstance
) -> tuple[LearnerState, Metrics, groups.Plans, jax.Array]:
    """As `update`; also returns the plans `[g, a, ...]` and their makespans over the baselines, `[g, a]`."""
    plans, ratio = _drawn(settings, state.params["policy"], key, batch, settings.ppo.environments)
    gradient, metrics = jax.grad(partial(_loss, settings), has_aux=True)(state.params, batch, plans, -jnp.sqrt(ratio))
    state, metrics["grad_norm"] = learning.descend(_optimiser(settings), state, gradient)
    return state, metrics | {"improvement": learning.mean(100 * (1 - ratio))}, plans, ratio


def evaluate(settings: GoSettings, params: Any, key: jax.Array, batch: GroupsInstance) -> Metrics:
    """Computes percents by which plans are shorter than the quick rule's, means over graphs; see `Learner`.

    Returns:
      "sampled", the best of `settings.samples` plans; "mean", their mean; "greedy", the likeliest.
    """
    _, ratio = _drawn(settings, params["policy"], key, batch, settings.samples, best_first=True)
    return {
        "sampled": learning.mean(100 * (1 - ratio.min(1))),
        "mean": learning.mean(100 * (1 - ratio)),
        "greedy": learning.mean(100 * (1 - ratio[:, 0])),
    }


def _drawn(
    settings: GoSettings, params: Any, key: jax.Array, batch: GroupsInstance, plans: int, *, best_first: bool = False
) -> tuple[groups.Plans, jax.Array]:
    """Draws plans `[g, a, ...]`; returns their makespans over the baselines, too, `[g, a]`."""
    keys = jax.vmap(partial(jax.random.split, num=plans))(learning.keys(key, batch.nodes.shape[0]))
    drawn = jax.vmap(partial(groups.draw, settings.network, params, best_first=best_first))(keys, batch)
    return drawn, groups.makespans(batch, drawn)


def _loss(
    settings: GoSettings, params: dict[str, Any], batch: GroupsInstance, plans: groups.Plans, reward: jax.Array
) -> tuple[jax.Array, Metrics]:
    chosen = jax.vmap(partial(groups.log_prob, settings.network, params["policy"]))(batch, plans)
    weights = reinforce.Weights("leave-one-out", settings.ppo.entropy_coefficient, 0.0, CLIP)
    return reinforce.loss(reinforce.Batch(*chosen, reward.mean(1), reward), weights)


def _optimiser(settings: GoSettings) -> optax.GradientTransformation:
    return learning.optimiser(settings.ppo.learning_rate, settings.ppo.max_grad_norm, settings.ppo.decay_steps)


def fine_tune(
    settings: GoSettings, policy: Any, instances: Sequence[GroupsInstance], key: jax.Array, updates: int
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Trains a policy on one graph, whose instances differ in their groups, one of them an update in turn.

    Returns:
      The new parameters, and the best plan on the way: the device of each op and the expected order of their starts,
      `[n]` each.
    """
    settings = dataclasses.replace(settings, ppo=dataclasses.replace(settings.ppo, decay_steps=updates))
    state = init(settings, key, jax.tree.map(jnp.asarray, policy))
    batches, least = [stacked([instance]) for instance in instances], np.inf
    placement, place = np.zeros(0), np.zeros(0)
    for number in range(updates):
        batch = batches[number % len(batches)]
        state, plan, ratio = _tuned(settings, state, jax.random.fold_in(key, number), batch)
        if ratio < least:
            least, (placement, place) = float(ratio), map(np.asarray, plan)
    return jax.tree.map(np.asarray, state.params["policy"]), placement, place


@partial(jax.jit, static_argnums=0)
def _tuned(settings: GoSettings, state: LearnerState, key: jax.Array, batch: GroupsInstance) -> Any:
    state, _, plans, ratio = step(settings, state, key, batch)
    best = ratio[0].argmin()
    return state, (plans.placement[0, best], plans.rank[0, best]), ratio[0, best]
