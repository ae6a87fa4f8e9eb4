"""What EGRL's networks see of a step: the paper's table 1, and what it costs in each memory of the chip (ours).

Every feature is shifted and scaled by the same numbers whatever the graph, so that sizes keep their meaning from one
graph to the next. Letters: n steps, M memories.
"""

import numpy as np

from graphrl.costs.maps.problem import MapProblem, live_pages
from graphrl.graphs.layers.features import layer_features

# Of the 19 features of `layer_features`, about their mean and deviation over the layers of common models.
_SHIFT = np.array([1.0, 7, 2, 2, 4, 2, 2, 4, 12, 12, 4, 15, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], np.float32)
_SCALE = np.array([1.0, 6, 2, 2, 3, 2, 2, 3, 3, 3, 1, 3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], np.float32)
_SECOND, _SHARE = 1e-7, 1 / 64  # what times and shares of a memory are counted in


def step_features(problem: MapProblem) -> np.ndarray:
    """Of each step: `[n, 24 + 3 M + 9 (M - 1)]` float32."""
    table = (layer_features(problem.graph, problem.order) - _SHIFT) / _SCALE
    return np.concatenate([table, _times(problem), _room(problem), _life(problem), _worth(problem)], 1).astype(
        np.float32
    )


def _times(problem: MapProblem) -> np.ndarray:
    """Logarithms of seconds, `[n, 2 + 3 M]`: of operations, of external inputs, and in each memory of weights, of
    outputs and of what is read.
    """
    reads = np.zeros_like(problem.output_seconds)
    np.add.at(reads, problem.read_step, problem.read_seconds)
    alone = np.stack([problem.compute, problem.input_seconds], 1)
    seconds = np.concatenate([alone, problem.weight_seconds, problem.output_seconds, reads], 1)
    return np.log1p(seconds / _SECOND) / 4 - 1


def _room(problem: MapProblem) -> np.ndarray:
    """Logarithms of the share that pages are of each memory but the largest, `[n, 5 (M - 1)]`: those of weights, of
    outputs, of all outputs that are live, of all weights so far, and of all weights.
    """
    live = live_pages(problem, np.ones(len(problem.writer), bool))
    weights = problem.weight_pages
    everything = np.full(problem.steps, weights.sum())
    pages = np.stack([weights, _output_pages(problem), live, weights.cumsum(), everything], 1)
    share = pages[:, :, None] / np.maximum(_capacity(problem), 1)
    return (np.log1p(share / _SHARE) / 3 - 1).reshape(problem.steps, -1)


def _life(problem: MapProblem) -> np.ndarray:
    """`[n, 3]`: how far along a step is, what part of all steps its outputs live, and the logarithm of these steps."""
    n, life = problem.steps, _lives(problem)
    return np.stack([np.arange(n) / n, life / n, np.log(life) / 2], 1)


def _worth(problem: MapProblem) -> np.ndarray:
    """What each memory but the largest is worth to weights and to outputs, `[n, 4 (M - 1)]`: the logarithm of the
    seconds that it saves, and that of the share of its room, over time, that tensors take which it saves more for their
    bytes and the steps that they live.

    As if all else were in memory 0, and no more than what a step there takes beyond its operations.
    """
    n = problem.steps
    reads = np.zeros(n)
    np.add.at(reads, problem.read_step, problem.read_seconds[:, 0])
    slowest = problem.input_seconds + problem.weight_seconds[:, 0] + problem.output_seconds[:, 0] + reads
    slack = np.maximum(slowest - problem.compute, 0)[:, None]
    weights, written, read = (
        each[:, :1] - each[:, 1:] for each in (problem.weight_seconds, problem.output_seconds, problem.read_seconds)
    )
    outputs = np.minimum(written, slack)
    np.add.at(outputs, problem.read_source, np.minimum(read, slack[problem.read_step]))
    saved = np.concatenate([np.minimum(weights, slack), outputs])
    room = np.concatenate([problem.weight_pages * n, _output_pages(problem) * _lives(problem)])
    order = np.argsort(-saved / np.maximum(room, 1)[:, None], axis=0, kind="stable")
    taken = np.empty_like(saved)
    np.put_along_axis(taken, order, room[order].cumsum(0), 0)
    share = taken / (np.maximum(_capacity(problem), 1) * n)
    worth = np.concatenate([np.log1p(saved / _SECOND) / 4 - 1, np.log(share + _SHARE) / 2], 1)
    return np.concatenate([worth[:n], worth[n:]], 1)


def _lives(problem: MapProblem) -> np.ndarray:
    """How many steps the outputs of each step live: `[n]` int64, at least 1."""
    last = np.arange(problem.steps)
    np.maximum.at(last, problem.writer, problem.last)
    return last - np.arange(problem.steps) + 1


def _output_pages(problem: MapProblem) -> np.ndarray:
    """Of each step: `[n]` int64."""
    pages = np.zeros(problem.steps, np.int64)
    np.add.at(pages, problem.writer, problem.tensor_pages)
    return pages


def _capacity(problem: MapProblem) -> np.ndarray:
    """Pages of each memory but the largest: `[M - 1]` float64."""
    sizes = [memory.capacity for memory in problem.chip.memories[1:]]
    return np.array([np.inf if size is None else size / problem.chip.page for size in sizes])
