"""What a network sees of the options that an op has: devices, and levels of a priority. NumPy, on the host.

The number of options is a shape of these tables, so that one network serves any number.
"""

from typing import get_args

import numpy as np

from graphrl.costs.problem import Problem, Transfer
from graphrl.graphs.features import buffer_bytes
from graphrl.graphs.graph import ComputationGraph

WAVES = 16
LEVEL_FEATURES = WAVES + 1
DEVICE_FEATURES = LEVEL_FEATURES + len(get_args(Transfer)) + 4


def level_features(count: int) -> np.ndarray:
    """Of levels 0 to count - 1: `[count, LEVEL_FEATURES]` float32.

    The place in the middle of a level, from 0 to 1, as cosines of 1, 2, ... half waves: up to 17 levels can be told
    apart by a linear map, and near levels of many are alike; then one over the count.
    """
    place = (np.arange(count) + 0.5) / count
    waves = np.cos(np.pi * place[:, None] * np.arange(1, WAVES + 1))
    return np.column_stack([waves, np.full(count, 1 / count)]).astype(np.float32)


def device_features(graph: ComputationGraph, problem: Problem) -> np.ndarray:
    """Of the problem's devices: `[d, DEVICE_FEATURES]` float32.

    Devices are alike but for their numbers, without which all would be given the same ops: those are seen as levels
    are. Then what holds for all: the transfer model, a transfer's latency and the mean tensor's time on the way, both
    over the mean op's run time, what the memory limit is of all bytes that ops write and hold as weights (0 for none),
    and whether weights are resident.
    """
    a = graph.arrays
    sizes = buffer_bytes(a)
    mean_seconds = max(a.runtime.mean(), 1e-30) if a.num_ops else 1.0
    on_way = sizes.mean() / problem.bandwidth if len(sizes) else 0.0
    held = sizes.sum() + a.weight_bytes.sum(dtype=np.float64)
    limit = 0.0 if problem.memory_limit is None else min(problem.memory_limit / max(held, 1.0), 10.0)
    shared = [float(problem.transfer == model) for model in get_args(Transfer)]
    shared += [np.log1p(problem.latency / mean_seconds), np.log1p(on_way / mean_seconds)]
    shared += [limit, float(problem.resident_weights)]
    return np.column_stack([level_features(problem.devices), np.tile(shared, (problem.devices, 1))]).astype(np.float32)
