"""Known plans as chromosomes, and chromosomes as decisions on the host."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from graphrl.costs.device.decisions import Decisions, to_genes
from graphrl.costs.exact import decode
from graphrl.costs.problem import Problem
from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes


def chromosome(
    graph: ComputationGraph, problem: Problem, sizes: Sizes, placement: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """Genes that decode to this placement and order: `[k]` float32 (`costs.device.decisions` has their layout).

    Keys fall along the order. Where an order is longer than a quantised key has levels (above some 16,000 nodes),
    neighbours may change places.

    Args:
      graph, problem: what the plan is for.
      sizes: of the padded graph that the genes are for.
      placement: `[n]` int.
      order: `[m]` int, node ids of `costs.exact`: op v is v, tensor t to device b is n + t * devices + b.
    """
    n, d = graph.arrays.num_ops, problem.devices
    key = (len(order) - np.arange(len(order), dtype=np.float64) - 0.5) / len(order)
    devices = np.zeros(sizes.ops, np.int32)
    devices[:n] = placement
    op_keys = np.zeros(sizes.ops, np.float32)
    transfer_keys = np.zeros((d, sizes.tensors), np.float32)
    is_op = order < n
    op_keys[order[is_op]] = key[is_op]
    tensor, device = np.divmod(order[~is_op] - n, d)
    transfer_keys[device, tensor] = key[~is_op]
    one = (jnp.asarray(x)[..., None, None] for x in (devices, op_keys, transfer_keys))
    return np.asarray(to_genes(Decisions(*one), d))[:, 0, 0]


def chromosomes(
    graph: ComputationGraph,
    problem: Problem,
    sizes: Sizes,
    starts: Sequence[tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """`chromosome` of each (placement, order): `[k, 1, m]` float32, as `brkga.init` takes them."""
    return np.stack([chromosome(graph, problem, sizes, *start) for start in starts], -1)[:, None]


def decisions(
    graph: ComputationGraph, problem: Problem, sizes: Sizes, genes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The placement `[n]` and order `[m]` that genes `[k]` float32 mean, decoded by the exact host twin."""
    n, t, d = graph.arrays.num_ops, graph.arrays.num_tensors, problem.devices
    affinities = genes[: d * sizes.ops].reshape(d, sizes.ops)[:, :n]
    placement = affinities.argmax(0)
    op_keys = genes[d * sizes.ops : (d + 1) * sizes.ops][:n]
    transfer_keys = genes[(d + 1) * sizes.ops :].reshape(d, sizes.tensors)[:, :t].T
    return placement, decode(graph, problem, placement, op_keys, transfer_keys)
