"""What is measured on: random graphs of three families of 2 to 3 edges an op (from 64 ops on), and chromosomes.

Sizes, in bytes and seconds, are whole numbers that float32 sums keep exactly, so that all methods must agree to the
digit. Every op writes one tensor. Ops stand in a topological order.

The common layout of a chromosome of a graph with n ops and t tensors is that of `costs.device.decisions` without
padding: affinities `[d, n]`, op keys `[n]`, transfer keys `[d, t]`, flattened: (d + 1) n + d t genes.
"""

from collections.abc import Callable

import numpy as np

from graphrl.errors import ProblemError, near
from graphrl.graphs.graph import ComputationGraph, Op, Tensor
from graphrl.graphs.padding import Sizes

MIN_OPS = 16

Inputs = list[list[int]]  # by op: the ops whose tensors it reads


def random_graph(family: str, num_ops: int, seed: int) -> ComputationGraph:
    """A graph of `num_ops` ops.

    Args:
      family: a key of `FAMILIES`.
      num_ops: at least MIN_OPS.
      seed: graphs of different families, sizes and seeds are independent.

    Raises:
      ProblemError: no such family, or too few ops.
    """
    if family not in FAMILIES:
        raise ProblemError(f"unknown graph family {family!r}: {near(family, FAMILIES)}")
    if num_ops < MIN_OPS:
        raise ProblemError(f"a benchmark graph of {num_ops} ops: must have at least {MIN_OPS}")
    rng = np.random.default_rng([seed, num_ops, list(FAMILIES).index(family)])
    inputs, light = FAMILIES[family](num_ops, rng)
    num_bytes = np.exp(rng.uniform(np.log(16), np.log(2048), num_ops)).astype(int)
    seconds = rng.integers(1, 100, num_ops)
    ops = [
        Op(
            name=f"op{i}",
            runtime=0.0 if i in light else float(seconds[i]),
            inputs=tuple(f"t{source}" for source in sorted(set(inputs[i]))),
            outputs=(Tensor(f"t{i}", int(num_bytes[i])),),
        )
        for i in range(num_ops)
    ]
    return ComputationGraph(f"{family}-{num_ops}-{seed}", tuple(ops))


def random_graphs(num_ops: int, count: int, seed: int) -> list[ComputationGraph]:
    """`count` graphs, the families in turn."""
    families = list(FAMILIES)
    return [random_graph(families[i % len(families)], num_ops, seed + i // len(families)) for i in range(count)]


def random_chromosomes(graph: ComputationGraph, devices: int, count: int, seed: int) -> np.ndarray:
    """`[count, genes]` float32, uniform in [0, 1)."""
    genes = (devices + 1) * graph.arrays.num_ops + devices * graph.arrays.num_tensors
    return np.random.default_rng(seed).random((count, genes), dtype=np.float32)


def padded(genes: np.ndarray, graph: ComputationGraph, sizes: Sizes, devices: int) -> np.ndarray:
    """`[count, genes]` in the layout of a padded graph, `[count, padded genes]`; padding genes are 0."""
    n, t, count = graph.arrays.num_ops, graph.arrays.num_tensors, len(genes)
    by_op = np.zeros((count, devices + 1, sizes.ops), np.float32)
    by_op[..., :n] = genes[:, : (devices + 1) * n].reshape(count, devices + 1, n)
    by_tensor = np.zeros((count, devices, sizes.tensors), np.float32)
    by_tensor[..., :t] = genes[:, (devices + 1) * n :].reshape(count, devices, t)
    return np.concatenate([by_op.reshape(count, -1), by_tensor.reshape(count, -1)], 1)


def _training(num_ops: int, rng: np.random.Generator) -> tuple[Inputs, set[int]]:
    """A training step: a forward chain with skips and weights, and the backward ops in reverse, each of which reads
    the activations of its forward op; an update a weight, all of which read the learning rate (a hub).

    Returns:
      The inputs, and the ops that take no time (inputs and weights).
    """
    inputs: Inputs = [[], []]
    light = {0, 1}
    rate, forward, weights = 1, [0], {}
    while len(inputs) < 0.46 * num_ops and len(forward) < 0.3 * num_ops:
        sources = [forward[-1 - int(rng.integers(min(6, len(forward))))] if rng.random() < 0.3 else forward[-1]]
        if rng.random() < 0.4:
            sources.append(forward[-1 - int(rng.integers(min(9, len(forward))))])
        if rng.random() < 0.45:
            light.add(len(inputs))
            sources.append(len(inputs))
            inputs.append([])
            weights[len(inputs)] = sources[-1]
        forward.append(len(inputs))
        inputs.append(sources)
    readers: dict[int, list[int]] = {}
    for op in forward:
        for source in set(inputs[op]):
            readers.setdefault(source, []).append(op)
    backward: dict[int, int] = {}
    for op in reversed(forward[1:]):
        gradients = [backward[reader] for reader in readers.get(op, ()) if reader in backward]
        backward[op] = len(inputs)
        inputs.append([op, inputs[op][0], *gradients])
        if op in weights:
            inputs.append([backward[op], weights[op], rate])
    del inputs[num_ops:]
    while len(inputs) < num_ops:  # ops beside the model, such as metrics
        inputs.append((len(inputs) - 1 - rng.integers(min(30, len(inputs)), size=2)).tolist())
    return inputs, light


def _layered(num_ops: int, rng: np.random.Generator) -> tuple[Inputs, set[int]]:
    """Ops that read from a sliding window of two layers."""
    width = int(rng.integers(max(4, int(num_ops**0.5) // 2), int(num_ops**0.5) * 2))
    inputs: Inputs = [[] for _ in range(num_ops)]
    for op in range(width // 2, num_ops):
        inputs[op] = rng.integers(max(0, op - 2 * width), op, size=1 + rng.poisson(1.4)).tolist()
    return inputs, set()


def _hubs(num_ops: int, rng: np.random.Generator) -> tuple[Inputs, set[int]]:
    """Preferential attachment among the last 200 ops: a few tensors with many readers; and a few ops of many inputs."""
    inputs: Inputs = [[] for _ in range(num_ops)]
    degree = np.ones(num_ops)
    for op in range(3, num_ops):
        chance = degree[:op] * (np.arange(op) >= op - 200)
        count = min(op, 1 + int(rng.random() < 0.7) + int(rng.random() < 0.45))
        inputs[op] = rng.choice(op, size=count, p=chance / chance.sum(), replace=False).tolist()
        degree[inputs[op]] += 1
        if rng.random() < 0.01:
            inputs[op] += rng.integers(max(0, op - 60), op, size=16).tolist()
    return inputs, set()


FAMILIES: dict[str, Callable[[int, np.random.Generator], tuple[Inputs, set[int]]]] = {
    "training": _training,
    "layered": _layered,
    "hubs": _hubs,
}
