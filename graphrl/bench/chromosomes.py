"""Candidate solutions in the layouts of the methods that are compared.

The common layout of a chromosome of a graph with n ops and t tensors is that of `costs.decisions` without padding:
affinities `[d, n]`, op keys `[n]`, transfer keys `[d, t]`, flattened: (d + 1) n + d t genes.
"""

import numpy as np

from graphrl.graphs.graph import ComputationGraph
from graphrl.graphs.padding import Sizes


def count_genes(graph: ComputationGraph, devices: int) -> int:
    """Genes of a chromosome of a graph, without padding."""
    return (devices + 1) * graph.arrays.num_ops + devices * graph.arrays.num_tensors


def random_chromosomes(graph: ComputationGraph, devices: int, count: int, seed: int) -> np.ndarray:
    """`[count, genes]` float32, uniform in [0, 1)."""
    return np.random.default_rng(seed).random((count, count_genes(graph, devices)), dtype=np.float32)


def split(genes: np.ndarray, graph: ComputationGraph, devices: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One chromosome as placement `[n]`, op keys `[n]` and transfer keys `[t, d]`: what `costs.exact` takes."""
    n, t = graph.arrays.num_ops, graph.arrays.num_tensors
    affinities, op_keys, transfer_keys = np.split(genes, [devices * n, (devices + 1) * n])
    return affinities.reshape(devices, n).argmax(0), op_keys, transfer_keys.reshape(devices, t).T


def padded(genes: np.ndarray, graph: ComputationGraph, sizes: Sizes, devices: int) -> np.ndarray:
    """`[count, genes]` in the layout of a padded graph, `[count, padded genes]`; padding genes are 0."""
    n, t, count = graph.arrays.num_ops, graph.arrays.num_tensors, len(genes)
    by_op = np.zeros((count, devices + 1, sizes.ops), np.float32)
    by_op[..., :n] = genes[:, : (devices + 1) * n].reshape(count, devices + 1, n)
    by_tensor = np.zeros((count, devices, sizes.tensors), np.float32)
    by_tensor[..., :t] = genes[:, (devices + 1) * n :].reshape(count, devices, t)
    return np.concatenate([by_op.reshape(count, -1), by_tensor.reshape(count, -1)], 1)
