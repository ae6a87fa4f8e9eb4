"""Reward of `Compile-v0`: simulates choices on the device, and compares their run time with the baseline's.

`reward` is computed from an `outcome`: the objective's value, validity, and features of the plan's run. `run` converts
choices to kernels and priorities to keys (`sends`: keys of transfers), and calls the cost model. Only this file and
`features.py` depend on the objective, which the type of an instance's `problem` determines.

The decoder has a lane for each candidate solution of each graph of a batch, and runs all lanes together. An environment
has one graph and one candidate. When PPO maps it (`jax.vmap`) over choices, and then over graphs, these become the
lanes. That is about 5 times faster than mapping a decoder of one lane (16 candidates, 1,024 ops). With fusion each
candidate has its own graph, and these form the graphs of a batch.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from graphrl.compiled.custom_call import is_compiled
from graphrl.costs.device.decisions import Decisions, DeviceProblem
from graphrl.costs.device.evaluate import measured, transfer_seconds
from graphrl.costs.device.loads import PaddedPipeline
from graphrl.costs.host.lowering import host_costs
from graphrl.envs.compile.features import PlanFeatures, load_features, schedule_features
from graphrl.envs.compile.generator import Choices, CompileInstance, kernels_of
from graphrl.envs.compile.sends import Sends, by_rule, places_of_ops, transfer_keys
from graphrl.graphs.padding import PaddedGraph

INVALID = -10.0  # reward of invalid plans


def reward(instance: CompileInstance, result: "Outcome") -> jax.Array:
    """Computes -sqrt(run time / baseline's run time): `[]` float32; `INVALID` for invalid plans."""
    ratio = result.seconds / jnp.maximum(instance.baseline, 1e-30)
    return jnp.where(result.valid, -jnp.sqrt(ratio), INVALID)


def possible_choices(instance: CompileInstance, chosen: Choices) -> Choices:
    """Makes choices possible: option 0 for padding and for no choice, one device per group, and the first device that
    can run the ops instead of one that cannot, or does not exist.
    """
    real = jnp.arange(instance.order.shape[0], dtype=jnp.int32) < instance.graph.num_ops
    chosen = jax.tree.map(lambda option: jnp.where(real, jnp.maximum(option, 0), 0), chosen)
    placement, runs_on = chosen.placement[instance.leader], jnp.asarray(instance.runs_on)
    can = jnp.take_along_axis(runs_on, placement[:, None], axis=1)[:, 0]
    return chosen._replace(placement=jnp.where(can, placement, runs_on.argmax(1).astype(jnp.int32)))


def op_keys(instance: CompileInstance, priority: jax.Array) -> jax.Array:
    """Converts priorities to op keys, `[n]` float32 in [0, 1): the ready op with the largest key runs first. See
    `CompileInstance.reach`.
    """
    n, count = instance.order.shape[0], jnp.maximum(instance.graph.num_ops, 1).astype(jnp.float32)
    rank = jnp.zeros(n, jnp.int32).at[instance.order].set(jnp.arange(n, dtype=jnp.int32)).astype(jnp.float32)
    assert instance.levels is not None
    reach = jnp.asarray(instance.reach) * count
    place = jnp.where(rank < count, priority.astype(jnp.float32) * reach + count - 1 - rank, 0)
    return place / ((instance.levels.shape[0] - 1) * reach + count)


class Outcome(NamedTuple):
    """Result of simulating one plan."""

    seconds: jax.Array  # [] float32, second units: the makespan, or the largest load
    valid: jax.Array  # [] bool, every device stays within the memory limit, and kernels within their padded size
    features: PlanFeatures  # features of the run, by op; rows of padding are arbitrary


def outcome(instance: CompileInstance, chosen: Choices, sends: Sends) -> Outcome:
    """Simulates choices from `possible_choices` under the instance's objective. Args: see `run`."""
    if isinstance(instance.problem, PaddedPipeline):
        return Outcome(*load_features(instance.problem, jnp.asarray(chosen.placement)))
    result = run(instance, chosen, sends)
    times = schedule_features(result.graph, result.placement, result.place, result.end, instance.runs_on.shape[1])
    by_op = jax.tree.map(lambda values: jnp.zeros_like(values).at[result.op].set(values, mode="drop"), times)
    return Outcome(result.makespan, result.valid, by_op)


class Run(NamedTuple):
    """One simulated run of a graph."""

    makespan: jax.Array  # [] float32, second units
    valid: jax.Array  # [] bool, every device stays within the memory limit, and kernels within their padded size
    graph: PaddedGraph  # the graph that ran: of ops, or of kernels
    op: jax.Array  # [n] int32, the op of each node, for a kernel its root; n for padding
    placement: jax.Array  # [n] int32, device of each node
    end: jax.Array  # [n] float32, second units, end of each node
    place: jax.Array  # [n] int32, position of each node in the order; n for padding


@functools.partial(jax.jit, static_argnames="sends")  # one program for the start and for all steps
def run(instance: CompileInstance, chosen: Choices, sends: Sends = "urgent") -> Run:
    """Simulates an instance; choices must come from `possible_choices`. Memory is linear in n + e + d t.

    Args:
      instance: the instance.
      chosen: choices of each op.
      sends: see `CompileEnv`.
    """
    graph, problem = instance.graph, instance.problem
    assert isinstance(problem, DeviceProblem)
    placement, keys = jnp.asarray(chosen.placement), op_keys(instance, jnp.asarray(chosen.priority))
    fits, op = jnp.bool_(True), jnp.arange(len(keys), dtype=jnp.int32)
    if instance.fusion is not None and chosen.fusion is not None:
        graph, op, _, fits = kernels_of(graph, instance.fusion, jnp.asarray(chosen.fusion))
        placement, keys = (jnp.append(of_op, jnp.zeros(1, of_op.dtype))[op] for of_op in (placement, keys))
    by_urgency = transfer_keys(graph, placement, keys, problem.devices) if sends == "urgent" else None
    decisions = Keyed(placement, keys, by_urgency)
    of_graph = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (graph, problem))
    costs = costs_of(*of_graph, jax.tree.map(lambda leaf: leaf[None, None], decisions))
    costs = jax.tree.map(lambda leaf: leaf[0, 0], costs)
    if problem.memory_limit is not None:  # else validity does not depend on the run, which XLA can then drop
        fits &= costs.peak <= problem.memory_limit / graph.byte_unit
    return Run(costs.makespan, fits, graph, op, placement, costs.end, costs.place)


class Keyed(NamedTuple):
    """`Decisions` of one candidate; without transfer keys, tensors are sent by `sends.by_rule`."""

    placement: jax.Array  # [n] int32
    op_keys: jax.Array  # [n] float32
    transfer_keys: jax.Array | None  # [d, t] float32


class KeyedCosts(NamedTuple):
    makespan: jax.Array  # float32, second units
    peak: jax.Array  # float32, byte units, largest over the devices; 0 if the objective does not depend on it
    end: jax.Array  # [n] float32, second units, end of each op
    place: jax.Array  # [n] int32, position of each op in the order; n for padding


@custom_vmap
def costs_of(graph: PaddedGraph, problem: DeviceProblem, decisions: Keyed) -> KeyedCosts:
    """Computes the costs of candidates `[g, p, ...]` on graphs `[g, ...]`: `[g, p, ...]` each."""
    lanes = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, (0, 1), (-2, -1)), decisions)
    if not is_compiled():
        return _costs_in_jax(graph, problem, lanes)
    return jax.lax.platform_dependent(
        cpu=lambda: _compiled_costs(graph, problem, lanes), default=lambda: _costs_in_jax(graph, problem, lanes)
    )


def _compiled_costs(graph: PaddedGraph, problem: DeviceProblem, lanes: Keyed) -> KeyedCosts:
    no_keys = jnp.zeros((0, graph.sizes.tensors, *lanes.op_keys.shape[1:]))  # by the rule
    candidates = Decisions(*lanes[:2], no_keys if lanes.transfer_keys is None else lanes.transfer_keys)
    seconds, memory = transfer_seconds(graph, problem), problem.objective != "makespan"
    memory |= problem.memory_limit is not None
    makespan, peak, _, end, place = host_costs(
        graph, candidates, problem, seconds, 0, makespan=True, memory=memory, ops=True
    )
    return KeyedCosts(makespan, peak.max(0), *(jnp.moveaxis(values, 0, -1) for values in (end, place)))


def _costs_in_jax(graph: PaddedGraph, problem: DeviceProblem, lanes: Keyed) -> KeyedCosts:
    if lanes.transfer_keys is None:
        candidates = by_rule(graph, lanes.placement, lanes.op_keys, problem.devices, problem.transfer)
    else:
        candidates = Decisions(lanes.placement, lanes.op_keys, lanes.transfer_keys)
    costs = measured(graph, candidates, problem)
    n, g, p = costs.end.shape
    place = places_of_ops(costs.events.reshape(-1, g * p), n, problem.devices).reshape(n, g, p)
    return KeyedCosts(
        costs.makespan, costs.peak_memory.max(0), *(jnp.moveaxis(values, 0, -1) for values in (costs.end, place))
    )


@costs_of.def_vmap
def _(
    size: int, mapped: Any, graph: PaddedGraph, problem: DeviceProblem, decisions: Keyed
) -> tuple[KeyedCosts, KeyedCosts]:
    """Folds an axis mapped over graphs into the graphs, and one mapped over decisions alone into the candidates."""
    axis = 0 if any(jax.tree.leaves(mapped[:2])) else 1

    def broadcast(is_mapped: bool, leaf: jax.Array) -> jax.Array:
        return leaf if is_mapped else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf)))

    def fold(leaf: jax.Array) -> jax.Array:
        leaf = jnp.moveaxis(leaf, 0, axis)
        return leaf.reshape(*leaf.shape[:axis], size * leaf.shape[axis + 1], *leaf.shape[axis + 2 :])

    def unfold(leaf: jax.Array) -> jax.Array:
        split = leaf.reshape(*leaf.shape[:axis], size, leaf.shape[axis] // size, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(split, axis, 0)

    decisions = jax.tree.map(lambda *pair: fold(broadcast(*pair)), mapped[2], decisions)
    if axis == 0:
        both = jax.tree.map(broadcast, tuple(mapped[:2]), (graph, problem))
        graph, problem = jax.tree.map(fold, both)
    costs = jax.tree.map(unfold, costs_of(graph, problem, decisions))
    return costs, jax.tree.map(lambda _: True, costs)
