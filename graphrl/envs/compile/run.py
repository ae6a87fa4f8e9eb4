"""What a graph takes under some choices: its kernels, priorities as keys, and the cost model on the device.

The decoder there has a lane for each candidate solution of each graph of a batch, and runs them together. An
environment has one graph and one candidate; where it is mapped (`jax.vmap`) over choices, and then over graphs, as PPO
does, these become the lanes (some 5 times faster than mapping a decoder of one lane: 16 candidates, 1,024 ops). Where
ops are fused each candidate has a graph of its own, and these are the graphs of a batch.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.fitness import measured
from graphrl.costs.device.problem import DeviceProblem
from graphrl.envs.compile.instance import Choices, CompileParams
from graphrl.envs.compile.kernels import kernels_of
from graphrl.envs.compile.sends import by_rule, places
from graphrl.graphs.padding import PaddedGraph

Sends = Literal["urgent", "rule"]


class _Keyed(NamedTuple):
    """`Decisions` of one candidate; where the keys of transfers are missing, sends are by the rule."""

    placement: jax.Array  # [n] int32
    op_keys: jax.Array  # [n] float32
    transfer_keys: jax.Array | None  # [d, t] float32


class Run(NamedTuple):
    """One run of a graph."""

    makespan: jax.Array  # [] float32, second units
    valid: jax.Array  # [] bool, every device stays within the memory limit, and kernels have room
    graph: PaddedGraph  # what ran: ops, or kernels
    op: jax.Array  # [n] int32, the op of each of these, a kernel's root; n for padding
    placement: jax.Array  # [n] int32, of each of these
    end: jax.Array  # [n] float32, second units
    place: jax.Array  # [n] int32, in the order; n for padding


class _Costs(NamedTuple):
    makespan: jax.Array  # float32, second units
    peak: jax.Array  # float32, byte units, of the device that needs most; 0 without a memory limit
    end: jax.Array  # [n] float32, second units, of each op
    place: jax.Array  # [n] int32, of each op in the order; n for padding


@functools.partial(jax.jit, static_argnames="sends")  # one program for the start and for all steps
def run(params: CompileParams, chosen: Choices, sends: Sends = "urgent") -> Run:
    """Runs an instance; choices are `possible`. Memory is linear in n + e + d t.

    Args:
      params: the instance.
      chosen: of each op.
      sends: see `CompileEnv`.
    """
    graph, problem = params.graph, params.problem
    assert isinstance(problem, DeviceProblem)
    placement, keys = jnp.asarray(chosen.placement), op_keys(params, jnp.asarray(chosen.priority))
    fits, op = jnp.bool_(True), jnp.arange(len(keys), dtype=jnp.int32)
    if params.fusion is not None and chosen.fusion is not None:
        graph, op, _, fits = kernels_of(graph, params.fusion, jnp.asarray(chosen.fusion))
        placement, keys = (jnp.append(of_op, jnp.zeros(1, of_op.dtype))[op] for of_op in (placement, keys))
    by_urgency = transfer_keys(graph, placement, keys, problem.devices) if sends == "urgent" else None
    decisions = _Keyed(placement, keys, by_urgency)
    costs = _one(graph, problem, decisions)
    if problem.memory_limit is not None:  # else nobody who asks for validity alone waits for the run
        fits &= costs.peak <= problem.memory_limit / graph.byte_unit
    return Run(costs.makespan, fits, graph, op, placement, costs.end, costs.place)


def possible(params: CompileParams, chosen: Choices) -> Choices:
    """The choices, with option 0 for padding and for nothing, groups on one device, and the first one that can run
    them for those on a device that cannot, or is not there.
    """
    real = jnp.arange(params.order.shape[0], dtype=jnp.int32) < params.graph.num_ops
    chosen = jax.tree.map(lambda option: jnp.where(real, jnp.maximum(option, 0), 0), chosen)
    placement, runs_on = chosen.placement[params.leader], jnp.asarray(params.runs_on)
    can = jnp.take_along_axis(runs_on, placement[:, None], axis=1)[:, 0]
    return chosen._replace(placement=jnp.where(can, placement, runs_on.argmax(1).astype(jnp.int32)))


def op_keys(params: CompileParams, priority: jax.Array) -> jax.Array:
    """`[n]` float32 in [0, 1): of the ready ops the largest comes first, see `CompileParams.reach`."""
    n, count = params.order.shape[0], jnp.maximum(params.graph.num_ops, 1).astype(jnp.float32)
    rank = jnp.zeros(n, jnp.int32).at[params.order].set(jnp.arange(n, dtype=jnp.int32)).astype(jnp.float32)
    assert params.levels is not None
    reach = jnp.asarray(params.reach) * count
    place = jnp.where(rank < count, priority.astype(jnp.float32) * reach + count - 1 - rank, 0)
    return place / ((params.levels.shape[0] - 1) * reach + count)


def transfer_keys(graph: PaddedGraph, placement: jax.Array, keys: jax.Array, devices: int) -> jax.Array:
    """`[d, t]` float32 in [0, 1): a transfer is as urgent as the most urgent op that waits for it."""
    t, n = graph.sizes.tensors, graph.sizes.ops
    op = jnp.minimum(graph.use_op, n - 1)
    index = jnp.where(graph.use_op < n, placement[op] * t + graph.use_tensor, devices * t)
    return jnp.zeros(devices * t).at[index].max(keys[op], mode="drop").reshape(devices, t)


_EACH: Any = _Costs(True, True, True, True)  # type: ignore[arg-type]  # all that is mapped has a leading axis


@custom_vmap
def _one(graph: PaddedGraph, problem: DeviceProblem, decisions: _Keyed) -> _Costs:
    """Of one graph and one candidate: `[...]` each."""
    return _first(_several(graph, problem, _led(decisions)))


@_one.def_vmap
def _(size: int, mapped: Any, graph: PaddedGraph, problem: DeviceProblem, decisions: _Keyed) -> tuple[_Costs, _Costs]:
    decisions = _filled(size, mapped[2], decisions)
    if not any(jax.tree.leaves(mapped[:2])):
        return _several(graph, problem, decisions), _EACH
    graph, problem = _filled(size, tuple(mapped[:2]), (graph, problem))
    costs = _all(graph, problem, jax.tree.map(lambda leaf: leaf[:, None], decisions))
    return jax.tree.map(lambda leaf: leaf[:, 0], costs), _EACH


@custom_vmap
def _several(graph: PaddedGraph, problem: DeviceProblem, decisions: _Keyed) -> _Costs:
    """Of one graph and candidates `[p, ...]`: `[p, ...]` each."""
    return _first(_all(_led(graph), _led(problem), _led(decisions)))


@_several.def_vmap
def _(size: int, mapped: Any, graph: PaddedGraph, problem: DeviceProblem, decisions: _Keyed) -> tuple[_Costs, _Costs]:
    return _all(*_filled(size, tuple(mapped), (graph, problem, decisions))), _EACH


@custom_vmap
def _all(graph: PaddedGraph, problem: DeviceProblem, decisions: _Keyed) -> _Costs:
    """Of graphs `[g, ...]` and candidates `[g, p, ...]`: `[g, p, ...]` each."""
    lanes = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, (0, 1), (-2, -1)), decisions)
    if lanes.transfer_keys is None:
        made = by_rule(graph, lanes.placement, lanes.op_keys, problem.devices, problem.transfer)
    else:
        made = Decisions(*lanes)
    costs = measured(graph, made, problem)
    n, g, p = costs.end.shape
    place = places(costs.events.reshape(-1, g * p), n, problem.devices).reshape(n, g, p)
    return _Costs(costs.makespan, costs.peak_memory.max(0), *(jnp.moveaxis(of, 0, -1) for of in (costs.end, place)))


@_all.def_vmap
def _(size: int, mapped: Any, graph: PaddedGraph, problem: DeviceProblem, decisions: _Keyed) -> tuple[_Costs, _Costs]:
    batches = _filled(size, tuple(mapped), (graph, problem, decisions))
    costs = _all(*jax.tree.map(lambda leaf: leaf.reshape(size * leaf.shape[1], *leaf.shape[2:]), batches))
    return jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), costs), _EACH


def _filled(size: int, mapped: Any, values: Any) -> Any:
    """Values of which some have a leading axis, all with one."""

    def one(is_mapped: bool, leaf: jax.Array) -> jax.Array:
        return leaf if is_mapped else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf)))

    return jax.tree.map(one, mapped, values)


def _led(values: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], values)


def _first(costs: _Costs) -> _Costs:
    return jax.tree.map(lambda leaf: leaf[0], costs)
