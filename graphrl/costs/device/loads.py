"""Loads of devices in pipelined execution, in pure JAX: the twin of `Stages` in `exact/evaluate.py`.

Letters as in `graphs/padding.py`. Functions take one placement of one graph; `jax.vmap` over either for batches.

`loads` computes the loads of a placement. `moves` computes the loads after one group of ops moves to another device,
for all groups and devices in parallel. A tensor costs its home (the producer's device) once if it is read elsewhere,
and every other device that reads it once. So a move changes only the loads of the device that the group leaves and of
the device that it enters. If the last reader elsewhere moves to a third device, the home still sends.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.indexing import filled
from graphrl.costs.problem import ACCELERATOR, Pipeline, Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, sizes
from graphrl.graphs.topology import distinct


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedPipeline:
    """A graph and its devices as arrays. Seconds and bytes are float32 in units of the graph.

    A group is a set of colocated ops, usually one op. It reads a tensor once, and never its own tensors.
    """

    second_unit: jax.Array | np.ndarray  # [] float32, seconds
    byte_unit: jax.Array | np.ndarray  # [] float32, bytes
    runtime: jax.Array | np.ndarray  # [n, 2] float32, on an accelerator and on a CPU; inf where it cannot run
    weight: jax.Array | np.ndarray  # [n] float32
    transfer: jax.Array | np.ndarray  # [t] float32
    producer: jax.Array | np.ndarray  # [t] int32, op; n for padding
    read_tensor: jax.Array | np.ndarray  # [e] int32, one entry for each group that reads it; t for padding
    reader: jax.Array | np.ndarray  # [e] int32, the leader of that group; n for padding
    leader: jax.Array | np.ndarray  # [n] int32, the first op of its group; itself for padding
    kinds: jax.Array | np.ndarray  # [d] int32, ACCELERATOR or CPU
    limit: jax.Array | np.ndarray  # [] float32, memory limit for an accelerator's weights; inf if there is no limit


class Loads(NamedTuple):
    """Costs of a placement, in units of the graph."""

    loads: jax.Array  # [d] float32, second units; inf where an op cannot run
    resident: jax.Array  # [d] float32, byte units of weights
    excess: jax.Array  # [] float32, by which the fullest accelerator exceeds the limit
    apart: jax.Array  # [] int32, number of ops on another device than their group's leader


class Traffic(NamedTuple):
    """Devices that write and read each tensor, under a placement."""

    home: jax.Array  # [t] int32, the device of the producer; d for padding
    readers: jax.Array  # [t, d] int32, number of groups there that read it
    remote: jax.Array  # [t] int32, number of devices with readers other than the home


def padded_pipeline(
    graph: ComputationGraph, problem: Problem, padded: Sizes | None = None, devices: int | None = None
) -> PaddedPipeline:
    """Builds the arrays of a graph and a problem, on the host.

    Args:
      padded: sizes to pad to; by default the graph's own.
      devices: d, at least the problem's number and by default equal to it; additional ones are accelerators that may
        hold no op.
    """
    a, pipeline = graph.arrays, Pipeline.of(graph, problem)
    shape = sizes(graph) if padded is None else padded
    finite = pipeline.runtime[np.isfinite(pipeline.runtime)]
    second_unit = float(max(finite.max(initial=0.0), pipeline.transfer.max(initial=0.0))) or 1.0
    byte_unit = 2.0 ** np.floor(np.log2(max(1, int(a.weight_bytes.max()))))  # small whole bytes stay exact
    limit = np.inf if problem.memory_limit is None else problem.memory_limit / byte_unit
    tensor, reader = np.divmod(distinct(a.use_tensor.astype(np.int64) * a.num_ops + graph.leaders[a.use_op]), a.num_ops)
    others = reader != graph.leaders[a.producer[tensor]]
    return PaddedPipeline(
        second_unit=np.asarray(second_unit, np.float32),
        byte_unit=np.asarray(byte_unit, np.float32),
        runtime=filled(pipeline.runtime / second_unit, shape.ops, np.float32),
        weight=filled(a.weight_bytes / byte_unit, shape.ops, np.float32),
        transfer=filled(pipeline.transfer / second_unit, shape.tensors, np.float32),
        producer=filled(a.producer, shape.tensors, np.int32, shape.ops),
        read_tensor=filled(tensor[others], shape.uses, np.int32, shape.tensors),
        reader=filled(reader[others], shape.uses, np.int32, shape.ops),
        leader=np.concatenate([graph.leaders, np.arange(a.num_ops, shape.ops)]).astype(np.int32),
        kinds=filled(pipeline.kinds, problem.devices if devices is None else devices, np.int32, ACCELERATOR),
        limit=np.asarray(limit, np.float32),
    )


def traffic(pipeline: PaddedPipeline, placement: jax.Array) -> Traffic:
    """Computes on which devices tensors are written and read, for a placement `[n] int32`: O(e + t d)."""
    p, (devices,), (tensors,) = pipeline, pipeline.kinds.shape, pipeline.transfer.shape
    home = placement.at[p.producer].get(mode="fill", fill_value=devices)
    there = placement.at[p.reader].get(mode="fill", fill_value=devices)
    readers = jnp.zeros((tensors, devices), jnp.int32).at[p.read_tensor, there].add(1, mode="drop")
    is_remote = (readers > 0) & (jnp.arange(devices, dtype=jnp.int32)[None, :] != home[:, None])
    return Traffic(home, readers, is_remote.sum(1, dtype=jnp.int32))


def loads(pipeline: PaddedPipeline, placement: jax.Array) -> Loads:
    """Computes the loads of a placement `[n] int32`: O(n + e + t d).

    A group reads on its leader's device, even if its ops are apart.
    """
    p, (devices,) = pipeline, pipeline.kinds.shape
    is_accelerator = p.kinds == ACCELERATOR
    runtime = jnp.take_along_axis(p.runtime, p.kinds[placement][:, None], axis=1)[:, 0]
    home, readers, remote = traffic(p, placement)
    moved = (readers > 0) & (jnp.arange(devices, dtype=jnp.int32)[None, :] != home[:, None])
    received = jnp.where(moved, p.transfer[:, None], 0.0).sum(axis=0)
    sends = jnp.zeros(devices).at[home].add(jnp.where(remote > 0, p.transfer, 0.0), mode="drop")
    resident = jnp.zeros(devices).at[placement].add(p.weight)
    overflow = jnp.where(is_accelerator, resident - p.limit, 0.0)
    return Loads(
        loads=jnp.zeros(devices).at[placement].add(runtime) + jnp.where(is_accelerator, sends + received, 0.0),
        resident=resident,
        excess=jnp.maximum(overflow.max(), 0.0),
        apart=(placement != placement[p.leader]).sum(),
    )


class Moves(NamedTuple):
    """Loads if an op's group moves, in units of the graph; ops that a device cannot run take no time there."""

    left: jax.Array  # [n] float32, load of the group's device after it has left
    entered: jax.Array  # [n, d] float32, load of each other device with the group; of its own, unchanged
    runtime: jax.Array  # [n, d] float32, run time of the group on each device
    weight: jax.Array  # [n] float32, weights of the group


def moves(pipeline: PaddedPipeline, placement: jax.Array, loads: jax.Array) -> Moves:
    """Computes the loads after each possible move of one group, from loads `[d]`, in O((n + e + t) d).

    The placement `[n] int32` must keep groups together.
    """
    p, (devices,), leader = pipeline, pipeline.kinds.shape, pipeline.leader
    seconds = jnp.where(jnp.isfinite(p.runtime), p.runtime, 0.0)
    runtime = jnp.zeros_like(seconds).at[leader].add(seconds)[:, p.kinds]
    leaves, enters = _changes(p, placement)
    is_accelerator = p.kinds == ACCELERATOR
    is_home = placement[:, None] == jnp.arange(devices, dtype=jnp.int32)[None]
    own = jnp.where(is_home, runtime, 0.0).sum(1)
    left = loads[placement] - own + jnp.where(is_accelerator[placement], leaves, 0.0)
    entered = loads[None] + jnp.where(is_home, 0.0, runtime + jnp.where(is_accelerator[None], enters, 0.0))
    weight = jnp.zeros_like(p.weight).at[leader].add(p.weight)
    return Moves(*(of[leader] for of in (left, entered, runtime, weight)))


def _changes(p: PaddedPipeline, placement: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns by how much a group's move changes transfer seconds, by leader: on the device that it leaves, `[n]`, and
    on each other one, if it goes there, `[n, d]`. Only devices that pay for transfers have these changes.
    """
    (n,), (devices,), (tensors,) = placement.shape, p.kinds.shape, p.transfer.shape
    home, readers, remote = traffic(p, placement)
    device = jnp.arange(devices, dtype=jnp.int32)[None]
    read, is_home = readers > 0, device == home[:, None]  # [t, d]
    # as the writer: its device no longer sends, but may now read; the other device sends and no longer receives
    at_home = (read & is_home).any(1)
    places = remote + at_home.astype(jnp.int32)
    others = places[:, None] > read.astype(jnp.int32)  # [t, d], True if it is read on another device
    writer = jnp.asarray(p.leader).at[p.producer].get(mode="fill", fill_value=n)
    leaves = jnp.zeros(n).at[writer].add(_change(at_home, remote > 0) * p.transfer, mode="drop")
    enters = jnp.zeros((n, devices)).at[writer].add(_change(others, read) * p.transfer[:, None], mode="drop")
    # as a reader: the group may be the last to read on its device, and the first on another
    of = jnp.minimum(p.read_tensor, tensors - 1)
    here, cost = placement.at[p.reader].get(mode="fill", fill_value=0), p.transfer[of]
    is_sole = jnp.take_along_axis(readers[of], here[:, None], axis=1)[:, 0] == 1
    from_home = here == home[of]
    starts, ends = from_home & (remote[of] == 0), ~from_home & is_sole  # the home sends; the device no longer receives
    stops = ends & (remote[of] == 1)  # the home no longer sends, if the reader moves there
    leaves = leaves.at[p.reader].add(_change(starts, ends) * cost, mode="drop")
    first = _change(~read[of] & ~is_home[of], stops[:, None] & is_home[of])
    return leaves, enters.at[p.reader].add(first * cost[:, None], mode="drop")


def _change(after: jax.Array, before: jax.Array) -> jax.Array:
    """Returns the change of a condition as float32: 1 if it becomes true, -1 if it becomes false, else 0."""
    return after.astype(jnp.float32) - before.astype(jnp.float32)
