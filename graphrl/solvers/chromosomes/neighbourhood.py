"""Candidate solutions that change a little at a time: what annealing walks on.

A solution is a placement, a key for each op (as in `costs.device.decisions`) and, instead of a key, a *lateness* for
each transfer: 0 puts it right after its producer, 1 right before its first reader, by the keys of those two. So a
transfer goes with its ops when they move, and one that a move makes necessary has a sensible place at once.

Moves, one or two ops at a time:

- device: an op goes to another device;
- edge: an op and one of its readers go to one device: another than the op's, or, if they are apart, the op's;
- place: an op's key moves up or down by a distance that is log-uniform from one place to half the order;
- swap: two ops exchange their keys;
- transfer: a transfer's lateness becomes 0, 1 or anything between.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.decisions import Decisions
from graphrl.costs.device.indexing import take
from graphrl.costs.device.lanes import scatter_max, take_rows
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import READS, PaddedGraph, Sizes
from graphrl.random_bits import random_words, unit_interval

WORDS = 9  # random words that a move takes
LATE = 0.9  # lateness of transfers that are not there: just before they are needed
LARGEST = 1 - 2.0**-24  # the largest float32 below 1


class Solution(NamedTuple):
    """p candidate solutions of one graph (g = 1)."""

    placement: jax.Array  # [n, 1, p] int32
    op_keys: jax.Array  # [n, 1, p] float32 in [0, 1)
    lateness: jax.Array  # [d, t, 1, p] float32 in [0, 1], of the transfer of each tensor to each device


class Mix(NamedTuple):
    """How often each kind of move is made; the sum is 1. Static."""

    device: float
    edge: float
    place: float
    swap: float
    transfer: float

    def on(self, devices: int) -> "Mix":
        """The same, without the moves that one device does not have."""
        if devices > 1:
            return self
        ordering = self.place + self.swap
        return Mix(0.0, 0.0, self.place / ordering, self.swap / ordering, 0.0)


def to_decisions(graph: PaddedGraph, solution: Solution, devices: int) -> Decisions:
    """Solutions with a key for every transfer.

    Args:
      graph: a batch of one graph.
      solution: p solutions.
      devices: d.
    """
    placement, op_keys, lateness = solution
    n, t = placement.shape[0], lateness.shape[1]
    before = take_rows(op_keys, graph.producer)
    entry = jnp.minimum(graph.row_entry, n - 1)
    entries = []
    for j in range(graph.row_entry.shape[-1]):
        reads = (graph.row_kind[..., j].T == READS)[..., None]
        entries.append((reads, take_rows(op_keys, entry[..., j]), take_rows(placement, entry[..., j])))

    def first_reader(device: int) -> jax.Array:
        keys = [jnp.where(reads & (on == device), key, jnp.float32(-1)) for reads, key, on in entries]
        return scatter_max(graph.row_tensor, functools.reduce(jnp.maximum, keys), t + 1, -1.0)[:t]

    after = jnp.stack([first_reader(device) for device in range(devices)])
    keys = before[None] + lateness * (after - before[None])
    return Decisions(placement, op_keys, jnp.clip(keys, 0.0, LARGEST))


def from_order(
    graph: ComputationGraph, problem: Problem, sizes: Sizes, placement: np.ndarray, order: np.ndarray
) -> Solution:
    """A known plan as one solution (p = 1), NumPy arrays: keys fall along the order. Rounding may swap neighbours.

    Args:
      graph, problem: what the plan is for.
      sizes: of the padded graph.
      placement: `[n]` int.
      order: `[m]` int, node ids of `costs.exact`.
    """
    a, d = graph.arrays, problem.devices
    position = np.full(a.num_ops + a.num_tensors * d, len(order))
    position[order] = np.arange(len(order))
    op_keys = np.zeros((sizes.ops, 1, 1), np.float32)
    op_keys[: a.num_ops, 0, 0] = (len(order) - position[: a.num_ops] - 0.5) / len(order)
    devices = np.zeros((sizes.ops, 1, 1), np.int32)
    devices[: a.num_ops, 0, 0] = placement
    first = np.full((a.num_tensors, d), len(order))
    np.minimum.at(first, (a.use_tensor, placement[a.use_op]), position[a.use_op])
    transfers = order[order >= a.num_ops]
    tensor, to = np.divmod(transfers - a.num_ops, d)
    begin = position[a.producer[tensor]]
    lateness = np.full((d, sizes.tensors, 1, 1), LATE, np.float32)
    lateness[to, tensor, 0, 0] = (position[transfers] - begin) / (first[tensor, to] - begin)
    return Solution(devices, op_keys, lateness)  # type: ignore[arg-type]  # jax takes NumPy arrays as its own


def random_solution(seeds: jax.Array, sizes: Sizes, devices: int, count: int) -> Solution:
    """Uniform placements and keys, transfers just before they are needed.

    Args:
      seeds: `[1, 2]` uint32.
      sizes: of the padded graph.
      devices: d.
      count: p.
    """
    u = unit_interval(random_words(seeds, 2 * sizes.ops, count))
    placement = (u[: sizes.ops] * devices).astype(jnp.int32)
    return Solution(placement, u[sizes.ops :], jnp.full((devices, sizes.tensors, 1, count), LATE, jnp.float32))


def mutate(graph: PaddedGraph, solution: Solution, words: jax.Array, mix: Mix, devices: int) -> Solution:
    """One random move in every lane.

    Args:
      graph: a batch of one graph.
      solution: p solutions.
      words: `[WORDS, 1, p]` uint32.
      mix: what moves there are; static.
      devices: d.
    """
    kind, *u = unit_interval(words)[:, 0]  # [p] each
    device, edge, place, swap, _ = itertools.accumulate(mix.on(devices))
    is_device, is_edge = kind < device, (kind >= device) & (kind < edge)
    is_place, is_swap, is_transfer = (kind >= edge) & (kind < place), (kind >= place) & (kind < swap), kind >= swap
    ops = graph.num_ops[0]

    # two ops: of an edge, or any
    use = _below(u[0], (graph.use_op[0] < ops).sum(dtype=jnp.int32))
    writer = take(graph.producer[0], _inside(take(graph.use_tensor[0], use), graph.producer))
    first = jnp.where(is_edge, writer, _below(u[0], ops))
    second = jnp.where(is_edge, _inside(take(graph.use_op[0], use), graph.runtime), _below(u[1], ops))
    op = jnp.arange(graph.runtime.shape[-1], dtype=jnp.int32)[:, None, None]
    of_first, of_second = op == _lanes(first), op == _lanes(second)

    here, there = _of(solution.placement, first), _of(solution.placement, second)
    other = here + 1 + _below(u[2], devices - 1)
    other = jnp.where(other >= devices, other - devices, other)
    target = jnp.where(is_edge & (here != there) & (u[3] < 0.5), here, other)
    moved = (of_first & _lanes(is_device | is_edge)) | (of_second & _lanes(is_edge))
    placement = jnp.where(moved, _lanes(target), solution.placement)

    key, key_of_second = _of(solution.op_keys, first), _of(solution.op_keys, second)
    places = ops.astype(jnp.float32)
    distance = jnp.exp(u[4] * jnp.log(jnp.maximum(places / 2, 1.0))) / places
    shifted = jnp.clip(key + jnp.where(u[5] < 0.5, distance, -distance), 0.0, LARGEST)
    new_key = jnp.where(is_place, shifted, jnp.where(is_swap, key_of_second, key))
    op_keys = jnp.where(of_second & _lanes(is_swap), _lanes(key), solution.op_keys)
    op_keys = jnp.where(of_first, _lanes(new_key), op_keys)

    tensor, to = _below(u[0], graph.num_tensors[0]), _below(u[6], devices)
    of_tensor = jnp.arange(graph.producer.shape[-1], dtype=jnp.int32)[None, :, None, None] == tensor[None, None, None]
    on_device = jnp.arange(devices, dtype=jnp.int32)[:, None, None, None] == to[None, None, None]
    # a quarter 0, a quarter 1, the rest in between
    lateness = jnp.clip(2 * u[7] - 0.5, 0.0, 1.0)
    chosen = of_tensor & on_device & is_transfer[None, None, None]
    return Solution(placement, op_keys, jnp.where(chosen, lateness, solution.lateness))


def _lanes(values: jax.Array) -> jax.Array:
    return values[None, None]


def _below(uniform: jax.Array, count: jax.Array | int) -> jax.Array:
    """Uniform in [0, 1) as an integer in [0, count)."""
    last = jnp.maximum(jnp.asarray(count, jnp.int32) - 1, 0)
    return jnp.minimum((uniform * (last + 1).astype(jnp.float32)).astype(jnp.int32), last)


def _inside(index: jax.Array, array: jax.Array) -> jax.Array:
    return jnp.minimum(index, array.shape[-1] - 1)


def _of(values: jax.Array, op: jax.Array) -> jax.Array:
    """Each lane's value of its op: `[p]` from `[n, 1, p]`."""
    count = op.shape[0]
    return take(values.reshape(-1), op * count + jnp.arange(count, dtype=jnp.int32))
