"""Chips drawn at random for a graph, so that a policy sees capacities, bandwidths and speeds of many kinds.

Everything is relative to the graph: a chip for a small graph and one for a large graph make problems of the same kinds.
"""

import dataclasses
import zlib

import numpy as np

from graphrl.costs.maps.chip import ChipMemory, MemoryChip
from graphrl.graphs.datasets.seeds import generator, log_uniform
from graphrl.graphs.graph import ComputationGraph

_COMPUTE = 0.02, 1.0  # seconds of all operations over those of moving all tensors with the slowest memory
_SETUP = 0.01, 1.0  # set-up time of the slowest memory over the time that a mean tensor's bytes take there
_BANDWIDTH = 2.0, 20.0  # ratio of a memory's bandwidth to that of the next slower one
_WRITE = 0.3, 1.0  # ratio of the bandwidths of writing and reading, in half of the chips
_CAPACITY = 0.005, 0.7  # share of all bytes that fit into the second largest memory
_SMALLER = 0.1, 1.0  # ratio of a memory's capacity to that of the next larger one
_SLOWEST = 1e11  # bytes per second; the unit does not matter
_FLOPS_PER_SECOND = 1e12  # of ops that have a run time and no FLOPs


def draw_chip(graph: ComputationGraph, seed: int, memories: int = 3) -> MemoryChip:
    """Draws a chip for a graph; equal arguments give equal chips.

    Args:
      graph: a graph with FLOPs, see `with_flops`.
      seed: at least 0.
      memories: number of memories, from the largest, without a limit, to the smallest.

    Raises:
      ProblemError: the seed is out of range.
    """
    rng, a = generator("chip", seed), graph.arrays
    read = int(a.tensor_bytes[a.use_tensor].sum())
    sizes = np.concatenate([a.weight_bytes[a.weight_bytes > 0], a.tensor_bytes])
    moved, total = max(1, read + int(sizes.sum())), max(1, int(sizes.sum()))
    bandwidth, capacity = _SLOWEST, log_uniform(rng, *_CAPACITY) * total
    setup = log_uniform(rng, *_SETUP) * total / max(1, len(sizes)) / bandwidth
    write = log_uniform(rng, *_WRITE) if rng.random() < 0.5 else 1.0
    peak = max(1.0, float(a.flops.sum())) / (log_uniform(rng, *_COMPUTE) * moved / bandwidth)
    levels = [ChipMemory("memory0", None, bandwidth, write * bandwidth, setup)]
    for number in range(1, memories):
        ratio = log_uniform(rng, *_BANDWIDTH)
        bandwidth, setup = bandwidth * ratio, setup / ratio
        levels.append(ChipMemory(f"memory{number}", max(1, int(capacity)), bandwidth, write * bandwidth, setup))
        capacity *= log_uniform(rng, *_SMALLER)
    return MemoryChip(f"drawn-{seed}", peak, tuple(levels), page=max(1, int(total // 2**24)))


def seed_of(graph: ComputationGraph) -> int:
    """Returns a seed that depends on the graph's name and bytes: a copy with other sizes has another one."""
    a = graph.arrays
    return zlib.crc32(a.tensor_bytes.tobytes(), zlib.crc32(a.weight_bytes.tobytes(), zlib.crc32(graph.name.encode())))


def with_flops(graph: ComputationGraph) -> ComputationGraph:
    """Returns the graph with FLOPs in proportion to run times if it has none, as generated graphs."""
    if any(op.flops for op in graph.ops):
        return graph
    ops = [dataclasses.replace(op, flops=round(op.runtime * _FLOPS_PER_SECOND)) for op in graph.ops]
    return ComputationGraph(graph.name, tuple(ops), graph.inputs, graph.outputs)
