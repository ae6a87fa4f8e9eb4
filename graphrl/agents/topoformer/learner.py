"""Topoformer's learner: REINFORCE (eq. 9) on orders of `Ordering-v0`.

Deviations from the paper: several orders are sampled per graph, and they may be one another's baseline. The reward is
the peak relative to the baseline's, so that graphs of all sizes and units have equal weight. Advantages are divided by
their root mean square and clipped (`reinforce.policy_term`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphrl.agents.topoformer.config import PROBLEM, TopoformerConfig
from graphrl.agents.topoformer.network import Policy, orders
from graphrl.costs.device.decisions import DeviceProblem
from graphrl.costs.device.evaluate import evaluate as costs
from graphrl.decoding.rollout import on_one_device
from graphrl.envs.ordering import OrderingInstance
from graphrl.graphs.padding import PaddedGraph
from graphrl.learning import learner as learning
from graphrl.learning import reinforce
from graphrl.learning.learner import Learner

RANDOM_ORDERS = 100  # number of random-priority orders; the best is the reference, the paper's "random order"

INITIAL_SCORE = -1e9  # score before the first validation


class LearnerState(NamedTuple):
    """`learning.learner.LearnerState` with a frozen baseline."""

    params: dict[str, Any]  # "policy"
    optimiser: Any
    step: jax.Array  # [] int32, number of updates
    baseline: Any  # the policy whose greedy orders are the baseline; None for "leave-one-out"
    score: jax.Array  # [] float32, score of that policy on the held-out graphs


def learner(config: TopoformerConfig) -> Learner:
    """Creates the learner of a configuration, from the functions below."""
    later = partial(after_validation, config)
    return Learner(partial(init, config), partial(update, config), partial(evaluate, config), "greedy", later, unit="%")


def init(config: TopoformerConfig, key: jax.Array, policy: Any = None) -> LearnerState:
    """Creates the state before training; see `Learner`."""
    policy = Policy.initial(config, key) if policy is None else policy
    params = {"policy": policy}
    baseline = None if config.baseline == "leave-one-out" else jax.tree.map(jnp.copy, policy)
    return LearnerState(params, _optimiser(config).init(params), jnp.int32(0), baseline, jnp.float32(INITIAL_SCORE))


def update(
    config: TopoformerConfig, state: LearnerState, key: jax.Array, batch: OrderingInstance
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """Takes one gradient step with g instances, whose orders come from one network call per graph; see `Learner`.

    Returns:
      The new state, and the metrics of `reinforce.policy_term`, with "return" as minus the "peak", which is a mean over
      the sampled orders, as a share of all bytes that their graph's ops write; and "grad_norm".
    """
    loss = partial(_loss, config)
    keys = learning.keys(key, batch.nodes.shape[0])
    gradient, metrics = jax.grad(loss, has_aux=True)(state.params, state.baseline, keys, batch)
    state, metrics["grad_norm"] = learning.descend(_optimiser(config), state, gradient)
    return state, metrics


def evaluate(config: TopoformerConfig, params: Any, key: jax.Array, batch: OrderingInstance) -> dict[str, jax.Array]:
    """Computes the percent by which the peaks of the policy's orders are below the best of 100 orders by random
    priorities (drawn from the key, so that equal keys give the same reference); see `Learner`.

    Returns:
      "greedy" (mean of the greedy orders; "greedy_min", "greedy_max") and "sampled" (of the best of
      `config.samples` orders).
    """
    keys = jax.vmap(jax.random.split)(learning.keys(key, batch.nodes.shape[0]))
    policy = orders(config, params["policy"], batch)
    reference = jnp.maximum(_random_peaks(batch.graph, keys[:, 0], RANDOM_ORDERS).min(1), 1e-30)
    greedy = 100 * (1 - policy.greedy().peak / reference)
    sampled = 100 * (1 - policy.sample(keys[:, 1], config.samples).peak.min(1) / reference)
    return learning.mean_min_max("greedy", greedy) | {"sampled": learning.mean(sampled)}


def after_validation(config: TopoformerConfig, state: LearnerState, means: Mapping[str, float]) -> LearnerState:
    """Replaces the baseline's policy by the current one if that scored higher in validation (C.4); see `Learner`."""
    if config.baseline == "leave-one-out":
        return state
    score = jnp.asarray(means["greedy"], jnp.float32)
    is_better = score > state.score
    # `where` copies: `update` donates the policy's buffers
    baseline = jax.tree.map(lambda *two: jnp.where(is_better, *two), state.params["policy"], state.baseline)
    return state._replace(baseline=baseline, score=jnp.maximum(score, state.score))


def _loss(
    config: TopoformerConfig, params: dict[str, Any], baseline: Any, keys: jax.Array, batch: OrderingInstance
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Samples orders for this device's graphs, and computes REINFORCE's loss on them."""
    graph = batch.graph
    policy = orders(config, params["policy"], batch)
    samples = policy.sample(keys, config.samples)
    if baseline is None:
        expected = reinforce.others_mean(samples.peak)
        reference = samples.peak.mean(1, keepdims=True)
    else:
        reference = orders(config, baseline, batch).greedy().peak[:, None]
        expected = jnp.broadcast_to(reference, samples.peak.shape)
    reference = jnp.maximum(reference, 1e-30)  # a graph may need no memory
    term, metrics = reinforce.policy_term(
        policy.log_prob(samples.order),
        -samples.peak / reference,
        -expected / reference,
        graph.num_ops.astype(jnp.float32),
        config.clip,
    )
    written_bytes = jnp.maximum(graph.owned_bytes.sum(1, keepdims=True), 1e-30)
    peak = learning.mean(samples.peak / written_bytes)
    # the reward is about -1, as it is relative to the baseline's peak; an episode has a step for each op
    steps = config.samples * learning.sum_devices(graph.num_ops.sum().astype(jnp.float32))
    return term, metrics | {"return": -peak, "peak": peak, "env_steps": steps}


def _optimiser(config: TopoformerConfig) -> optax.GradientTransformation:
    """Creates the optimiser: Adam with the paper's decaying learning rate (C.1), after a warm-up."""
    rate = optax.exponential_decay(config.learning_rate, config.epoch, config.decay)
    if config.warmup:
        warmup = optax.linear_schedule(0.0, config.learning_rate, config.warmup)
        rate = optax.join_schedules([warmup, rate], [config.warmup])
    return learning.optimiser(rate, config.max_grad_norm)


def _random_peaks(graph: PaddedGraph, keys: jax.Array, count: int) -> jax.Array:
    """Computes the peaks `[g, count]` float32 of orders by independent uniform priorities, from one key per graph."""
    samples = jax.vmap(lambda key: jax.random.uniform(key, (graph.sizes.ops, count)))(keys)
    decisions = on_one_device(graph, jnp.moveaxis(samples, 0, 1))
    return costs(graph, decisions, DeviceProblem.of(PROBLEM), makespan=False).peak_memory[0]
