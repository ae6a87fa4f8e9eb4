"""Loads of devices in pipelined execution, in pure JAX: the twin of `exact/stages.py`.

Letters as in `graphs/padding.py`. A function takes one placement of one graph; `vmap` makes more of both.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.pipeline import ACCELERATOR, Pipeline
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes, sizes
from graphrl.graphs.topology import distinct


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedPipeline:
    """A graph and its devices as arrays. Seconds and bytes are float32 in units of the graph.

    A group are the ops that go together, mostly one; it reads a tensor once, and its own tensors never.
    """

    second_unit: jax.Array | np.ndarray  # [] float32, seconds
    byte_unit: jax.Array | np.ndarray  # [] float32, bytes
    runtime: jax.Array | np.ndarray  # [n, 2] float32, on an accelerator and on a CPU; inf where it cannot run
    weight: jax.Array | np.ndarray  # [n] float32
    transfer: jax.Array | np.ndarray  # [t] float32
    producer: jax.Array | np.ndarray  # [t] int32, op; n for padding
    read_tensor: jax.Array | np.ndarray  # [e] int32, by each group that reads it; t for padding
    reader: jax.Array | np.ndarray  # [e] int32, the leader of that group; n for padding
    leader: jax.Array | np.ndarray  # [n] int32, the first op of those that go together; itself for padding
    kinds: jax.Array | np.ndarray  # [d] int32, ACCELERATOR or CPU
    limit: jax.Array | np.ndarray  # [] float32, of an accelerator's weights; inf without one


class Loads(NamedTuple):
    """What a placement costs, in units of the graph."""

    loads: jax.Array  # [d] float32; inf where an op cannot run
    resident: jax.Array  # [d] float32, weights
    excess: jax.Array  # [] float32, of the fullest accelerator over the limit
    apart: jax.Array  # [] int32, ops that are not with the first of those that they go with


class Traffic(NamedTuple):
    """Where tensors are written and read under a placement."""

    home: jax.Array  # [t] int32, the device of the producer; d for padding
    readers: jax.Array  # [t, d] int32, groups there that read it
    away: jax.Array  # [t] int32, devices with readers beside the home


def padded_pipeline(
    graph: ComputationGraph, problem: Problem, padded: Sizes | None = None, devices: int | None = None
) -> PaddedPipeline:
    """The arrays of a graph, on the host.

    Args:
      padded: sizes to pad to; by default the graph's own.
      devices: d, at least the problem's and by default those: more are accelerators that nothing may stand on.
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
        runtime=_padded(pipeline.runtime / second_unit, shape.ops, 0, np.float32),
        weight=_padded(a.weight_bytes / byte_unit, shape.ops, 0, np.float32),
        transfer=_padded(pipeline.transfer / second_unit, shape.tensors, 0, np.float32),
        producer=_padded(a.producer, shape.tensors, shape.ops, np.int32),
        read_tensor=_padded(tensor[others], shape.uses, shape.tensors, np.int32),
        reader=_padded(reader[others], shape.uses, shape.ops, np.int32),
        leader=np.concatenate([graph.leaders, np.arange(a.num_ops, shape.ops)]).astype(np.int32),
        kinds=_padded(pipeline.kinds, problem.devices if devices is None else devices, ACCELERATOR, np.int32),
        limit=np.asarray(limit, np.float32),
    )


def _padded(values: np.ndarray, size: int, fill: int, dtype: type) -> np.ndarray:
    array = np.full((size, *values.shape[1:]), fill, dtype)
    array[: len(values)] = values
    return array


def traffic(pipeline: PaddedPipeline, placement: jax.Array) -> Traffic:
    """Of a placement `[n] int32`: O(e + t d)."""
    p, (devices,), (tensors,) = pipeline, pipeline.kinds.shape, pipeline.transfer.shape
    home = placement.at[p.producer].get(mode="fill", fill_value=devices)
    there = placement.at[p.reader].get(mode="fill", fill_value=devices)
    readers = jnp.zeros((tensors, devices), jnp.int32).at[p.read_tensor, there].add(1, mode="drop")
    away = (readers > 0) & (jnp.arange(devices, dtype=jnp.int32)[None, :] != home[:, None])
    return Traffic(home, readers, away.sum(1, dtype=jnp.int32))


def loads(pipeline: PaddedPipeline, placement: jax.Array) -> Loads:
    """What a placement `[n] int32` costs: O(n + e + t d). Of groups that are apart the leader's device counts."""
    p, (devices,) = pipeline, pipeline.kinds.shape
    is_accelerator = p.kinds == ACCELERATOR
    runtime = jnp.take_along_axis(p.runtime, p.kinds[placement][:, None], axis=1)[:, 0]
    home, readers, away = traffic(p, placement)
    moved = (readers > 0) & (jnp.arange(devices, dtype=jnp.int32)[None, :] != home[:, None])
    received = jnp.where(moved, p.transfer[:, None], 0.0).sum(axis=0)
    sent = jnp.zeros(devices).at[home].add(jnp.where(away > 0, p.transfer, 0.0), mode="drop")
    resident = jnp.zeros(devices).at[placement].add(p.weight)
    over = jnp.where(is_accelerator, resident - p.limit, 0.0)
    return Loads(
        loads=jnp.zeros(devices).at[placement].add(runtime) + jnp.where(is_accelerator, sent + received, 0.0),
        resident=resident,
        excess=jnp.maximum(over.max(), 0.0),
        apart=(placement != placement[p.leader]).sum(),
    )
