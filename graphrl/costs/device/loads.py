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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PaddedPipeline:
    """A graph and its devices as arrays. Seconds and bytes are float32 in units of the graph."""

    second_unit: jax.Array | np.ndarray  # [] float32, seconds
    byte_unit: jax.Array | np.ndarray  # [] float32, bytes
    runtime: jax.Array | np.ndarray  # [n, 2] float32, on an accelerator and on a CPU; inf where it cannot run
    weight: jax.Array | np.ndarray  # [n] float32
    transfer: jax.Array | np.ndarray  # [t] float32
    producer: jax.Array | np.ndarray  # [t] int32, op; n for padding
    use_tensor: jax.Array | np.ndarray  # [e] int32; t for padding
    use_op: jax.Array | np.ndarray  # [e] int32; n for padding
    leader: jax.Array | np.ndarray  # [n] int32, the first op of those that go together; itself for padding
    kinds: jax.Array | np.ndarray  # [d] int32, ACCELERATOR or CPU
    limit: jax.Array | np.ndarray  # [] float32, of an accelerator's weights; inf without one


class Loads(NamedTuple):
    """What a placement costs, in units of the graph."""

    loads: jax.Array  # [d] float32; inf where an op cannot run
    resident: jax.Array  # [d] float32, weights
    excess: jax.Array  # [] float32, of the fullest accelerator over the limit
    apart: jax.Array  # [] int32, ops that are not with the first of those that they go with


def padded_pipeline(graph: ComputationGraph, problem: Problem, padded: Sizes | None = None) -> PaddedPipeline:
    """The arrays of a graph, on the host, padded to some sizes; by default its own."""
    a, pipeline = graph.arrays, Pipeline.of(graph, problem)
    shape = sizes(graph) if padded is None else padded
    finite = pipeline.runtime[np.isfinite(pipeline.runtime)]
    second_unit = float(max(finite.max(initial=0.0), pipeline.transfer.max(initial=0.0))) or 1.0
    byte_unit = float(a.weight_bytes.max()) or 1.0
    limit = np.inf if problem.memory_limit is None else problem.memory_limit / byte_unit
    leader = np.arange(shape.ops)
    first = np.unique(pipeline.colocation, return_index=True)[1]
    leader[: a.num_ops] = first[pipeline.colocation]
    return PaddedPipeline(
        second_unit=np.asarray(second_unit, np.float32),
        byte_unit=np.asarray(byte_unit, np.float32),
        runtime=_padded(pipeline.runtime / second_unit, shape.ops, 0, np.float32),
        weight=_padded(a.weight_bytes / byte_unit, shape.ops, 0, np.float32),
        transfer=_padded(pipeline.transfer / second_unit, shape.tensors, 0, np.float32),
        producer=_padded(a.producer, shape.tensors, shape.ops, np.int32),
        use_tensor=_padded(a.use_tensor, shape.uses, shape.tensors, np.int32),
        use_op=_padded(a.use_op, shape.uses, shape.ops, np.int32),
        leader=leader.astype(np.int32),
        kinds=pipeline.kinds.astype(np.int32),
        limit=np.asarray(limit, np.float32),
    )


def _padded(values: np.ndarray, size: int, fill: int, dtype: type) -> np.ndarray:
    array = np.full((size, *values.shape[1:]), fill, dtype)
    array[: len(values)] = values
    return array


def loads(pipeline: PaddedPipeline, placement: jax.Array) -> Loads:
    """What a placement `[n] int32` costs: O(n + e + t d)."""
    p, (devices,), (tensors,) = pipeline, pipeline.kinds.shape, pipeline.transfer.shape
    is_accelerator = p.kinds == ACCELERATOR
    runtime = jnp.take_along_axis(p.runtime, p.kinds[placement][:, None], axis=1)[:, 0]
    home = placement.at[p.producer].get(mode="fill", fill_value=devices)  # [t]
    reader = placement.at[p.use_op].get(mode="fill", fill_value=devices)  # [e]
    read = jnp.zeros((tensors, devices), bool).at[p.use_tensor, reader].set(True, mode="drop")
    moved = read & (jnp.arange(devices)[None, :] != home[:, None])  # [t, d]
    received = jnp.where(moved, p.transfer[:, None], 0.0).sum(axis=0)
    sent = jnp.zeros(devices).at[home].add(jnp.where(moved.any(axis=1), p.transfer, 0.0), mode="drop")
    resident = jnp.zeros(devices).at[placement].add(p.weight)
    over = jnp.where(is_accelerator, resident - p.limit, 0.0)
    return Loads(
        loads=jnp.zeros(devices).at[placement].add(runtime) + jnp.where(is_accelerator, sent + received, 0.0),
        resident=resident,
        excess=jnp.maximum(over.max(), 0.0),
        apart=(placement != placement[p.leader]).sum(),
    )
